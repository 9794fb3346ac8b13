"""Train the adapters of `athena/memory/sessions`: which clauses are worth keeping, and which statement replaces which.

    python scripts/train_adapters.py ROWS.json.gz OUT [--without rafa,olek,hugo] [--figures]
    python scripts/train_adapters.py ROWS.json.gz OUT --resume FOLDER --new pia,sven,faye

Needs torch, which is not among the project's dependencies, and for training from the beginning a GPU. With `--resume`
it goes on from the adapters in FOLDER, with all rows of new writers and some of the others: half an hour on two cores.
ROWS and `words.npz` beside it are written by scripts/adapter_data.py. OUT gets statements.npz and changes.npz, trained
on all writers but those left out (for scripts/fit_changes.py each half of `labelled_sessions.FOLDS` in turn); with
`--figures` it is printed how good they are on the writers left out, and how that grows with the number of writers.
Copy them into the package and run scripts/model_checksums.py.

The layers of the bundled model stay as they are. Each linear map gets a product of two thin matrices, and the norms
are trained as well; on top of the states stand small heads.
"""

import argparse
import gzip
import json
import math
import random
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as functional
from safetensors.numpy import load_file
from torch import nn
from training_network import HEADS, NAMES, WIDTH, MiniLM

PARTS = ("query", "key", "value", "answer", "up", "down")
GRAPH_NAMES = {
    "up": "wide",
    "down": "narrow",
    "middle_norm": "middle",
    "end_norm": "state",
}  # of scripts/build_model.py
OUTPUTS, VIEWS, HASH_BUCKETS = 17, 7, 1 << 14
WORD_SCALE, DROPPED_WORDS = 0.3, 0.3
MASKED_WORD = 100  # the id of [UNK]
FIRST_WORD = 103  # ids below are marks
LOW = -1e4  # the score of what cannot be chosen
LAYERS_FILE = Path(__file__).parents[1] / "data" / "model" / "layers.safetensors"
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# of the rows of known writers, when training goes on: turns, pairs without and with a change
OLD_TURN_SHARE, OLD_SHARE, OLD_CHANGE_SHARE = 0.5, 0.15, 0.3
MAX_PAIRS = 5  # of a statement, when training goes on
READ_AT_ONCE = 256  # texts, where nothing is trained
BUCKET_BATCHES = 20  # whose texts are sorted by length, so that little is padded

Row = dict[str, Any]


@dataclass(frozen=True)
class Settings:
    """How to train; chosen by cross-validation over the writers that are not judges."""

    epochs: int = 12
    batch: int = 16
    rate: float = 1.5e-3
    head_rate: float = 2e-3
    dropout: float = 0.3
    masked: float = 0.1  # share of the words that the model does not see
    seed: int = 1
    rank: int = 8
    fixed_layers: int = 0  # the first ones, which are not trained further
    unchanged_share: float = 1.0  # of the statements that replace nothing
    max_seconds: float = math.inf
    session_changes: int = 1  # how often changes of mind in sessions are read, which are fewer than in timelines


class LowRank(nn.Module):  # type: ignore[misc]  # torch is not installed here
    """A linear map that stays, and a product of two thin matrices that is trained."""

    def __init__(self, fixed: nn.Linear, rank: int) -> None:
        super().__init__()
        self.fixed = fixed
        self.down = nn.Parameter(torch.randn(rank, fixed.in_features) / math.sqrt(fixed.in_features))
        self.up = nn.Parameter(torch.zeros(fixed.out_features, rank))

    def forward(self, values: Any) -> Any:
        return self.fixed(values) + functional.linear(functional.linear(values, self.down), self.up)


def load_adapted(words_file: Path, dropout: float, rank: int) -> MiniLM:
    """Return the bundled model with untrained adapters."""
    network = MiniLM(dropout)
    state = network.state_dict()
    tables = np.load(words_file)
    for theirs, value in load_file(LAYERS_FILE).items():
        if theirs in NAMES:
            state[NAMES[theirs]] = torch.from_numpy(value.astype(np.float32))
    state["positions.weight"] = torch.from_numpy(tables["position"].astype(np.float32))
    state["types.weight"] = torch.from_numpy(tables["token_type"].astype(np.float32))
    state["words.weight"][torch.from_numpy(tables["used"])] = torch.from_numpy(tables["words"].astype(np.float32))
    network.load_state_dict(state)
    for parameter in network.parameters():
        parameter.requires_grad = False
    for layer in network.layers:
        for part in PARTS:
            setattr(layer, part, LowRank(getattr(layer, part), rank))
        for norm in (layer.middle_norm, layer.end_norm):
            norm.requires_grad_(True)
    return network


