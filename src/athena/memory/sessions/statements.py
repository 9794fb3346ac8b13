"""Find the statements of a conversation that are worth keeping.

The classifier says which fragments of a user's turns to keep. Rules stand above it: what a person asks to remember is
kept, what they ask to forget is not, and nothing is kept of code, quotations, questions, secrets and private life.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from athena.core import redaction
from athena.core.private import remove_private_clauses
from athena.memory.sessions import orders
from athena.memory.sessions.classifier import KINDS, MAX_ANSWER_CHARS, Prediction, classify_fragments
from athena.memory.sessions.commands import (
    MIN_WORDS,
    NOT_REMEMBER_PATTERN,
    POLITE_PATTERN,
    REMEMBER_PATTERN,
    WORD_PATTERN,
    Retraction,
    find_retractions,
    is_about,
    is_unrecorded,
    says_nothing,
)
from athena.memory.sessions.extract import remove_echoes
from athena.memory.sessions.fragments import Fragment, split_fragments
from athena.memory.sessions.proposals import ACCEPT_PATTERN, SENTENCE_PATTERN, find_accepted_proposal
from athena.memory.sessions.select import extract_words
from athena.memory.sessions.values import Utterance

if TYPE_CHECKING:
    from athena.embedding.minilm import MiniLM

MIN_KEEP, MIN_NEIGHBOR_KEEP = 0.42, 0.2  # probability of a fragment, and of one that continues a kept one
MIN_WEAK_KEEP = 0.05  # of a sentence that may change what is known
MIN_BEGIN = 0.9
MIN_VAGUE_KEEP = 0.8  # for a statement that begins with a pronoun
MAX_WORDS, MAX_STATEMENT_CHARS = 60, 400
MAX_TURN_CHARS = 8_000  # what is longer was pasted
MAX_READ_CHARS = 30_000  # of a conversation that the model reads, with the ends of answers: a second of CPU
MAX_QUESTION_CHARS = 160
MEMORY_TYPES = {"rule": "convention", "correction": "fact", "order": "decision", "report": "fact"}
_FILLERS = r"""o+k(?:ay)?|yes|yeah|yep|yup|nope|nah|alright|hm+|and|but|also|oh|ah+|btw|by\ the\ way|fyi|cool|perfect
    |thanks?(?:\ you)?|thx|sure|hey|hi|hello|listen|actually|anyways?|hold\ on|sorry|plus|um+|uh+|you\ know|i\ mean
    |basically|honestly|one\ more\ thing|another\ thing|last\ thing|first\ of\ all|for\ the\ record|exactly|agreed
    |haha+|lol|ugh|damn|changed\ my\ mind|on\ second\ thought|reminder|and\ yes"""
# words that may be a part of the statement ("no tabs", "right margin"): only a mark after them tells
_MARKED_FILLERS = r"""no+|so|like|just|now|good|right|fine|well|then|please|pls|great|nice|correct|super|wait|look|again
    |important|rule|decision|god|true|last|first|(?:scratch|strike|forget|ignore|disregard)\ (?:that|this|it)
    |do\ (?:it|that|this|so)|go\ ahead|sounds\ good|that\ works|works\ for\ me"""
FILLER_PATTERN = re.compile(
    rf"(?:(?:{_FILLERS})(?:\s*[,.:!;–—-]+\s*|\s+)|(?:{_MARKED_FILLERS})\s*[,.:!;–—-]+\s+|so\s+(?=(?:we|i|the|from)\b))",
    re.IGNORECASE | re.VERBOSE,
)
CHANGE_OF_MIND_PATTERN = re.compile(
    r"\bchanged? (?:my|our|his|her) mind|\bon second thought|\bcorrection\b|\bscratch that|\bi was wrong", re.IGNORECASE
)
TAKEN_BACK_PATTERN = re.compile(
    r"(?:scratch|strike|forget|disregard) (?:that|this|it|about)\b|"
    r"we (?:decided|agreed|said) (?:that|this|it)\b.{0,12}$",
    re.IGNORECASE,
)
STANDING_PATTERN = re.compile(
    r"\b(?:from (?:now|here) on|as of (?:now|today)|henceforth|going forward)\b|"
    r"^(?:please |pls )?(?:don'?t|do not|never|no) (?:\S+ ){1,12}(?:anywhere|ever again|any ?more)\W*$",
    re.IGNORECASE,
)
# questions that end without a mark
ASKED_PATTERN = re.compile(
    r"(?:(?:what|where|who|when|why|how|which)(?:'?s|'?re)? (?:is|are|was|were|do|does|did|can|could|would|should|"
    r"shall|will|has|"
    r"have|the|our|my|this|that|much|many|long|about|come)|(?:should|shall|does|did|is|are|was) (?:we|i|it|there|"
    r"that|this|you))\b|"
    r"(?:what|where|who|how)'?s\b|(?:warum|wieso|wann|pourquoi|por qué|cuándo)\b",
    re.IGNORECASE,
)
TAG_QUESTION_PATTERN = re.compile(r"[,\s]+(?:ok(?:ay)?|alright|please|pls)\?+$", re.IGNORECASE)
PERSONAL_PATTERN = re.compile(  # what others can do with is for the person to tell
    r"\b(?:physio\w*|dentist|divorc(?:e|ed|ing)|custody|mortgage|my (?:\w+ )?(?:salary|pay|rent|raise|debts?|loan|"
    r"bank|landlord)|"
    r"(?:(?-i:[A-Z])\w+'s|his|her|their) (?:\w+ )?(?:salary|pay(?:check)?|wages?|rent|raise|debts?)|"
    r"(?:i|he|she|(?-i:[A-Z])\w+) (?:earns?|(?:gets?|is|am) paid|makes) [^\w\s]?\d[\d.,]*\s?(?:k|€|\$|eur|usd|euros?|"
    r"dollars?|a|per)?\b|"
    r"(?:doctor|hospital|therapy|vet)(?:'s)? (?:appointment|visit))\b",
    re.IGNORECASE,
)
HYPOTHESIS_PATTERN = re.compile(
    r"(?:(?:and|but|so|or|well|hm+|ok|also)[, ]+)*(?:if (?:we|i) (?:ever|had|were|could|lost|did)|hypothetically|"
    r"what if|"
    r"imagine|suppose|maybe|perhaps|one day|someday|in theory|(?:we|i|you) (?:could|might)|would be nice|"
    r"wouldn'?t it)\b",
    re.IGNORECASE,
)
OPINION_PATTERN = re.compile(
    r"\b(?:(?-i:[A-Z])\w+|he|she|they|somebody|someone|my \w+) (?:also |even |still |once )?(?:thinks?|believes?|"
    r"suggest(?:s|ed)|is convinced|claim(?:s|ed)|reckons?|guess(?:es|ed)|swears?|wonders?|would (?:like|prefer))\b|"
    r"(?:the|a|an|this|that|some|their) (?:\w+ ){0,2}(?:page|site|docs?|readme|wiki|forum|ticket|issue|article|blog|"
    r"post|e?mail|thread|manual|vendor|comment|log|message|tutorial)\b.{0,30}\b(?:says?|said|reads|states?|claims?|"
    r"tells?|recommends?|suggests?|wants?)\b", re.IGNORECASE,
)  # fmt: skip
CHANGED_VALUE_PATTERN = re.compile(
    r"\b(?:now|again|after all|make it|it is|it'?s going to be|instead|back to|changed?|moved?|from now on|"
    r"let'?s say|lets say|"
    r"not|no longer|new|goes (?:up|down)|bump(?:ed)?|raise[ds]?|lower(?:ed)?|switch(?:ed)?)\b",
    re.IGNORECASE,
)
VALUE_PATTERN = re.compile(r"(?<![\w.])[\d#$€£~]")
# a step of the work, for now
ERRAND_PATTERN = re.compile(
    r"(?:(?:bitte|please|pls|now|then|first|just|can you|could you)[, ]+)*(?:look at|show me|tell me|explain|try|rerun|"
    r"run it|see (?:if|whether)|let'?s do|go on|schau|zeig|sag|erklär|guck|regarde|montre|explique|revisa|mira)\b"
    r"(?!.*\b(?:always|never|every|each|only|must|from now on|whenever|immer|nie|jede[nrs]?|tomorrow|later|next)\b)",
    re.IGNORECASE,
)
SAID_PATTERN = re.compile(r"what (?:i|we|you) (?:said|told|wrote)\b", re.IGNORECASE)
BARE_PRONOUN_PATTERN = re.compile(r"(?:it|that|this|please|ok|for me|always)?\W*(?:,|\.|!|$)", re.IGNORECASE)
DEPENDENT_PATTERN = re.compile(
    r"(?:because|cos|cuz|since|which|so that|not|as|when|if|until|unless|except|otherwise|instead|that|who|where|"
    r"while|or"
    r"|and|but|then|so|though|tho|with|without|for|in|on|at|to|from|by|per|only|max|min|also)\b", re.IGNORECASE,
)  # fmt: skip
PRONOUN_PATTERN = re.compile(r"(?:it|its|it's|they|they're|this|that|that's|these|those|he|she|them)\b", re.IGNORECASE)
VAGUE_START_PATTERN = re.compile(
    r"(?:not|because|which|that|then|except|otherwise|instead|just so|few facts|you|there'?s no|there is no|here'?s|"
    r"i know|i always|comes?|goes|leave|they'?re|we'?re)\b",
    re.IGNORECASE,
)
SUBJECT_PATTERN = re.compile(
    r"(?!it\b|this\b|that\b|there\b|we\b|i\b|you\b)(?:(?:the|our|my) )?(?:[\w/.-]+ ){1,3}?(?=(?:is|are|was|has|have|"
    r"runs?|"
    r"lives?|uses?|goes|go|must|may|can|needs?|stays?|sits?|sends?|writes?|reads?|returns?|comes?|listens?|moved|moves|"
    r"changed|changes|got|gets)\b)",
    re.IGNORECASE,
)
PERSON_PATTERN = re.compile(  # "Ines owns the tours. She approves every change."
    r"(?!(?:The|This|That|These|Those|There|We|You|They|It|He|She|If|When|Our|My|All|Every|Each|No|Not)\b)"
    r"[A-Z][a-z]+ (?=(?:[a-z]+s|will|can|may|must|has)\b)"
)
QUOTED_PATTERN = re.compile(r"\"[^\"]{12,4000}\"|“[^“”]{12,4000}”|„[^„“”]{12,4000}[“”]|«[^«»]{12,4000}»")
MIN_QUOTE_WORDS, MAX_ECHOED_TURNS = 4, 5
QUOTE, MIN_QUOTE_CHANCE = KINDS.index("quote"), 0.4
RUN_PATTERN = re.compile(r"\w+")
TRAILING_PATTERN = re.compile(
    r"(?:[\s,;:–—-]|\b(?:and|but|so|or|because|pls|please|thanks?|thx|ok(?:ay)?|haha+|lol|btw|too|"
    r"then)\s*[.!]*$)+$", re.IGNORECASE
)  # fmt: skip


class Statement(NamedTuple):
    """A statement that is worth keeping, and where it was said."""

    text: str
    kind: str  # of classifier.KINDS
    role: str  # user, or assistant for a proposal that the user accepted
    turn: int  # number of the user's turn, from 1
    confidence: float
    is_request: bool = False  # "remember that"
    is_weak: bool = False  # worth keeping only if it changes what is known
    context: str = ""  # the sentence before it and its own
    position: int = 0  # in its turn
    is_change: bool = False  # "changed my mind"

    @property
    def memory_type(self) -> str:
        return MEMORY_TYPES.get(self.kind, self.kind)


class Findings(NamedTuple):
    statements: list[Statement]
    forgotten: list[frozenset[str]]  # words of topics that the person asked to forget, also of earlier sessions


def find_statements(messages: Sequence[Utterance], model: "MiniLM") -> Findings:
    """Return what to keep of a conversation, in order."""
    statements: list[Statement] = []
    forgotten: list[frozenset[str]] = []
    turns = _list_turns(messages)
    read = _choose_turns(turns)
    for turn, (text, answer) in enumerate(turns, 1):
        new, retractions = _read_turn(text, answer, turn, model if turn in read else None)
        for topic, is_lasting, is_whole, _ in retractions:
            if topic:
                forgotten += [topic] if is_lasting else []
                statements = [one for one in statements if not is_about(one.text, topic)]
            elif is_whole:
                statements = [one for one in statements if one.turn != turn - 1]
            elif statements and statements[-1].turn == turn - 1:
                statements = statements[:-1]
        statements += new
    return Findings(statements, forgotten)


def _list_turns(messages: Sequence[Utterance]) -> list[tuple[str, str]]:
    """Return the user's turns, each with the answer before it, without what that repeats of the turns before."""
    turns: list[tuple[str, str]] = []
    answer = ""
    for role, text in messages:
        if role == "user":
            prompts = [turn for turn, _ in turns[-MAX_ECHOED_TURNS:]]
            turns.append((text[:MAX_TURN_CHARS], remove_echoes(answer[-MAX_TURN_CHARS:], prompts)))
        else:
            answer = text or answer
    return turns


