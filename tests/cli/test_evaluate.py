"""`athena eval` on a dataset of the user."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from athena.cli import evaluate, evaluate_tools
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


TOOL_LINES: list[object] = [
    {
        "server": "pets-at-home",
        "tools": [
            {"name": "feedCat", "description": "Give the cat its dinner."},
            {"name": "walk-dog", "description": "Go round the block with the dog."},
        ],
    },
    {"server": "garage", "tools": [{"name": "wash_car", "description": "Clean the car.", "inputSchema": {}}]},
    {"request": "my kitten is hungry", "server": "pets-at-home", "tool": "feedCat"},
    {"request": "clean the car", "server": "garage", "tool": ["wash_car"]},
]


def test_tools_are_measured(tmp_path: Path) -> None:
    file = write_dataset(tmp_path, TOOL_LINES)
    done = CliRunner().invoke(athena, ["eval", "--tools", str(file), "--json"], standalone_mode=False)
    assert done.exception is None
    figures = json.loads(done.stdout)["tools"]
    assert (figures["tools"], figures["requests"]) == (3, 2)
    assert figures["words alone"]["first 1"]["mean"] == 0.5
    assert figures["words and meaning"]["first 1"] == {"mean": 1, "interval": [1, 1]}
    low, high = figures["words alone"]["MRR"]["interval"]
    assert 0 <= low < 0.5 < high <= 1


def test_tool_table_has_both_rankings(capsys: pytest.CaptureFixture[str]) -> None:
    ranks = evaluate_tools.summarise_ranks([0, 3, None, 0])
    evaluate_tools.print_tools_report({"requests": 4, "tools": 9, "words alone": ranks, "words and meaning": ranks})
    table = capsys.readouterr().out
    assert "first 1 0.500" in table
    assert "first 5 0.750" in table
    assert "MRR 0.562" in table


@pytest.mark.parametrize("line", [{"server": "a", "tools": [{}]}, {"request": "x", "server": "garage"}, ["no object"]])
def test_invalid_tool_line_is_named(tmp_path: Path, line: object) -> None:
    with pytest.raises(InvalidInput, match="line 2"):
        evaluate_tools.load_tools(write_dataset(tmp_path, [TOOL_LINES[1], line]))


def test_request_for_unknown_tool_is_named(tmp_path: Path) -> None:
    lines = [*TOOL_LINES, {"request": "clean it", "server": "garage", "tool": "wash_bike"}]
    with pytest.raises(InvalidInput, match=r"line 5: the server 'garage' has no tool 'wash_bike'"):
        evaluate_tools.load_tools(write_dataset(tmp_path, lines))
