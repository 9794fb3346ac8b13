"""`athena serve`: serve the operations over HTTP; `athena token`: print the token that callers need."""

import os
import shutil
import sys

import click

from athena.app import settings as configuration
from athena.core.home.paths import current_project, ensure_token


@click.command()
@click.option("--host", help="Where to listen; 127.0.0.1 by default, which only this machine reaches.")
@click.option("--port", type=click.IntRange(0, 65_535), help="On which port; 3000 by default, 0 takes a free one.")
@click.option("--no-auth", is_flag=True, help="Ask nobody for the token; on this machine only.")
@click.option("--allow-host", multiple=True, metavar="NAME", help="Another name by which this server is called.")
@click.option("--workers", type=click.IntRange(1, 16), default=1, help="How many processes search; 1 by default.")
def serve(host: str | None, port: int | None, no_auth: bool, allow_host: tuple[str, ...], workers: int) -> None:
    """Offer all operations over HTTP, until Ctrl-C.

    Example: athena serve --port 3000
    """
    from athena.server.serve import open_server  # imports Starlette and uvicorn, which `athena token` does not need

    settings = configuration.load_settings()
    auth = settings.auth and not no_auth
    port = settings.port if port is None else port
    project, host = current_project(), host or settings.host
    server = open_server(settings, settings.home, project, host, port, auth=auth, hosts=allow_host, workers=workers)
    link = f"{server.page_url}{server.site.create_link_path(project)}" if sys.stdout.isatty() else ""
    click.echo(_format_greeting(server.url, server.location, link))
    if not auth:
        click.echo("WARNING: no token is asked for: every program on this machine can read and change all", err=True)
    if workers > 1 and (settings.privacy != "off" or settings.embedding_url):
        cause = "privacy is on" if settings.privacy != "off" else "embedding.url is set"
        click.echo(f"--workers has no effect: where {cause}, one process answers all calls", err=True)
    server.run()


def _format_greeting(url: str, location: str, link: str) -> str:
    command = "athena" if shutil.which("athena") else os.path.relpath(sys.argv[0])
    page = f"Open the page, once and within 10 minutes: {link}" if link else f"Open the page: {command} ui"
    return f"""Athena answers at {url}; its data is in {location}
{page}
Try in another terminal:
  {command} remember "Deploys run on Fridays at 15:00" --tags deploy
  {command} recall "when do we ship?"
  curl -H "Authorization: Bearer $({command} token)" {url}/tools/discover
Ctrl-C stops the server."""


@click.command()
def token() -> None:
    """Print the token that the server asks for.

    Example: curl -H "Authorization: Bearer $(athena token)" localhost:3000/tools/discover
    """
    click.echo(ensure_token())
