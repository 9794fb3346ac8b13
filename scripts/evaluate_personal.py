"""Measure the search for personal data on labelled texts: precision and recall of each kind, and the speed.

Each line of a file is `{"text": ..., "values": [[kind, exact substring], ...]}`. A value counts as found if one match
of its kind covers exactly it; every other match is wrong.

    .venv/bin/python scripts/evaluate_personal.py [--misses] [FILE ...]
"""

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from athena.core.redaction import find_secrets
from athena.core.redaction.personal import find_personal

FOLDER = Path(__file__).parent.parent / "tests" / "data" / "personal"
SECRET = "SECRET"
SPEED_BYTES = 2_000_000


@dataclass
class Score:
    values: int = 0
    found: int = 0
    wrong: int = 0
    misses: list[str] = field(default_factory=list)

    @property
    def recall(self) -> float:
        return self.found / self.values if self.values else 1.0

    @property
    def precision(self) -> float:
        return self.found / (self.found + self.wrong) if self.found + self.wrong else 1.0


def read_labels(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as lines:
        yield from (json.loads(line) for line in lines if line.strip())


def measure_labels(labels: Iterable[dict[str, Any]]) -> dict[str, Score]:
    """Return the score of each kind; secrets count where the texts label them."""
    labels = list(labels)
    has_secrets = any(kind == SECRET for label in labels for kind, _ in label["values"])
    scores = defaultdict[str, Score](Score)
    for label in labels:
        text = label["text"]
        wanted = {(kind, text.index(value), text.index(value) + len(value)) for kind, value in label["values"]}
        matches = {(match.kind, match.start, match.end) for match in find_personal(text)}
        if has_secrets:
            matches |= {(SECRET, match.start, match.end) for match in find_secrets(text)}
        for kind, start, end in wanted:
            scores[kind].values += 1
            scores[kind].found += (kind, start, end) in matches
            if (kind, start, end) not in matches:
                scores[kind].misses.append(f"MISSED {kind} {text[start:end]!r} in {text!r:.160}")
        for kind, start, end in matches - wanted:
            scores[kind].wrong += 1
            scores[kind].misses.append(f"WRONG {kind} {text[start:end]!r} in {text!r:.160}")
    return dict(scores)


def measure_speed(texts: list[str]) -> float:
    """Return how many MB of text are searched in a second."""
    joined: list[str] = []
    while sum(map(len, joined)) < SPEED_BYTES:
        joined.append("\n".join(texts))
    size = sum(len(text.encode()) for text in joined)
    began = time.process_time()
    for text in joined:
        find_personal(text)
    return size / (time.process_time() - began) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--misses", action="store_true")
    options = parser.parse_args()
    for path in options.files or sorted(FOLDER.glob("*.jsonl")):
        labels = list(read_labels(path))
        scores = measure_labels(labels)
        print(f"{path.name}: {len(labels)} texts")
        for kind, score in sorted(scores.items()):
            print(f"  {kind:12} values {score.values:4}  recall {score.recall:.3f}  precision {score.precision:.3f}")
            if options.misses:
                print(*(f"    {line}" for line in score.misses), sep="\n")
        plain = [label["text"] for label in labels if not label["values"]]
        rates = measure_speed([label["text"] for label in labels]), measure_speed(plain)
        print(f"  {rates[0]:.1f} MB/s on all texts, {rates[1]:.1f} on those without personal data")


if __name__ == "__main__":
    main()
