"""Whatever a command prints: nothing but our own colours controls the terminal, hides text or reorders it."""

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from athena.core.text import TERMINAL_UNSAFE_PATTERN, escape_control_chars
from daemon_tools import Home

pytestmark = pytest.mark.sqlite_only("the terminal")

HOSTILE = "a\x1b[2J\x1b]0;title\x07b\u202ecod.exe\u2069\u200bc\x9b31m\u061cd\U000e0041\ufe0f\ufe0fe\rf\u2028"
OWN_CODES = re.compile(r"\x1b\[(0|1|3[1-6])m")
OWN_PROGRESS = re.compile(r"\r[a-z ]+  \d+ s *(?=\r)|\r +\r")  # of work that takes over a second


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    home = Home(tmp_path_factory.mktemp("home"))
    text = f"Deploys run on Fridays {HOSTILE}"
    arguments = {"content": text, "tags": [f"tag{HOSTILE}"], "metadata": {f"key{HOSTILE}": f"value{HOSTILE}"}}
    home.athena("call", "remember", "--json", json.dumps(arguments))
    (home.path / "print.py").write_text(f"print({HOSTILE!r})\n{HOSTILE!r}")
    (home.path / "error.py").write_text(f"raise type('Bad' + {HOSTILE!r}, (Exception,), {{}})({HOSTILE!r})")
    (home.path / "colour.py").write_text("print('\\x1b[32mok\\x1b[0m')")
    return home


def run_on_terminal(home: Home, *argv: str, **environ: str) -> str:
    """Run a command on a terminal of its own, and return all that appears there."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "athena", *argv]
    env = home.environ(ATHENA_PROJECT="harbour", TERM="xterm", **environ)
    with subprocess.Popen(command, env=env, cwd=home.path, stdin=theirs, stdout=theirs, stderr=theirs) as done:
        os.close(theirs)
        pieces = []
        try:
            while piece := os.read(ours, 65_536):
                pieces.append(piece)
        except OSError:  # the other end is closed
            pass
        os.close(ours)
        done.wait(100)
    return b"".join(pieces).decode("utf-8", "surrogateescape")


def find_unsafe_chars(text: str) -> set[str]:
    text = OWN_PROGRESS.sub("", OWN_CODES.sub("", text).replace("\r\n", "\n"))
    return set(TERMINAL_UNSAFE_PATTERN.findall(text))


@pytest.mark.parametrize(
    "argv",
    [
        ("list",),
        ("recall", "when do we deploy"),
        ("show", "1"),
        ("list", "--json"),
        ("run", "print.py"),
        ("run", "error.py"),
        (f"no-such-{HOSTILE}",),
        ("list", f"--no-such-{HOSTILE}"),
        ("show", HOSTILE),
        ("list", "--project", HOSTILE),
        ("servers", "approve", HOSTILE),
        ("import", HOSTILE),
        ("tools", HOSTILE),
    ],
    ids=lambda argv: " ".join(argv)[:20].encode("ascii", "replace").decode(),
)
def test_no_command_lets_texts_control_the_terminal(home: Home, argv: tuple[str, ...]) -> None:
    shown = run_on_terminal(home, *argv)
    assert shown
    assert find_unsafe_chars(shown) == set()


def test_doctor_escapes_what_the_environment_holds(tmp_path: Path) -> None:
    home = Home(tmp_path / "home\u202e\u200b\x1b[31m")
    shown = run_on_terminal(home, "doctor", ATHENA_HOOKS_OFF=f"stop{HOSTILE}", **{f"ATHENA_{HOSTILE}": "x"})
    assert "home\\u202e" in shown
    assert find_unsafe_chars(shown) == set()


def test_colours_are_ours_alone(home: Home) -> None:
    """A text cannot paint itself: only colours of ours reach the terminal."""
    shown = run_on_terminal(home, "run", "colour.py")
    assert "\\x1b[32mok\\x1b[0m" in shown
    assert "\x1b[3" not in shown
    assert "\x1b[31merror:\x1b[0m" in run_on_terminal(home, "show", "nothing")


def test_colours_stay_out_of_pipes(home: Home) -> None:
    assert "\x1b" not in home.athena("list")
    assert "Fridays" in home.athena("list")


def test_ordinary_text_is_printed_as_it_is() -> None:
    text = "Ünïcode ❤️ 東京 👍🏽 שלום\tand\nlines"
    assert escape_control_chars(text) == text
    assert escape_control_chars("\udc9b31m\xad") == "\\udc9b31m\\xad"


def test_unknown_hook_is_named_to_a_person(home: Home) -> None:
    assert "there is no event 'sessionstart'; there are session-start," in run_on_terminal(home, "hook", "sessionstart")
