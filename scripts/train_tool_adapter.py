"""Train the adapter of tool search: requests and definitions of tools, read so that a request is near its tool.

    python scripts/train_tool_adapter.py ROWS.json.gz OUT.npz [--without SERVER,SERVER]

Needs torch, which is not among the project's dependencies; on a GPU it takes a minute, on two cores an hour. ROWS
and `words.npz` beside it are written by scripts/adapter_data.py with `--tools`. The requests for servers left
out are measured, not trained on.

A step takes all tools of a few servers, so that a request is told apart from the other tools of its server. Layers
that stay as they are can be computed once; the others get the adapters of scripts/train_adapters.py.
"""

import argparse
import gzip
import hashlib
import json
import math
import random
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as functional
from train_adapters import DEVICE, Row, export, load_adapted, to_numpy
from training_network import WIDTH, MiniLM

PROJECTION_FILE = Path(__file__).parents[1] / "data" / "model" / "projection.npy"
MAX_STEP_REQUESTS = 256
ENCODE_BATCH_SIZE = 64
MAX_NORM = 1.0  # of a step's gradients


@dataclass(frozen=True)
class Settings:
    """How to train; chosen on requests for servers left out."""

    epochs: int = 12
    servers: int = 8  # in a step
    rate: float = 1e-3
    rank: int = 32
    dropout: float = 0.3
    masked: float = 0.15  # share of the words that the model does not see
    fixed_layers: int = 0
    max_tokens: int = 72  # of a definition
    similarity_scale: float = 20.0
    token_scale: float = 10.0
    seed: int = 2


class ToolEncoder:
    """The bundled model with an adapter of its upper layers, and the states of the lower ones for each text."""

    def __init__(self, network: MiniLM, settings: Settings) -> None:
        self.network, self.settings = network.to(DEVICE), settings
        self.projection = torch.from_numpy(np.load(PROJECTION_FILE).astype(np.float32)).to(DEVICE)
        for layer in network.layers[: settings.fixed_layers]:
            layer.requires_grad_(False)

    def read_lower(self, texts: Sequence[Sequence[int]]) -> list[Any]:
        """Return the states of tokens after the layers that stay as they are."""
        network = self.network.eval()
        states: list[Any] = []
        with torch.no_grad(), torch.autocast(DEVICE, torch.bfloat16):
            for start in range(0, len(texts), ENCODE_BATCH_SIZE):
                batch = texts[start : start + ENCODE_BATCH_SIZE]
                longest = max(map(len, batch))
                ids = torch.tensor([[*text, *[0] * (longest - len(text))] for text in batch], device=DEVICE)
                mask = create_mask([len(text) for text in batch])
                positions = network.positions.weight[None, :longest]
                rows = network.norm(network.words(ids) + positions + network.types.weight[0])
                for layer in network.layers[: self.settings.fixed_layers]:
                    rows = layer(rows, mask[:, None, None, :], 0.0)
                states += [row[: len(text)].to(torch.bfloat16).clone() for row, text in zip(rows, batch, strict=True)]
        return states

    def read_upper(self, states: Sequence[Any]) -> tuple[Any, Any, Any]:
        """Return the vectors of texts, and the projected states of their tokens with a mask."""
        lengths = [len(one) for one in states]
        mask = create_mask(lengths)
        inner = mask.clone()
        inner[:, 0] = False
        inner[torch.arange(len(states)), torch.tensor(lengths, device=DEVICE) - 1] = False
        if self.network.training:
            hidden = inner & (torch.rand(mask.shape, device=DEVICE) < self.settings.masked)
            mask, inner = mask & ~hidden, inner & ~hidden
        rows = torch.zeros(*mask.shape, WIDTH, device=DEVICE)
        for row, one in zip(rows, states, strict=True):
            row[: len(one)] = one.float()
        with torch.autocast(DEVICE, torch.bfloat16):
            for layer in self.network.layers[self.settings.fixed_layers :]:
                rows = layer(rows, mask[:, None, None, :], self.network.dropout)
        rows = rows.float()
        vectors = functional.normalize((rows * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True), dim=-1)
        tokens = functional.normalize(rows, dim=-1) @ self.projection[:-1] + self.projection[-1]
        return vectors, functional.normalize(tokens, dim=-1), inner

    def measure_loss(self, tools: Sequence[Any], requests: Sequence[Any], right: Any) -> Any:
        """Return the loss of choosing each request's tool, by vectors alone and with tokens."""
        vectors, tokens, mask = self.read_upper(tools)
        asked, words, asked_mask = self.read_upper(requests)
        by_vector = self.settings.similarity_scale * asked @ vectors.T
        best = torch.einsum("rld,nkd->rlnk", words, tokens).masked_fill(~mask[None, None], -1.0).amax(3)
        by_token = (best * asked_mask[:, :, None]).sum(1) / asked_mask.sum(1, keepdim=True).clamp(min=1)
        both = by_vector + self.settings.token_scale * by_token
        return 0.6 * functional.cross_entropy(by_vector, right) + 0.4 * functional.cross_entropy(both, right)

    def export_head(self) -> dict[str, Any]:
        return {}


