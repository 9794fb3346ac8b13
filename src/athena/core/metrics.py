"""Metrics of calls, in the text format of Prometheus."""

import threading
from collections import defaultdict

BUCKET_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


class Metrics:
    """Counters of one process. Labels come from the catalog alone, so that there are never many."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: dict[tuple[str, str, str], int] = defaultdict(int)
        self._seconds: dict[tuple[str, str], float] = defaultdict(float)
        self._buckets: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0] * (len(BUCKET_BOUNDS_S) + 1))
        self._tokens: dict[tuple[str, str, str], int] = defaultdict(int)

    def count_call(self, operation: str, surface: str, outcome: str, seconds: float) -> None:
        with self._lock:
            self._calls[operation, surface, outcome] += 1
            self._seconds[operation, surface] += seconds
            bucket = next((i for i, bound in enumerate(BUCKET_BOUNDS_S) if seconds <= bound), len(BUCKET_BOUNDS_S))
            self._buckets[operation, surface][bucket] += 1

    def count_tokens(self, operation: str, surface: str, sent: int, returned: int) -> None:
        with self._lock:
            self._tokens[operation, surface, "in"] += sent
            self._tokens[operation, surface, "out"] += returned

    def format_text(self, gauges: dict[str, tuple[str, float]]) -> str:
        """Return all counters and some gauges (name to help and value) as text."""
        with self._lock:
            calls, seconds, tokens = dict(self._calls), dict(self._seconds), dict(self._tokens)
            buckets = {key: list(value) for key, value in self._buckets.items()}
        lines = ["# HELP athena_calls_total Calls of operations.", "# TYPE athena_calls_total counter"]
        for (operation, surface, outcome), count in sorted(calls.items()):
            labels = f'operation="{operation}",surface="{surface}",outcome="{outcome}"'
            lines.append(f"athena_calls_total{{{labels}}} {count}")
        lines += ["# HELP athena_call_seconds How long calls took.", "# TYPE athena_call_seconds histogram"]
        for (operation, surface), counts in sorted(buckets.items()):
            labels = f'operation="{operation}",surface="{surface}"'
            total = 0
            for bound, count in zip((*map(str, BUCKET_BOUNDS_S), "+Inf"), counts, strict=True):
                total += count
                lines.append(f'athena_call_seconds_bucket{{{labels},le="{bound}"}} {total}')
            lines.append(f"athena_call_seconds_sum{{{labels}}} {seconds[operation, surface]:.6f}")
            lines.append(f"athena_call_seconds_count{{{labels}}} {total}")
        lines += ["# HELP athena_tokens_total Tokens of arguments and results.", "# TYPE athena_tokens_total counter"]
        for (operation, surface, direction), count in sorted(tokens.items()):
            lines.append(
                f'athena_tokens_total{{operation="{operation}",surface="{surface}",way="{direction}"}} {count}'
            )
        for name, (help_text, value) in gauges.items():
            lines += [f"# HELP athena_{name} {help_text}", f"# TYPE athena_{name} gauge", f"athena_{name} {value:g}"]
        return "\n".join(lines) + "\n"
