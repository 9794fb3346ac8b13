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
from athena.app.compose import App
from athena.core import tokens
from athena.core.catalog import invoke
from athena.core.threads import run_sync
from athena.embedding.embedder import Excerpt
from athena.memory.prepare import split_passages
from athena.server.mcp.text import format_result
from bench.corpus import load_notes
from bench.machine import ROOT
from bench.parts import Parts
from bench.result import Result, Row, Table
from bench.run import Run
from bench.timing import python_command, run_process

sys.path.append(str(ROOT / "tests" / "documents"))

import question_set
from document_tools import build_pdf

NOTE_WORDS = 240
ROUNDS = 3
BATCH_PASSAGES = 64
MIN_MODEL_SHARE = 0.8
MAX_GROWTH = 1.15  # of the processor time, from the smallest store to the largest
MAX_MEMORY_GROWTH = 1.15  # with eight times as many files
MIN_TOP_5 = 0.95
PDF_COUNT, PDF_PAGES, PAGE_LINES, LINE_CHARS = 50, 2, 23, 95
MAX_AGENT_TOKENS = 300
MEMORY_PROGRAM = """
import sys
from athena import api
report = api.ingest(sys.argv[1])
with open("/proc/self/status") as file:
    peak = next(line for line in file if line.startswith("VmHWM"))
print(report.documents, int(peak.split()[1]) * 1024)
"""


class Ingestion(NamedTuple):
    wall_s: float
    cpu_s: float
    inside_s: float  # in the model, within the ingestion
    model_cpu_s: float  # of the same passages, in batches and nothing else
    again_s: float  # the same folder again

    @property
    def share(self) -> float:
        """Return the model's share of the time and of the processor time, whichever is less."""
        return min(self.inside_s / self.wall_s, self.model_cpu_s / self.cpu_s)


def run(run: Run) -> Result:
    count = 50 if run.quick else 100
    sizes = (run.sizes[0], run.large)
    with tempfile.TemporaryDirectory(dir=run.folder) as name:
        folders = [Path(name) / str(number) for number in range(ROUNDS)]
        for number, folder in enumerate(folders):
            _write_notes(folder, number * count, count)
        measured = {size: _measure(run, folders, size) for size in sizes}
    rows = [_describe_share(size, one, count * ROUNDS) for size, one in measured.items()]
    growth = measured[run.large].cpu_s / measured[run.sizes[0]].cpu_s
    what = f"the same, processor time in {run.large:,} memories against {run.sizes[0]:,}"
    rows.append(Row(what, f"at most {MAX_GROWTH}x", f"{growth:.2f}x", growth <= MAX_GROWTH))
    agent, text = _count_tokens(run)
    what = f"tokens of an agent that ingests {PDF_COUNT} PDFs with {text:,} tokens of text"
    rows.append(Row(what, f"under {MAX_AGENT_TOKENS}", str(agent), agent < MAX_AGENT_TOKENS))
    question_row, question_table = _ask_questions(run)
    lines = [
        (
            f"{size:,}",
            f"{one.wall_s:.1f} s",
            f"{one.inside_s / one.wall_s:.0%}",
            f"{one.cpu_s:.1f} s",
            f"{one.model_cpu_s:.1f} s",
            f"{one.again_s * 1000:.0f} ms",
        )
        for size, one in measured.items()
    ]
    head = ("memories", "ingestion", "in the model", "processor time", "the model alone", "the same folder again")
    definition = (
        f"{ROUNDS} folders with {count} Markdown files of {NOTE_WORDS} words in turn with the model alone, which "
        f"encodes the same passages in batches of {BATCH_PASSAGES}; processor time includes the processes that read "
        "the files. "
        "Memory is the peak of a process that ingests notes of one sentence. Tokens are those of the call and of its "
        "result. Questions and documents are those of `tests/documents/question_set.py`: PDF, HTML and Markdown; a hit "
        f"is the piece with the fact, of the right document. The plain splitter cuts after "
        f"{question_set.PLAIN_PIECE_TOKENS} tokens."
    )
    rows += [_measure_memory(run), question_row]
    return Result("Ingestion of documents", definition, rows, [Table(head, lines), question_table])


