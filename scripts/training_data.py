"""Read training data for the embedding model: passages, questions about them, and hard negatives.

A file is JSON, packed with xz: `passages` is a list of [header, text, session, item] and `pairs` a list of
[source, question, passages that answer it]. Passages of one session follow each other; passages of one item say the
same thing. `anchor` (optional) is how closely the vectors of a file's passages are held to the published model's.
"""

import json
import lzma
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as functional
from tokenizers import Tokenizer
from training_network import MiniLM

MAX_PASSAGE_TOKENS, MAX_QUESTION_TOKENS = 192, 64
WINDOW_WORDS = 40  # of each neighbour, as in the product
HARD_NEGATIVES = 8  # of the same session, and as many of all
MAX_GOLD = 4
TALK_ANCHOR, DOCUMENT_ANCHOR = 0.5, 3.0  # a passage with a header is talk
# A passage that scores this share of the right one's score may be right as well.
MAX_NEGATIVE_SCORE = {"personamem": 0.8}
DEFAULT_MAX_NEGATIVE_SCORE = 0.95
UNWEIGHTED_TOKENS = (0, 101, 102, 999, 1010, 1012, 1029)  # padding, start, end, and ! , . ?
VOCABULARY_SIZE = 30_522


@dataclass
class Texts:
    """Token ids of many texts in one row, with the offset of each text."""

    ids: Any
    offsets: Any

    @classmethod
    def from_lists(cls, rows: Sequence[Sequence[int]], device: str) -> "Texts":
        ids = np.concatenate([np.asarray(row, np.int32) for row in rows])
        offsets = np.cumsum([0, *map(len, rows)])
        return cls(torch.from_numpy(ids).to(device), torch.from_numpy(offsets).to(device))

    def pad(self, indexes: Any) -> tuple[Any, Any, Any]:
        """Return the token ids of some texts as a matrix, its mask, and their lengths."""
        lengths = self.offsets[indexes + 1] - self.offsets[indexes]
        columns = torch.arange(int(lengths.max()), device=self.ids.device)[None]
        mask = columns < lengths[:, None]
        places = (self.offsets[indexes][:, None] + columns).clamp_max(len(self.ids) - 1)
        return torch.where(mask, self.ids[places].long(), 0), mask, lengths


@dataclass
class TrainingData:
    """All that a training step reads, on the device."""

    passages: Texts
    windows: Texts  # passages between the words of their neighbours
    questions: Texts
    first_token: Any  # of each passage after its header
    window_span: Any  # the passage's own tokens in its window
    session: Any
    store: Any  # passages that are searched together
    item: Any
    text_id: Any
    anchor: Any  # of each passage
    gold: Any  # of each question, padded with -1
    source: Any
    source_names: list[str]
    near_negatives: Any
    far_negatives: Any
    passage_vectors: Any  # of the published model
    question_vectors: Any
    idf: Any  # of each word piece


def load_data(files: Sequence[Path], tokenizer_file: Path, model: MiniLM, device: str) -> TrainingData:
    """Read training files, and find hard negatives with the published model."""
    passages, sessions, stores, items, anchors, pairs = _read_files(files)
    texts = [text for _, text in passages]
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    tokenizer.no_padding()
    tokenizer.enable_truncation(MAX_PASSAGE_TOKENS)
    alone, first_token = _tokenize_passages(tokenizer, passages)
    windows, spans = _tokenize_windows(tokenizer, passages, sessions)
    tokenizer.enable_truncation(MAX_QUESTION_TOKENS)
    questions = [encoding.ids for encoding in tokenizer.encode_batch([question for _, question, _ in pairs])]
    gold = np.full((len(pairs), MAX_GOLD), -1)
    for row, (_, _, answers) in enumerate(pairs):
        gold[row, : len(answers[:MAX_GOLD])] = answers[:MAX_GOLD]
    text_ids: dict[str, int] = {}
    names = sorted({source for source, _, _ in pairs})

    def to_device(values: Any) -> Any:
        return torch.as_tensor(np.asarray(values)).to(device)

    data = TrainingData(
        Texts.from_lists(alone, device),
        Texts.from_lists(windows, device),
        Texts.from_lists(questions, device),
        to_device(first_token),
        to_device(spans),
        to_device(sessions),
        to_device(stores),
        to_device(items),
        to_device([text_ids.setdefault(text, len(text_ids)) for text in texts]),
        to_device(np.array(anchors, np.float32)),
        to_device(gold),
        to_device([names.index(source) for source, _, _ in pairs]),
        names,
        None,
        None,
        _embed(model, alone, first_token, device),
        _embed(model, questions, None, device),
        to_device(_compute_idf(alone)),
    )
    limits = [
        next((limit for name, limit in MAX_NEGATIVE_SCORE.items() if source.startswith(name)), None)
        or DEFAULT_MAX_NEGATIVE_SCORE
        for source, _, _ in pairs
    ]
    _find_negatives(data, to_device(np.array(limits, np.float32)))
    return data


