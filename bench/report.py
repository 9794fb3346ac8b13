"""Write the results as Markdown: first promises and measurements, then the methods."""

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from bench.result import Result, Table

MET = {True: "yes", False: "**no**", None: "-"}
FOREWORD = """\
# Benchmarks

Written by `make bench` (`python -m bench`), never by hand. `python -m bench --only NAME` prints a single one, and
with `--write` puts it into this page in the place of the old one; each says when it was measured.
Times on a machine that does other things too are noisy, so whatever is compared is measured in turn in the same
run, and each section says how much of the machine others used meanwhile. A bar that is missed is shown as missed.

The memories are notes of 8 to 40 words: one to three sentences each from the docstrings of Python's standard library,
put together at random but always alike (`bench/corpus.py`). In a store of 100,000 a sentence occurs in many notes.
"""


def render_page(results: Mapping[str, Result], loads: Mapping[str, str], facts: Iterable[tuple[str, str]]) -> str:
    """Return the whole page as Markdown."""
    facts = list(facts)
    when = dict(facts).get("date", "").partition(" ")[0]
    promised = [
        (row.what, row.bar, row.measured, MET[row.met], f"[{name}](#{name})")
        for name, result in results.items()
        for row in result.rows
    ]
    pieces = [
        FOREWORD,
        render_table(Table(("what", "bar", "measured", "met?", "details"), promised)),
        "## Machine\n",
        render_table(Table(("", ""), facts)),
    ]
    for name, result in results.items():
        pieces.append(
            f"## {name}\n\n{result.title}. {result.definition}\n\n"
            f"Run by `python -m bench --only {name}` on {when}; {loads[name]}.\n"
        )
        pieces += [f"![{_alt(image)}](images/{image})\n" for image in result.images]
        pieces += [render_table(piece) if isinstance(piece, Table) else piece + "\n" for piece in result.details]
    return "\n".join(pieces)


def merge_pages(old: str, new: str, order: Iterable[str]) -> str:
    """Replace the sections of a page that were measured again."""
    before, now = _parts(old), _parts(new)
    names = [name for name in order if name in before.sections or name in now.sections]
    rows = [row for name in names for row in (now if name in now.sections else before).rows if f"(#{name})" in row]
    head = [line for line in now.head.splitlines() if line.startswith("|")][:2]
    sections = [now.sections.get(name) or before.sections[name] for name in ("Machine", *names)]
    return "".join([FOREWORD, "\n", *(f"{line}\n" for line in (*head, *rows)), "\n", *sections]).rstrip("\n") + "\n"


class _Parts(NamedTuple):
    head: str
    rows: list[str]
    sections: dict[str, str]


def _parts(written: str) -> _Parts:
    head, *rest = re.split(r"^(?=## )", written, flags=re.MULTILINE)
    sections = {one.partition("\n")[0].removeprefix("## ").strip(): one.rstrip("\n") + "\n\n" for one in rest}
    return _Parts(head, [line for line in head.splitlines() if "(#" in line], sections)


def render_table(content: Table) -> str:
    """Return a table as Markdown."""
    lines = [content.head, tuple("---" for _ in content.head), *content.lines]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def _alt(image: str) -> str:
    return image.removesuffix(".svg").replace("-", " ")
