"""A catalog imports the modules of its categories when a name is looked up that it does not know yet."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from athena.core.catalog import Catalog
from athena.operations import CATALOG

MODULE = '''"""{about}"""
from athena.core.operation import EVERYONE, Effect, operation


@operation(Effect.READ, callers=EVERYONE)
async def {name}(ctx: object) -> int:
    """Return one.

    >>> {category}.{name}()
    """
    return 1
'''


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """Return the name of a package with three categories of one operation each."""
    name = f"package_{abs(hash(request.node.nodeid))}"
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").touch()
    for category in ("first", "second", "third"):
        source = MODULE.format(about=f"The {category}.", name=f"count_{category}", category=category)
        (tmp_path / name / f"{category}.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def list_imported(package: str) -> list[str]:
    return [name for name in ("first", "second", "third") if f"{package}.{name}" in sys.modules]


def test_modules_are_imported_until_the_name_is_there(package: str) -> None:
    catalog = Catalog(package, ("first", "second", "third"))
    assert list_imported(package) == []
    assert catalog.category_names == {"first", "second", "third"}
    assert catalog.get_operation("count_first").category == "first"
    assert list_imported(package) == ["first"]
    assert "count_second" in catalog
    assert list_imported(package) == ["first", "second"]
    assert catalog.categories == {"first": "The first.", "second": "The second.", "third": "The third."}
    assert [operation.name for operation in catalog] == ["count_first", "count_second", "count_third"]


def test_reading_is_no_change(package: str) -> None:
    catalog = Catalog(package, ("first", "second", "third"))
    copy, version = catalog.copy(), catalog.version
    assert len(catalog) == len(copy) == 3
    assert (catalog.version, copy.version) == (version, version)
    catalog.replace_category("github", "Issues.", [])
    assert catalog.version > version


def test_servers_category_comes_last_whatever_was_read_before(package: str) -> None:
    catalog = Catalog(package, ("first", "second", "third"))
    catalog.replace_category("github", "Issues.", [])
    assert list(catalog.categories) == ["first", "second", "third", "github"]
    catalog.remove_category("github")
    assert [operation.name for operation in catalog] == ["count_first", "count_second", "count_third"]


def test_threads_read_each_module_once(package: str) -> None:
    catalog = Catalog(package, ("first", "second", "third"))
    counts: list[int] = []
    threads = [threading.Thread(target=lambda: counts.append(len(catalog))) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert counts == [3] * 16


def test_name_is_found_that_another_thread_reads_last(package: str, tmp_path: Path) -> None:
    """A thread that waits while another one reads the last module finds the operation there."""
    slow = (
        "import time\n" + MODULE.format(about="The third.", name="count_third", category="third") + "time.sleep(0.3)\n"
    )
    (tmp_path / package / "third.py").write_text(slow)
    catalog = Catalog(package, ("first", "second", "third"))
    found: list[str] = []
    threads = [
        threading.Thread(target=lambda: found.append(catalog.get_operation("count_third").name)) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert found == ["count_third"] * 8


def test_two_operations_of_one_name_are_refused(package: str, tmp_path: Path) -> None:
    (tmp_path / package / "second.py").write_text(MODULE.format(about="Two.", name="count_first", category="second"))
    with pytest.raises(ValueError, match="count_first"):
        len(Catalog(package, ("first", "second")))


def test_search_imports_no_other_category(tmp_path: Path) -> None:
    script = "from athena import api; api.search('tea'); import sys; print(*sys.modules)"
    environment = {"ATHENA_HOME": str(tmp_path / "home"), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True, env=environment
    )
    loaded = set(done.stdout.split())
    assert "athena.operations.memory" in loaded
    others = {f"athena.operations.{name}" for name in CATALOG.category_names - {"memory"}}
    assert not loaded & (
        others | {"athena.memory.sessions.learning", "athena.discovery.finder", "athena.app.edit_hooks"}
    )


def test_numpy_keeps_no_thread_spinning_and_leaves_no_variable(tmp_path: Path) -> None:
    script = (
        "import os; from athena import api; api.search('tea'); import numpy; "
        "print(os.environ.get('OPENBLAS_THREAD_TIMEOUT'))"
    )
    for given in ({}, {"OPENBLAS_THREAD_TIMEOUT": "20"}):
        environment = {"ATHENA_HOME": str(tmp_path / "home"), "PATH": "/usr/bin:/bin", **given}
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True, env=environment
        )
        assert done.stdout.strip() == given.get("OPENBLAS_THREAD_TIMEOUT", "None")
