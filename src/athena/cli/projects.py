"""`athena projects`: what projects there are, and giving one another name."""

import click

from athena.app import connect
from athena.cli import output
from athena.core.clock import local
from athena.core.threads import drive


@click.command()
@click.option("--rename", nargs=2, metavar="NAME NEW", help="Give a project another name.")
@click.option("--json", "json_output", is_flag=True, help="Print JSON.")
def projects(rename: tuple[str, str] | None, json_output: bool) -> None:
    """List the projects of the store.

    Example: athena projects --rename /home/ann/shop shop
    """
    connection = connect.Connection(connect.shared_app, None, "cli")
    if rename:
        found = [drive(connection.call("rename_project", {"name": rename[0], "to": rename[1]})).data]
    else:
        found = drive(connection.call("list_projects", {})).data
    if json_output:
        return output.as_json(found)
    for project in found:
        day = f"{local(project['updated']):%Y-%m-%d}" if project["updated"] else "-"
        click.echo(f"{output.counted(project['memories']):>16}  {day:<10}  {output.safe(project['name'])}")
    return None