class Batch(NamedTuple):
    """Texts of one step, padded."""

    rows: Sequence[Row]
    ids: Any
    mask: Any


def create_batch(rows: Sequence[Row], masked: float = 0.0) -> Batch:
    longest = max(len(row["ids"]) for row in rows)
    padded = np.zeros((len(rows), longest), np.int64)
    for own, row in zip(padded, rows, strict=True):
        own[: len(row["ids"])] = row["ids"]
    counts = np.array([len(row["ids"]) for row in rows])
    ids, mask = to_device(padded), to_device(np.arange(longest) < counts[:, None])
    if masked:
        is_hidden = (torch.rand(ids.shape, device=DEVICE) < masked) & (ids >= FIRST_WORD)
        ids = torch.where(is_hidden, MASKED_WORD, ids)
    return Batch(rows, ids, mask)


def to_device(values: Any) -> Any:
    return torch.from_numpy(np.ascontiguousarray(values)).to(DEVICE, non_blocking=True)


def restore(tagger: Any, file: Path, fixed_layers: int) -> Any:
    """Give a tagger the values that `export` wrote, and fix its first layers."""
    with np.load(file) as stored:
        arrays = {name: stored[name].astype(np.float32) for name in stored.files}
    for name in [name for name in arrays if f"{name}:scale" in arrays]:
        arrays[name] *= arrays.pop(f"{name}:scale")
    with torch.no_grad():
        for number, layer in enumerate(tagger.network.layers):
            for part in PARTS:
                name = f"{number}.{GRAPH_NAMES.get(part, part)}"
                factor = math.sqrt(WIDTH // HEADS) if part == "query" else 1
                getattr(layer, part).down.copy_(torch.from_numpy(arrays[f"{name}.down"].T))
                getattr(layer, part).up.copy_(torch.from_numpy(arrays[f"{name}.up"].T * factor))
            for part in ("middle_norm", "end_norm"):
                name = f"{number}.{GRAPH_NAMES[part]}"
                getattr(layer, part).weight.copy_(torch.from_numpy(arrays[f"{name}.gain"]))
                getattr(layer, part).bias.copy_(torch.from_numpy(arrays[f"{name}.bias"]))
        tagger.import_head({name: torch.from_numpy(value) for name, value in arrays.items() if not name[0].isdigit()})
    for layer in tagger.network.layers[:fixed_layers]:
        layer.requires_grad_(False)
    return tagger


class StatementTagger(nn.Module):  # type: ignore[misc]  # the same
    """The classifier of `classifier.py`."""

    def __init__(self, network: MiniLM) -> None:
        super().__init__()
        self.network = network
        self.dense = nn.Linear(2 * WIDTH, OUTPUTS)
        self.words = nn.Embedding(HASH_BUCKETS + 1, OUTPUTS, padding_idx=HASH_BUCKETS)
        self.neighbors = nn.Parameter(torch.zeros(VIEWS, OUTPUTS, OUTPUTS))
        nn.init.zeros_(self.words.weight)
        with torch.no_grad():
            self.dense.weight *= 0.2

    def forward(self, batch: Batch) -> tuple[Any, Any]:
        """Return the logits of both stages for all fragments, turn after turn."""
        with torch.autocast(DEVICE, torch.bfloat16):
            states = self.network(batch.ids, batch.mask)
        turns = to_device(np.repeat(np.arange(len(batch.rows)), [len(row["spans"]) for row in batch.rows]))
        spans = to_device(np.array([span for row in batch.rows for span in row["spans"]]))
        sums = functional.pad(states.float().cumsum(1), (0, 0, 1, 0))
        means = (sums[turns, spans[:, 1]] - sums[turns, spans[:, 0]]) / (spans[:, 1] - spans[:, 0])[:, None]
        pooled = functional.dropout(torch.cat([means, states[:, 0].float()[turns]], 1), 0.2, self.training)
        first = self.dense(pooled) + self.sum_words([words for row in batch.rows for words in row["words"]])
        views = gather_views(to_probabilities(first), turns, batch.rows)
        return first, first + sum(view @ weight for view, weight in zip(views, self.neighbors, strict=True))

    def sum_words(self, words: Sequence[Sequence[int]]) -> Any:
        places = to_device(np.repeat(np.arange(len(words)), [len(row) for row in words]))
        values = self.words(to_device(np.array([word for row in words for word in row], np.int64)))
        if self.training:
            values = values * (torch.rand(len(values), 1, device=DEVICE) >= DROPPED_WORDS) / (1 - DROPPED_WORDS)
        return torch.zeros(len(words), OUTPUTS, device=DEVICE).index_add(0, places, values) * WORD_SCALE

    def measure_loss(self, batch: Batch) -> Any:
        labels = torch.tensor([label for row in batch.rows for label in row["labels"]], device=DEVICE)
        total = 0
        for logits, share in zip(self(batch), (0.3, 0.7), strict=True):
            keep, begin = (
                functional.binary_cross_entropy_with_logits(logits[:, i], labels[:, i].float()) for i in (0, 1)
            )
            total += share * (keep + 0.5 * begin + 0.5 * functional.cross_entropy(logits[:, 2:], labels[:, 2]))
        return total

    def list_parameters(self, settings: Settings) -> list[dict[str, Any]]:
        return [
            {"params": self.dense.parameters(), "lr": settings.head_rate},
            {"params": self.words.parameters(), "lr": 1.5 * settings.head_rate, "weight_decay": 0.1},
            {"params": [self.neighbors], "lr": 5 * settings.head_rate},
        ]

    def predict(self, batch: Batch) -> Any:
        return self(batch)[1]

    def import_head(self, head: dict[str, Any]) -> None:
        self.dense.weight.copy_(head["dense"].T)
        self.dense.bias.copy_(head["bias"])
        self.words.weight[:HASH_BUCKETS] = head["words"] / WORD_SCALE
        self.neighbors.copy_(head["neighbors"])

    def export_head(self) -> dict[str, Any]:
        return {
            "dense": to_numpy(self.dense.weight).T,
            "bias": to_numpy(self.dense.bias),
            "words": to_numpy(self.words.weight)[:HASH_BUCKETS] * WORD_SCALE,
            "neighbors": to_numpy(self.neighbors),
        }


class ChangeTagger(nn.Module):  # type: ignore[misc]  # the same
    """The classifier of `supersede.py`: does the second statement replace the first."""

    def __init__(self, network: MiniLM, rows: Sequence[Row]) -> None:
        super().__init__()
        self.network = network
        features = torch.tensor([row["features"] for row in rows])
        self.register_buffer("means", features.mean(0))
        self.register_buffer("deviations", features.std(0) + 1e-3)
        self.dense = nn.Linear(2 * WIDTH, 1)
        self.features = nn.Linear(features.shape[1], 1)
        with torch.no_grad():
            self.dense.weight *= 0.2
            self.features.weight *= 0.2

    def forward(self, batch: Batch) -> Any:
        with torch.autocast(DEVICE, torch.bfloat16):
            states = self.network(batch.ids, batch.mask)
        states = states.float()
        mask = batch.mask[:, :, None]
        pooled = torch.cat([states[:, 0], (states * mask).sum(1) / mask.sum(1)], 1)
        features = torch.tensor([row["features"] for row in batch.rows], device=DEVICE)
        features = (features - self.means) / self.deviations
        features = functional.dropout(features, 0.1, self.training)
        return (self.dense(functional.dropout(pooled, 0.2, self.training)) + self.features(features))[:, 0]

    def measure_loss(self, batch: Batch) -> Any:
        """Return the loss of choosing, for each new statement, the one that it replaces or none."""
        logits = self(batch)
        numbers: dict[str, int] = {}
        groups = [numbers.setdefault(row["group"], len(numbers)) for row in batch.rows]
        labels = torch.tensor([float(row["label"]) for row in batch.rows], device=DEVICE)
        choices = torch.full((len(numbers), len(groups) + 1), LOW, device=DEVICE)
        places = (torch.tensor(groups, device=DEVICE), torch.arange(len(groups), device=DEVICE))
        choices = choices.index_put(places, logits)
        choices[:, -1] = 0  # none
        right = torch.zeros_like(choices).index_put(places, labels)
        right[:, -1] = (right.sum(1) == 0).float()
        return functional.cross_entropy(choices, right / right.sum(1, keepdim=True))

    def list_parameters(self, settings: Settings) -> list[dict[str, Any]]:
        return [{"params": [*self.dense.parameters(), *self.features.parameters()], "lr": settings.head_rate}]

    def predict(self, batch: Batch) -> Any:
        return self(batch)

    def import_head(self, head: dict[str, Any]) -> None:
        self.dense.weight[0] = head["dense"]
        self.features.weight[0] = head["features"] * self.deviations
        self.dense.bias.copy_(head["bias"] + head["features"] @ self.means)
        self.features.bias.zero_()

    def export_head(self) -> dict[str, Any]:
        weights = to_numpy(self.features.weight)[0] / to_numpy(self.deviations)
        bias = to_numpy(self.dense.bias) + to_numpy(self.features.bias) - weights @ to_numpy(self.means)
        return {"dense": to_numpy(self.dense.weight)[0], "features": weights, "bias": bias}


def gather_views(own: Any, turns: Any, rows: Sequence[Row]) -> tuple[Any, ...]:
    """Return what each fragment sees: itself, its neighbours, the means of its sentence and of its turn."""

    def shift(steps: int) -> Any:
        moved = torch.zeros_like(own)
        if len(own) > abs(steps):
            here, there = slice(steps, None), slice(None, -steps)
            if steps < 0:
                here, there = slice(None, steps), slice(-steps, None)
            moved[here] = own[there] * (turns[here] == turns[there])[:, None]
        return moved

    def average(groups: Any, count: int) -> Any:
        sums = torch.zeros(count, 1 + own.shape[1], device=DEVICE)
        sums = sums.index_add(0, groups, functional.pad(own, (1, 0), value=1.0))
        return (sums[:, 1:] / sums[:, :1])[groups]

    numbers: dict[tuple[int, int], int] = {}
    keys = [(i, sentence) for i, row in enumerate(rows) for sentence in row["sentences"]]
    sentences = to_device(np.array([numbers.setdefault(key, len(numbers)) for key in keys]))
    by_sentence, by_turn = average(sentences, len(numbers)), average(turns, len(rows))
    return own, shift(1), shift(-1), shift(2), shift(-2), by_sentence, by_turn


def to_probabilities(logits: Any) -> Any:
    return torch.cat([torch.sigmoid(logits[:, :2]), torch.softmax(logits[:, 2:], 1)], 1)


def to_numpy(values: Any) -> Any:
    return values.detach().float().cpu().numpy()


def train(tagger: Any, rows: Sequence[Row], settings: Settings) -> Any:
    """Train an adapter and its head."""
    random.seed(settings.seed)
    tagger.to(DEVICE).train()
    layers = [value for value in tagger.network.parameters() if value.requires_grad]
    parameters = [{"params": layers, "lr": settings.rate}, *tagger.list_parameters(settings)]
    optimizer = torch.optim.AdamW(parameters, weight_decay=0.01, fused=DEVICE == "cuda")
    groups: dict[str, list[Row]] = {}
    for i, row in enumerate(rows):
        groups.setdefault(row.get("group", str(i)), []).append(row)
    order = list(repeat_groups(groups.values(), settings))  # the pairs of a statement stay together
    steps = len(order) // settings.batch * settings.epochs
    start = time.monotonic()

    def get_rate(step: int) -> float:
        """Return the share of the rate; where time is short, it falls with the time."""
        progress = max(step / steps, (time.monotonic() - start) / settings.max_seconds)
        return min(1, progress / 0.1) * max(0, 1 - progress)

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, get_rate)
    for epoch in range(settings.epochs):
        for chosen in list_batches(order, settings.batch):
            if time.monotonic() - start > settings.max_seconds:
                print(f"the time ended in epoch {epoch + 1} of {settings.epochs}", flush=True)
                return tagger.eval()
            loss = tagger.measure_loss(create_batch(chosen, settings.masked))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return tagger.eval()