def _choose_turns(turns: Sequence[tuple[str, str]]) -> set[int]:
    """Return the numbers of the turns that the model reads: of too many the short ones, which a person typed."""
    telling = [i for i, turn in enumerate(turns, 1) if not _is_empty(*turn)]
    chosen: set[int] = set()
    chars_left = MAX_READ_CHARS
    for i in sorted(telling, key=lambda i: (len(turns[i - 1][0]), -i)):
        text, answer = turns[i - 1]
        chars_left -= len(text) + min(len(answer), MAX_ANSWER_CHARS)
        if chars_left < 0:
            break
        chosen.add(i)
    return chosen


def _is_empty(text: str, answer: str) -> bool:
    """Return whether a turn is one question, or too short for a statement."""
    text = text.strip()
    if text.endswith("?") and ASKED_PATTERN.match(text) and len(SENTENCE_PATTERN.findall(text)) == 1:
        return True
    has_number = any(map(str.isdigit, text))
    return len(text.split()) < MIN_WORDS - has_number and not answer.rstrip().endswith("?")


def _read_turn(text: str, answer: str, turn: int, model: "MiniLM | None") -> tuple[list[Statement], list[Retraction]]:
    """Return the statements of a turn, and its requests to forget something; without a model only requests."""
    if is_unrecorded(text):
        return [], find_retractions(text, ())[0]
    fragments = split_fragments(text)
    predictions = classify_fragments(model, text, fragments, answer) if model else []
    quotes = [match.span() for match in QUOTED_PATTERN.finditer(text) if len(match[0].split()) >= MIN_QUOTE_WORDS]
    spans = _group_fragments(text, fragments, predictions, quotes) if predictions else []
    retractions, valid_from = find_retractions(text, quotes)
    statements = [
        statement
        for span in spans
        if fragments[span[-1]].end > valid_from
        and (statement := _create_statement(text, fragments, predictions, span, answer, turn))
    ]
    statements += _read_requests(text, fragments, turn, predictions, quotes)
    used = {fragments[i].sentence for span in spans for i in span}
    statements += _find_weak(text, fragments, predictions, used, quotes, turn) if predictions else ()
    statements = [
        one
        for one in statements
        if not any(one.position <= other.position and is_about(one.text, other.topic) for other in retractions)
    ]
    if accepted := _accept_proposal(text, answer, turn, is_all=not statements and not retractions):
        statements.append(accepted)
    return _drop_repeated(_drop_unsafe(statements, text, answer)), retractions


