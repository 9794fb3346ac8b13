"""Train the encoder of the bundled model further, on a GPU: all-MiniLM-L6-v2 for questions about memories.

    python scripts/train_model.py DATA.json.xz ... --published FOLDER --out FOLDER [--seeds 1,2,3] [--share 0.8]

Needs torch, which is not among the project's dependencies. FOLDER of `--published` holds model.safetensors and
tokenizer.json as scripts/build_model.py fetches them, and projection.npy as scripts/fit_projection.py writes it.
The runs of all seeds are averaged and mixed into the published weights by `--share`; OUT gets layers.safetensors
and projection.npy, from which scripts/build_model.py builds what is shipped. docs/model.md has the figures.

Even steps take questions of any kind with hard negatives; odd steps take whole stores, in which a word may be met
by a neighbouring passage, as in the product. The loss adds up three contrastive ones (vectors; tokens as signs;
both with shared words, weighted as the product weights them), and a term that holds vectors near the published ones.
"""

import argparse
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as functional
from safetensors.numpy import load_file, save_file
from training_data import TrainingData, load_data
from training_network import FROZEN_PREFIXES, SIGN_BITS, MiniLM, export_layers, load_network

NEIGHBOR_DISCOUNTS = ((1, 0.85), (2, 0.7))  # as in the product
MAX_STORE_PASSAGES, MAX_STORE_QUESTIONS = 70, 12
SIGNS_FROM = 0.3  # share of the steps after which passage tokens are always signs
LOW = -1e4  # the score of a passage that may be right as well
DEVICE = "cuda"


@dataclass(frozen=True)
class Settings:
    """The settings of one run."""

    seed: int = 1
    steps: int = 1_000
    batch: int = 256
    negatives: int = 4
    stores: int = 20  # in a step of whole stores
    rate: float = 1e-4
    projection_rate: float = 2e-4
    dropout: float = 0.05
    temper: float = 0.6  # a source is drawn by its size to this power
    boosts: tuple[tuple[str, float], ...] = ()
    document_anchor: float = 1.0  # times the anchor of passages that is above that of talk
    vector_temperature: float = 0.05
    token_temperature: float = 0.03
    fused_temperature: float = 0.12


