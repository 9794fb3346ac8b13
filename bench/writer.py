"""A process that writes to a shared store; `bench.processes` starts it and exchanges lines with it."""

import json
import sys
import time

from athena import api
from athena.errors import AthenaError


def main() -> None:
    """Read notes, print `ready`, wait for a line, store them one by one, and print a report."""
    texts: list[str] = json.loads(sys.stdin.readline())
    api.store(texts[0])
    print("ready", flush=True)
    sys.stdin.readline()
    times: list[float] = []
    hashes: list[str] = []
    errors: list[str] = []
    for text in texts[1:]:
        began = time.perf_counter()
        try:
            hashes.append(api.store(text))
        except AthenaError as error:
            errors.append(str(error))
        times.append(time.perf_counter() - began)
    print(json.dumps({"times": times, "hashes": hashes, "errors": errors}), flush=True)


if __name__ == "__main__":
    main()