def _read_files(files: Sequence[Path]) -> tuple[list[Any], list[int], list[int], list[int], list[float], list[Any]]:
    passages: list[Any] = []
    sessions: list[int] = []
    stores: list[int] = []
    items: list[int] = []
    anchors: list[float] = []
    pairs: list[Any] = []
    for file in files:
        with lzma.open(file, "rt", encoding="utf-8") as lines:
            content = json.load(lines)
        first, first_session = len(passages), sessions[-1] + 1 if sessions else 0
        first_item, first_store = max(items, default=-1) + 1, stores[-1] + 1 if stores else 0
        for header, text, session, item, *store in content["passages"]:
            passages.append((header, text))
            sessions.append(first_session + session)
            stores.append(first_store + (store[0] if store else session))
            items.append(first_item + item)
            anchors.append(content.get("anchor", TALK_ANCHOR if header else DOCUMENT_ANCHOR))
        for source, question, answers in content["pairs"]:
            pairs.append((source, question, [first + i for i in ([answers] if isinstance(answers, int) else answers)]))
    return passages, sessions, stores, items, anchors, pairs


def _tokenize_passages(tokenizer: Tokenizer, passages: list[Any]) -> tuple[list[list[int]], Any]:
    rows, first_token = [], np.ones(len(passages), np.int64)
    for start in range(0, len(passages), 50_000):
        part = passages[start : start + 50_000]
        for i, encoding in enumerate(tokenizer.encode_batch([header + text for header, text in part]), start):
            rows.append(encoding.ids)
            if header_length := len(passages[i][0]):
                own = (k for k, (a, b) in enumerate(encoding.offsets) if b > a and a >= header_length)
                first_token[i] = next(own, 1)
    return rows, first_token


def _tokenize_windows(tokenizer: Tokenizer, passages: list[Any], sessions: list[int]) -> tuple[list[list[int]], Any]:
    rows, spans = [], np.zeros((len(passages), 2), np.int64)
    for start in range(0, len(passages), 50_000):
        texts, marks = [], []
        for i in range(start, min(len(passages), start + 50_000)):
            header, text = passages[i]
            has_previous = i > 0 and sessions[i - 1] == sessions[i]
            has_next = i + 1 < len(passages) and sessions[i + 1] == sessions[i]
            before = " ".join(passages[i - 1][1].split()[-WINDOW_WORDS:]) + " " if has_previous else ""
            after = " " + " ".join(passages[i + 1][1].split()[:WINDOW_WORDS]) if has_next else ""
            texts.append(header + before + text + after)
            marks.append((len(header) + len(before), len(header) + len(before) + len(text)))
        for i, (encoding, (first, last)) in enumerate(zip(tokenizer.encode_batch(texts), marks, strict=True), start):
            own = [k for k, (a, b) in enumerate(encoding.offsets) if b > a and a >= first and b <= last]
            rows.append(encoding.ids)
            spans[i] = (own[0], own[-1] + 1) if own else (0, len(encoding.ids))
    return rows, spans


