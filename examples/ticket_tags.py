"""Tag support tickets by what they are about, without reading each of them to a model."""

from collections import Counter

from server import Report, athena

TOPICS = {
    "billing": "invoice, refund, charged twice, payment",
    "login": "password, cannot sign in, account locked",
    "shipping": "parcel, delivery is late, tracking number",
}
TICKETS = [
    ("I was charged twice for order {}", "billing"),
    ("Please refund invoice {}", "billing"),
    ("My password does not work since update {}", "login"),
    ("Account {} is locked after three attempts", "login"),
    ("Parcel {} has not arrived", "shipping"),
    ("The tracking number {} is unknown to the carrier", "shipping"),
]


def main() -> None:
    report = Report()
    with athena() as client:
        expected = {}
        for number in range(120):
            text, topic = TICKETS[number % len(TICKETS)]
            kept = client.remember(text.format(1_000 + number), tags=["ticket"])
            report.moved(kept["content"], kept["hash"])
            expected[kept["id"]] = topic

        # Ask for each topic once; a ticket gets the topic that it fits best.
        best: dict[int, tuple[float, str]] = {}
        for topic, words in TOPICS.items():
            for ticket in client.recall_iter(words, tags=["ticket"]):
                report.moved(ticket)
                best[ticket["id"]] = max(best.get(ticket["id"], (0.0, "")), (ticket["score"], topic))
        for number, (_, topic) in best.items():
            report.moved({"memory_id": number, "tags": ["ticket", topic]})
            client.update_memory(number, tags=["ticket", topic])

        counted = sorted(Counter(topic for _, topic in best.values()).items())
        report.say(f"tickets by tag: {', '.join(f'{topic} {count}' for topic, count in counted)}")
        right = sum(expected[number] == topic for number, (_, topic) in best.items())
        report.say(f"{right} of {len(expected)} tickets got the tag they were written for")
        report.say(f"billing, from the store: {len(client.call_tool('search_by_tag', tags='billing', k=1_000))}")
        report.end(client, __file__)


if __name__ == "__main__":
    main()
