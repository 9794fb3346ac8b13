"""`athena projects`: what projects there are, and giving one another name."""

import click

from athena.app import connect
from athena.cli import output
from athena.core.clock import to_local_time
from athena.core.threads import run_sync


@click.command()
@click.option("--rename", nargs=2, metavar="NAME NEW", help="Give a project another name.")
@click.option("--json", "json_output", is_flag=True, help="Print JSON.")
def projects(rename: tuple[str, str] | None, json_output: bool) -> None:
    """List the projects of the store.

    Example: athena projects --rename /home/ann/shop shop
    """
    connection = connect.AppConnection(connect.shared_app, None, "cli")
    if rename:
        found = [run_sync(connection.call("rename_project", {"name": rename[0], "to": rename[1]})).data]
    else:
        found = run_sync(connection.call("list_projects", {})).data
    if json_output:
        return output.print_json(found)
    for project in found:
        day = f"{to_local_time(project['updated']):%Y-%m-%d}" if project["updated"] else "-"
        click.echo(
            f"{output.format_count(project['memories']):>16}  {day:<10}  {output.escape_control_chars(project['name'])}"
        )
    return None
