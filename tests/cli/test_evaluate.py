"""`athena eval` on a dataset of the user."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from athena.cli import evaluate
from athena.cli.commands import athena
from athena.errors import InvalidInput

LINES: list[dict[str, object]] = [
    {"id": "t1", "text": "We moved the standup to ten.", "session": "monday", "speaker": "Ann", "date": "2026-03-02"},
    {"id": "t2", "text": "Fine, I will tell the others.", "session": "monday", "speaker": "Bo", "role": "user"},
    {"id": 3, "text": "The printer needs toner."},
    {"question": "When is the standup?", "gold": ["t1"], "category": "facts"},
    {"question": "What does the printer need?", "gold": [3]},
]


def write_dataset(tmp_path: Path, lines: list[object]) -> Path:
    file = tmp_path / "set.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    return file


def test_own_dataset_leaves_store_untouched(tmp_path: Path) -> None:
    file = write_dataset(tmp_path, list(LINES))
    done = CliRunner().invoke(athena, ["eval", "--set", str(file), "--ablate", "--json"], standalone_mode=False)
    assert done.exception is None
    figures = json.loads(done.stdout)["set"]
    assert figures["all terms"]["means"]["R@5"] == 1
    assert figures["all terms"]["count"] == 2
    assert {"without tokens", "without meaning", "words alone"} <= figures.keys()
    assert not (tmp_path / "home").exists()
    table = CliRunner().invoke(athena, ["eval", "--set", str(file)], standalone_mode=False).stdout
    assert "R@10 lies within" in table
    assert "facts (1)" in table


@pytest.mark.parametrize("line", [{"text": "no id"}, {"question": "no gold"}, ["no object"]])
def test_invalid_dataset_line_is_named(tmp_path: Path, line: object) -> None:
    with pytest.raises(InvalidInput, match="line 2"):
        evaluate.load_jsonl(write_dataset(tmp_path, [LINES[0], line]))


def test_stores_are_separate(tmp_path: Path) -> None:
    lines: list[object] = [{**line, "store": name} for name in ("a", "b") for line in LINES]
    assert [len(one.items) for one in evaluate.load_jsonl(write_dataset(tmp_path, lines))] == [3, 3]
