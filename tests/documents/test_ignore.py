"""Ignore rules hold as in git, and cost little whatever a repository says."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from athena.documents.ignore import IgnoreRules
from athena.documents.ignore_rule import compile_rule

ATOMS = (
    *"ab/*?.!",
    "ab",
    "**",
    "**/",
    "/**/",
    "[ab]",
    "[!a]",
    "[a-c]",
    "[[:alpha:]]",
    "\\*",
    "b*",
    "*a",
    " ",
    "-",
    "\\ ",
)
NAMES = ("a", "b", "ab", "abc", "a.b", "b-a", "c", "*", " a")
HOSTILE_RULES = {
    "*a" * 12 + "b": "a" * 200 + ".md",
    "*a*" * 300 + "b": "a" * 255,
    "?*" * 200 + "b": "a" * 255,
    "**/a/" * 150 + "x": "a/" * 1_000 + "y",
    "**/*a*a*b/" * 60 + "x": ("a" * 100 + "/") * 40 + "y",
    "**/*[ab]*/" * 80 + "z": "ab/" * 1_300 + "y",
}


@pytest.mark.parametrize("seed", range(12))
def test_rules_are_those_of_git(seed: int, tmp_path: Path) -> None:
    choose = random.Random(seed)
    paths = sorted({"/".join(choose.choices(NAMES, k=choose.randint(1, 4))) for _ in range(40)})
    for path in paths:
        try:
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).touch()
        except (NotADirectoryError, FileExistsError):
            continue  # an earlier path has a file there
    paths = [path for path in paths if (tmp_path / path).is_file()]
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    for _ in range(10):
        lines = ["".join(choose.choices(ATOMS, k=choose.randint(1, 6))) for _ in range(choose.randint(1, 4))]
        (tmp_path / ".gitignore").write_text("\n".join(lines) + "\n")
        git = subprocess.run(
            ["git", "-C", tmp_path, "check-ignore", "--no-index", "-z", "--stdin"],
            input="\0".join(paths).encode(),
            capture_output=True,
        )
        rules = IgnoreRules(str(tmp_path))
        assert {path for path in paths if rules.is_ignored(path)} == {
            os.fsdecode(path) for path in git.stdout.split(b"\0") if path
        }, lines


def test_hostile_rule_ends() -> None:
    """In a process of its own: an expression that backtracks could not be stopped in this one."""
    program = """if True:
        import sys
        from athena.documents.ignore_rule import compile_rule
        compile_rule(sys.argv[1]).regex.fullmatch(sys.argv[2])
    """
    for rule, path in HOSTILE_RULES.items():
        subprocess.run([sys.executable, "-c", program, rule, path], check=True, timeout=60)


@pytest.mark.parametrize("line", ["", "   ", "# comment", "[a", "a\\", "x" * 2_000])
def test_what_is_no_rule(line: str) -> None:
    assert compile_rule(line) is None
