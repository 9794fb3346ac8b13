"""`athena eval`: measure search on collections with known answers (LoCoMo, Cranfield, JSON lines)."""

import json
import re
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import click

from athena.app.compose import App, open_postgres
from athena.cli import output
from athena.cli.evaluate_measures import (
    MEASURES,
    Estimate,
    MeasureSummary,
    QuestionResult,
    ScoreSummary,
    compare_results,
    summarise_results,
    summarise_scores,
)
from athena.cli.evaluate_tools import load_tools, measure_tools, print_tools_report
from athena.cli.invoke import json_option
from athena.cli.progress import show_progress
from athena.core.threads import run_sync
from athena.core.values import Scope
from athena.embedding.embedder import Embedder
from athena.embedding.minilm import MiniLM
from athena.errors import InvalidInput
from athena.memory import rows
from athena.memory.ranking import Weights
from athena.memory.scores import DEFAULT_MIN_SCORE
from athena.storage.sqlite.connection import IN_MEMORY_PATH
from athena.storage.sqlite.store import Sqlite

MAX_RESULTS = 20
REMEMBER_BATCH_SIZE = 500
LOCOMO_CATEGORIES = {1: "multi-hop", 2: "temporal", 3: "open-domain", 4: "single-hop", 5: "adversarial"}
ALL_TERMS = "all terms"
# The ranking without each of its terms, and with few of them.
VARIANTS = {
    ALL_TERMS: Weights(),
    "without tokens": Weights(tokens=0),
    "without meaning": Weights(meaning=0),
    "without words": Weights(words=0),
    "without length": Weights(length=0),
    "without role": Weights(role=0),
    "without personal": Weights(personal=0),
    "without session": Weights(session=0),
    "without feedback": Weights(feedback=0),
    "without recency and strength": Weights(recency=0, strength=0),
    "words alone": Weights(1, *[0] * 9),
    "meaning alone": Weights(0, 0.2, *[0] * 8),
}
ProgressPrinter = Callable[[str], None]


class CollectionItem(NamedTuple):
    id: str
    text: str
    session: str | None = None
    speaker: str | None = None
    role: str | None = None
    date: str | None = None

    def to_draft(self) -> dict[str, Any]:
        """Return the item as an argument of `remember_batch`."""
        facts = {"session_id": self.session, "speaker": self.speaker, "role": self.role, "date": self.date}
        return {"content": self.text, "metadata": {name: value for name, value in facts.items() if value}}


class EvaluationQuestion(NamedTuple):
    text: str
    gold: frozenset[str]
    category: str


class Collection(NamedTuple):
    """Items that are searched together, and questions about them."""

    name: str
    items: list[CollectionItem]
    questions: list[EvaluationQuestion]


def load_locomo(file: Path) -> list[Collection]:
    """Read LoCoMo: a collection for each conversation, an item for each turn."""
    return [_parse_conversation(i, sample) for i, sample in enumerate(json.loads(_read_text(file)))]


def _parse_conversation(index: int, sample: dict[str, Any]) -> Collection:
    conversation = sample["conversation"]
    sessions = [key for key in conversation if re.fullmatch(r"session_\d+", key)]
    items = []
    for session in sorted(sessions, key=lambda key: int(key.removeprefix("session_"))):
        for turn in conversation[session]:
            picture = f" [image: {turn['blip_caption']}]" if turn.get("blip_caption") else ""
            date = conversation.get(f"{session}_date_time")
            items.append(CollectionItem(turn["dia_id"], turn["text"] + picture, session, turn["speaker"], None, date))
    item_ids = {item.id for item in items}
    questions = []
    for row in sample["qa"]:
        evidence = {turn_id for text in row.get("evidence", []) for turn_id in re.findall(r"D\d+:\d+", text)}
        if gold := evidence & item_ids:
            questions.append(EvaluationQuestion(row["question"], frozenset(gold), LOCOMO_CATEGORIES[row["category"]]))
    return Collection(f"conversation {index + 1}", items, questions)