def _drop_unsafe(statements: list[Statement], text: str, answer: str) -> list[Statement]:
    """Return statements that hold nothing of a secret or private clause of the whole turn: "Cookie:" may be cut off."""
    if not statements:
        return []
    whole = f"{text}\n\n{answer[-MAX_TURN_CHARS:]}"
    safe = remove_private_clauses(redaction.redact(whole).text)
    lost = set(RUN_PATTERN.findall(whole)) - set(RUN_PATTERN.findall(safe)) if safe != whole else set()
    return [one for one in statements if not lost & set(RUN_PATTERN.findall(one.text))]


def _find_weak(
    text: str,
    fragments: Sequence[Fragment],
    predictions: Sequence[Prediction],
    used: set[int],
    quotes: Sequence[tuple[int, int]],
    turn: int,
) -> Iterator[Statement]:
    """Yield sentences that give a new value ("so 0.11 it is", "store page Jan 27 now"), and rules "from now on"."""
    for sentence in sorted({fragment.sentence for fragment in fragments} - used):
        members = [i for i, fragment in enumerate(fragments) if fragment.sentence == sentence]
        best = max(predictions[i].keep for i in members)
        start, end = fragments[members[0]].start, fragments[members[-1]].end
        content = clean_statement(text[start:end])
        is_change = CHANGE_OF_MIND_PATTERN.search(text, start, end) is not None
        has_change = is_change or (CHANGED_VALUE_PATTERN.search(content) and VALUE_PATTERN.search(content))
        is_quote = max(predictions[i].kinds[QUOTE] for i in members) >= MIN_QUOTE_CHANCE
        if best < MIN_WEAK_KEEP or is_quote or any(_is_quoted(text, fragments[i], quotes) for i in members):
            continue
        is_standing = STANDING_PATTERN.search(content) is not None
        if (has_change or is_standing) and is_storable(content) and not _is_vague(content, MIN_KEEP):
            context = _get_context(text, fragments, members[0], members[-1])
            kind = "rule" if is_standing else "decision"
            is_weak = not is_standing
            yield Statement(content, kind, "user", turn, round(best, 2), False, is_weak, context, start, is_change)


