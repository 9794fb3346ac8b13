"""A process that searches a shared store; `bench.postgres` starts it and exchanges lines with it."""

import json
import sys
import time

from athena import api


def main() -> None:
    """Read queries and a duration, print `ready`, wait for a line, search until the time is up, and print a report."""
    queries, seconds = json.loads(sys.stdin.readline())
    for query in queries[:10]:
        api.search(query)
    print("ready", flush=True)
    sys.stdin.readline()
    began = time.perf_counter()
    done = 0
    while time.perf_counter() - began < seconds:
        api.search(queries[done % len(queries)])
        done += 1
    print(json.dumps({"searches": done, "seconds": time.perf_counter() - began}), flush=True)


if __name__ == "__main__":
    main()
