"""The bundled embedding model: its vectors, tokens, files and errors."""

import hashlib
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from athena.core.threads import run_sync
from athena.discovery.vectors import ADAPTER_FILE
from athena.embedding.embedder import Embedder
from athena.embedding.encoder import MAX_UNUSED_ADAPTERS_S, Encoder, adapt_encoder
from athena.embedding.minilm import BUNDLED_MODEL_DIR, MAX_TEXT_TOKENS, TOKENIZE_BATCH_SIZE, MiniLM
from athena.errors import Unavailable

MIXED = [
    "ok thanks",
    "",
    "The user prefers tabs over spaces.",
    "¿Dónde está la biblioteca? 東京 🙂",
    "Caroline went to the adoption agency on 8 May, and the interview went better than she had feared. " * 3,
    "the deploy failed: the token had expired",
    "word " * 300,
    *(f"note number {number} about the garden " * (number % 7 + 1) for number in range(40)),
]


@pytest.fixture(scope="module")
def model() -> MiniLM:
    return MiniLM()


def python(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a process without the modules and threads of pytest."""
    path = os.pathsep.join(filter(None, sys.path))
    return subprocess.run(
        # Since 3.12 Python warns when a process with threads forks, and numpy starts threads.
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program],
        env=os.environ | {"PYTHONPATH": path} | environment,
        capture_output=True,
        text=True,
        timeout=100,
    )


def distances(left: NDArray[np.float32], right: NDArray[np.float32]) -> NDArray[np.float64]:
    return np.asarray(1 - np.sum(left.astype(np.float64) * right, axis=1) / np.linalg.norm(right, axis=1))


def test_minilm_is_embedder(model: MiniLM) -> None:
    embedder: Embedder = model
    assert embedder.name == "athena-minilm/int8/1"
    assert embedder.dimensions == 384


def test_vectors_have_unit_length(model: MiniLM) -> None:
    vectors = model.embed(MIXED)
    assert vectors.shape == (len(MIXED), 384)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)


def test_empty_batch_returns_no_vectors(model: MiniLM) -> None:
    assert model.embed([]).shape == (0, 384)
    assert model.embed_tokens([]) == []


def test_vectors_match_known_values(model: MiniLM) -> None:
    np.testing.assert_allclose(model.embed(["This is an example sentence"])[0, :3], [0.0655, 0.0442, 0.0470], atol=0.01)


def test_vectors_are_deterministic(model: MiniLM) -> None:
    np.testing.assert_array_equal(model.embed(MIXED), model.embed(MIXED))


def test_vector_is_independent_of_batch(model: MiniLM) -> None:
    together = model.embed(MIXED)
    alone = np.concatenate([model.embed([text]) for text in MIXED])
    reverse = model.embed(MIXED[::-1])[::-1]
    thrice = MiniLM(threads=1).embed(MIXED * 3)[len(MIXED) : 2 * len(MIXED)]
    for other in (alone, reverse, thrice):
        assert distances(together, other).max() < 1e-5


def test_many_texts_keep_order(model: MiniLM) -> None:
    texts = [f"{number} apples" for number in range(2 * TOKENIZE_BATCH_SIZE + 9)]
    vectors = model.embed(texts)
    for row in (0, TOKENIZE_BATCH_SIZE - 1, TOKENIZE_BATCH_SIZE, -1):
        assert distances(vectors[[row]], model.embed([texts[row]])).max() < 1e-5


def test_similar_meanings_are_close(model: MiniLM) -> None:
    cat, kitten, revenue = model.embed(["a cat sits on the mat", "a kitten rests on a rug", "quarterly revenue grew"])
    assert cat @ kitten > 0.5 > 0.2 > cat @ revenue


@pytest.mark.parametrize("text", ["", " ", "\0", "🙂🙃", "a\ud800b", "\udfff", "مرحبا", "e\u0301" * 50, "ﷺ" * 400])
def test_unusual_texts_are_embedded(model: MiniLM, text: str) -> None:
    assert np.isfinite(model.embed([text])).all()


def test_lone_surrogate_becomes_question_mark(model: MiniLM) -> None:
    np.testing.assert_array_equal(model.embed(["a\ud800b"]), model.embed(["a?b"]))


def test_only_start_of_long_text_counts(model: MiniLM) -> None:
    long = "word " * 10_000
    np.testing.assert_array_equal(model.embed([long]), model.embed([long + "and then something else"]))
    assert len(model.embed_tokens([long])[0].ids) == MAX_TEXT_TOKENS


def test_tokens_have_text_offsets(model: MiniLM) -> None:
    text = "🙂 hello wörld"
    (tokens,) = model.embed_tokens([text])
    assert [text[start:end] for start, end in tokens.offsets] == ["", "🙂", "hello", "wörld", ""]
    assert tokens.states.shape == (len(tokens.ids), 384)


def test_mean_of_states_is_vector(model: MiniLM) -> None:
    means = np.stack([tokens.states.mean(axis=0) for tokens in model.embed_tokens(MIXED)])
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    assert distances(model.embed(MIXED), means).max() < 1e-5


def test_threads_get_same_vectors() -> None:
    model = MiniLM()  # not loaded yet, so the threads also compete to load it
    results: dict[int, NDArray[np.float32]] = {}

    def embed(number: int) -> None:
        results[number] = model.embed(MIXED[number:])

    threads = [threading.Thread(target=embed, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = model.embed(MIXED)
    for number in range(8):
        assert distances(results[number], expected[number:]).max() < 1e-5


def test_forked_child_embeds_and_exits() -> None:
    done = python(
        "import os, sys, numpy\n"
        "from athena.embedding.minilm import MiniLM\n"
        "model = MiniLM(threads=2)\n"
        "texts = ['hello world', *(['x y z ' * 30] * 20)]\n"
        "before = model.embed(texts)\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    sys.exit(0 if numpy.array_equal(before, model.embed(texts)) else 1)\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))"
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_import_loads_no_heavy_library() -> None:
    done = python(
        "import sys, athena.embedding.minilm\nsys.exit(len({'numpy', 'onnxruntime', 'tokenizers'} & set(sys.modules)))"
    )
    assert done.returncode == 0


def test_runtime_sends_no_telemetry(tmp_path: Path) -> None:
    # Telemetry would first write a device identifier into the cache.
    python(
        "from athena.embedding.minilm import MiniLM; MiniLM().load()",
        HOME=str(tmp_path),
        XDG_CACHE_HOME=str(tmp_path),
        CI="",
        GITHUB_ACTIONS="",
        ORT_DISABLE_TELEMETRY="",
    ).check_returncode()
    assert list(tmp_path.iterdir()) == []


def test_model_file_has_expected_hash() -> None:
    lines = (BUNDLED_MODEL_DIR / "SHA256SUMS").read_text().splitlines()
    sums = {name: digest for digest, name in (line.split("  ") for line in lines)}
    assert sums == {name: hashlib.sha256((BUNDLED_MODEL_DIR / name).read_bytes()).hexdigest() for name in sums}
    assert sums.keys() == {path.name for path in BUNDLED_MODEL_DIR.iterdir()} - {"SHA256SUMS"}


def test_missing_folder_error_has_hint(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="the embedding model cannot be loaded") as caught:
        MiniLM(folder=tmp_path / "nowhere").load()
    assert caught.value.hint
    assert not caught.value.retry


@pytest.mark.parametrize("name", ["model.onnx", "weights.bin", "tokenizer.json", "projection.npy", "SHA256SUMS"])
@pytest.mark.parametrize("damage", ["missing", "empty", "cut", "garbage", "one bit"])
def test_damaged_file_error_has_hint(tmp_path: Path, name: str, damage: str) -> None:
    shutil.copytree(BUNDLED_MODEL_DIR, tmp_path / "model")
    file = tmp_path / "model" / name
    content = file.read_bytes()
    file.unlink()
    if damage != "missing":
        middle = len(content) // 2
        flipped = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
        texts = {"empty": b"", "cut": content[:middle], "garbage": b"garbage" * 999, "one bit": flipped}
        file.write_bytes(texts[damage])
    with pytest.raises(Unavailable, match="the embedding model cannot be loaded"):
        MiniLM(folder=tmp_path / "model").encode_question("hello")


def count_weight_maps() -> int:
    return Path("/proc/self/maps").read_text().count("/weights.bin\n")


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not list what a process has mapped")
def test_unused_graph_for_adapters_is_freed_and_loads_again() -> None:
    model = MiniLM()
    encoder = Encoder(model)
    adapted = adapt_encoder(encoder, ADAPTER_FILE)
    model.load()
    before = count_weight_maps()
    first = run_sync(adapted.encode_question("remove a note"))
    assert count_weight_maps() > before
    assert not encoder.release_unused()  # it was used a moment ago
    model._adapted_used_at -= MAX_UNUSED_ADAPTERS_S
    assert encoder.release_unused()
    assert count_weight_maps() == before
    assert not encoder.release_unused()
    again = run_sync(adapted.encode_question("remove a note"))
    assert first is not None
    assert again is not None
    assert np.array_equal(first.vector, again.vector)


def test_symlinked_model_loads(tmp_path: Path) -> None:
    for file in BUNDLED_MODEL_DIR.iterdir():
        (tmp_path / file.name).symlink_to(file)
    assert MiniLM(folder=tmp_path).embed(["hello"]).shape == (1, 384)


def test_missing_package_error_has_hint(tmp_path: Path) -> None:
    (tmp_path / "onnxruntime.py").write_text("raise ImportError('no onnxruntime here')")
    done = python(
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from athena.embedding.minilm import MiniLM\n"
        "from athena.errors import Unavailable\n"
        "try:\n"
        "    MiniLM().load()\n"
        "except Unavailable as error:\n"
        "    print(error, error.hint)"
    )
    assert "no onnxruntime here" in done.stdout
    assert "Install" in done.stdout