def _get_sentence_end(fragments: Sequence[Fragment], i: int) -> int:
    return max(other.end for other in fragments[i:] if other.sentence == fragments[i].sentence)


def _group_fragments(
    text: str, fragments: Sequence[Fragment], predictions: Sequence[Prediction], quotes: Sequence[tuple[int, int]]
) -> list[list[int]]:
    """Return groups of neighbouring fragments, each a statement."""
    groups: list[list[int]] = []
    for i, (fragment, prediction) in enumerate(zip(fragments, predictions, strict=True)):
        if prediction.keep < MIN_NEIGHBOR_KEEP or _is_quoted(text, fragment, quotes):
            continue
        joins = bool(groups) and groups[-1][-1] == i - 1 and fragments[i - 1].sentence == fragment.sentence
        own = text[fragment.start : fragment.end]
        is_dependent = DEPENDENT_PATTERN.match(own) is not None or PRONOUN_PATTERN.match(own) is not None
        if joins and (prediction.begin < MIN_BEGIN or is_dependent or len(own.split()) < MIN_WORDS):
            groups[-1].append(i)
        elif prediction.keep >= MIN_KEEP:
            groups.append(_reach_back(text, fragments, i, groups[-1][-1] if groups else -1))
    return groups


def _reach_back(text: str, fragments: Sequence[Fragment], i: int, last_used: int) -> list[int]:
    """Return a fragment with those before it in its sentence without which it says nothing."""
    first = i
    while (
        first - 1 > last_used
        and fragments[first - 1].sentence == fragments[i].sentence
        and not fragments[first - 1].is_block
        and DEPENDENT_PATTERN.match(text, fragments[first].start)
    ):
        first -= 1
    return list(range(first, i + 1))