class Sampler:
    """Draw the questions and passages of a step."""

    def __init__(self, data: TrainingData, settings: Settings) -> None:
        self._data, self._settings = data, settings
        self._random = np.random.default_rng(settings.seed)
        counts = torch.bincount(data.source, minlength=len(data.source_names)).float()
        shares = counts**settings.temper
        for i, name in enumerate(data.source_names):
            shares[i] *= next((factor for prefix, factor in settings.boosts if name.startswith(prefix)), 1.0)
        chances = (shares / counts.clamp_min(1))[data.source].double()
        chances /= chances.sum()
        self._order = torch.multinomial(chances, settings.steps * settings.batch, replacement=True)
        self._chances = chances.cpu().numpy()
        self._stores, self._store_chances = self._list_stores()

    def draw_questions(self, step: int) -> tuple[Any, Any, Any]:
        """Return questions of any kind, their passages with hard negatives, and where the right ones are."""
        data, settings = self._data, self._settings
        questions = self._order[step * settings.batch : (step + 1) * settings.batch]
        right = _choose_gold(data.gold[questions])
        half = settings.negatives // 2
        negatives = torch.cat(
            [_choose(data.near_negatives[questions], half), _choose(data.far_negatives[questions], half)], 1
        )
        any_passage = torch.randint(len(data.item), negatives.shape, device=DEVICE)
        negatives = torch.where(negatives < 0, any_passage, negatives)
        return questions, torch.cat([right, negatives.flatten()]), torch.arange(len(right), device=DEVICE)

    def draw_stores(self) -> tuple[Any, Any, Any]:
        """Return questions about a few stores, all passages of these, and where the right ones are."""
        chosen_questions: list[int] = []
        chosen_passages: set[int] = set()
        gold = self._data.gold[:, 0]
        for i in self._random.choice(len(self._stores), self._settings.stores, replace=False, p=self._store_chances):
            first, last, rows = self._stores[i]
            chances = self._chances[rows] / self._chances[rows].sum()
            drawn = self._random.choice(rows, min(len(rows), MAX_STORE_QUESTIONS), replace=False, p=chances)
            if last - first > MAX_STORE_PASSAGES:
                middle = int(gold[drawn[0]])
                first, last = max(first, middle - MAX_STORE_PASSAGES // 2), min(last, middle + MAX_STORE_PASSAGES // 2)
                drawn = np.array([row for row in drawn if first <= int(gold[row]) < last])
            chosen_questions += list(drawn)
            chosen_passages.update(range(first, last))
        passages = torch.tensor(sorted(chosen_passages), device=DEVICE)
        questions = torch.tensor(np.array(chosen_questions), device=DEVICE)
        right = _choose_gold(self._data.gold[questions])
        inside = torch.isin(right, passages)
        right = torch.where(inside, right, self._data.gold[questions, 0])
        return questions, passages, torch.searchsorted(passages, right)

    def _list_stores(self) -> tuple[list[tuple[int, int, Any]], Any]:
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        for i, store in enumerate(self._data.store.tolist()):
            first.setdefault(store, i)
            last[store] = i + 1
        rows: dict[int, list[int]] = {}
        for row, store in enumerate(self._data.store[self._data.gold[:, 0]].tolist()):
            rows.setdefault(store, []).append(row)
        stores = [
            (first[store], last[store], np.array(questions))
            for store, questions in rows.items()
            if last[store] - first[store] >= 10 and len(questions) >= 2
        ]
        chances = np.array([self._chances[questions].sum() ** 0.5 for _, _, questions in stores])
        return stores, chances / chances.sum()


def train(data: TrainingData, network: MiniLM, settings: Settings) -> MiniLM:
    """Train the network in place; the tables of words, positions and types stay as they are."""
    torch.manual_seed(settings.seed)
    sampler = Sampler(data, settings)
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(not name.startswith(FROZEN_PREFIXES))
    encoder = [p for n, p in network.named_parameters() if p.requires_grad and not n.startswith("project")]
    groups: list[dict[str, Any]] = [
        {"params": encoder, "lr": settings.rate},
        {"params": list(network.project.parameters()), "lr": settings.projection_rate},
    ]
    optimizer = torch.optim.AdamW(groups, weight_decay=0.01, betas=(0.9, 0.98))

    def schedule(step: int) -> float:
        return min(1.0, (step + 1) / (0.06 * settings.steps)) * max(0.02, 1 - step / settings.steps)

    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule)
    network.train()
    started, losses = time.monotonic(), []
    for step in range(settings.steps):
        has_stores = step % 2 == 1
        drawn = sampler.draw_stores() if has_stores else sampler.draw_questions(step)
        with_window = step % 4 == 3  # every second step of whole stores trains the vectors, on windows
        use_signs = step >= SIGNS_FROM * settings.steps or bool(torch.rand(()) < SIGNS_FROM)
        loss = _compute_loss(data, network, settings, drawn, has_stores, with_window, use_signs)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_([p for group in groups for p in group["params"]], 1.0)
        optimizer.step()
        scheduler.step()
        losses.append(loss.detach())
        if step % 200 == 199:
            mean = torch.stack(losses[-200:]).mean().item()
            seconds = time.monotonic() - started
            print(f"seed {settings.seed}: step {step + 1}, loss {mean:.3f}, {seconds:.0f} s", flush=True)
    network.eval()
    return network


