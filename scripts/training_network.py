"""all-MiniLM-L6-v2 in torch, with the projection of its token states; weights under their published names."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as functional
from torch import nn

WIDTH, HEADS, LAYERS, SIGN_BITS = 384, 12, 6, 128
_LAYER_PARTS = {
    "attention.self.query": "query",
    "attention.self.key": "key",
    "attention.self.value": "value",
    "attention.output.dense": "answer",
    "attention.output.LayerNorm": "middle_norm",
    "intermediate.dense": "up",
    "output.dense": "down",
    "output.LayerNorm": "end_norm",
}
# Published names of the weights, and the names in this module.
NAMES = {
    "embeddings.word_embeddings.weight": "words.weight",
    "embeddings.position_embeddings.weight": "positions.weight",
    "embeddings.token_type_embeddings.weight": "types.weight",
    "embeddings.LayerNorm.weight": "norm.weight",
    "embeddings.LayerNorm.bias": "norm.bias",
} | {
    f"encoder.layer.{i}.{theirs}.{kind}": f"layers.{i}.{ours}.{kind}"
    for i in range(LAYERS)
    for theirs, ours in _LAYER_PARTS.items()
    for kind in ("weight", "bias")
}
FROZEN_PREFIXES = ("words", "positions", "types")


class Layer(nn.Module):  # type: ignore[misc]  # torch is not installed here
    """One layer of the encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.answer = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.middle_norm, self.end_norm = (nn.LayerNorm(WIDTH, eps=1e-12) for _ in range(2))

    def forward(self, states: Any, mask: Any, dropout: float) -> Any:
        rows, tokens, _ = states.shape

        def split_heads(values: Any) -> Any:
            return values.view(rows, tokens, HEADS, WIDTH // HEADS).transpose(1, 2)

        query, key, value = (split_heads(part(states)) for part in (self.query, self.key, self.value))
        attended = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        answer = self.answer(attended.transpose(1, 2).reshape(rows, tokens, WIDTH))
        states = self.middle_norm(states + functional.dropout(answer, dropout, self.training))
        inner = self.down(functional.gelu(self.up(states)))
        return self.end_norm(states + functional.dropout(inner, dropout, self.training))


class MiniLM(nn.Module):  # type: ignore[misc]  # the same
    """The encoder: token ids to the states of the last layer."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.words, self.positions, self.types = (nn.Embedding(n, WIDTH) for n in (30_522, 512, 2))
        self.norm = nn.LayerNorm(WIDTH, eps=1e-12)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.project = nn.Linear(WIDTH, SIGN_BITS)
        self.dropout = dropout

    def forward(self, ids: Any, mask: Any) -> Any:
        states = self.norm(self.words(ids) + self.positions.weight[None, : ids.shape[1]] + self.types.weight[0])
        for layer in self.layers:
            states = layer(states, mask[:, None, None, :], self.dropout)
        return states

    def project_tokens(self, states: Any) -> Any:
        """Shorten token states; the product keeps only the signs of passages' tokens."""
        return self.project(functional.normalize(states.float(), dim=-1))


def load_network(weights: Mapping[str, Any], projection: Any, dropout: float = 0.0) -> MiniLM:
    """Create the encoder from weights by their published names and the projection (385 x 128)."""
    state = {ours: torch.from_numpy(np.array(weights[theirs], np.float32)) for theirs, ours in NAMES.items()}
    state["project.weight"] = torch.from_numpy(np.ascontiguousarray(projection[:-1].T))
    state["project.bias"] = torch.from_numpy(projection[-1].copy())
    network = MiniLM(dropout)
    network.load_state_dict(state)
    return network


def export_layers(state: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
    """Return the trained weights under their published names in 16 bits, and the projection."""
    layers = {
        theirs: state[ours].cpu().numpy().astype(np.float16)
        for theirs, ours in NAMES.items()
        if not ours.startswith(FROZEN_PREFIXES)
    }
    projection = np.vstack([state["project.weight"].cpu().numpy().T, state["project.bias"].cpu().numpy()[None]])
    return layers, projection.astype(np.float32)