def _embed(model: MiniLM, rows: list[list[int]], first_token: Any, device: str) -> Any:
    """Embed token rows with the published model: the mean of the tokens after the header, or of all."""
    vectors = torch.zeros(len(rows), model.words.weight.shape[1], device=device, dtype=torch.float16)
    lengths = np.array([len(row) for row in rows])
    order, start = np.argsort(lengths), 0
    while start < len(order):
        batch = order[start : start + 4096]
        batch = batch[: max(64, min(4096, 400_000 // int(lengths[batch[-1]])))]
        start += len(batch)
        ids, pooled = np.zeros((len(batch), lengths[batch[-1]]), np.int64), np.zeros((len(batch), lengths[batch[-1]]))
        for row, i in enumerate(batch):
            n = lengths[i]
            ids[row, :n] = rows[i]
            first, last = (0, n) if first_token is None else (min(first_token[i], n - 2) if n > 2 else 0, max(n - 1, 1))
            pooled[row, first:last] = 1
        mask = torch.from_numpy(np.arange(ids.shape[1])[None] < lengths[batch][:, None]).to(device)
        with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
            states = model(torch.from_numpy(ids).to(device), mask)
        weights = torch.from_numpy(pooled).to(device, torch.float32)[..., None]
        mean = functional.normalize((states.float() * weights).sum(1), dim=1)
        vectors[torch.from_numpy(batch).to(device)] = mean.half()
    return vectors


def _find_negatives(data: TrainingData, limits: Any) -> None:
    """Find for each question the best wrong passages of its session and of all, by the published model's vectors."""
    device, count = data.gold.device, len(data.gold)
    gold = data.gold[:, 0]
    data.far_negatives = torch.full((count, HARD_NEGATIVES), -1, dtype=torch.long, device=device)
    data.near_negatives = data.far_negatives.clone()
    for start in range(0, count, 1024):
        rows = slice(start, start + 1024)
        questions, right = data.question_vectors[rows], gold[rows]
        right_score = (questions.float() * data.passage_vectors[right].float()).sum(1)
        score, found = (questions @ data.passage_vectors.T).topk(200, dim=1)
        limit = (limits[rows] * right_score.clamp_min(0.2))[:, None]
        wrong = ~_may_be_right(data, found, right, data.gold[rows]) & (score.float() <= limit)
        in_store = data.store[found] == data.store[right][:, None]
        data.near_negatives[rows] = _take_first(found, wrong & in_store, HARD_NEGATIVES)
        candidates = _take_first(found, wrong & ~in_store, 3 * HARD_NEGATIVES)
        chosen = torch.argsort(torch.rand(candidates.shape, device=device), dim=1)[:, :HARD_NEGATIVES]
        data.far_negatives[rows] = torch.gather(candidates, 1, chosen)
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for i, store in enumerate(data.store.tolist()):
        first.setdefault(store, i)
        last[store] = i + 1
    by_store: dict[int, list[int]] = {}
    for row, store in enumerate(data.store[gold].tolist()):
        by_store.setdefault(store, []).append(row)
    for store, questions_of_store in by_store.items():
        if last[store] - first[store] < 4:
            continue
        rows = torch.tensor(questions_of_store, device=device)
        found = torch.arange(first[store], last[store], device=device)[None].expand(len(rows), -1)
        vectors = data.question_vectors[rows].float()
        score = vectors @ data.passage_vectors[first[store] : last[store]].float().T
        right_score = (vectors * data.passage_vectors[gold[rows]].float()).sum(1, keepdim=True).clamp_min(0.2)
        limit = limits[rows][:, None] * right_score
        wrong = ~_may_be_right(data, found, gold[rows], data.gold[rows]) & (score <= limit)
        order = torch.argsort(-score, dim=1)
        data.near_negatives[rows] = _take_first(
            torch.gather(found, 1, order), torch.gather(wrong, 1, order), HARD_NEGATIVES
        )


def _may_be_right(data: TrainingData, found: Any, right: Any, gold: Any) -> Any:
    right = right[:, None]
    same = (data.item[found] == data.item[right]) | (data.text_id[found] == data.text_id[right])
    is_neighbour = (found - right).abs() <= 1
    return same | is_neighbour | (found[:, :, None] == gold[:, None, :]).any(-1)


def _take_first(found: Any, allowed: Any, count: int) -> Any:
    """Return the first `count` allowed columns of each row, padded with -1."""
    width = found.shape[1]
    rank = torch.where(allowed, torch.arange(width, device=found.device)[None], width)
    values, order = rank.topk(min(count, width), dim=1, largest=False)
    taken = torch.where(values < width, torch.gather(found, 1, order), -1)
    return functional.pad(taken, (0, count - taken.shape[1]), value=-1)


def _compute_idf(rows: list[list[int]]) -> Any:
    document_counts = np.zeros(VOCABULARY_SIZE)
    for row in rows:
        document_counts[list(set(row))] += 1
    idf = np.log(1 + (len(rows) - document_counts + 0.5) / (document_counts + 0.5))
    idf[list(UNWEIGHTED_TOKENS)] = 0
    return idf.astype(np.float32)
