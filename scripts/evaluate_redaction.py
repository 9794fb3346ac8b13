"""Measure redaction on labelled texts: recall, precision and false positives, for each file and each kind.

Each line of a file is `{"text": ..., "secrets": [exact substrings], "kind": ...}`. A secret counts as removed if
nothing of it is left: neither it as a whole, nor, where it has several lines, one of its lines of at least 6
characters. A removal counts as right if it covers a part of a secret; every other placeholder is a false positive.

    .venv/bin/python scripts/evaluate_redaction.py [--misses] [FILE ...]
"""

import argparse
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from athena.core.redaction import find_secrets, redact

FOLDER = Path(__file__).parent.parent / "tests" / "data" / "redaction"
MIN_PART_CHARS = 6


@dataclass
class Score:
    texts: int = 0
    secrets: int = 0
    removed: int = 0
    right: int = 0
    wrong: int = 0
    misses: list[str] = field(default_factory=list)

    @property
    def recall(self) -> float:
        return self.removed / self.secrets if self.secrets else 1.0

    @property
    def precision(self) -> float:
        return self.right / (self.right + self.wrong) if self.right + self.wrong else 1.0


def read_labels(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as lines:
        yield from (json.loads(line) for line in lines if line.strip())


def measure_text(score: Score, text: str, secrets: list[str]) -> None:
    """Add one text to a score."""
    cleaned = redact(text).text
    score.texts += 1
    spans = [match.span() for secret in secrets for match in re.finditer(re.escape(secret), text)]
    for secret in secrets:
        parts = [part for part in re.split(r"\s*\n\s*", secret) if len(part) >= MIN_PART_CHARS] or [secret]
        score.secrets += 1
        # what also stands outside a secret, such as a user name that is the password too, may stay there
        if all(cleaned.count(part) <= _count_outside(text, part, spans) for part in parts):
            score.removed += 1
        else:
            score.misses.append(f"MISSED {secret!r:.60} in {text!r:.160}")
    for match in find_secrets(text):
        if any(match.start < end and match.end > start for start, end in spans):
            score.right += 1
        else:
            score.wrong += 1
            score.misses.append(f"WRONG {text[match.start : match.end]!r:.60} ({match.kind}) in {text!r:.160}")


def _count_outside(text: str, part: str, spans: list[tuple[int, int]]) -> int:
    uses = [match.span() for match in re.finditer(re.escape(part), text)]
    return sum(not any(start < b and end > a for a, b in spans) for start, end in uses)


def measure_labels(labels: Iterable[dict[str, Any]]) -> tuple[Score, dict[str, Score]]:
    """Return the score of all texts, and those of each kind."""
    total, kinds = Score(), defaultdict[str, Score](Score)
    for label in labels:
        for score in (total, kinds[label["kind"]]):
            measure_text(score, label["text"], label["secrets"])
    return total, dict(kinds)


def format_score(name: str, score: Score) -> str:
    harmless = f"{score.wrong:4d} wrong"
    return (
        f"{name:28} {score.texts:5d} texts  {score.secrets:5d} secrets  recall {score.recall:7.2%}  "
        f"precision {score.precision:7.2%}  {harmless}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure redaction on labelled texts.")
    parser.add_argument("files", nargs="*", type=Path, help="by default those in tests/data/redaction")
    parser.add_argument("--misses", action="store_true", help="print what was missed and what was removed wrongly")
    options = parser.parse_args()
    for path in options.files or sorted(FOLDER.glob("*.jsonl")):
        total, kinds = measure_labels(read_labels(path))
        print(format_score(path.name, total))
        for kind in sorted(kinds):
            print("  " + format_score(kind, kinds[kind]))
        if options.misses:
            print("\n".join(total.misses))


if __name__ == "__main__":
    main()
