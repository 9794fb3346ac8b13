"""Collections to evaluate on: items to remember, and questions with the items that answer them."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from athena.errors import InvalidInput


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