def _is_quoted(text: str, fragment: Fragment, quotes: Sequence[tuple[int, int]]) -> bool:
    line = text[text.rfind("\n", 0, fragment.start) + 1 : fragment.end]
    if fragment.is_block or fragment.before == "quoted" or line.lstrip().startswith(">"):
        return True
    return any(start <= fragment.start and fragment.end <= end for start, end in quotes)


def _create_statement(
    text: str,
    fragments: Sequence[Fragment],
    predictions: Sequence[Prediction],
    span: Sequence[int],
    answer: str,
    turn: int,
) -> Statement | None:
    best = max((predictions[i] for i in span), key=lambda prediction: prediction.keep)
    kind = _choose_kind([predictions[i] for i in span])
    core = [i for i in span if predictions[i].keep >= MIN_KEEP]
    for part in (span, range(core[0], core[-1] + 1), core[-1:]):
        start, end = fragments[part[0]].start, fragments[part[-1]].end
        content = clean_statement(text[start:end])
        if content and PRONOUN_PATTERN.match(content):
            content = _resolve_pronoun(content, text[:start])
        if content and (
            ACCEPT_PATTERN.fullmatch(content) or TAKEN_BACK_PATTERN.match(content) or _is_vague(content, best.keep)
        ):
            return None
        if content and part[0] == 0 and len(WORD_PATTERN.findall(content)) < 6:
            content = _add_question(content, answer)
        if content := _make_storable(content):
            context = _get_context(text, fragments, part[0], part[-1])
            first = next(other.start for other in fragments if other.sentence == fragments[part[0]].sentence)
            is_change = kind == "correction" or CHANGE_OF_MIND_PATTERN.search(text, first, end) is not None
            confidence = round(best.keep, 2)
            return Statement(content, kind, "user", turn, confidence, False, False, context, start, is_change)
    return None


