"""Documents with known facts, and questions about them in other words than the documents'.

Four kinds of document, six of each: they differ in their names and figures, so that only the title says whose a section
is. Sections have the facts among ordinary sentences. Written before its writer had seen how documents are split.
"""

import itertools
import os
import random
import re
import textwrap
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import NamedTuple

from document_tools import Line, build_pdf

from athena import api
from athena.core.tokens import count_tokens

PAGE_LINES = 46
PLAIN_PIECE_TOKENS = 500
SUFFIXES = ("pdf", "html", "md")


class Section(NamedTuple):
    heading: str
    fact: str  # {a} and {b} are figures that differ from document to document
    questions: tuple[str, str]  # {name} is what the document is about
    others: tuple[str, str, str]  # sentences around the fact


class Kind(NamedTuple):
    title: str
    names: tuple[str, ...]
    sections: tuple[Section, ...]
    fillers: tuple[str, ...]


class Document(NamedTuple):
    file: str
    title: str
    sections: list[tuple[str, list[str]]]  # heading and paragraphs


class Question(NamedTuple):
    text: str
    file: str
    fact: str


MANUAL = Kind(
    "{name}: user manual",
    ("Halden K4 kettle", "Orrin 20 dehumidifier", "Velma laser printer", "Tarn heat pump", "Skua drill", "Ostler oven"),
    (
        Section(
            "Unpacking",
            "Leave it upright for {a} hours before you plug it in, so that the oil runs back.",
            ("How long must the {name} stand before I switch it on?", "waiting time after delivery, {name}"),
            (
                "Cut the tape with a blunt knife and lift the foam out in one piece.",
                "Keep the carton until you know that nothing is missing.",
                "Two people should carry it up stairs.",
            ),
        ),
        Section(
            "Cleaning",
            "Every {a} weeks, run a cycle with {b} g of citric acid and rinse twice.",
            ("How often do I have to descale the {name}?", "what do I put in the {name} against lime, and how much"),
            (
                "Wipe the outside with a damp cloth and never with a scouring pad.",
                "Let all parts dry before you put them together.",
                "The seal is a wearing part that a shop can change.",
            ),
        ),
        Section(
            "Error codes",
            "E{a} means that the fan is blocked; E{b} means that the lid is open.",
            ("The {name} shows E{a}, what is wrong?", "{name} code when the fan does not turn"),
            (
                "A code stays on the display until the cause is gone.",
                "Write the code down before you call us, since it is lost when the power goes.",
                "Most of them go away by themselves after a pause.",
            ),
        ),
        Section(
            "Noise and power",
            "It draws {a} watts at full load and is as loud as {b} decibels at one metre.",
            ("What is the power consumption of the {name}?", "how noisy is the {name}"),
            (
                "Figures were taken in a room without carpets.",
                "On battery packs and inverters it may not start.",
                "Do not share an extension lead with a heater.",
            ),
        ),
        Section(
            "Storage over winter",
            "Empty the tank and keep it at no less than {a} degrees, with the plug {b} cm above the floor.",
            ("Can I leave the {name} in a cold garage?", "lowest temperature for storing the {name}"),
            (
                "Cover it with a cloth and not with plastic film.",
                "Mice like the insulation, so close the openings.",
                "Before spring, look at the cable for cracks.",
            ),
        ),
        Section(
            "Guarantee",
            "We repair it free of charge for {a} months, and spare parts are sold for {b} years.",
            ("How long is the warranty of the {name}?", "until when can I buy spares for the {name}"),
            (
                "The receipt is enough; no registration is needed.",
                "Damage by frost and by falls is left out.",
                "Shops in the list at the end take parcels without an appointment.",
            ),
        ),
        Section(
            "Child lock",
            "Hold the two outer keys for {a} seconds; the lock opens again after {b} minutes without use.",
            ("How do I stop my kids from starting the {name}?", "unlock the keys of the {name}"),
            (
                "A small padlock appears in the corner of the display.",
                "The main switch always works.",
                "The lock is remembered when the power fails.",
            ),
        ),
        Section(
            "Disposal",
            "It holds {a} g of the refrigerant R-{b}, which only a certified yard may draw off.",
            ("Which gas is inside the {name}?", "throwing away the {name}: what has to be removed first"),
            (
                "Never put it out with household rubbish.",
                "The carton goes to paper, the foam to plastics.",
                "Councils collect such things once a quarter.",
            ),
        ),
    ),
    (
        "Read this page to the end before you begin.",
        "Pictures in this booklet may differ a little from what you have bought.",
        "If in doubt, ask an electrician.",
        "Keep this booklet where others can find it.",
        "Use only the parts that came in the box.",
        "The arrows on the back show the direction.",
        "Work slowly and with dry hands.",
        "A torch helps to see the label at the rear.",
    ),
)

