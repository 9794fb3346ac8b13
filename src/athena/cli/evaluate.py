"""`athena eval`: how well does search find, on collections with known answers."""

import json
import math
import random
import re
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import click

from athena.app.compose import App, open_postgres
from athena.cli import output
from athena.cli.invoke import json_option
from athena.core.threads import run_sync
from athena.core.values import Scope
from athena.embedding.embedder import Embedder
from athena.embedding.minilm import MiniLM
from athena.errors import InvalidInput
from athena.memory import rows
from athena.memory.ranking import Weights
from athena.storage.sqlite.connection import IN_MEMORY_PATH
from athena.storage.sqlite.store import Sqlite


class Answered(NamedTuple):
    """One question: where the right items came in the list, and how long it took."""

    category: str
    ranks: tuple[int, ...]  # from 0; only those within the list
    gold_count: int
    seconds: float


def compute_recall(k: int, one: Answered) -> float:
    return sum(rank < k for rank in one.ranks) / one.gold_count


def compute_reciprocal_rank(one: Answered) -> float:
    return 1 / (min(one.ranks) + 1) if one.ranks else 0.0


def compute_ndcg_at_10(one: Answered) -> float:
    """nDCG@10 with relevance as yes or no."""
    found = sum(1 / math.log2(rank + 2) for rank in one.ranks if rank < 10)
    return found / sum(1 / math.log2(rank + 2) for rank in range(min(10, one.gold_count)))


MEASURES = {
    "R@5": lambda one: compute_recall(5, one),
    "R@10": lambda one: compute_recall(10, one),
    "R@20": lambda one: compute_recall(20, one),
    "MRR": compute_reciprocal_rank,
    "nDCG@10": compute_ndcg_at_10,
}


class MeasureSummary(NamedTuple):
    """Means over questions, with the interval that holds 95 % of resampled means."""

    count: int  # type: ignore[assignment]  # it hides tuple.count
    means: dict[str, float]
    intervals: dict[str, tuple[float, float]]
    median_ms: float
    p95_ms: float


