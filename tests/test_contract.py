"""The public contract changes only on purpose, and fast commands import few modules."""

import json
import os
import subprocess
import sys
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import contract
import pytest

from athena.core.home.paths import HOOK_GREETING
from athena.core.values import HOOK_EVENTS
from athena.hooks import client, launcher


@cache
def current_contract(name: str) -> Any:
    return json.loads(json.dumps(contract.structure() if name == "structure" else contract.wording()))


def recorded_contract(name: str) -> Any:
    return json.loads((contract.FOLDER / f"{name}.json").read_text("utf-8"))


@pytest.mark.parametrize("part", list(recorded_contract("structure")))
def test_contract_structure_is_unchanged(part: str) -> None:
    assert current_contract("structure")[part] == recorded_contract("structure")[part], (
        "if this change is meant, run `python scripts/contract.py`"
    )


def test_contract_wording_is_unchanged() -> None:
    assert current_contract("wording") == recorded_contract("wording"), (
        "if this change is meant, run `python scripts/contract.py`"
    )


def test_entry_points_load() -> None:
    scripts = {one.name: one for one in entry_points(group="console_scripts") if one.name.startswith("athena")}
    assert {name: one.value for name, one in scripts.items()} == {
        "athena": "athena.cli:main",
        "athena-memory": "athena.cli:main",
    }
    assert callable(scripts["athena"].load())


def test_installed_hook_client_finds_fallback() -> None:
    """Hook clients in users' data folders import `athena.fallback:main` by that name."""
    from athena.hooks.fallback import main

    assert "from athena.fallback import main" in client.FALLBACK_CODE
    assert callable(main)


def test_launcher_names_package_folder(tmp_path: Path) -> None:
    script = Path(launcher.install_launchers(str(tmp_path))).read_text("utf-8")
    import athena

    assert str(Path(athena.__file__).parent.parent) in script


def test_hook_client_constants_agree() -> None:
    """The hook client imports nothing of ours, so it has its own copies."""
    assert client.EVENTS == HOOK_EVENTS
    assert client.HELLO == HOOK_GREETING


# Number of modules loaded beyond a bare interpreter: ours, and all.
BUDGETS = {
    "import athena.api": (13, 34),
    "import athena.fallback": (16, 58),
    "import athena.cli.mcp_proxy": (8, 35),
    "import athena.cli": (4, 5),  # all that `athena --version` needs
    "from athena.cli.commands import athena": (9, 75),  # all that `athena --help` needs: click
    "import athena.cli.memory": (31, 105),  # what `athena recall --help` needs; the app comes with a call
}


@pytest.mark.parametrize("statement", list(BUDGETS))
def test_import_budget(statement: str) -> None:
    ours, everything = BUDGETS[statement]
    loaded = modules_loaded(statement) - modules_loaded("pass")
    own = {name for name in loaded if name.partition(".")[0] == "athena"}
    assert len(own) <= ours, sorted(own)
    assert len(loaded) <= everything, sorted(loaded)


def test_hook_client_imports_nothing_of_ours() -> None:
    file = Path(client.__file__)
    code = f"import sys; sys.path.insert(0, {str(file.parent)!r}); import {file.stem}"
    loaded = modules_loaded(code, "-I", "-S") - modules_loaded("pass", "-I", "-S")
    assert not {name for name in loaded if name.startswith("athena")}
    assert len(loaded) <= 9, sorted(loaded)


def modules_loaded(statement: str, *flags: str) -> set[str]:
    script = f"{statement}; import sys; sys.stdout.write('\\n'.join(sys.modules))"
    command = [sys.executable, *flags, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, env=dict(os.environ))
    return set(done.stdout.splitlines())
