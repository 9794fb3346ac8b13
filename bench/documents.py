"""Ingestion: notes and PDFs, against the model's own batch rate and against handing the text through a model."""

import json
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from athena import api
from athena.app import connect
from athena.core import tokens
from athena.core.catalog import invoke
from athena.core.threads import run_sync
from athena.embedding.embedder import Excerpt
from athena.memory.prepare import split_passages
from athena.server.mcp.text import format_result
from bench.corpus import load_notes
from bench.machine import ROOT
from bench.result import Result, Row, Table
from bench.run import Run

sys.path.append(str(ROOT / "tests" / "documents"))

from document_tools import build_pdf

NOTE_WORDS = 240
BATCH_PASSAGES = 64
MIN_MODEL_SHARE = 0.8
PDF_COUNT, PDF_PAGES, PAGE_LINES, LINE_CHARS = 50, 2, 23, 95
MAX_AGENT_TOKENS = 300


class Ingestion(NamedTuple):
    wall_s: float
    cpu_s: float
    model_s: float  # of the same passages, in batches and nothing else
    again_s: float  # the same folder again


def run(run: Run) -> Result:
    count = 50 if run.quick else 300
    with tempfile.TemporaryDirectory(dir=run.folder) as folder:
        _write_notes(Path(folder), count)
        found = {size: _measure(run, Path(folder), size) for size in (run.sizes[0], run.ordinary)}
    agent, text = _count_tokens(run)
    rows = []
    for size, one in found.items():
        share = one.model_s / one.wall_s
        what = f"ingest {count} notes of {NOTE_WORDS} words into {size:,} memories"
        bar = f"at least {MIN_MODEL_SHARE:.0%} of the model's batch rate"
        rows.append(Row(what, bar, f"{share:.0%} ({one.wall_s:.1f} s)", share >= MIN_MODEL_SHARE))
    what = f"tokens of an agent that ingests {PDF_COUNT} PDFs with {text:,} tokens of text"
    rows.append(Row(what, f"under {MAX_AGENT_TOKENS}", str(agent), agent < MAX_AGENT_TOKENS))
    lines = [
        (
            f"{size:,}",
            f"{one.wall_s:.1f} s",
            f"{one.cpu_s:.1f} s",
            f"{one.model_s:.1f} s",
            f"{one.again_s * 1000:.0f} ms",
        )
        for size, one in found.items()
    ]
    head = ("memories", "ingestion", "processor time", "the model alone", "the same folder again")
    definition = (
        f"{count} Markdown files of {NOTE_WORDS} words; the model alone encodes the same passages in batches of "
        f"{BATCH_PASSAGES}. Tokens are those of the call and of its result."
    )
    return Result("Ingestion of documents", definition, rows, [Table(head, lines)])


def _write_notes(folder: Path, count: int) -> None:
    words = " ".join(load_notes(count * 12)).split()
    for number in range(count):
        part = words[number * NOTE_WORDS : (number + 1) * NOTE_WORDS]
        paragraphs = [" ".join(part[i : i + 60]) for i in range(0, len(part), 60)]
        (folder / f"note{number}.md").write_text("\n\n".join([f"# Note {number}", *paragraphs]))


def _measure(run: Run, folder: Path, size: int) -> Ingestion:
    with run.open_store(run.stores.copy(size)) as app:
        api.search("warm up")
        cpu_before = _sum_cpu_s()
        began = time.perf_counter()
        report = api.ingest(folder)
        wall_s, cpu_s = time.perf_counter() - began, _sum_cpu_s() - cpu_before
        began = time.perf_counter()
        again = api.call("ingest_document", path=str(folder))
        again_s = time.perf_counter() - began
        assert again["unchanged"] == report.documents
        excerpts = []
        for document in api.call("list_documents"):
            if document["source"].startswith(str(folder)):
                for text in api.call("get_document", source=document["source"]):
                    excerpts += [Excerpt(passage.extract_from(text), "") for passage in split_passages(text)]
        began = time.perf_counter()
        for start in range(0, len(excerpts), BATCH_PASSAGES):
            run_sync(app.store.encoder.encode_passages(excerpts[start : start + BATCH_PASSAGES]))
        return Ingestion(wall_s, cpu_s, time.perf_counter() - began, again_s)


def _sum_cpu_s() -> float:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _count_tokens(run: Run) -> tuple[int, int]:
    """Return the tokens of an agent that ingests PDFs, and those of their text."""
    sentences = load_notes(PDF_COUNT * PDF_PAGES * PAGE_LINES)
    lines = iter([sentence[:LINE_CHARS] for sentence in sentences])
    text = 0
    with tempfile.TemporaryDirectory(dir=run.folder) as name, run.open_store(run.folder / "pdf-home"):
        (Path(name) / ".git").mkdir()
        for number in range(PDF_COUNT):
            pages = [[(10, next(lines)) for _ in range(PAGE_LINES)] for _ in range(PDF_PAGES)]
            text += tokens.count_tokens("\n".join(line for page in pages for _, line in page))
            (Path(name) / f"{number}.pdf").write_bytes(build_pdf(pages))
        app = connect.shared_app()
        arguments = {"path": name}
        result = run_sync(invoke(app.catalog, "ingest_document", arguments, app.create_context(name, "mcp")))
        assert result.documents == PDF_COUNT
        shown = format_result(app.catalog.get_operation("ingest_document"), arguments, result)
        call = json.dumps({"name": "ingest_document", "arguments": arguments})
        return tokens.count_tokens(call) + tokens.count_tokens(shown), text