def _get_context(text: str, fragments: Sequence[Fragment], first: int, last: int) -> str:
    """Return the sentences of some fragments and the one before, which may name what "it" is."""
    sentence = fragments[first].sentence
    start = min(fragment.start for fragment in fragments if fragment.sentence in (sentence - 1, sentence))
    return text[start : fragments[last].end][-MAX_STATEMENT_CHARS:]


def _is_vague(content: str, keep: float) -> bool:
    """Return whether a text is no statement of its own, or somebody else's."""
    if any(pattern.match(content) for pattern in (HYPOTHESIS_PATTERN, OPINION_PATTERN, ASKED_PATTERN, ERRAND_PATTERN)):
        return True
    starts_vaguely = PRONOUN_PATTERN.match(content) or VAGUE_START_PATTERN.match(content)
    return starts_vaguely is not None and keep < MIN_VAGUE_KEEP


def _choose_kind(predictions: Sequence[Prediction]) -> str:
    """Return the most probable of the kinds that may be kept."""
    sums = [sum(prediction.kinds[i] for prediction in predictions) for i in range(6)]
    return KINDS[max(range(6), key=lambda i: sums[i])]


def clean_statement(text: str) -> str:
    """Return a statement without fillers and closing courtesies, on one line, with a capital."""
    line = " ".join(text.split())
    while (match := FILLER_PATTERN.match(line)) and match.end() < len(line):
        line = line[match.end() :]
    if (match := REMEMBER_PATTERN.match(line)) and not NOT_REMEMBER_PATTERN.match(line):
        line = line[match.end() :]
    line = TRAILING_PATTERN.sub("", TAG_QUESTION_PATTERN.sub("", line))
    return line[:1].upper() + line[1:]


def _make_storable(text: str) -> str:
    """Return a statement, without its private clauses if it has any; empty if nothing is left to store."""
    if not text or is_storable(text):
        return text
    rest = clean_statement(remove_private_clauses(text)) if len(text) <= MAX_STATEMENT_CHARS else ""
    return rest if rest != text and is_storable(rest) else ""


def is_storable(text: str) -> bool:
    """Return whether a statement has enough words, and nothing in it is secret, private or an order to a model."""
    count = len(WORD_PATTERN.findall(text))
    if not (MIN_WORDS <= count <= MAX_WORDS or (count == MIN_WORDS - 1 and any(map(str.isdigit, text)))):
        return False
    if len(text) > MAX_STATEMENT_CHARS or text.rstrip().endswith("?") or PERSONAL_PATTERN.search(text):
        return False
    if redaction.redact(text).text != text or remove_private_clauses(text).strip() != text.strip():
        return False
    return not orders.has_injection(text)