HANDBOOK = Kind(
    "{name} staff handbook",
    ("Brackwell Foods", "Nordlys Shipping", "Pemberton & Rao", "Quillon Games", "Sarissa Health", "Tolliver Print"),
    (
        Section(
            "Working hours",
            "Everyone is reachable from {a}:00 to {b}:30; the rest of the day you arrange yourself.",
            ("What are the core hours at {name}?", "when do I have to be available if I work for {name}"),
            (
                "Put breaks in your calendar so that nobody books them.",
                "Overtime is taken as time off in the same quarter.",
                "Teams in other zones agree on a common slot.",
            ),
        ),
        Section(
            "Annual leave",
            "You have {a} days a year, of which {b} may be carried over until the end of March.",
            ("How many vacation days do people get at {name}?", "unused holiday into next year, {name}"),
            (
                "Ask your lead two weeks ahead for anything longer than three days.",
                "Public holidays follow the office you belong to.",
                "In December the shop floor closes for a week.",
            ),
        ),
        Section(
            "Travel",
            "Book trains in second class below {a} hours of riding, and hotels up to {b} euros a night.",
            ("What may a hotel cost on a business trip for {name}?", "spending limit per night {name} travel"),
            (
                "Use the portal so that somebody knows where you are.",
                "Meals are paid as a flat rate, so keep no receipts for them.",
                "Upgrades are yours to pay.",
            ),
        ),
        Section(
            "Being ill",
            "Tell your lead before {a}:15; from day {b} on we need a note from a doctor.",
            ("When does {name} want a medical certificate?", "calling in sick at {name}: by what time"),
            (
                "Do not answer mail while you are in bed.",
                "A colleague takes over what is urgent.",
                "Coming back in steps can be arranged.",
            ),
        ),
        Section(
            "Laptops and phones",
            "Machines are replaced after {a} months, and you may buy the old one for {b} euros.",
            ("Can I keep my old computer when I get a new one at {name}?", "hardware renewal cycle {name}"),
            (
                "Report a theft the same day, also at weekends.",
                "Stickers are welcome, holes are not.",
                "The store room lends screens and chairs.",
            ),
        ),
        Section(
            "Parents",
            "After a birth the second parent has {a} weeks with full pay, to be taken within {b} months.",
            ("How long is paternity leave at {name}?", "new baby, paid time off for the other parent, {name}"),
            (
                "Adoptions count the same way.",
                "Nursing rooms are on the ground floor.",
                "Hours can be reduced until school age.",
            ),
        ),
        Section(
            "Learning budget",
            "Each person may spend {a} euros and {b} days a year on courses, books and fairs.",
            ("How much does {name} pay for training?", "conference money per employee {name}"),
            (
                "Share what you learned at a lunch talk.",
                "Languages count as courses.",
                "Certificates stay yours when you leave.",
            ),
        ),
        Section(
            "Leaving",
            "The notice period is {a} weeks; badge and keys go back to room {b}.",
            ("I want to quit {name}, how far ahead must I say so?", "where to hand in my key card at {name}"),
            (
                "An exit talk is offered and voluntary.",
                "References are written within a month.",
                "Private files should be gone from the machine.",
            ),
        ),
    ),
    (
        "This chapter was agreed with the works council.",
        "Questions go to the people team.",
        "Exceptions are possible and are written down.",
        "What your contract says comes first.",
        "We review this page each spring.",
        "Please be fair to those who cover for you.",
        "Managers follow the same rules.",
        "Older versions are in the archive.",
    ),
)

