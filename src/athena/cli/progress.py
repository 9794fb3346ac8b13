"""Show on standard error how far long work is, and say what was done when Ctrl-C stops it. Without click."""

from __future__ import annotations

import contextlib
import sys
import threading
import time

from athena.cli.formats import get_terminal_size, measure_width
from athena.cli.streams import SafeStream, is_plain_terminal

TYPE_CHECKING = False  # importing typing is too slow here
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TextIO

FIRST_DRAW_S = 1.0  # shorter work shows nothing
DRAW_INTERVAL_S = 0.2
LINE_INTERVAL_S = 10.0  # where lines cannot be replaced
BAR_CHARS = 20

_shown: list[Progress] = []  # the outermost work counts; calls within it show nothing of their own


class Progress:
    """How far some work is; a thread shows it once the work has taken a second."""

    def __init__(self, label: str) -> None:
        self.label = label
        self.done = self.total = 0
        self._started = time.monotonic()

    def advance(self, count: int, total: int = 0, label: str = "") -> None:
        """Note that some more is done; `total` is 0 where nobody knows it."""
        self.update(self.done + count, total, label)

    def update(self, done: int, total: int = 0, label: str = "") -> None:
        """Note how much is done."""
        self.done, self.total, self.label = done, total, label or self.label

    def __str__(self) -> str:
        elapsed_s = time.monotonic() - self._started
        if self.total > 0:
            share = min(1.0, self.done / self.total)
            bar = "#" * round(share * BAR_CHARS)
            return f"{self.label}  [{bar:-<{BAR_CHARS}}] {share:4.0%}  {self.done:,} of {self.total:,}"
        return f"{self.label}  {self.done:,}, {elapsed_s:.0f} s" if self.done else f"{self.label}  {elapsed_s:.0f} s"


@contextlib.contextmanager
def show_progress(label: str, *, in_lines: bool = True) -> Iterator[Progress]:
    """Show on a terminal how far the block is; elsewhere write a line now and then, if `in_lines`."""
    progress = Progress(label)
    stream = progress_stream()
    if _shown or (is_plain_terminal(stream) and not in_lines):
        yield progress
        return
    is_over = threading.Event()
    painter = threading.Thread(target=_paint, args=(progress, stream, is_over), daemon=True)
    _shown.append(progress)
    painter.start()
    try:
        yield progress
    finally:
        is_over.set()
        painter.join()
        _shown.remove(progress)


def progress_stream() -> TextIO:
    """Return standard error itself, where the cursor can be moved; what is written there must be ours."""
    return sys.stderr.stream if isinstance(sys.stderr, SafeStream) else sys.stderr


def _paint(progress: Progress, stream: TextIO, is_over: threading.Event) -> None:
    width = 0
    in_lines = is_plain_terminal(stream)
    if is_over.wait(LINE_INTERVAL_S if in_lines else FIRST_DRAW_S):
        return
    with contextlib.suppress(OSError, ValueError):  # nobody reads it any more
        while True:
            line = str(progress)
            if in_lines:
                stream.write(f"{line}\n")
            else:
                line = line[: get_terminal_size().columns - 1]
                stream.write(f"\r{line}{' ' * (width - measure_width(line))}")
                width = measure_width(line)
            stream.flush()
            if is_over.wait(LINE_INTERVAL_S if in_lines else DRAW_INTERVAL_S):
                break
        stream.write("" if in_lines else f"\r{' ' * width}\r")
        stream.flush()


@contextlib.contextmanager
def explain_stop(describe: Callable[[], str]) -> Iterator[None]:
    """Let Ctrl-C say what was done until then."""
    try:
        yield
    except KeyboardInterrupt as error:
        raise error if error.args else KeyboardInterrupt(describe()) from None
