"""Run the reliability campaign, and write its table into docs/reliability.md.

python -m campaign --minutes 30                 all parts, the time shared between them
python -m campaign --only kills --seed 17 --rounds 1    repeat one round
"""

import argparse
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from campaign import damage, day, failover, kills, power, report, surfaces
from campaign.processes import load_everything
from campaign.result import Failure, Tally

sys.path.append(str(Path(__file__).parents[1] / "scripts"))

PARTS: dict[str, Callable[[Path], AbstractContextManager[Any]]] = {
    "kills": kills.open_sqlite_rounds,
    "postgres": kills.open_postgres_rounds,
    "failover": failover.open_rounds,
    "surfaces": surfaces.open_rounds,
    "power": power.open_rounds,
    "damage": damage.open_rounds,
    "day": day.open_rounds,
}
MAX_FAILURES = 5  # after which a part ends
PROGRESS_INTERVAL_S = 60.0
STOPPED = threading.Event()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m campaign", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0, help="how long to go on, all parts together")
    parser.add_argument("--seed", type=int, default=1, help="of the first round; the next has the next one")
    parser.add_argument("--rounds", type=int, help="of each part, at most")
    parser.add_argument("--only", nargs="+", choices=PARTS, help="run these parts")
    parser.add_argument("--quick", action="store_true", help="small rounds: to see that it works")
    parser.add_argument("--write", action="store_true", help="put the counts into docs/reliability.md")
    given = parser.parse_args()
    names = given.only or list(PARTS)
    failed = False
    load_everything()
    signal.signal(signal.SIGINT, request_stop)
    for name in names:
        tally = run_part(name, given.seed, given.minutes * 60 / len(names), given.rounds, is_quick=given.quick)
        failed |= bool(tally.found)
        if given.write:
            report.write_row(name, given.seed, tally)
        print(report.format_row(name, given.seed, tally), flush=True)
    sys.exit(failed)


def request_stop(*_: Any) -> None:
    """End after the round that runs; its counts are still written."""
    STOPPED.set()


def run_part(name: str, first_seed: int, seconds: float, rounds: int | None = None, *, is_quick: bool = False) -> Tally:
    """Run rounds of a part until the time is over; a round that fails leaves its folder, and its seed repeats it."""
    tally = Tally()
    folder = Path(tempfile.mkdtemp(prefix=f"athena-{name}-"))
    began = shown = time.monotonic()
    seed = first_seed
    failures = 0
    with PARTS[name](folder) as part:
        part.seconds = seconds
        if is_quick:
            part.make_small()
        while not STOPPED.is_set() and failures < MAX_FAILURES and (rounds is None or seed < first_seed + rounds):
            try:
                part.run_round(seed, tally)
            except Failure as failure:
                failures += 1
                tally.add_findings(failure.findings)
                evidence = Path(tempfile.gettempdir()) / f"athena-campaign-{name}-{seed}-{os.getpid()}"
                shutil.copytree(folder, evidence, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.sock"))
                print(f"seed {seed}: {str(failure)[:4000]}\n  files: {evidence}", file=sys.stderr)
                print(
                    f"  again: python -m campaign --only {name} --seed {seed} --rounds 1", file=sys.stderr, flush=True
                )
            seed += 1
            now = time.monotonic()
            if now - began > seconds:
                break
            if now - shown > PROGRESS_INTERVAL_S:
                shown = now
                print(
                    f"{name} {now - began:5.0f} s  {dict(tally.counts)} {dict(tally.found)}",
                    file=sys.stderr,
                    flush=True,
                )
    tally.seconds = time.monotonic() - began
    shutil.rmtree(folder, ignore_errors=True)
    return tally


if __name__ == "__main__":
    main()
