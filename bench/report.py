"""The results as a page: first what was promised and what was measured, then how."""

from collections.abc import Iterable, Mapping

from bench.result import Result, Table

MET = {True: "yes", False: "**no**", None: "-"}
FOREWORD = """\
# Benchmarks

Written by `make bench` (`python -m bench`), never by hand. `python -m bench --only NAME` prints a single one.
Times on a machine that does other things too are noisy, so whatever is compared is measured in turn in the same
run, and each section says how much of the machine others used meanwhile. A bar that is missed is shown as missed.

The memories are notes of 8 to 40 words: one to three sentences each from the docstrings of Python's standard library,
put together at random but always alike (`bench/corpus.py`). In a store of 100,000 a sentence occurs in many notes.
"""


def page(results: Mapping[str, Result], loads: Mapping[str, str], facts: Iterable[tuple[str, str]]) -> str:
    """Write everything as Markdown."""
    promised = [
        (row.what, row.bar, row.measured, MET[row.met], f"[{name}](#{name})")
        for name, result in results.items()
        for row in result.rows
    ]
    pieces = [
        FOREWORD,
        table(Table(("what", "bar", "measured", "met?", "details"), promised)),
        "## Machine\n",
        table(Table(("", ""), list(facts))),
    ]
    for name, result in results.items():
        pieces.append(
            f"## {name}\n\n{result.title}. {result.definition}\n\n"
            f"Run by `python -m bench --only {name}`; {loads[name]}.\n"
        )
        pieces += [f"![{_alt(image)}](images/{image})\n" for image in result.images]
        pieces += [table(piece) if isinstance(piece, Table) else piece + "\n" for piece in result.details]
    return "\n".join(pieces)


def table(content: Table) -> str:
    """Write a table as Markdown."""
    lines = [content.head, tuple("---" for _ in content.head), *content.lines]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def _alt(image: str) -> str:
    return image.removesuffix(".svg").replace("-", " ")