def create_mask(lengths: Sequence[int]) -> Any:
    return torch.arange(max(lengths), device=DEVICE)[None] < torch.tensor(lengths, device=DEVICE)[:, None]


def train(encoder: ToolEncoder, tools: Sequence[Row], requests: Sequence[Row], settings: Settings) -> Iterator[float]:
    """Train the adapter; yield the mean loss of each epoch."""
    random.seed(settings.seed)
    tool_states, request_states = read_states(encoder, tools, requests)
    servers = sorted({row["server"] for row in requests})
    parameters = [value for value in encoder.network.parameters() if value.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=settings.rate, weight_decay=0.01)
    steps = math.ceil(len(servers) / settings.servers) * settings.epochs
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1, (step + 1) / (0.1 * steps)) * max(0.02, 1 - step / steps)
    )
    for _ in range(settings.epochs):
        random.shuffle(servers)
        losses = []
        for start in range(0, len(servers), settings.servers):
            chosen = set(servers[start : start + settings.servers])
            own = [i for i, tool in enumerate(tools) if tool["server"] in chosen]
            asked = [i for i, row in enumerate(requests) if row["server"] in chosen]
            asked = random.sample(asked, min(MAX_STEP_REQUESTS, len(asked)))
            right = torch.tensor([[float(i in requests[j]["gold"]) for i in own] for j in asked], device=DEVICE)
            encoder.network.train()
            loss = encoder.measure_loss(
                [tool_states[i] for i in own],
                [request_states[j] for j in asked],
                right / right.sum(1, keepdim=True),
            )
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, MAX_NORM)
            optimizer.step()
            schedule.step()
            losses.append(float(loss.detach()))
        yield float(np.mean(losses))


def read_states(encoder: ToolEncoder, tools: Sequence[Row], requests: Sequence[Row]) -> tuple[list[Any], list[Any]]:
    longest = encoder.settings.max_tokens
    texts = [tool["ids"] if len(tool["ids"]) <= longest else [*tool["ids"][: longest - 1], 102] for tool in tools]
    return encoder.read_lower(texts), encoder.read_lower([row["ids"] for row in requests])


def describe(encoder: ToolEncoder, tools: Sequence[Row], requests: Sequence[Row], left_out: Collection[str]) -> str:
    """Describe how often the right tool is among the first, by vectors alone, among the tools of servers left out."""
    pool = [i for i, tool in enumerate(tools) if tool["server"] in left_out]
    asked = [row for row in requests if row["server"] in left_out]
    states = read_states(encoder, [tools[i] for i in pool], asked)
    encoder.network.eval()
    with torch.no_grad():
        vectors, questions = (
            np.concatenate([to_numpy(encoder.read_upper(part[i : i + 64])[0]) for i in range(0, len(part), 64)])
            for part in states
        )
    similarities = questions @ vectors.T
    is_right = np.array([[i in row["gold"] for i in pool] for row in asked])
    best = np.where(is_right, similarities, -1).max(1, keepdims=True)
    ranks = (similarities > best).sum(1)
    shares = " / ".join(f"{(ranks < k).mean():.1%}" for k in (1, 3, 5))
    return f"{len(asked)} requests, {len(pool)} tools: first 1 / 3 / 5 by vectors alone {shares}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the adapter of tool search.")
    parser.add_argument("rows", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--without", default="", help="servers to leave out of training, and to measure on")
    options = parser.parse_args()
    settings, without = Settings(), {name for name in options.without.split(",") if name}
    content = json.loads(gzip.decompress(options.rows.read_bytes()))
    tools, requests = content["tools"], content["requests"]
    torch.manual_seed(settings.seed)
    network = load_adapted(options.rows.with_name("words.npz"), settings.dropout, settings.rank)
    encoder = ToolEncoder(network, settings)
    if without:
        print("before:", describe(encoder, tools, requests, without), flush=True)
    trained = [row for row in requests if row["server"] not in without]
    for epoch, loss in enumerate(train(encoder, tools, trained, settings)):
        print(f"epoch {epoch + 1}: loss {loss:.3f}", flush=True)
        export(encoder, options.out)  # so that a run that is interrupted leaves something
    if without:
        print("after:", describe(encoder, tools, requests, without), flush=True)
    print("sha256", hashlib.sha256(options.out.read_bytes()).hexdigest())


if __name__ == "__main__":
    main()