def repeat_groups(groups: Iterable[list[Row]], settings: Settings) -> Iterator[list[Row]]:
    for group in groups:
        is_change = any(row.get("label") for row in group)
        if "label" in group[0] and not is_change and random.random() > settings.unchanged_share:
            continue
        yield from [group] * (settings.session_changes if is_change and group[0].get("is_session") else 1)


def list_batches(groups: list[list[Row]], size: int) -> list[list[Row]]:
    """Return all groups in random batches of texts of similar length."""
    random.shuffle(groups)
    batches = []
    for start in range(0, len(groups), size * BUCKET_BATCHES):
        bucket = groups[start : start + size * BUCKET_BATCHES]
        bucket.sort(key=lambda group: max(len(row["ids"]) for row in group))
        batches += [[row for group in bucket[i : i + size] for row in group] for i in range(0, len(bucket), size)]
    random.shuffle(batches)
    return batches


def predict(tagger: Any, rows: Sequence[Row]) -> Any:
    with torch.no_grad():
        batches = (create_batch(rows[start : start + READ_AT_ONCE]) for start in range(0, len(rows), READ_AT_ONCE))
        return np.concatenate([to_numpy(tagger.predict(batch)) for batch in batches])


def train_statements(rows: Sequence[Row], words: Path, settings: Settings, resumed: Path | None = None) -> Any:
    torch.manual_seed(settings.seed)
    tagger = StatementTagger(load_adapted(words, settings.dropout, settings.rank))
    return train(restore(tagger, resumed, settings.fixed_layers) if resumed else tagger, rows, settings)


