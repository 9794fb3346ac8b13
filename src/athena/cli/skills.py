"""`athena skills`: save, show, run and export skills."""

import os
import re

import click

from athena.cli import output
from athena.cli.command_group import CommandGroup
from athena.cli.invoke import invoke_operation, json_option, parse_json_object
from athena.cli.programs import print_result, project_option, read_source
from athena.discovery.export import write_file_beneath

EXPORT_HEADER_PATTERN = re.compile(r"(?P<about>(?:# (?!Example:).*\n)+)(?:# Example:\n(?P<example>(?:#   .*\n)+))?\n")


@click.group(cls=CommandGroup, invoke_without_command=True)
@click.pass_context
def skills(context: click.Context) -> None:
    """Save, look at and run skills. Example: athena skills export ./skills"""
    if context.invoked_subcommand is None:
        context.invoke(list_skills)


@skills.command("list")
@project_option
@json_option
def list_skills(project: str | None = None, json_output: bool = False) -> None:
    """List skills. Example: athena skills list"""
    listed = invoke_operation("find_skills", project, k=1_000)
    if json_output:
        return output.print_data(listed)
    for skill in listed:
        summary = skill["description"].splitlines()[0]
        line = f"{skill['name']}({skill['signature']}) -> {skill['returns']}  # {summary}"
        click.echo(output.escape_control_chars(line))
    return None


@skills.command("show")
@click.argument("name")
@project_option
@json_option
def show_skill(name: str, project: str | None, json_output: bool) -> None:
    """Show a skill's code. Example: athena skills show weekly_summary"""
    skill = invoke_operation("get_skill", project, name=name)
    if json_output:
        return output.print_data(skill)
    uses = output.format_count(skill["uses"], "use", "uses")
    return click.echo(f"# version {skill['version']}, {uses}\n{skill['code']}", nl=False)


@skills.command("save")
@click.argument("file")
@click.option("--name", help="The function's name; else the file's.")
@click.option("--example", help="Lines that call it, run for real; else those of an exported file.")
@project_option
@json_option
def save_skill(file: str, name: str | None, example: str | None, project: str | None, json_output: bool) -> None:
    """Save a file's function as a skill. Example: athena skills save count.py --example 'count("x")'"""
    code = read_source(file)
    description = None
    if header := EXPORT_HEADER_PATTERN.match(code):
        code = code[header.end() :]
        description = re.sub(r"^# ?", "", header["about"], flags=re.MULTILINE).strip() or None
        example = example or re.sub(r"^#   ", "", header["example"] or "", flags=re.MULTILINE).strip() or None
    name = name or os.path.splitext(os.path.basename(file))[0]
    skill = invoke_operation("save_skill", project, name=name, code=code, description=description, example=example)
    if json_output:
        return output.print_data(skill)
    return click.echo(f"{skill['name']}({skill['signature']}): version {skill['version']}")


@skills.command("run")
@click.argument("name")
@click.option("--json", "arguments", default="{}", help="The arguments, as a JSON object.")
@project_option
def run_skill(name: str, arguments: str, project: str | None) -> None:
    """Run a skill. Example: athena skills run weekly_summary --json '{"days": 7}'"""
    if code := print_result(invoke_operation("run_skill", project, name=name, arguments=parse_json_object(arguments))):
        raise click.exceptions.Exit(code)


@skills.command("export")
@click.argument("folder", metavar="DIR")
@project_option
@json_option
def export_skills(folder: str, project: str | None, json_output: bool) -> None:
    """Write each skill as a file to read and review. Example: athena skills export ./skills"""
    files = invoke_operation("export_skills", project)
    os.makedirs(folder, exist_ok=True)
    for name, text in files.items():
        write_file_beneath(folder, os.path.basename(name), text)
    if json_output:
        return output.print_data({"written": sorted(files)})
    return click.echo(
        f"{output.format_count(len(files), 'skill', 'skills')} written to {output.escape_control_chars(folder)}"
    )