RUNBOOK = Kind(
    "Runbook of {name}",
    ("ledger-api", "thumbnailer", "mailroom", "geo-index", "checkout-web", "stock-sync"),
    (
        Section(
            "Releasing",
            "Builds go to {a} % of the traffic first and to all after {b} minutes without alarms.",
            ("How big is the canary of {name}?", "how long do we watch a new version of {name} before full rollout"),
            (
                "Say in the channel what you are about to do.",
                "The pipeline signs the image; do not push by hand.",
                "Nothing goes out on the last day before a holiday.",
            ),
        ),
        Section(
            "Rolling back",
            "Run `ctl revert --steps {a}`; the earlier image stays warm for {b} hours.",
            ("The new version of {name} is broken, how do I get the old one back?", "{name} revert command"),
            (
                "Do it first and look for the cause later.",
                "Database changes are written so that the version before can live with them.",
                "Write down the time for the report.",
            ),
        ),
        Section(
            "Alarms",
            "Page somebody if p99 is above {a} ms for five minutes, or the queue is longer than {b} jobs.",
            ("Which latency wakes up the on-call person of {name}?", "{name} backlog size that raises an incident"),
            (
                "Alarms without a next step are deleted.",
                "Silence one for an hour at most.",
                "Graphs are linked from the message itself.",
            ),
        ),
        Section(
            "Database",
            "It uses PostgreSQL on port {a} with at most {b} connections per instance.",
            ("How many DB connections may {name} open?", "{name} postgres port"),
            (
                "Long statements are cancelled on the replicas.",
                "Ask before you add an index to a large table.",
                "Maintenance is on the second Tuesday.",
            ),
        ),
        Section(
            "Copies for the worst case",
            "A snapshot is taken every {a} hours and is deleted after {b} days.",
            ("How much data of {name} could we lose at most?", "retention of backups, {name}"),
            (
                "Once a quarter somebody rebuilds everything from one.",
                "They lie in another region.",
                "The key for them is in the vault of the platform team.",
            ),
        ),
        Section(
            "Duty",
            "The shift changes on {day} at {a}:00; extension {b} reaches whoever has it.",
            ("Who do I ring when {name} is down?", "handover day of the {name} rota"),
            (
                "Swap freely and tell the bot.",
                "After a night call you start late.",
                "New colleagues shadow two shifts.",
            ),
        ),
        Section(
            "Credentials",
            "Tokens live in the vault under path kv/{a} and are renewed every {b} days.",
            ("Where are the secrets of {name} kept?", "rotation interval of {name} keys"),
            (
                "Never paste one into a ticket.",
                "Local runs use the fake ones of the repository.",
                "Leaked ones are revoked first and explained later.",
            ),
        ),
        Section(
            "Limits",
            "A client may send {a} requests a minute with bodies of up to {b} kB.",
            ("What is the rate limit of {name}?", "maximum upload size {name}"),
            (
                "Above that it answers 429 with the time to wait.",
                "Partners may ask for more.",
                "Health checks are not counted.",
            ),
        ),
    ),
    (
        "Times are in UTC.",
        "Commands are meant for the jump host.",
        "If this page is wrong, mend it right away.",
        "The owner of this page is the team in its header.",
        "Screenshots were left out on purpose, as they age.",
        "Test it in staging if you have the time.",
        "Take a second person along for anything that deletes.",
        "Links lead to the internal wiki.",
    ),
)

GUIDE = Kind(
    "Living in {name}: a guide for newcomers",
    ("Aldermoor", "Brisca", "Castelvino", "Dunmere", "Eikhaven", "Fossbridge"),
    (
        Section(
            "Getting there",
            "Bus {a} leaves the railway station every {b} minutes until midnight.",
            ("Which bus do I take from the train to {name}?", "public transport frequency to {name}"),
            (
                "The last bit is uphill.",
                "Bicycles travel free outside of rush hour.",
                "In snow the upper stops are left out.",
            ),
        ),
        Section(
            "Market",
            "Stalls stand around the church on {day} from {a}:00, and the fish van leaves at {b}:30.",
            ("On which day is the market in {name}?", "buying fresh fish in {name}"),
            (
                "Bring coins and a bag.",
                "Bakers sell out first.",
                "In August half of them are away.",
            ),
        ),
        Section(
            "Swimming",
            "The pool has lanes of {a} metres and a day ticket is {b} crowns.",
            ("What does it cost to swim in {name}?", "length of the baths in {name}"),
            (
                "Caps are needed, and the kiosk sells them.",
                "Mornings belong to the schools.",
                "The sauna is closed in July.",
            ),
        ),
        Section(
            "Library",
            "You may have {a} books for {b} weeks, and the card is free.",
            ("How many books can I borrow in {name}?", "loan period for books, {name}"),
            (
                "The reading room has the papers of the week.",
                "Tools and games are lent at the desk downstairs.",
                "A flap takes returns at night.",
            ),
        ),
        Section(
            "Rubbish",
            "Grey bins are emptied every {a} weeks on {day}, and bulky things may weigh {b} kg.",
            ("When do they take the garbage in {name}?", "getting rid of an old sofa in {name}"),
            (
                "Put it out the evening before and not earlier.",
                "Glass is for the containers behind the hall.",
                "The calendar hangs in the town office.",
            ),
        ),
        Section(
            "Parking",
            "Residents pay {a} crowns a year; visitors may stay {b} minutes in the blue zone.",
            ("What is the price of a parking permit in {name}?", "how long can guests leave the car in {name}"),
            (
                "Wardens are friendly and thorough.",
                "The field by the river floods.",
                "Electric cars charge behind the cinema.",
            ),
        ),
        Section(
            "Water",
            "It comes from a spring with a hardness of {a} degrees, and a cubic metre is {b} crowns.",
            ("Is the tap water in {name} hard?", "water rates {name}"),
            (
                "It is good to drink everywhere.",
                "Meters are read in November.",
                "Report a burst pipe at any hour.",
            ),
        ),
        Section(
            "Festivals",
            "The lantern night is {a} days after the first full moon of autumn and began in {b}.",
            ("Since when is there a lantern festival in {name}?", "date of the lights event, {name}"),
            (
                "Children lead the walk to the mill.",
                "Bands play in the yards.",
                "Helpers eat for nothing.",
            ),
        ),
    ),
    (
        "Ask a neighbour; most are glad to help.",
        "Opening times change in summer.",
        "The town office has this guide on paper.",
        "Prices were checked last winter.",
        "A map is on the last page.",
        "Dogs are welcome nearly everywhere.",
        "Words in the local tongue are explained at the end.",
        "Some streets have two names.",
    ),
)

