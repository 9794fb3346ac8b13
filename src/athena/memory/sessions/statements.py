"""Find the statements of a conversation that are worth keeping.

The classifier says which fragments of a user's turns to keep. Rules stand above it: what a person asks to remember is
kept, what they ask to forget is not, and nothing is kept of code, quotations, questions, secrets and private life.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from athena.core import redaction
from athena.core.private import remove_private_clauses
from athena.memory.sessions.classifier import KINDS, Prediction, Turn, classify_turns
from athena.memory.sessions.commands import (
    COURTEOUS_PATTERN,
    MIN_WORDS,
    NOT_REMEMBER_PATTERN,
    POLITE_PATTERN,
    REMEMBER_PATTERN,
    WORD_PATTERN,
    Retraction,
    find_retractions,
    get_typed_part,
    is_about,
    is_unrecorded,
    remove_pasted_text,
)
from athena.memory.sessions.fragments import (
    Fragment,
    find_hostile_sentences,
    find_quotations,
    is_quoted,
    split_fragments,
)
from athena.memory.sessions.proposals import (
    ACCEPT_PATTERN,
    ADOPTION_PATTERN,
    add_question,
    find_accepted_proposal,
    find_adoptions,
    find_question,
    is_report,
)
from athena.memory.sessions.select import extract_words
from athena.memory.sessions.supersede import announces_change, is_elliptic
from athena.memory.sessions.turns import MAX_TURN_CHARS, choose_turns, list_turns
from athena.memory.sessions.values import Utterance
from athena.memory.sessions.wording import (
    MAX_STATEMENT_CHARS,
    PRONOUN_PATTERN,
    TAKEN_BACK_PATTERN,
    clean_statement,
    is_part,
    is_short,
    is_storable,
    is_vague,
    make_storable,
    names_nothing,
    resolve_pronoun,
    says_little,
)

if TYPE_CHECKING:
    from athena.embedding.minilm import MiniLM

MIN_KEEP, MIN_NEIGHBOR_KEEP = 0.75, 0.2  # probability of a fragment, and of one that continues a kept one
MIN_WEAK_KEEP = 0.05  # of a sentence that may change what is known
MIN_STEP_KEEP = 0.08  # of a clause that says when it is to be done
MIN_BEGIN = 0.9
MIN_OWN_BEGIN = 0.5  # of a fragment that may stand without the one before it
MAX_CONFIDENCE = 0.99  # only what the person asks to remember is certain
MAX_REPLY_START = 25  # characters of a turn before what may reply to the answer
LAST_TURNS = 2  # in which a session is closed
OTHERS_WORDS = frozenset({"quote", "question", "hypothesis", "private", "secret", "control"})
MEMORY_TYPES = {"rule": "convention", "correction": "fact", "order": "decision", "report": "fact"}
CHANGE_OF_MIND_PATTERN = re.compile(
    r"\bchanged? (?:my|our|his|her) mind|\bon second thought|\bcorrection\b|\bscratch that|\bi was wrong", re.IGNORECASE
)
STANDING_PATTERN = re.compile(
    r"\b(?:from (?:now|here) on|as of (?:now|today)|henceforth|going forward)\b|"
    r"^(?:please |pls )?(?:don'?t|do not|never|no) (?:\S+ ){1,12}(?:anywhere|ever again|any ?more)\W*$",
    re.IGNORECASE,
)
DECIDED_PATTERN = re.compile(r"(?:we|i)(?:'ve| have)? (?:decided|agreed|settled on|chose)\b", re.IGNORECASE)
NEXT_STEP_PATTERN = re.compile(
    r"\b(?:next (?:time|session|step|up|week|thing|is|we|comes)|next:|tomorrow|tmrw|(?:on|by|until|first thing) "
    r"(?:mon|tues|wednes|thurs|fri|satur|sun)day|still (?:open|missing|to do)|open:|what'?s left|left to do|todo)\b",
    re.IGNORECASE,
)
STEP_START_PATTERN = re.compile(
    r"(?:and |then |so |ok |for )?(?:next (?:time|session|up|step)|next:|tomorrow|tmrw|tmr|monday|first thing)\b",
    re.IGNORECASE,
)
LAST_STEP_PATTERN = re.compile(rf"(?:{STEP_START_PATTERN.pattern}|next\b)[,:]? +\w", re.IGNORECASE)
AGREED = " (agreed)"

SAID_PATTERN = re.compile(r"what (?:i|we|you) (?:said|told|wrote)\b", re.IGNORECASE)
BARE_PRONOUN_PATTERN = re.compile(r"(?:it|that|this|please|ok|for me|always)?\W*(?:,|\.|!|$)", re.IGNORECASE)
DEPENDENT_PATTERN = re.compile(
    r"(?:because|cos|cuz|since|which|so that|not|as|when|if|until|unless|except|otherwise|instead|that|who|where|"
    r"while|or"
    r"|and|but|then|so|though|tho|with|without|for|in|on|at|to|from|by|per|only|max|min|also)\b", re.IGNORECASE,
)  # fmt: skip
QUOTE, MIN_QUOTE_CHANCE = KINDS.index("quote"), 0.4
MAX_UNTELLABLE_CHANCES = ((KINDS.index("secret"), 0.2), (KINDS.index("private"), 0.05))
RUN_PATTERN = re.compile(r"\w+")


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
    proposer: str | None = None  # who but the classifier found it
    answer: str = ""  # how the answer before it ends, if it may reply to that
    taken_back: str = ""  # what the person said last and corrects with it: "scratch that, ..."

    @property
    def memory_type(self) -> str:
        return MEMORY_TYPES.get(self.kind, self.kind)


class Retracted(NamedTuple):
    """What a turn takes back of what was said, or learned, before."""

    turn: int  # that takes it back
    topic: frozenset[str] = frozenset()  # words: all that was said about it, also in earlier sessions
    text: str = ""  # a statement
    source: int | None = None  # a turn: all that it said


class Findings(NamedTuple):
    statements: list[Statement]
    retracted: list[Retracted]  # of earlier sessions, and of the old turns


def find_statements(messages: Sequence[Utterance], model: "MiniLM", old: frozenset[int] = frozenset()) -> Findings:
    """Return what to keep of a conversation, in order; `old` are the numbers of turns that were learned from before."""
    statements: list[Statement] = []
    retracted: list[Retracted] = []
    turns = list_turns(messages)
    for turn, (own, predictions) in enumerate(_classify_turns(turns, model, old), 1):
        is_last = turn > len(turns) - LAST_TURNS
        new, retractions = _read_turn(*own, predictions, turn, is_last=is_last)
        taken_back: list[Statement] = []
        for topic, is_lasting, is_whole, _ in retractions:
            over: list[Statement] = []
            if topic:
                retracted += [Retracted(turn, topic)] if is_lasting else []
                over = [one for one in statements if is_about(one.text, topic)]
            elif is_whole or (statements and statements[-1].turn == turn - 1):
                over = taken_back = [one for one in statements if one.turn == turn - 1][0 if is_whole else -1 :]
                retracted += [Retracted(turn, source=turn - 1)] if is_whole and turn - 1 in old else []
            statements = [one for one in statements if one not in over]
            retracted += [Retracted(turn, text=one.text) for one in over if one.turn in old]
        statements += _add_taken_back(new, [one for one in taken_back if not one.is_weak])
    return Findings(statements, [one for one in retracted if one.turn not in old])


def _add_taken_back(new: list[Statement], taken_back: Sequence[Statement]) -> list[Statement]:
    """Return the statements of a turn; the first, if it says little alone, with what the turn took back for it."""
    if not new or len(taken_back) != 1 or not is_elliptic(new[0].text) or new[0].role != "user":
        return new
    return [new[0]._replace(is_weak=False, taken_back=taken_back[0].text, kind=taken_back[0].kind), *new[1:]]


def _classify_turns(
    turns: Sequence[tuple[str, str]], model: "MiniLM", old: frozenset[int]
) -> Iterator[tuple[Turn, list[Prediction]]]:
    """Yield the turns without what was pasted, with the predictions for those that the model reads."""
    own = [Turn(remove_pasted_text(text), (), answer) for text, answer in turns]
    cut = [turn if is_unrecorded(turn.text) else turn._replace(fragments=split_fragments(turn.text)) for turn in own]
    read = sorted(number - 1 for number in choose_turns(turns, old) if cut[number - 1].fragments)
    predictions = dict(zip(read, classify_turns(model, [cut[i] for i in read]), strict=True))
    for i, turn in enumerate(cut):
        yield turn, predictions.get(i, [])


def _read_turn(
    text: str,
    fragments: Sequence[Fragment],
    answer: str,
    predictions: Sequence[Prediction],
    turn: int,
    *,
    is_last: bool = False,
) -> tuple[list[Statement], list[Retraction]]:
    """Return the statements of a turn, and its requests to forget something; without predictions only requests.

    `is_last` tells that the session ends with it, where "next: the parser" is a step of the next one.
    """
    if is_unrecorded(text):
        return [], find_retractions(text, ())[0]
    quotes = find_quotations(text)
    retractions, valid_from = find_retractions(text, quotes)
    quotes += find_hostile_sentences(text, fragments, [one.position for one in retractions])
    spans = _group_fragments(text, fragments, predictions, quotes) if predictions else []
    made = [
        (span, statement)
        for span in spans
        if fragments[span[-1]].end > valid_from
        and (statement := _create_statement(text, fragments, predictions, span, answer, turn))
    ]
    statements = [statement for _, statement in made]
    requests = list(_read_requests(text, fragments, turn, predictions, quotes))
    statements = [one for one in statements if not any(is_part(one.text, other.text) for other in requests)] + requests
    adoptions = list(_read_adoptions(text, fragments, predictions, quotes, turn)) if predictions else []
    if adoptions:  # "so let's change that everywhere" says nothing else
        statements = [one for one in statements if one.is_request or not ADOPTION_PATTERN.search(one.text)]
    told = "\n".join(one.text for one in statements)
    statements += [one for one in adoptions if one.text.removesuffix(AGREED) not in told]
    used = {fragments[i].sentence for span, _ in made for i in span}
    if predictions:
        weak = list(_find_weak(text, fragments, predictions, used, quotes, turn, is_last=is_last))
        taken_back = min((one.position for one in retractions if one.is_lasting), default=len(text))
        statements += [one._replace(is_weak=one.is_weak and one.position <= taken_back) for one in weak]
    statements = [
        one
        for one in statements
        if not any(one.position <= other.position and is_about(one.text, other.topic) for other in retractions)
    ]
    if accepted := _accept_proposal(text, answer, turn, is_all=not statements and not retractions):
        statements.append(accepted)
    question = find_question(answer)
    statements = [one._replace(answer=question) if one.position < MAX_REPLY_START else one for one in statements]
    return _drop_repeated(drop_unsafe(statements, text, answer)), retractions


def drop_unsafe(statements: list[Statement], text: str, answer: str) -> list[Statement]:
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
    *,
    is_last: bool,
) -> Iterator[Statement]:
    """Yield sentences that may change what is known ("switch to X", "so 0.11 it is"), and rules "from now on".

    Only of what was typed: the classifier would not keep them, so a pasted text could say them for the person.
    """
    typed_end = len(get_typed_part(text))
    for sentence in sorted({fragment.sentence for fragment in fragments} - used):
        members = [i for i, fragment in enumerate(fragments) if fragment.sentence == sentence]
        best = max(predictions[i].keep for i in members)
        start, end = fragments[members[0]].start, fragments[members[-1]].end
        if end > typed_end:
            continue
        content = clean_statement(text[start:end])
        is_change = CHANGE_OF_MIND_PATTERN.search(text, start, end) is not None
        is_standing = STANDING_PATTERN.search(content) is not None
        is_step = is_last and LAST_STEP_PATTERN.match(content) is not None
        if not (is_change or is_standing or is_step or announces_change(content)) or names_nothing(content):
            continue
        kinds = {predictions[i].kind for i in members} - ({"quote"} if is_change else set())  # "kari changed her mind"
        if kinds & OTHERS_WORDS or any(is_quoted(text, fragments[i], quotes) for i in members):
            continue
        if is_storable(content) and not is_vague(content, MIN_KEEP):
            context = get_context(text, fragments, members[0], members[-1])
            kind = "todo" if is_step else "rule" if is_standing else "decision"
            is_weak = not is_step and (not is_standing or best < MIN_WEAK_KEEP)
            yield Statement(content, kind, "user", turn, round(best, 2), False, is_weak, context, start, is_change)


def _get_sentence_end(fragments: Sequence[Fragment], i: int) -> int:
    return max(other.end for other in fragments[i:] if other.sentence == fragments[i].sentence)


def _group_fragments(
    text: str, fragments: Sequence[Fragment], predictions: Sequence[Prediction], quotes: Sequence[tuple[int, int]]
) -> list[list[int]]:
    """Return groups of neighbouring fragments, each a statement."""
    groups: list[list[int]] = []
    for i, (fragment, prediction) in enumerate(zip(fragments, predictions, strict=True)):
        if prediction.keep < MIN_NEIGHBOR_KEEP or is_quoted(text, fragment, quotes):
            continue
        if any(prediction.kinds[kind] >= chance for kind, chance in MAX_UNTELLABLE_CHANCES):
            continue
        joins = bool(groups) and groups[-1][-1] == i - 1 and fragments[i - 1].sentence == fragment.sentence
        own = text[fragment.start : fragment.end]
        is_dependent = DEPENDENT_PATTERN.match(own) is not None or PRONOUN_PATTERN.match(own) is not None
        if joins and (prediction.begin < MIN_BEGIN or is_dependent or len(own.split()) < MIN_WORDS):
            groups[-1].append(i)
        elif prediction.keep >= MIN_KEEP or _is_next_step(text, fragments, i, prediction):
            group = _reach_back(text, fragments, predictions, i, groups[-1][-1] if groups else -1)
            is_alone = all(other.sentence != fragment.sentence for j, other in enumerate(fragments) if j != i)
            if is_alone and groups and groups[-1][-1] == i - 1 and len(WORD_PATTERN.findall(own)) < MIN_WORDS:
                groups[-1].append(i)  # "no implicit widening. overflow traps"
            else:
                groups.append(group)
    return groups


def _is_next_step(text: str, fragments: Sequence[Fragment], i: int, prediction: Prediction) -> bool:
    """Return whether a fragment surely is a next step, although other talk stands around it."""
    if prediction.kind != "todo" or prediction.keep < MIN_STEP_KEEP:
        return False
    return NEXT_STEP_PATTERN.search(text, fragments[i].start, fragments[i].end) is not None


def _reach_back(
    text: str, fragments: Sequence[Fragment], predictions: Sequence[Prediction], i: int, last_used: int
) -> list[int]:
    """Return a fragment with those before it in its sentence without which it says nothing."""
    first = i
    while (
        first - 1 > last_used
        and fragments[first - 1].sentence == fragments[i].sentence
        and not fragments[first - 1].is_block
        and (
            DEPENDENT_PATTERN.match(text, fragments[first].start)
            or (predictions[first].begin < MIN_OWN_BEGIN and predictions[first - 1].keep >= MIN_NEIGHBOR_KEEP)
        )
    ):
        first -= 1
    return list(range(first, i + 1))


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
    core = [i for i in span if predictions[i].keep >= MIN_KEEP] or list(span)
    for part in (span, range(core[0], core[-1] + 1), core[-1:]):
        start, end = fragments[part[0]].start, fragments[part[-1]].end
        content = clean_statement(text[start:end])
        if content and PRONOUN_PATTERN.match(content):
            content = resolve_pronoun(content, text[:start]) if part[0] else ""  # nobody would know what it is
        if content and (
            ACCEPT_PATTERN.fullmatch(content) or TAKEN_BACK_PATTERN.match(content) or is_vague(content, best.keep)
        ):
            return None
        if content and part[0] == 0 and is_short(content):
            content = add_question(content, answer)
        if content := make_storable(content):
            context = get_context(text, fragments, part[0], part[-1])
            first = next(other.start for other in fragments if other.sentence == fragments[part[0]].sentence)
            is_change = kind == "correction" or CHANGE_OF_MIND_PATTERN.search(text, first, end) is not None
            kind = "todo" if STEP_START_PATTERN.match(content) else kind
            kind = "decision" if DECIDED_PATTERN.match(content) else kind
            confidence = min(round(best.keep, 2), MAX_CONFIDENCE)
            is_weak = says_little(content)
            if is_weak and names_nothing(content):
                return None
            return Statement(content, kind, "user", turn, confidence, False, is_weak, context, start, is_change)
    return None


def get_context(text: str, fragments: Sequence[Fragment], first: int, last: int) -> str:
    """Return the sentences of some fragments and the one before, which may name what "it" is."""
    sentence = fragments[first].sentence
    start = min(fragment.start for fragment in fragments if fragment.sentence in (sentence - 1, sentence))
    return text[start : fragments[last].end][-MAX_STATEMENT_CHARS:]


def _choose_kind(predictions: Sequence[Prediction]) -> str:
    """Return the most probable of the kinds that may be kept."""
    sums = [sum(prediction.kinds[i] for prediction in predictions) for i in range(6)]
    return KINDS[max(range(6), key=lambda i: sums[i])]


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
        if is_quoted(text, fragment, quotes) or (predictions and predictions[i].kinds[QUOTE] >= MIN_QUOTE_CHANCE):
            continue
        end = _get_sentence_end(fragments, i)
        match = REMEMBER_PATTERN.search(text, fragment.start, end)
        if match is None or fragment.sentence in seen or match.start() >= fragment.end:
            continue
        start = next(other.start for other in fragments if other.sentence == fragment.sentence)
        courtesy = COURTEOUS_PATTERN.search(text[start : match.start()].strip())
        if courtesy is None and NOT_REMEMBER_PATTERN.search(text[max(0, match.start() - 15) : end]):
            continue
        if match[0][:4].lower() == "note" and clean_statement(text[fragment.start : match.start()] + "x") != "X":
            continue  # "the delivery note"
        is_question = courtesy is not None and courtesy["question"] is not None
        is_polite = is_question or POLITE_PATTERN.match(match[0]) is not None  # "can you remember that ...?"
        if text[end - 1] == "?" and not is_polite:
            continue
        seen.add(fragment.sentence)
        content = clean_statement(text[match.end() : end].rstrip("?" if is_polite else ""))
        if SAID_PATTERN.match(content):
            continue
        if BARE_PRONOUN_PATTERN.match(content) or not content:  # "remember that." is about the sentence before
            before = [other for other in fragments if other.sentence == fragment.sentence - 1]
            content = clean_statement(text[before[0].start : before[-1].end]) if before else ""
        if content := make_storable(content):
            yield Statement(content, "fact", "user", turn, 1.0, is_request=True, position=fragment.start)


def _read_adoptions(
    text: str,
    fragments: Sequence[Fragment],
    predictions: Sequence[Prediction],
    quotes: Sequence[tuple[int, int]],
    turn: int,
) -> Iterator[Statement]:
    """Yield what others said and the person makes their own; only of what was typed, and in the person's words."""
    typed_end = len(get_typed_part(text))
    for first, last, keep in find_adoptions(text, fragments, predictions):
        own = fragments[first : last + 1]
        if keep < MIN_KEEP or own[-1].end > typed_end or any(is_quoted(text, one, quotes) for one in own):
            continue
        content = clean_statement(text[own[0].start : own[-1].end]).rstrip(" .,;:-")
        if is_report(content) and (content := make_storable(content)):
            yield Statement(content + AGREED, "decision", "user", turn, round(keep, 2), position=own[0].start)


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