def load_cranfield(folder: Path) -> list[Collection]:
    """Read the Cranfield collection: an item for each abstract; judgements 1 to 4 count as relevant."""
    items = []
    for document_id, block in _iter_blocks(_read_text(folder / "cran.all.1400")):
        title, text = _extract_field(block, "T", "A"), _extract_field(block, "W", "I")
        items.append(
            CollectionItem(
                str(document_id), (text if text.startswith(title[:30]) else f"{title} . {text}").strip() or "."
            )
        )
    relevant: dict[int, set[str]] = {}
    for line in _read_text(folder / "cranqrel").splitlines():
        columns = line.split()
        if len(columns) > 2 and columns[2] in "1234":
            relevant.setdefault(int(columns[0]), set()).add(columns[1])
    queries = [_extract_field(block, "W", "I") for _, block in _iter_blocks(_read_text(folder / "cran.qry"))]
    # the judgements count the queries from 1 and ignore the numbers in cran.qry
    questions = [
        EvaluationQuestion(query, frozenset(relevant[i]), "abstracts")
        for i, query in enumerate(queries, 1)
        if relevant.get(i)
    ]
    return [Collection("Cranfield", items, questions)]


def _iter_blocks(text: str) -> Iterator[tuple[int, str]]:
    for block in re.split(r"^\.I ", text, flags=re.MULTILINE)[1:]:
        block_id, _, rest = block.partition("\n")
        yield int(block_id), rest


def _extract_field(block: str, name: str, following: str) -> str:
    match = re.search(rf"^\.{name}\n(.*?)(?=^\.{following}\n|\Z)", block, re.DOTALL | re.MULTILINE)
    return " ".join(match[1].split()) if match else ""


