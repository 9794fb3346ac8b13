"""`import athena.api` costs next to nothing, and offers what it says."""

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
    "dateparser",
    "asyncio",
    "dataclasses",
    "inspect",
)


def loaded_by(statement: str) -> set[str]:
    script = f"{statement}; import sys; print(__import__('json').dumps(list(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    return set(json.loads(done.stdout))


@pytest.mark.parametrize("statement", ["import athena.api", "import athena", "from athena import api, errors"])
def test_importing_loads_nothing_heavy(statement: str) -> None:
    assert not loaded_by(statement) & set(HEAVY) - loaded_by("pass")


def test_all_that_is_public_is_listed() -> None:
    ours = ("athena.api", "athena.app.connect")
    functions = {
        name
        for name, value in vars(api).items()
        if not name.startswith("_") and inspect.isfunction(value) and value.__module__ in ours
    }
    classes = {name for name in vars(api) if name.startswith("Compact") or name == "SecretRemoved"}
    assert set(api.__all__) == (functions | classes) - {"open"}  # that one is `athena.open`
    assert len(api.__all__) == len(set(api.__all__))


def test_every_public_function_says_what_it_does() -> None:
    for name in api.__all__:
        assert getattr(api, name).__doc__, name


def test_an_unknown_name_of_the_package_is_an_attribute_error() -> None:
    import athena

    with pytest.raises(AttributeError, match="no_such_thing"):
        _ = athena.no_such_thing
    assert not hasattr(athena, "no_such_thing")
    assert callable(athena.open)
