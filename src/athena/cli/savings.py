"""`athena savings`: what was spent, and what direct tool calls would have cost."""

import click

from athena.app import connect
from athena.cli import output
from athena.core.threads import run_sync

WORKING_DAYS_PER_YEAR = 250


@click.command()
@click.option("--users", type=click.IntRange(1), help="Project it to so many people.")
@click.option("--sessions-per-day", type=click.IntRange(1), default=1, show_default=True, help="Of each of them.")
@click.option("--price", type=click.FloatRange(0), default=3.0, show_default=True, help="Of a million tokens.")
@click.option("--json", "json_output", is_flag=True, help="Print JSON.")
def savings(users: int | None, sessions_per_day: int, price: float, json_output: bool) -> None:
    """Report tokens spent and saved by models; with --users, what that is in a year.

    Example: athena savings --users 20 --sessions-per-day 8 --price 3
    """
    found = run_sync(connect.AppConnection(connect.shared_app, None, "cli").call("token_savings", {})).data
    if users:
        kept = (found["saved"] - found["definitions"] * found["days"]) / max(1, found["days"])  # results, on one day
        tokens = round((kept + found["definitions"] * sessions_per_day) * users * WORKING_DAYS_PER_YEAR)
        found["a_year"] = {"tokens": tokens, "price": round(tokens * price / 1_000_000, 2)}
    if json_output:
        return output.print_json(found)
    click.echo(f"{found['calls']:,} calls on {output.format_count(found['days'], 'day', 'days')} (o200k tokens, about)")
    click.echo(f"read by a model       {found['spent']:>12,}")
    click.echo(f"with direct tools     {found['direct']:>12,}  ({found['definitions']:,} of definitions a day)")
    click.echo(f"saved                 {found['saved']:>12,}  ({found['percent']} %)")
    if found["operations"]:
        click.echo(f"  {'by operation':<26} {'calls':>7} {'read':>12} {'as tool results':>16}")
    for one in found["operations"][:10]:
        moved = f"{one['shown']:>12,} {one['given'] + one['returned']:>16,}"
        click.echo(f"  {one['operation']:<18} {one['surface']:<7} {one['calls']:>7,} {moved}")
    for one in found["hooks"]:
        took = f"{one['median_ms']} ms in the middle, {one['slowest_ms']} at most"
        click.echo(f"  {one['event']:<18} {one['link']:<7} {one['calls']:>7,} hooks  {took}")
    if users:
        year = found["a_year"]
        click.echo(f"a year, {users:,} people   {year['tokens']:>12,}  ({year['price']:,.2f} at {price} a million)")
    click.echo("Results that a program got count as not read; what it printed of them is not known here.")
    return None
