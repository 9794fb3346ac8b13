"""`athena ui`: open the page in a browser."""

import json
import socket
import subprocess
import sys
from http.client import HTTPConnection, HTTPException
from urllib.parse import urlencode

import click

from athena.cli import output
from athena.cli.invoke import json_option, project_option
from athena.cli.progress import show_progress
from athena.core.home import daemon as daemon_process
from athena.core.home.paths import current_project, home_folder
from athena.errors import Unavailable

LINK_TIMEOUT_S = 10.0
BROWSER_START_S = 5.0


class SocketConnection(HTTPConnection):
    """HTTP over the Unix socket of a server."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=LINK_TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


@click.command()
@project_option
@click.option("--read-only", is_flag=True, help="Let the page change nothing, e.g. to show it to somebody.")
@click.option("--no-browser", is_flag=True, help="Only print the link.")
@json_option
def ui(project: str | None, read_only: bool, no_browser: bool, json_output: bool) -> None:
    """Open the page in a browser. See, search, correct and approve what agents know and do.

    The link works once, within ten minutes. Without a server, the daemon is started.

    Example: athena ui
    """
    with show_progress("Starting the daemon"):
        facts = daemon_process.start_daemon(home_folder())
    path = request_link(facts["socket"], project or current_project(), read_only)
    link = f"{facts.get('page_url', facts['url'])}{path}"
    if json_output:
        return output.print_data({"url": link})
    click.echo(link)
    if not no_browser and not open_browser(link):
        click.echo("open this link in a browser; it works once, within 10 minutes", err=True)
    return None


def open_browser(link: str) -> bool:
    """Open a link in a browser and return whether there is one; errors of those that are missing are not shown."""
    command = "open" if sys.platform == "darwin" else "xdg-open"
    try:
        process = subprocess.Popen([command, link], stderr=subprocess.DEVNULL)
        return process.wait(timeout=BROWSER_START_S) == 0
    except subprocess.TimeoutExpired:  # the browser itself runs
        return True
    except OSError:
        return False


def request_link(socket_path: str, project: str, read_only: bool) -> str:
    """Ask the server for a link; return its path."""
    connection = SocketConnection(socket_path)
    fields = {"project": project, "read_only": "on" if read_only else ""}
    try:
        connection.request("POST", "/open/link", urlencode(fields))
        answer = json.loads(connection.getresponse().read())
    except (OSError, HTTPException, ValueError) as error:
        raise Unavailable(f"the server gives no link: {error}", hint="athena daemon status") from None
    finally:
        connection.close()
    if "path" not in answer:
        raise Unavailable("the server has no page: it is an older one", hint="stop it and start it again")
    return str(answer["path"])
