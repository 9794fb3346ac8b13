"""Compare the CPU time of a function on a text and on one that is four times as long."""

import time
from collections.abc import Callable

from conftest import rounds


def is_time_linear(work: Callable[[str], object], start: str, unit: str, short: int) -> bool:
    """Return whether the time grows with the length of `unit` repeated, and not with its square."""
    texts = {length: start + unit * (length // len(unit)) for length in (short, 4 * short)}
    least = dict.fromkeys(texts, float("inf"))
    is_linear = False
    work(start + unit)  # compiles the patterns
    for turn in range(8):  # alternating, and CPU time only, so that other processes do not count
        for length in (short, 4 * short, short):
            began = time.process_time()
            work(texts[length])
            least[length] = min(least[length], time.process_time() - began)
        # quadratic work would take 16 times as long, clearly more than noise
        is_linear = least[4 * short] < 9 * least[short] + 0.002
        if is_linear and turn + 1 >= rounds(1, 8):
            break
    return is_linear