KINDS = (MANUAL, HANDBOOK, RUNBOOK, GUIDE)
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")


def build_set(names: int = 6) -> tuple[list[Document], list[Question]]:
    """Return documents about so many names of each kind, and all questions about them."""
    rng = random.Random(2_203)
    documents: list[Document] = []
    questions: list[Question] = []
    for kind in KINDS:
        figures = {section.heading: rng.sample(range(3, 400), 2 * len(kind.names)) for section in kind.sections}
        for number, name in enumerate(kind.names):
            file = f"{name.lower().replace(' ', '-')}.{SUFFIXES[len(documents) % 3]}"
            sections = []
            for section in kind.sections:
                a, b = figures[section.heading][2 * number : 2 * number + 2]
                fact = section.fact.format(a=a, b=b, day=DAYS[number])
                sections.append((section.heading, _write_section(rng, section, fact, kind.fillers)))
                questions += [Question(q.format(name=name, a=a), file, fact) for q in section.questions]
            documents.append(Document(file, kind.title.format(name=name), sections))
    chosen = [document for at, document in enumerate(documents) if at % 6 < names]
    files = {document.file for document in chosen}
    return chosen, [question for question in questions if question.file in files]


def _write_section(rng: random.Random, section: Section, fact: str, fillers: tuple[str, ...]) -> list[str]:
    """Return paragraphs with the fact at a place of its own."""
    sentences = [*section.others, *rng.sample(fillers, 5)]
    rng.shuffle(sentences)
    sentences.insert(rng.randrange(len(sentences) + 1), fact)
    cuts = [0, *sorted(rng.sample(range(2, len(sentences) - 1), 2)), len(sentences)]
    return [" ".join(sentences[start:end]) for start, end in itertools.pairwise(cuts)]


def write_document(folder: Path, document: Document) -> None:
    path = folder / document.file
    if document.file.endswith(".md"):
        parts = [f"## {heading}\n\n" + "\n\n".join(paragraphs) for heading, paragraphs in document.sections]
        path.write_text("\n\n".join([f"# {document.title}", *parts]))
    elif document.file.endswith(".html"):
        body = "".join(
            f"<h2>{escape(heading)}</h2>" + "".join(f"<p>{escape(text)}</p>" for text in paragraphs)
            for heading, paragraphs in document.sections
        )
        path.write_text(f"<html><body><h1>{escape(document.title)}</h1>{body}</body></html>")
    else:
        lines = list(_list_pdf_lines(document))
        path.write_bytes(build_pdf([lines[i : i + PAGE_LINES] for i in range(0, len(lines), PAGE_LINES)]))


def _list_pdf_lines(document: Document) -> Iterator[Line]:
    yield (20, document.title)
    for heading, paragraphs in document.sections:
        yield (14, heading)
        for text in paragraphs:
            yield from ((10, line) for line in textwrap.wrap(text, 95))


def store_plain_pieces(documents: list[Document]) -> None:
    """Store the same texts as a plain splitter makes them: 500 tokens each, without pages and headings."""
    pieces: list[dict[str, object]] = []
    for document in documents:
        parts = [document.title, *(" ".join([heading, *texts]) for heading, texts in document.sections)]
        words: list[str] = []
        for word in " ".join(parts).split():
            words.append(word)
            if count_tokens(" ".join(words)) >= PLAIN_PIECE_TOKENS:
                pieces.append({"content": " ".join(words), "metadata": {"source": document.file}})
                words = []
        if words:
            pieces.append({"content": " ".join(words), "metadata": {"source": document.file}})
    api.store_batch(pieces)


def rank_answer(question: Question, limit: int = 5) -> int | None:
    """Return the place of the piece of the right document that has the fact; None if it is not among the first."""
    fact = _join_words(question.fact)
    for place, hit in enumerate(api.call("recall", query=question.text, k=limit, min_score=0), 1):
        is_document = os.path.basename(str(hit["metadata"].get("source"))) == question.file
        if is_document and fact in _join_words(hit["content"]):
            return place
    return None


def _join_words(text: str) -> str:
    return " ".join(re.findall(r"\w+", text))
