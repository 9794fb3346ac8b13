"""`athena eval` on a dataset of the user."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from athena.cli import evaluate, evaluate_measures, evaluate_tools
from athena.cli.commands import athena
from athena.cli.evaluate_measures import QuestionResult
from athena.embedding.minilm import BUNDLED_MODEL_DIR
from athena.errors import InvalidInput
from athena.memory.ranking import Weights

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


UNANSWERED: dict[str, object] = {"question": "Which quarks carry colour charge?", "gold": [], "category": "none"}


def test_unanswered_questions_are_counted_apart(tmp_path: Path) -> None:
    file = write_dataset(tmp_path, [*LINES, UNANSWERED])
    figures = json.loads(run_eval("--set", str(file), "--json"))["set"]["all terms"]
    assert figures["count"] == 2  # questions with an answer alone have ranks to measure
    assert figures["scores"]["unanswered"] == 1
    assert figures["scores"]["hit_share"] == {"mean": 0, "interval": [0, 0]}
    assert figures["scores"]["lost_recall"] == {"mean": 0, "interval": [0, 0]}
    assert 0 <= figures["scores"]["calibration_error"] < 1
    table = run_eval("--set", str(file))
    assert "of 1 questions without an answer 0% get a hit" in table
    assert "none (" not in table


def test_set_without_answered_question_is_refused(tmp_path: Path) -> None:
    file = write_dataset(tmp_path, [LINES[0], UNANSWERED])
    done = CliRunner().invoke(athena, ["eval", "--set", str(file)], standalone_mode=False)
    assert isinstance(done.exception, InvalidInput)
    assert "no question with an answer" in str(done.exception)


def run_eval(*arguments: str) -> str:
    done = CliRunner().invoke(athena, ["eval", *arguments], standalone_mode=False)
    assert done.exception is None
    return done.stdout


def test_floor_hides_all_hits_or_none() -> None:
    result = QuestionResult("x", (0, 3), 2, 0.0, (0.3, 0.2, 0.02, 0.01))
    assert result.apply_floor(0.3) == result
    assert result.apply_floor(0.31) == QuestionResult("x", (), 2, 0.0, ())
    chance_hit = QuestionResult("x", (), 0, 0.0, (0.1,))
    summary = evaluate_measures.summarise_scores([result, result, chance_hit, result._replace(scores=(0.2,))], 0.25)
    assert summary.lost_recall is not None
    assert summary.lost_recall.mean == pytest.approx(1 / 3)
    assert summary.hit_share is not None
    assert summary.hit_share.mean == 0


def test_calibration_error_matches_definition() -> None:
    certain = QuestionResult("x", (0,), 1, 0.0, (1.0,))
    assert evaluate_measures.compute_calibration_error([certain]) == 0
    halves = [certain._replace(scores=(0.55,)), certain._replace(ranks=(), scores=(0.55,))]
    assert evaluate_measures.compute_calibration_error(halves) == pytest.approx(0.05)
    wrong = QuestionResult("x", (1,), 1, 0.0, (0.9, 0.2))  # the other way round: 0.9 too high, 0.8 too low
    assert evaluate_measures.compute_calibration_error([wrong]) == pytest.approx(0.85)
    assert evaluate_measures.compute_calibration_error([]) == 0


def test_other_weights_are_compared_pairwise(tmp_path: Path) -> None:
    file = write_dataset(tmp_path, list(LINES))
    figures = json.loads(run_eval("--set", str(file), "--compare", "words=0, meaning=-9,tokens=0", "--json"))["set"]
    difference = figures["difference"]["MRR"]
    assert difference["mean"] == pytest.approx(
        figures["words=0, meaning=-9,tokens=0"]["means"]["MRR"] - figures["all terms"]["means"]["MRR"]
    )
    assert difference["interval"][0] <= difference["mean"] < 0


def test_other_model_is_compared_pairwise(tmp_path: Path) -> None:
    memories, tools = tmp_path / "set.jsonl", tmp_path / "tools.jsonl"
    memories.write_text("\n".join(map(json.dumps, LINES)))
    tools.write_text("\n".join(map(json.dumps, TOOL_LINES)))
    compare = f"model={BUNDLED_MODEL_DIR}"
    sources = ("--set", str(memories), "--tools", str(tools))
    figures = json.loads(run_eval(*sources, "--model", str(BUNDLED_MODEL_DIR), "--compare", compare, "--json"))
    assert figures["set"]["difference"]["R@5"] == {"mean": 0, "interval": [0, 0]}
    assert figures["tools"]["difference"]["first 1"] == {"mean": 0, "interval": [0, 0]}
    table = run_eval(*sources, "--compare", compare)
    assert f"{compare}: R@10 +0.000 (+0.000 to +0.000)" in table
    assert "difference: MRR +0.000" in table


def test_missing_model_is_named(tmp_path: Path) -> None:
    file = write_dataset(tmp_path, list(LINES))
    done = CliRunner().invoke(athena, ["eval", "--set", str(file), "--model", str(tmp_path)], standalone_mode=False)
    assert str(tmp_path) in str(done.exception)


def test_setting_names_weights_or_model() -> None:
    assert evaluate.parse_setting("tokens=4, meaning=0.3") == Weights(tokens=4, meaning=0.3)
    assert evaluate.parse_setting("model=/a=b") == Path("/a=b")


@pytest.mark.parametrize("text", ["tokens", "tokens=high", "colour=3", "tokens=1=2"])
def test_unknown_setting_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="no setting"):
        evaluate.parse_setting(text)


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


def test_tool_ranks_are_compared_pairwise() -> None:
    figures = evaluate_tools.compare_ranks([0, 3, None, 0], [0, 0, 4, 1])
    assert figures["first 1"]["mean"] == 0
    assert figures["first 5"]["mean"] == 0.25
    assert figures["MRR"]["mean"] == pytest.approx((0.75 + 0.2 - 0.5) / 4)
    low, high = figures["first 1"]["interval"]
    assert low < 0 < high


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
