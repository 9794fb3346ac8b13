"""Short English notes, taken from the docstrings of the standard library.

The same Python version gives the same notes in the same order.
"""

import ast
import random
import re
import sysconfig
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path

MIN_NOTE_WORDS, MAX_NOTE_WORDS = 8, 40  # words of a note
SEED = 20_261_115
TESTS = {"site-packages", "dist-packages", "test", "tests", "idle_test"}  # not installed on every machine
BETWEEN = re.compile(r"(?<=[.!?])\s+(?=[A-Z])")
OPENINGS = ("what is", "how do we", "where is", "why does", "when is", "which of", "what about", "")


def load_notes(count: int) -> list[str]:
    """Return distinct notes of 8 to 40 words."""
    return [note for note, _ in zip(_generate_notes(), range(count), strict=False)]


def make_queries(count: int, among: int) -> list[str]:
    """Return queries, each 3 to 8 consecutive words of one of the first notes."""
    chosen = random.Random(SEED + 1)
    known = [note.split() for note in load_notes(among)]
    asked = []
    for _ in range(count):
        words = chosen.choice(known)
        length = min(chosen.randint(3, 8), len(words))
        first = chosen.randrange(len(words) - length + 1)
        part = " ".join(words[first : first + length]).lower().strip(".,;:!?()")
        asked.append(f"{chosen.choice(OPENINGS)} {part}?".strip())
    return asked


def _generate_notes() -> Iterator[str]:
    chosen = random.Random(SEED)
    sentences = _collect_sentences()
    seen: set[str] = set()
    while True:
        note = " ".join(chosen.sample(sentences, chosen.choice((1, 2, 2, 3))))
        if MIN_NOTE_WORDS <= note.count(" ") + 1 <= MAX_NOTE_WORDS and note not in seen:
            seen.add(note)
            yield note


@cache
def _collect_sentences() -> tuple[str, ...]:
    folder = Path(sysconfig.get_path("stdlib"))
    files = (file for file in sorted(folder.rglob("*.py")) if not TESTS & set(file.relative_to(folder).parts))
    found: dict[str, None] = {}
    for file in files:
        for text in _read_docstrings(file):
            for paragraph in re.split(r"\n\s*\n", text):
                found |= dict.fromkeys(s for s in BETWEEN.split(" ".join(paragraph.split())) if _is_prose(s))
    return tuple(found)


def _read_docstrings(file: Path) -> Iterator[str]:
    try:
        with warnings.catch_warnings(action="ignore"):  # invalid escapes in old code
            tree = ast.parse(file.read_bytes())
    except SyntaxError:  # templates, and files for another Python version
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and (
            text := ast.get_docstring(node)
        ):
            yield text


def _is_prose(sentence: str) -> bool:
    letters = sum(c.isalpha() or c == " " for c in sentence)
    return 4 <= sentence.count(" ") < 20 and sentence.endswith(".") and letters > 0.9 * len(sentence)