def _describe_share(size: int, one: Ingestion, count: int) -> Row:
    what = f"ingest {count} notes of {NOTE_WORDS} words into {size:,} memories"
    measured = (
        f"{one.share:.0%} ({one.inside_s / one.wall_s:.0%} of the time is the model's, "
        f"{one.model_cpu_s / one.cpu_s:.0%} of the processor time)"
    )
    bar = f"at least {MIN_MODEL_SHARE:.0%} of the model's batch rate"
    return Row(what, bar, measured, one.share >= MIN_MODEL_SHARE)


def _write_notes(folder: Path, first: int, count: int) -> None:
    folder.mkdir()
    words = " ".join(load_notes((first + count) * 12)).split()
    for number in range(first, first + count):
        part = words[number * NOTE_WORDS : (number + 1) * NOTE_WORDS]
        paragraphs = [" ".join(part[i : i + 60]) for i in range(0, len(part), 60)]
        (folder / f"note{number}.md").write_text("\n\n".join([f"# Note {number}", *paragraphs]))


def _measure(run: Run, folders: list[Path], size: int) -> Ingestion:
    """Ingest folder after folder, each in turn with the model alone; return the sums."""
    with run.open_store(run.stores.copy(size)) as app:
        api.search("warm up")
        rounds = [_measure_folder(app, folder) for folder in folders]
    return Ingestion(*(sum(values) for values in zip(*rounds, strict=True)))


def _measure_folder(app: App, folder: Path) -> Ingestion:
    cpu_before = _sum_cpu_s()
    began = time.perf_counter()
    with Parts() as parts:
        parts.watch("model", app.store.encoder.embedder, "encode_passages")
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
    cpu_before = _sum_cpu_s()
    for start in range(0, len(excerpts), BATCH_PASSAGES):
        run_sync(app.store.encoder.encode_passages(excerpts[start : start + BATCH_PASSAGES]))
    return Ingestion(wall_s, cpu_s, parts.spent["model"], _sum_cpu_s() - cpu_before, again_s)


def _measure_memory(run: Run) -> Row:
    """Compare the peaks of processes that ingest few and many files."""
    few = 100 if run.quick else 500
    peaks = []
    for count in (few, few * 8):
        with tempfile.TemporaryDirectory(dir=run.folder) as name:
            for number, note in enumerate(load_notes(count)):
                (Path(name) / f"{number}.txt").write_text(note)
            home = run.folder / f"memory-home-{count}"
            command = [*python_command(MEMORY_PROGRAM), name]
            documents, peak = map(int, run_process(command, run.environment(home), str(run.folder)).output.split())
            assert documents == count
            peaks.append(peak)
    growth = peaks[1] / peaks[0]
    measured = f"{growth:.2f}x: {peaks[1] / 1e6:.0f} MB against {peaks[0] / 1e6:.0f} MB"
    what = f"memory of a process that ingests {few * 8:,} files against {few:,}"
    return Row(what, f"at most {MAX_MEMORY_GROWTH}x", measured, growth <= MAX_MEMORY_GROWTH)


def _ask_questions(run: Run) -> tuple[Row, Table]:
    """Ask the same questions of our pieces and of plain ones."""
    documents, questions = question_set.build_set(2 if run.quick else 6)
    ranks: dict[str, list[int | None]] = {}
    with tempfile.TemporaryDirectory(dir=run.folder) as name:
        for document in documents:
            question_set.write_document(Path(name), document)
        for splitter in ("ours", "plain"):
            with run.open_store(run.folder / f"questions-{splitter}"):
                if splitter == "ours":
                    api.ingest(name)
                else:
                    question_set.store_plain_pieces(documents)
                ranks[splitter] = [question_set.rank_answer(question) for question in questions]
    shares = {
        splitter: (found.count(1) / len(found), sum(rank is not None for rank in found) / len(found))
        for splitter, found in ranks.items()
    }
    lines = [(splitter, f"{first:.1%}", f"{five:.1%}") for splitter, (first, five) in shares.items()]
    ours, plain = shares["ours"][1], shares["plain"][1]
    what = f"{len(questions)} questions about {len(documents)} documents: the right piece in the first five"
    row = Row(what, f"at least {MIN_TOP_5:.0%}", f"{ours:.1%} (plain splitter {plain:.1%})", ours >= MIN_TOP_5)
    return row, Table(("splitter", "first", "first five"), lines)


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