def load_jsonl(file: Path) -> list[Collection]:
    """Read JSON lines, each an item (`id`, `text`) or a question (`question`, `gold`).

    Items may have session, speaker, role and date; questions a category. `gold` is empty for a question that no item
    answers. A line with `store` belongs to the collection of that name; each collection is searched separately.
    """
    collections: dict[str, Collection] = {}
    for line_number, line in enumerate(_read_text(file).splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            name = str(row.get("store", ""))
            collection = collections.setdefault(name, Collection(name, [], []))
            if "question" in row:
                gold, category = frozenset(map(str, row["gold"])), str(row.get("category", "all"))
                collection.questions.append(EvaluationQuestion(row["question"], gold, category))
            else:
                facts = {name: row[name] for name in ("session", "speaker", "role", "date") if row.get(name)}
                collection.items.append(CollectionItem(str(row["id"]), row["text"], **facts))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidInput(
                f"{file}, line {line_number}: {error!r}",
                hint='a line is {"id": ..., "text": ...} or {"question": ..., "gold": [...]}',
            ) from None
    return list(collections.values())


def _read_text(file: Path) -> str:
    try:
        return file.read_text("utf-8", errors="replace")
    except OSError as error:
        raise InvalidInput(f"{file} cannot be read: {error.strerror}") from None


class Trial:
    """A collection that is stored in a project of an app."""

    def __init__(self, app: App, project: str, collection: Collection, item_ids: dict[int, list[str]]) -> None:
        self._app, self._project, self._collection, self._item_ids = app, project, collection, item_ids

    def ask_questions(self, weights: Weights) -> list[QuestionResult]:
        """Ask every question once, with the strength of all memories reset."""
        self._app.store = self._app.store._replace(weights=weights)
        for _ in range(2):  # twice, because the first call may wait behind a deferred write of strengths
            run_sync(self._app.store.database.write(lambda tx: rows.reset_strength(tx, Scope.from_name(self._project))))
        return [
            self._ask_question(question.text, question.gold, question.category)
            for question in self._collection.questions
        ]

    def _ask_question(self, text: str, gold: frozenset[str], category: str) -> QuestionResult:
        start = time.perf_counter()
        hits = _call_operation(self._app, self._project, "recall", query=text, k=MAX_RESULTS, min_score=0)
        seconds = time.perf_counter() - start
        ranks = tuple(rank for rank, hit in enumerate(hits) for item in self._item_ids.get(hit.id, ()) if item in gold)
        return QuestionResult(category, ranks, len(gold), seconds, tuple(hit.score for hit in hits))


@contextmanager
def open_trial(
    collection: Collection, embedder: Embedder, report: ProgressPrinter, url: str | None = None
) -> Iterator[Trial]:
    """Store a collection in memory, or in a project of its own in a database, and index it."""
    app = App(Sqlite(IN_MEMORY_PATH) if url is None else open_postgres(url), embedder)
    project = f"evaluation {secrets.token_hex(4)}"
    try:
        item_ids: dict[int, list[str]] = {}
        total = len(collection.items)
        for start in range(0, total, REMEMBER_BATCH_SIZE):
            items = collection.items[start : start + REMEMBER_BATCH_SIZE]
            drafts = [item.to_draft() for item in items]
            memories = _call_operation(app, project, "remember_batch", items=drafts)
            for item, memory in zip(items, memories, strict=True):
                item_ids.setdefault(memory.id, []).append(item.id)
            report(f"{collection.name}: {start + len(items)} of {total} items")
        while (step := _call_operation(app, project, "reembed", limit=256)).remaining:
            report(f"{collection.name}: {step.remaining} passages to be read with their neighbours")
        yield Trial(app, project, collection, item_ids)
    finally:
        app.close()


def _call_operation(app: App, project: str, name: str, **arguments: Any) -> Any:
    return run_sync(app.catalog.get_operation(name)(app.create_context(project, "evaluation"), **arguments))


@click.command("eval")
@click.option("--locomo", type=click.Path(path_type=Path), help="A LoCoMo file.")
@click.option("--cranfield", type=click.Path(path_type=Path), help="A folder with the Cranfield collection.")
@click.option("--set", "lines", type=click.Path(path_type=Path), help="A file of your own; see docs/evaluation.md.")
@click.option("--tools", type=click.Path(path_type=Path), help="A file of tools and requests; see docs/evaluation.md.")
@click.option("--database", help="Use a project of its own in a PostgreSQL database, which stays there.", metavar="URL")
@click.option("--ablate", is_flag=True, help="Also leave out each term of the ranking in turn.")
@click.option("--model", type=click.Path(path_type=Path), help="A folder with another model.", metavar="FOLDER")
@click.option(
    "--compare",
    help="Also measure another model (model=FOLDER) or other weights (tokens=4,meaning=0.3), and show the differences.",
    metavar="SETTING",
)
@json_option
def evaluate(
    locomo: Path | None,
    cranfield: Path | None,
    lines: Path | None,
    tools: Path | None,
    database: str | None,
    ablate: bool,
    model: Path | None,
    compare: str | None,
    json_output: bool,
) -> None:
    """Measure search on collections with known answers. Your own store is not touched.

    Example: athena eval --set questions.jsonl --compare tokens=3
    """
    sets = {
        name: load(path)
        for name, path, load in (
            ("LoCoMo", locomo, load_locomo),
            ("Cranfield", cranfield, load_cranfield),
            ("set", lines, load_jsonl),
        )
        if path is not None
    }
    if not sets and tools is None:
        raise InvalidInput("name a collection", hint="--locomo FILE, --cranfield FOLDER, --set FILE or --tools FILE")
    for name, collections in sets.items():
        if not any(question.gold for collection in collections for question in collection.questions):
            raise InvalidInput(f"{name} has no question with an answer", hint="see docs/evaluation.md")
    setting = parse_setting(compare) if compare else None
    other_model = MiniLM(folder=setting) if isinstance(setting, Path) else None
    embedder = MiniLM(folder=model)
    with show_progress("Measuring tool search"):
        tool_figures = measure_tools(load_tools(tools), embedder, other_model) if tools is not None else None
    variants = dict(VARIANTS) if ablate else {ALL_TERMS: VARIANTS[ALL_TERMS]}
    if compare and isinstance(setting, Weights):
        variants[compare] = setting
    with show_progress("Measuring search"):
        results = {name: _run_trials(collections, variants, database, embedder) for name, collections in sets.items()}
        if compare and other_model:
            for name, collections in sets.items():
                results[name] |= _run_trials(collections, {compare: Weights()}, database, other_model)
    if json_output:
        figures = {name: _to_json(by_variant, compare) for name, by_variant in results.items()}
        return output.print_data(figures | ({"tools": tool_figures} if tool_figures else {}))
    if tool_figures:
        print_tools_report(tool_figures)
    for name, by_variant in results.items():
        _print_report(name, by_variant, compare)
    return None


def parse_setting(text: str) -> Weights | Path:
    """Read what to compare with: a model's folder, or weights of the ranking."""
    name, _, value = text.partition("=")
    if name == "model":
        return Path(value)
    try:
        pairs = [part.split("=") for part in text.split(",")]
        return Weights()._replace(**{name.strip(): float(value) for name, value in pairs})
    except (ValueError, TypeError):  # of an unknown name: before Python 3.13 the one, then the other
        raise InvalidInput(
            f"{text!r:.80} is no setting", hint=f"model=FOLDER, or weights, e.g. tokens=4: {', '.join(Weights._fields)}"
        ) from None


def _run_trials(
    collections: list[Collection], variants: dict[str, Weights], url: str | None, embedder: Embedder
) -> dict[str, list[QuestionResult]]:
    results: dict[str, list[QuestionResult]] = {name: [] for name in variants}
    for collection in collections:
        with open_trial(collection, embedder, lambda text: click.echo(text, err=True), url) as trial:
            for name, weights in variants.items():
                results[name] += trial.ask_questions(weights)
    return results


def _to_json(by_variant: dict[str, list[QuestionResult]], compare: str | None) -> dict[str, Any]:
    content: dict[str, Any] = {}
    for name, results in by_variant.items():
        scores = summarise_scores(results, DEFAULT_MIN_SCORE)
        content[name] = summarise_results(results)._asdict() | {"scores": _to_dict(scores)}
    if compare:
        differences = compare_results(by_variant[ALL_TERMS], by_variant[compare])
        content["difference"] = {name: estimate._asdict() for name, estimate in differences.items()}
    return content


def _to_dict(scores: ScoreSummary) -> dict[str, Any]:
    return {name: value._asdict() if isinstance(value, Estimate) else value for name, value in scores._asdict().items()}


def _print_report(name: str, by_variant: dict[str, list[QuestionResult]], compare: str | None) -> None:
    results = by_variant[ALL_TERMS]
    total = summarise_results(results)
    click.echo(f"\n{name}: {total.count} questions, {total.median_ms:.1f} ms each (95 % within {total.p95_ms:.1f})")
    click.echo(f"{'':<30}" + "".join(f"{measure:>9}" for measure in MEASURES) + "   R@10 lies within")
    for variant, variant_results in by_variant.items():
        click.echo(_format_row(variant, summarise_results(variant_results)))
    categories = sorted({result.category for result in results if result.gold_count})
    for category in categories if len(categories) > 1 else ():
        part = [result for result in results if result.category == category]
        summary = summarise_results(part)
        click.echo(_format_row(f"  {category} ({summary.count})", summary))
    if compare:
        for measure, difference in compare_results(results, by_variant[compare]).items():
            click.echo(f"{compare}: {measure} {difference.format_signed()}")
    _print_scores(summarise_scores(results, DEFAULT_MIN_SCORE))


def _format_row(label: str, summary: MeasureSummary) -> str:
    low, high = summary.intervals["R@10"]
    return f"{label:<30}" + "".join(f"{summary.means[name]:>9.3f}" for name in MEASURES) + f"   {low:.3f} to {high:.3f}"


def _print_scores(scores: ScoreSummary) -> None:
    click.echo(f"scores: calibration error {scores.calibration_error:.3f}; with a floor of {DEFAULT_MIN_SCORE}:")
    if scores.lost_recall:
        low, high = scores.lost_recall.interval
        click.echo(f"  {scores.lost_recall.mean:.4f} of R@10 is lost ({low:.4f} to {high:.4f})")
    if scores.hit_share:
        low, high = scores.hit_share.interval
        click.echo(
            f"  of {scores.unanswered} questions without an answer {scores.hit_share.mean:.0%} get a hit "
            f"({low:.0%} to {high:.0%})"
        )
