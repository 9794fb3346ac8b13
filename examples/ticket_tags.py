"""Tag support tickets by what they are about, without reading each of them to a model."""

from collections import Counter

from server import athena

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
    with athena() as client:
        expected = {}
        for number in range(120):
            text, topic = TICKETS[number % len(TICKETS)]
            expected[client.remember(text.format(1_000 + number), tags=["ticket"])["id"]] = topic

        # Ask for each topic once; a ticket gets the topic that it fits best.
        best: dict[int, tuple[float, str]] = {}
        for topic, words in TOPICS.items():
            for ticket in client.recall_iter(words, tags=["ticket"]):
                best[ticket["id"]] = max(best.get(ticket["id"], (0.0, "")), (ticket["score"], topic))
        for number, (_, topic) in best.items():
            client.update_memory(number, tags=["ticket", topic])

        print("tickets by tag:", dict(sorted(Counter(topic for _, topic in best.values()).items())))
        right = sum(expected[number] == topic for number, (_, topic) in best.items())
        print(f"{right} of {len(expected)} tickets got the tag they were written for")
        print("billing, from the store:", len(client.call_tool("search_by_tag", tags="billing", k=1_000)))


if __name__ == "__main__":
    main()
