"""`athena skills`: what programs have been saved."""

import os

import click

from athena.cli import shown
from athena.cli.programs import as_json, call, in_project


@click.group(invoke_without_command=True)
@click.pass_context
def skills(context: click.Context) -> None:
    """Look at saved skills. Example: athena skills export ./skills"""
    if context.invoked_subcommand is None:
        context.invoke(list_skills)


@skills.command("list")
@in_project
@as_json
def list_skills(project: str | None = None, json_output: bool = False) -> None:
    """List skills. Example: athena skills list"""
    found = call("find_skills", project, k=1_000)
    if json_output:
        return shown.as_json(found)
    for one in found:
        about = one["description"].splitlines()[0]
        click.echo(shown.safe(f"{one['name']}({one['signature']}) -> {one['returns']}  # {about}"))
    return None


@skills.command("show")
@click.argument("name")
@in_project
@as_json
def show_skill(name: str, project: str | None, json_output: bool) -> None:
    """Show a skill's code. Example: athena skills show weekly_summary"""
    found = call("get_skill", project, name=name)
    if json_output:
        return shown.as_json(found)
    uses = shown.counted(found["uses"], "use", "uses")
    return click.echo(f"# version {found['version']}, {uses}\n{found['code']}", nl=False)


@skills.command("export")
@click.argument("folder", metavar="DIR")
@in_project
@as_json
def export_skills(folder: str, project: str | None, json_output: bool) -> None:
    """Write each skill as a file to read and review. Example: athena skills export ./skills"""
    files = call("export_skills", project)
    os.makedirs(folder, exist_ok=True)
    for name, text in files.items():
        with open(os.path.join(folder, os.path.basename(name)), "w", encoding="utf-8") as file:
            file.write(text)
    if json_output:
        return shown.as_json({"written": sorted(files)})
    return click.echo(f"{shown.counted(len(files), 'skill', 'skills')} written to {shown.safe(folder)}")