def train_changes(rows: Sequence[Row], words: Path, settings: Settings, resumed: Path | None = None) -> Any:
    torch.manual_seed(settings.seed)
    tagger = ChangeTagger(load_adapted(words, settings.dropout, settings.rank), rows)
    return train(restore(tagger, resumed, settings.fixed_layers) if resumed else tagger, rows, settings)


def choose_rows(rows: Sequence[Row], new: Collection[str]) -> list[Row]:
    """Return all rows of new writers and some of the others; of a statement's pairs the most similar ones."""
    groups: dict[str, list[Row]] = {}
    for i, row in enumerate(rows):
        groups.setdefault(row.get("group", str(i)), []).append(row)
    chosen: list[Row] = []
    for group in groups.values():
        has_change = any(row.get("label") for row in group)
        old_share = (OLD_CHANGE_SHARE if has_change else OLD_SHARE) if "label" in group[0] else OLD_TURN_SHARE
        share = 1.0 if group[0]["writer"] in new else old_share
        if random.random() < share:
            chosen += sorted(group, key=lambda row: (-row.get("label", 0), -row.get("features", [0])[0]))[:MAX_PAIRS]
    return chosen


def measure_precision(labels: Any, scores: Any) -> float:
    """Return the average precision (AP): the mean, over all right ones, of the precision down to each."""
    ordered = labels[np.argsort(-scores, kind="stable")].astype(bool)
    precisions = np.cumsum(ordered) / np.arange(1, len(ordered) + 1)
    return float(precisions[ordered].mean())