def summarise_results(answers: Sequence[Answered]) -> MeasureSummary:
    means, intervals = {}, {}
    for name, measure in MEASURES.items():
        values = [measure(one) for one in answers]
        means[name] = sum(values) / len(values)
        intervals[name] = _bootstrap_interval(values)
    times = sorted(one.seconds * 1000 for one in answers)
    return MeasureSummary(len(answers), means, intervals, times[len(times) // 2], times[int(len(times) * 0.95)])


def _bootstrap_interval(values: Sequence[float], rounds: int = 400) -> tuple[float, float]:
    draw = random.Random(0)
    means = sorted(sum(draw.choices(values, k=len(values))) / len(values) for _ in range(rounds))
    return means[int(rounds * 0.025)], means[int(rounds * 0.975)]


class Item(NamedTuple):
    id: str
    text: str
    session: str | None = None
    speaker: str | None = None
    role: str | None = None
    date: str | None = None

    def to_draft(self) -> dict[str, Any]:
        """Return it as `remember_batch` takes it."""
        facts = {"session_id": self.session, "speaker": self.speaker, "role": self.role, "date": self.date}
        return {"content": self.text, "metadata": {name: value for name, value in facts.items() if value}}


class EvaluationQuestion(NamedTuple):
    text: str
    gold: frozenset[str]
    category: str


class Collection(NamedTuple):
    """Items that are searched together, and the questions about them."""

    name: str
    items: list[Item]
    questions: list[EvaluationQuestion]


LOCOMO_CATEGORIES = {1: "multi-hop", 2: "temporal", 3: "open-domain", 4: "single-hop", 5: "adversarial"}


def load_locomo(file: Path) -> list[Collection]:
    """Read LoCoMo: a collection for each conversation, an item for each turn."""
    return [_parse_conversation(i, sample) for i, sample in enumerate(json.loads(_read_text(file)))]


def _parse_conversation(number: int, sample: dict[str, Any]) -> Collection:
    talk = sample["conversation"]
    sessions = sorted((key for key in talk if re.fullmatch(r"session_\d+", key)), key=lambda key: int(key[8:]))
    items = []
    for session in sessions:
        for turn in talk[session]:
            picture = f" [image: {turn['blip_caption']}]" if turn.get("blip_caption") else ""
            date = talk.get(f"{session}_date_time")
            items.append(Item(turn["dia_id"], turn["text"] + picture, session, turn["speaker"], None, date))
    known = {item.id for item in items}
    questions = []
    for asked in sample["qa"]:
        named = {found for text in asked.get("evidence", []) for found in re.findall(r"D\d+:\d+", text)}
        if gold := named & known:
            questions.append(
                EvaluationQuestion(asked["question"], frozenset(gold), LOCOMO_CATEGORIES[asked["category"]])
            )
    return Collection(f"conversation {number + 1}", items, questions)


def load_cranfield(folder: Path) -> list[Collection]:
    """Read the Cranfield collection: an item for each abstract; judgements 1 to 4 count as relevant."""
    items = []
    for number, block in _iter_blocks(_read_text(folder / "cran.all.1400")):
        title, text = _extract_field(block, "T", "A"), _extract_field(block, "W", "I")
        items.append(Item(str(number), (text if text.startswith(title[:30]) else f"{title} . {text}").strip() or "."))
    relevant: dict[int, set[str]] = {}
    for line in _read_text(folder / "cranqrel").splitlines():
        columns = line.split()
        if len(columns) > 2 and columns[2] in "1234":
            relevant.setdefault(int(columns[0]), set()).add(columns[1])
    queries = [_extract_field(block, "W", "I") for _, block in _iter_blocks(_read_text(folder / "cran.qry"))]
    # Judgements count the queries from 1, whatever number stands beside them.
    questions = [
        EvaluationQuestion(query, frozenset(relevant[i]), "abstracts")
        for i, query in enumerate(queries, 1)
        if relevant.get(i)
    ]
    return [Collection("Cranfield", items, questions)]


def _iter_blocks(text: str) -> Iterator[tuple[int, str]]:
    for block in re.split(r"^\.I ", text, flags=re.MULTILINE)[1:]:
        number, _, rest = block.partition("\n")
        yield int(number), rest


def _extract_field(block: str, name: str, following: str) -> str:
    found = re.search(rf"^\.{name}\n(.*?)(?=^\.{following}\n|\Z)", block, re.DOTALL | re.MULTILINE)
    return " ".join(found[1].split()) if found else ""


def load_jsonl(file: Path) -> list[Collection]:
    """Read our own form: a JSON object a line, an item (`id`, `text`) or a question (`question`, `gold`).

    Items may have session, speaker, role and date; questions a category. A line with `store` belongs to the
    collection of that name; each collection is searched by itself.
    """
    made: dict[str, Collection] = {}
    for number, line in enumerate(_read_text(file).splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            collection = made.setdefault(str(row.get("store", "")), Collection(str(row.get("store", "")), [], []))
            if "question" in row:
                gold = frozenset(map(str, row["gold"]))
                collection.questions.append(EvaluationQuestion(row["question"], gold, str(row.get("category", "all"))))
            else:
                facts = {name: row[name] for name in ("session", "speaker", "role", "date") if row.get(name)}
                collection.items.append(Item(str(row["id"]), row["text"], **facts))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidInput(
                f"{file}, line {number}: {error!r}",
                hint='a line is {"id": ..., "text": ...} or {"question": ..., "gold": [...]}',
            ) from None
    return list(made.values())


def _read_text(file: Path) -> str:
    try:
        return file.read_text("utf-8", errors="replace")
    except OSError as error:
        raise InvalidInput(f"{file} cannot be read: {error.strerror}") from None


MAX_RESULTS = 20
REMEMBER_BATCH_SIZE = 500

# What the ranking is without each of its terms, and what it is with few of them.
VARIANTS = {
    "all terms": Weights(),
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


class Trial:
    """A collection in a store."""

    def __init__(self, app: App, project: str, collection: Collection, numbers: dict[int, list[str]]) -> None:
        self._app, self._project, self._collection, self._item_ids = app, project, collection, numbers

    def ask_questions(self, weights: Weights) -> list[Answered]:
        """Ask every question once, of memories that nobody has recalled yet."""
        self._app.store = self._app.store._replace(weights=weights)
        for _ in range(2):  # once more, for what was noted behind the first
            run_sync(self._app.store.database.write(lambda tx: rows.reset_strength(tx, Scope.from_name(self._project))))
        return [
            self._ask_question(question.text, question.gold, question.category)
            for question in self._collection.questions
        ]

    def _ask_question(self, text: str, gold: frozenset[str], category: str) -> Answered:
        began = time.perf_counter()
        hits = _call_operation(self._app, self._project, "recall", query=text, k=MAX_RESULTS)
        took = time.perf_counter() - began
        ranks = tuple(rank for rank, hit in enumerate(hits) for item in self._item_ids.get(hit.id, ()) if item in gold)
        return Answered(category, ranks, len(gold), took)


@contextmanager
def open_trial(
    collection: Collection, embedder: Embedder, say: ProgressPrinter, url: str | None = None
) -> Iterator[Trial]:
    """Remember a collection's items in memory or in an own project of a database, and wait until all is indexed."""
    app = App(Sqlite(IN_MEMORY_PATH) if url is None else open_postgres(url), embedder)
    project = f"evaluation {secrets.token_hex(4)}"
    try:
        numbers: dict[int, list[str]] = {}
        for at in range(0, len(collection.items), REMEMBER_BATCH_SIZE):
            items = collection.items[at : at + REMEMBER_BATCH_SIZE]
            for item, stored in zip(
                items, _call_operation(app, project, "remember_batch", items=[i.to_draft() for i in items]), strict=True
            ):
                numbers.setdefault(stored.id, []).append(item.id)
            say(
                f"{collection.name}: {min(at + REMEMBER_BATCH_SIZE, len(collection.items))} of {len(collection.items)} items"
            )
        while (left := _call_operation(app, project, "reembed", limit=256)).remaining:
            say(f"{collection.name}: {left.remaining} passages to be read with their neighbours")
        yield Trial(app, project, collection, numbers)
    finally:
        app.close()


def _call_operation(app: App, project: str, name: str, **arguments: Any) -> Any:
    return run_sync(app.catalog.get_operation(name)(app.create_context(project, "evaluation"), **arguments))


@click.command("eval")
@click.option("--locomo", type=click.Path(path_type=Path), help="A LoCoMo file.")
@click.option("--cranfield", type=click.Path(path_type=Path), help="A folder with the Cranfield collection.")
@click.option("--set", "lines", type=click.Path(path_type=Path), help="A file of your own; see docs/evaluation.md.")
@click.option("--database", help="Use a project of its own in a PostgreSQL database, which stays there.", metavar="URL")
@click.option("--ablate", is_flag=True, help="Also leave out each term of the ranking in turn.")
@json_option
def evaluate(
    locomo: Path | None,
    cranfield: Path | None,
    lines: Path | None,
    database: str | None,
    ablate: bool,
    json_output: bool,
) -> None:
    """Measure search on collections with known answers; your own store is not touched.

    Example: athena eval --set questions.jsonl --ablate
    """
    sets = {
        name: read(path)
        for name, path, read in (
            ("LoCoMo", locomo, load_locomo),
            ("Cranfield", cranfield, load_cranfield),
            ("set", lines, load_jsonl),
        )
        if path is not None
    }
    if not sets:
        raise InvalidInput("name a collection", hint="--locomo FILE, --cranfield FOLDER or --set FILE")
    variants = VARIANTS if ablate else {"all terms": VARIANTS["all terms"]}
    results = {name: _run_trials(collections, variants, database) for name, collections in sets.items()}
    if json_output:
        return output.print_json(
            {name: {v: summarise_results(a)._asdict() for v, a in found.items()} for name, found in results.items()}
        )
    for name, found in results.items():
        _print_report(name, found)
    return None


def _run_trials(collections: list[Collection], variants: dict[str, Any], url: str | None) -> dict[str, list[Answered]]:
    model = MiniLM()
    answers: dict[str, list[Answered]] = {name: [] for name in variants}
    for one in collections:
        with open_trial(one, model, lambda text: click.echo(text, err=True), url) as tried:
            for name, weights in variants.items():
                answers[name] += tried.ask_questions(weights)
    return answers


def _print_report(name: str, found: dict[str, list[Answered]]) -> None:
    whole = summarise_results(found["all terms"])
    click.echo(f"\n{name}: {whole.count} questions, {whole.median_ms:.1f} ms each (95 % within {whole.p95_ms:.1f})")
    click.echo(f"{'':<30}" + "".join(f"{measure:>9}" for measure in MEASURES) + "   R@10 lies within")
    for variant, answers in found.items():
        click.echo(_format_row(variant, summarise_results(answers)))
    categories = sorted({one.category for one in found["all terms"]})
    for category in categories if len(categories) > 1 else ():
        part = [one for one in found["all terms"] if one.category == category]
        click.echo(_format_row(f"  {category} ({len(part)})", summarise_results(part)))


def _format_row(label: str, figures: MeasureSummary) -> str:
    low, high = figures.intervals["R@10"]
    return f"{label:<30}" + "".join(f"{figures.means[m]:>9.3f}" for m in MEASURES) + f"   {low:.3f} to {high:.3f}"
