"""`import athena.api` is cheap and exports what it lists."""

import inspect
import json
import subprocess
import sys

import pytest

from athena import api

HEAVY = (
    "numpy",
    "onnxruntime",
    "tokenizers",
    "apsw",
    "pydantic",
    "click",
    "asyncio",
    "dataclasses",
    "inspect",
)


def loaded_by(statement: str) -> set[str]:
    script = f"{statement}; import sys; print(__import__('json').dumps(list(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    return set(json.loads(done.stdout))


@pytest.mark.parametrize("statement", ["import athena.api", "import athena", "from athena import api, errors"])
def test_import_loads_no_heavy_module(statement: str) -> None:
    assert not loaded_by(statement) & set(HEAVY) - loaded_by("pass")


def test_all_lists_public_names() -> None:
    ours = ("athena.api", "athena.app.connect")
    functions = {
        name
        for name, value in vars(api).items()
        if not name.startswith("_") and inspect.isfunction(value) and value.__module__ in ours
    }
    classes = {name for name in vars(api) if name.startswith("Compact") or name == "SecretRemoved"}
    assert set(api.__all__) == (functions | classes) - {"open"}  # that one is `athena.open`
    assert len(api.__all__) == len(set(api.__all__))


def test_public_functions_have_docstrings() -> None:
    assert api.__all__
    for name in api.__all__:
        assert getattr(api, name).__doc__, name


def test_unknown_name_raises_attribute_error() -> None:
    import athena

    with pytest.raises(AttributeError, match="no_such_thing"):
        _ = athena.no_such_thing
    assert not hasattr(athena, "no_such_thing")
    assert callable(athena.open)