def describe_statements(rows: Sequence[Row], logits: Any) -> str:
    labels = np.array([label for row in rows for label in row["labels"]])
    kinds = (logits[:, 2:].argmax(1) == labels[:, 2]).mean()
    begins = ((logits[:, 1] > 0) == labels[:, 1]).mean()
    keep = measure_precision(labels[:, 0], logits[:, 0])
    return f"{len(labels):6,} fragments  AP of keep {keep:.3f}  kind right {kinds:.3f}  begin right {begins:.3f}"


def describe_changes(rows: Sequence[Row], logits: Any) -> str:
    """Describe how often the likeliest pair of a statement is right, at the threshold with the best F1."""
    labels = np.array([row["label"] for row in rows])
    groups: dict[str, list[int]] = {}
    for i, row in enumerate(rows):
        groups.setdefault(row["group"], []).append(i)
    logits = np.array(logits)
    for group in groups.values():  # against the other ones and none of them
        logits[group] -= np.logaddexp.reduce([0.0, *logits[group]])
    best = [max(group, key=lambda i: logits[i]) for group in groups.values()]
    right, scores = labels[best], logits[best]
    changes = sum(labels[group].any() for group in groups.values())
    figures = []
    for threshold in np.unique(scores):
        chosen = scores >= threshold
        precision, recall = right[chosen].mean(), right[chosen].sum() / changes
        figures.append((2 * precision * recall / max(1e-9, precision + recall), recall, precision, float(threshold)))
    score, recall, precision, threshold = max(figures)
    return (
        f"{len(rows):6,} pairs  AP {measure_precision(labels, logits):.3f}  of {changes} changes found {recall:.3f} at "
        f"precision {precision:.3f} (F1 {score:.3f}, probability {math.exp(threshold):.2f})"
    )


