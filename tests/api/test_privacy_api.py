"""Secrets never reach the store through `athena.api`. The test builds each secret at run time."""

import warnings
from pathlib import Path
from typing import Any

import pytest

import athena
from athena import api
from athena.api import SecretRemoved
from conftest import Engine

SECRET = "AK" + "IA" + "Q7WERT5YUIOP2345"
PLACES: list[dict[str, Any]] = [
    {"metadata": {"note": f"use {SECRET}"}},
    {"metadata": {"deep": [{"down": [f"{SECRET}"]}]}},
    {"metadata": {SECRET: "as a key"}},
    {"metadata": {"source": SECRET}},
    {"metadata": {"session_id": SECRET}},
    {"tags": [SECRET]},
    {"tags": f"fine,{SECRET}"},
    {"memory_type": SECRET},
]


def test_secret_in_text_is_redacted(engine: Engine, tmp_path: Path) -> None:
    with pytest.warns(SecretRemoved, match="aws-key") as told:
        short = api.store(f"the key is {SECRET}, keep it")
    assert SECRET not in str(told[0].message)
    assert api.get(short).content == "the key is [SECRET:aws-key], keep it"
    assert api.store("the key is [SECRET:aws-key], keep it") == short
    assert SECRET.encode() not in engine.read_all_bytes(tmp_path / "home")


@pytest.mark.parametrize("arguments", PLACES, ids=lambda place: str(place).replace(SECRET, "SECRET"))
def test_secret_in_fields_is_redacted(engine: Engine, tmp_path: Path, arguments: dict[str, Any]) -> None:
    with pytest.warns(SecretRemoved, match="aws-key"):
        short = api.store("a harmless text", **arguments)
    assert SECRET not in repr(api.get(short))
    with pytest.warns(SecretRemoved, match="aws-key"):
        api.update(api.store("another text"), **arguments)
    assert SECRET.encode() not in engine.read_all_bytes(tmp_path / "home")


def test_secret_in_update_is_redacted(engine: Engine, tmp_path: Path) -> None:
    old = api.store("old")
    with pytest.warns(SecretRemoved):
        short = api.update(old, content=f"new {SECRET}")
    assert api.get(short).content == "new [SECRET:aws-key]"
    assert SECRET.encode() not in engine.read_all_bytes(tmp_path / "home")


def test_batch_warns_for_each_secret(engine: Engine, tmp_path: Path) -> None:
    with pytest.warns(SecretRemoved) as told:
        hashes = api.store_batch([f"one {SECRET}", "two", {"content": f"three {SECRET}", "metadata": {"a": SECRET}}])
    assert [[short in str(one.message) for short in hashes] for one in told] == [[1, 0, 0], [0, 0, 1]]
    assert SECRET.encode() not in engine.read_all_bytes(tmp_path / "home")


@pytest.mark.usefixtures("engine")
def test_warning_names_callers_line() -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        api.store(f"one {SECRET}")
        api.store_batch([f"two {SECRET}"])
        api.update(api.store("three"), content=f"four {SECRET}")
    assert [one.filename for one in told] == [__file__] * 3


def test_secret_in_document_is_redacted(engine: Engine, tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text(f"# Keys\n\nThe key is {SECRET}.")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SecretRemoved)
        assert api.ingest(tmp_path / "notes.md").pieces == 1
    assert "[SECRET:aws-key]" in api.search("key").memories[0].preview
    assert SECRET.encode() not in engine.read_all_bytes(tmp_path / "home")


def test_secret_in_query_is_not_logged(engine: Engine, tmp_path: Path) -> None:
    api.store("something")
    api.search(SECRET)
    api.recall(SECRET)
    assert SECRET.encode() not in engine.read_all_bytes(tmp_path / "home")


@pytest.mark.sqlite_only("files")
def test_store_is_private_to_owner(tmp_path: Path) -> None:
    api.store("something")
    assert (tmp_path / "home").stat().st_mode & 0o777 == 0o700
    files = list((tmp_path / "home").iterdir())
    assert files
    for file in files:
        assert file.stat().st_mode & 0o077 == 0, file


@pytest.mark.usefixtures("engine")
def test_async_callers_get_secret_warning() -> None:
    import asyncio

    async def main() -> None:
        async with athena.open() as memory:
            with pytest.warns(SecretRemoved, match="aws-key"):
                await memory.store(f"the key is {SECRET}")

    asyncio.run(main())
