"""Score the leads of a CRM: store each once, look at all of them locally, report the few to call today."""

import random
import time

from server import Report, athena

SIGNALS = ["asked for a price list", "wants a demo next week", "only downloaded the brochure", "unsubscribed"]
POINTS = {"asked for a price list": 60, "wants a demo next week": 90, "only downloaded the brochure": 20}


def main() -> None:
    pick = random.Random(7)
    leads = [
        {
            "content": f"Lead {number}: company {number} with {pick.randint(1, 900)} people {pick.choice(SIGNALS)}",
            "tags": ["lead", pick.choice(["emea", "apac", "americas"])],
            "metadata": {"crm_id": number},
        }
        for number in range(300)
    ]
    report = Report()
    with athena() as client:
        began = time.perf_counter()
        report.moved(leads, [one["hash"] for one in client.remember_batch(leads)])
        report.say(f"stored {len(leads)} leads in {time.perf_counter() - began:.1f} s")
        again = client.remember_batch(leads)  # the export came twice
        report.say(f"stored {sum(one['outcome'] == 'new' for one in again)} more when the same export came again")

        scored = []
        for lead in client.recall_iter("company that wants a demo or a price", tags=["lead"], batch=100):
            report.moved(lead)
            points = max((points for signal, points in POINTS.items() if signal in lead["content"]), default=0)
            scored.append((points, lead["content"], lead["tags"]))
        hot = sorted((one for one in scored if one[0] >= 90), reverse=True)
        report.say(f"looked at {len(scored)} leads, {len(hot)} of them are hot")
        for points, content, tags in hot[:3]:
            report.say(f"  {points}  {content}  ({', '.join(sorted(set(tags) - {'lead'}))})")
        report.end(client, __file__)


if __name__ == "__main__":
    main()
