"""The table of counts in docs/reliability.md."""

from datetime import UTC, datetime

from bench.machine import ROOT, describe_machine

from campaign.result import Tally

PAGE = ROOT / "docs" / "reliability.md"
BEGIN, END = "<!-- counts: written by `python -m campaign --write` -->", "<!-- end of counts -->"
HEAD = (
    "| part | run | commit | seeds | done | lost | doubled | torn | false alarms | silent | growth | raw exceptions |"
)
FOUND = ("lost", "doubled", "torn", "alarms", "silent", "grown", "raw")


def format_row(name: str, first_seed: int, tally: Tally) -> str:
    """Return the line of a part."""
    rounds = tally.counts["rounds"]
    facts = [f"{count:,} {what.replace('_', ' ')}" for what, count in tally.counts.items()] + tally.notes
    commit = dict(describe_machine())["commit"].split()[0]
    cells = (
        name,
        f"{datetime.now(UTC):%Y-%m-%d}, {tally.seconds / 60:.0f} min",
        commit,
        f"{first_seed} to {first_seed + max(rounds, 1) - 1}",
        ", ".join(facts),
        *(str(tally.found[what]) for what in FOUND),
    )
    return f"| {' | '.join(cells)} |"


def write_row(name: str, first_seed: int, tally: Tally) -> None:
    """Replace the line of a part in the page."""
    page = PAGE.read_text("utf-8")
    before, _, rest = page.partition(BEGIN)
    table, _, after = rest.partition(END)
    lines = {line.split("|")[1].strip(): line for line in table.splitlines() if line.startswith("| ") and line != HEAD}
    lines.pop("---", None)
    lines[name] = format_row(name, first_seed, tally)
    rule = "| --- " * HEAD.count(" |")
    PAGE.write_text(f"{before}{BEGIN}\n\n{HEAD}\n{rule}|\n" + "\n".join(lines.values()) + f"\n\n{END}{after}", "utf-8")