def export(tagger: Any, file: Path) -> None:
    """Write what the product reads: graph inputs and the head; large matrices rounded to eight bits."""
    arrays: dict[str, Any] = {}
    for number, layer in enumerate(tagger.network.layers):
        for part in PARTS:
            low_rank = getattr(layer, part)
            name = f"{number}.{GRAPH_NAMES.get(part, part)}"
            factor = 1 / math.sqrt(WIDTH // HEADS) if part == "query" else 1  # the graph's scores are not scaled later
            is_trained = low_rank.up.requires_grad
            arrays[f"{name}.down"] = to_numpy(low_rank.down).T * is_trained  # zeros need no space in the file
            arrays[f"{name}.up"] = to_numpy(low_rank.up).T * factor
        for part in ("middle_norm", "end_norm"):
            norm = getattr(layer, part)
            arrays[f"{number}.{GRAPH_NAMES[part]}.gain"] = to_numpy(norm.weight)
            arrays[f"{number}.{GRAPH_NAMES[part]}.bias"] = to_numpy(norm.bias)
    np.savez_compressed(file, **dict(round_arrays(arrays | tagger.export_head())))


def round_arrays(arrays: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in arrays.items():
        if value.size < 1_000:
            yield name, value.astype(np.float32)
        elif name == "words" or name[0].isdigit():
            # each vector of rank 8 has its own scale, and so has each output of the words
            axis = 1 if name.endswith(".up") else 0
            scale = np.maximum(np.abs(value).max(axis, keepdims=True), 1e-9) / 127
            yield name, np.rint(value / scale).astype(np.int8)
            yield f"{name}:scale", scale.astype(np.float32)
        else:
            yield name, value.astype(np.float16)


def split_rows(rows: Sequence[Row], without: Collection[str]) -> tuple[list[Row], list[Row]]:
    return [row for row in rows if row["writer"] not in without], [row for row in rows if row["writer"] in without]


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the adapters for statements and changes of mind.")
    parser.add_argument("rows", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--without", default="", help="writers to leave out of training, and to measure on")
    parser.add_argument("--figures", action="store_true", help="print the learning curve as well")
    parser.add_argument("--resume", type=Path, help="folder of adapters to go on from")
    parser.add_argument("--new", default="", help="with --resume: writers whose rows are all used")
    parser.add_argument("--only", choices=("statements", "changes"))
    parser.add_argument(
        "--seconds", type=float, default=math.inf, help="for each training at most; its rate falls sooner"
    )
    options = parser.parse_args()
    content = json.loads(gzip.decompress(options.rows.read_bytes()))
    words = options.rows.with_name("words.npz")
    without, new = ([name for name in text.split(",") if name] for text in (options.without, options.new))
    first = (
        Settings(rank=16),
        Settings(4, 32, 6e-4, dropout=0.2, seed=0, rank=16, unchanged_share=0.6, session_changes=2),
    )
    more = replace(Settings(), rate=8e-4, head_rate=8e-4, epochs=2, dropout=0.1, masked=0.05, fixed_layers=2)
    for_statements, for_changes = (more, replace(more, epochs=1, batch=24)) if options.resume else first
    tasks = (
        ("statements", content["turns"], for_statements, train_statements, describe_statements),
        ("changes", content["pairs"], for_changes, train_changes, describe_changes),
    )
    for name, rows, settings, train_task, describe in tasks:
        if options.only not in (None, name):
            continue
        settings = replace(settings, max_seconds=options.seconds)
        trained, left_out = split_rows(rows, without)
        resumed = options.resume / f"{name}.npz" if options.resume else None
        trained = choose_rows(trained, new) if resumed else trained
        writers = list(dict.fromkeys(row["writer"] for row in trained))
        for count in range(1, len(writers)) if options.figures and left_out else ():
            some = [row for row in trained if row["writer"] in writers[:count]]
            logits = predict(train_task(some, words, settings), left_out)
            print(f"{name}: {count} writers  {describe(left_out, logits)}", flush=True)
        tagger = train_task(trained, words, settings, resumed)
        export(tagger, options.out / f"{name}.npz")
        for writer in without:
            own = [row for row in left_out if row["writer"] == writer]
            if own:
                print(f"{name}: {writer}  {describe(own, predict(tagger, own))}", flush=True)
        if left_out:
            print(f"{name}: {len(writers)} writers  {describe(left_out, predict(tagger, left_out))}", flush=True)


if __name__ == "__main__":
    main()
