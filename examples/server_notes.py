"""Keep notes about servers while many jobs run at once, and find the one that matters at night."""

import time
from concurrent.futures import ThreadPoolExecutor

from server import Report, athena

KNOWN = {
    "web-3": "restarts by itself when memory runs out; look at the image cache before calling anybody",
    "db-1": "replication falls behind during the nightly export; it catches up within ten minutes",
    "mail-2": "its certificate is renewed by hand every March, because the provider has no API",
}


def main() -> None:
    report = Report()
    with athena() as client:

        def check(number: int) -> str:
            """Look at a server and write down what was seen. All jobs share the client."""
            name = f"{('web', 'db', 'mail')[number % 3]}-{number}"
            seen = KNOWN.get(name, f"disk {number * 7 % 100} percent full, load {number % 5}, nothing to do")
            kept = str(client.remember(f"{name}: {seen}", tags=["server", name])["hash"])
            report.moved(f"{name}: {seen}", ["server", name], kept)
            return kept

        began = time.perf_counter()
        with ThreadPoolExecutor(10) as pool:
            hashes = list(pool.map(check, range(100)))
        report.say(f"{len(set(hashes))} notes from 10 jobs in {time.perf_counter() - began:.1f} s")

        for question in ("why does the replica lag behind at night?", "who renews the certificate of the mail server?"):
            found = client.recall(question, k=5, tags=["server"])
            report.moved(question, found)
            report.say(f"{question}\n  {found[0]['content']}")
        report.end(client, __file__)


if __name__ == "__main__":
    main()