def _resolve_pronoun(content: str, before: str) -> str:
    """Replace "it" at the beginning by the subject of the sentence before, if that is clear; else leave it out."""
    sentences = [sentence.strip() for sentence in SENTENCE_PATTERN.findall(before) if sentence.strip()]
    last = clean_statement(sentences[-1]) if sentences else ""
    is_person = re.match(r"(?:he|she)\b", content, re.IGNORECASE)
    subject = (PERSON_PATTERN if is_person else SUBJECT_PATTERN).match(last)
    match = re.match(r"(?:it|they|this|that|he|she)(?='s|\s)", content, re.IGNORECASE)
    if subject and match:
        rest = (
            content[match.end() :].replace("'s ", " is ", 1)
            if content[match.end() :].startswith("'s")
            else content[match.end() :]
        )
        return f"{subject[0].strip()[:1].upper()}{subject[0].strip()[1:]}{rest}"
    return content


def _add_question(content: str, answer: str) -> str:
    """Return a short answer with the agent's question before it, without which nobody would understand it."""
    sentences = [sentence.strip() for sentence in SENTENCE_PATTERN.findall(answer) if sentence.strip()]
    question = sentences[-1] if sentences else ""
    if not question.endswith("?") or len(question) > MAX_QUESTION_CHARS or says_nothing(question):
        return content
    if orders.has_command(question) or orders.has_injection(question) or orders.has_request(question):
        return content
    return f"{question} {content}"


def _read_requests(
    text: str,
    fragments: Sequence[Fragment],
    turn: int,
    predictions: Sequence[Prediction],
    quotes: Sequence[tuple[int, int]],
) -> Iterator[Statement]:
    """Yield what the person asks to remember, each such sentence whole; nothing that a quoted text asks for."""
    seen: set[int] = set()
    for i, fragment in enumerate(fragments):
        if _is_quoted(text, fragment, quotes) or (predictions and predictions[i].kinds[QUOTE] >= MIN_QUOTE_CHANCE):
            continue
        end = _get_sentence_end(fragments, i)
        match = REMEMBER_PATTERN.search(text, fragment.start, end)
        if match is None or fragment.sentence in seen or match.start() >= fragment.end:
            continue
        if NOT_REMEMBER_PATTERN.search(text[max(0, match.start() - 15) : end]):
            continue
        if match[0][:4].lower() == "note" and clean_statement(text[fragment.start : match.start()] + "x") != "X":
            continue  # "the delivery note"
        is_polite = POLITE_PATTERN.match(match[0]) is not None  # "can you remember that ...?"
        if text[end - 1] == "?" and not is_polite:
            continue
        seen.add(fragment.sentence)
        content = clean_statement(text[match.end() : end].rstrip("?" if is_polite else ""))
        if SAID_PATTERN.match(content):
            continue
        if BARE_PRONOUN_PATTERN.match(content) or not content:  # "remember that." is about the sentence before
            before = [other for other in fragments if other.sentence == fragment.sentence - 1]
            content = clean_statement(text[before[0].start : before[-1].end]) if before else ""
        if content := _make_storable(content):
            yield Statement(content, "fact", "user", turn, 1.0, is_request=True, position=fragment.start)


def _accept_proposal(text: str, answer: str, turn: int, *, is_all: bool) -> Statement | None:
    proposal = find_accepted_proposal(text, answer, is_all=is_all)
    if not is_storable(proposal):
        return None
    return Statement(f"Agreed: {proposal[:1].lower()}{proposal[1:]}.", "decision", "assistant", turn, 0.6)


def _drop_repeated(statements: Iterable[Statement]) -> list[Statement]:
    """Return statements in their order, without those whose words another one of the turn holds."""
    kept: list[Statement] = []
    for one in sorted(statements, key=lambda statement: (-len(statement.text), not statement.is_request)):
        words = extract_words(one.text)
        holder = next((i for i, other in enumerate(kept) if words <= extract_words(other.text)), None)
        if holder is None:
            kept.append(one)
        elif one.is_request:
            kept[holder] = kept[holder]._replace(is_request=True)
    return sorted(kept, key=lambda statement: statement.position)