def _compute_loss(
    data: TrainingData,
    network: MiniLM,
    settings: Settings,
    drawn: tuple[Any, Any, Any],
    has_stores: bool,
    with_window: bool,
    use_signs: bool,
) -> Any:
    questions, passages, target = drawn
    right = passages[target]
    with torch.autocast(DEVICE, torch.bfloat16):
        ids, mask, _ = data.questions.pad(questions)
        states = network(ids, mask)
        passage_vectors, parts = _encode_passages(data, network, passages, with_window)
    question_vectors = functional.normalize((states.float() * mask[..., None]).sum(1), dim=1)
    ambiguous = _find_ambiguous(data, questions, passages, right)
    ambiguous[torch.arange(len(questions), device=DEVICE), target] = False
    cosines = question_vectors @ passage_vectors.T

    def contrast(scores: Any, temperature: float) -> Any:
        return functional.cross_entropy((scores / temperature).masked_fill(ambiguous, LOW), target)

    def to_anchor(indexes: Any) -> Any:
        anchor = data.anchor[indexes]
        return torch.where(anchor > 1, anchor * settings.document_anchor, anchor)

    away_questions = _measure_distance(question_vectors, data.question_vectors[questions])
    away_passages = _measure_distance(passage_vectors, data.passage_vectors[passages])
    loss = 0.5 * contrast(cosines, settings.vector_temperature)
    loss = loss + (to_anchor(right) * away_questions).mean() + (to_anchor(passages) * away_passages).mean()
    if with_window:
        return loss
    similarity, shared_words = _score_tokens(data, network, (states, ids, mask), passages, parts, has_stores, use_signs)
    loss = loss + 0.5 * contrast(similarity, settings.token_temperature)
    return loss + contrast(shared_words + 1.67 * cosines + 3 * similarity, settings.fused_temperature)


def _measure_distance(vectors: Any, published_vectors: Any) -> Any:
    return 1 - (vectors * functional.normalize(published_vectors.float(), dim=1)).sum(1)


def _encode_passages(
    data: TrainingData, network: MiniLM, passages: Any, with_window: bool
) -> tuple[Any, list[tuple[Any, Any, Any, Any]]]:
    """Return the vectors of passages, and in parts of similar length their positions, states, masks and tokens."""
    texts = data.windows if with_window else data.passages
    by_length = torch.argsort(texts.offsets[passages + 1] - texts.offsets[passages])
    vectors, parts = [], []
    for part in by_length.chunk(5):
        ids, mask, lengths = texts.pad(passages[part])
        states = network(ids, mask)
        columns = torch.arange(ids.shape[1], device=DEVICE)[None]
        if with_window:
            span = data.window_span[passages[part]]
            own = (columns >= span[:, :1]) & (columns < span[:, 1:])
        else:
            first = torch.minimum(data.first_token[passages[part]], (lengths - 2).clamp_min(0))
            own = (columns >= first[:, None]) & (columns < (lengths - 1).clamp_min(1)[:, None])
        vectors.append(functional.normalize((states.float() * own[..., None]).sum(1), dim=1))
        inner = mask & (columns > 0) & (columns < (lengths - 1)[:, None])
        parts.append((part, states, inner, ids))
    return torch.cat(vectors)[torch.argsort(by_length)], parts


def _find_ambiguous(data: TrainingData, questions: Any, passages: Any, right: Any) -> Any:
    """Return which passages may answer which questions as well."""
    right = right[:, None]
    same_item = data.item[passages][None] == data.item[right]
    same_text = data.text_id[passages][None] == data.text_id[right]
    same_session = data.session[passages][None] == data.session[right]
    is_neighbour = same_session & ((passages[None] - right).abs() <= 1)
    is_gold = (data.gold[questions][:, :, None] == passages[None, None]).any(1)
    return same_item | same_text | is_neighbour | is_gold


def _score_tokens(
    data: TrainingData,
    network: MiniLM,
    question: tuple[Any, Any, Any],
    passages: Any,
    parts: list[tuple[Any, Any, Any, Any]],
    has_stores: bool,
    use_signs: bool,
) -> tuple[Any, Any]:
    """Return late interaction and the share of common words, of each question with each passage."""
    states, ids, mask = question
    weights = data.idf[ids] * mask
    weights = weights / weights.sum(1, keepdim=True).clamp_min(1e-6)
    used = mask & (weights > 0)
    tokens = functional.normalize(network.project_tokens(states), dim=-1)[used]
    owner = torch.arange(len(ids), device=DEVICE)[:, None].expand_as(ids)[used]
    used_ids, used_weights = ids[used], weights[used][:, None]
    best_parts, word_parts = [], []
    for part, part_states, inner, part_ids in parts:
        projected = network.project_tokens(part_states)
        soft = functional.normalize(projected, dim=-1)
        if use_signs:  # straight through: signs forward, the gradient of the soft values backward
            signs = torch.where(projected > 0, 1.0, -1.0) / math.sqrt(SIGN_BITS)
            soft = soft + (signs - soft).detach()
        scores = (tokens @ soft.reshape(-1, SIGN_BITS).T).view(len(tokens), len(part), -1)
        best_parts.append(scores.masked_fill(~inner[None], -1.0).amax(-1))
        shared = (used_ids[:, None, None] == part_ids[None]).any(-1) * used_weights
        word_parts.append(torch.zeros(len(ids), len(part), device=DEVICE).index_add(0, owner, shared))
    order = torch.argsort(torch.cat([part for part, *_ in parts]))
    best = torch.cat(best_parts, 1)[:, order]
    if has_stores:
        best = _spread_to_neighbours(data, best, passages)
    similarity = torch.zeros(len(ids), len(passages), device=DEVICE).index_add(0, owner, best * used_weights)
    return similarity, torch.cat(word_parts, 1)[:, order]


def _spread_to_neighbours(data: TrainingData, best: Any, passages: Any) -> Any:
    """Let a question's word be met by a neighbouring passage, which counts less."""
    met = best
    for gap, discount in NEIGHBOR_DISCOUNTS:
        follows = passages[gap:] - passages[:-gap] == gap
        same_session = data.session[passages[gap:]] == data.session[passages[:-gap]]
        near = (follows & same_session)[None]
        none = torch.full_like(met[:, :gap], -1.0)
        from_before = torch.cat([none, torch.where(near, discount * met[:, :-gap], -1.0)], 1)
        from_after = torch.cat([torch.where(near, discount * met[:, gap:], -1.0), none], 1)
        best = torch.maximum(torch.maximum(best, from_before), from_after)
    return best


def _choose(values: Any, count: int) -> Any:
    """Choose `count` columns of each row at random, those that are not -1 first."""
    order = torch.argsort(torch.rand(values.shape, device=values.device) + (values < 0) * 9, dim=1)[:, :count]
    return torch.gather(values, 1, order)


def _choose_gold(gold: Any) -> Any:
    return _choose(gold, 1)[:, 0]


def average_states(states: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {name: torch.stack([state[name] for state in states]).mean(0) for name in states[0]}


def mix_states(published: dict[str, Any], trained: dict[str, Any], share: float) -> dict[str, Any]:
    return {name: (1 - share) * published[name] + share * trained[name] for name in published}


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the encoder of the bundled model further.")
    parser.add_argument("data", nargs="+", type=Path)
    parser.add_argument("--published", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--steps", type=int, default=Settings.steps)
    parser.add_argument("--share", type=float, default=0.8)
    parser.add_argument("--boost", action="append", default=[], metavar="SOURCE=FACTOR")
    parser.add_argument("--document-anchor", type=float, default=Settings.document_anchor)
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = True
    weights = load_file(options.published / "model.safetensors")
    projection = np.load(options.published / "projection.npy")
    published = load_network(weights, projection).to(DEVICE).eval()
    data = load_data(options.data, options.published / "tokenizer.json", published, DEVICE)
    boosts = tuple((name, float(factor)) for name, factor in (text.split("=") for text in options.boost))
    states = []
    for seed in map(int, options.seeds.split(",")):
        settings = Settings(seed, options.steps, boosts=boosts, document_anchor=options.document_anchor)
        network = load_network(weights, projection, settings.dropout).to(DEVICE)
        states.append(train(data, network, settings).state_dict())
    layers, projection = export_layers(mix_states(published.state_dict(), average_states(states), options.share))
    options.out.mkdir(parents=True, exist_ok=True)
    save_file(layers, options.out / "layers.safetensors")
    np.save(options.out / "projection.npy", projection)


if __name__ == "__main__":
    main()
