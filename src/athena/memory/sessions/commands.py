"""Read what a person asks to remember or to forget: "remember that", "off the record", "forget what I said about"."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from athena.memory.sessions.select import find_specific_words

MIN_WORDS = 3  # of a statement
WORD_PATTERN = re.compile(r"[^\W_]+(?:['’.:/_-][^\W_]+)*")
REMEMBER_PATTERN = re.compile(
    r"\b(?:(?:(?:can|could|will|would) you )?(?:please |pls )?(?:also )?remember|(?:please |pls )?(?:make a )?note|"
    r"keep in mind|don'?t forget|bear in mind|"
    r"for (?:the|your) (?:record|memory|notes)|write (?:this|that|it) down|merk dir)\b[,:]?\s*(?:that\b|"
    r"this\b)?[:,]?\s*",
    re.IGNORECASE,
)
NOT_REMEMBER_PATTERN = re.compile(
    r"(?:(?<!can )(?<!will )(?<!could )(?<!would )you|can'?t|cannot|i|we|never|not|to|if|as far as) remember\b|"
    r"you (?:please )?remember (?!(?:that|this)\b)|remember (?:when|how|where|why|who|me|last|the time|to)\b|"
    r"\bnote (?:to self|taken)\b",
    re.IGNORECASE,
)
# "that" alone: "don't keep that cache longer than an hour" is a rule
_THAT = (
    r"(?:(?:that|this|it|these|those|any of (?:this|that|it)|the (?:number|pin|code|password|key))(?: (?:thing|part|"
    r"bit))?|"
    r"the (?:last|previous) (?:thing|part|bit|one|message|line|sentence))"
    r"(?=\s*(?:$|[.,;:!?)\n–—-])|\s+(?:please|pls|ok(?:ay)?|thanks|thx|tho|though|either|anywhere|btw|at all|ever|"
    r"for later|"
    r"and|but|because|since|it'?s|that'?s|haha|lol|(?:in|to|for) (?:your |the )?(?:memory|notes?|record))\b)"
)
_TOLD = (
    r"(?:(?:all|everything|anything|whatever|what) )?(?:that )?(?:i|we|you) (?:just |ever )?"
    r"(?:said|told|wrote|know|learned|remember)"
)
# the turn is not for the memory
_NOT_KEPT = (
    rf"\b(?:don'?t|do not|never|no need to|nothing to|please not) (?:ever |actually |even )?(?:keep|store|save|"
    rf"remember|"
    rf"record|log|note|memori[sz]e|write)\b(?: down)? (?:{_THAT}|what (?:i|we)\b)|"
    r"\b(?:don'?t|do not) (?:write|note) (?:that|this|it) down\b"
)
# the same in other words: "don't put that in any notes", "not to be written anywhere", "forget it after", "dont save"
_NOT = r"\b(?:don'?t|do not|shouldn'?t|should not|did not|does not|doesn'?t|not to|never) (?:ever |go )?"
_SAID = (
    r"(?:that|this|it|(?:the|this|that) (?:one|password|pass(?:phrase|code)|pin|key|token|number|reason|latter|"
    r"(?:\w+ )?(?:thing|part|bit)))"
)
_NOWHERE = (
    r"(?:anyw?here|(?:in|into|to|on) (?:(?:any|your|the|my) )?(?:\w+ )?(?:notes?|files?|records?|memory|docs?|"
    r"protocols?|document|paper))\b"
)
_AT_END = r"(?=\s*(?:$|[.!?)\n]|,? (?:please|pls|abeg|aye|ok|by the way)\b))"
_UNSAID = (
    rf"{_NOT}(?:keep|store|save|record|note|write|retain|persist|put(?:ting)?) {_SAID}(?: down)? {_NOWHERE}|"
    rf"\b(?:(?:it|that|this) (?:should|must|did|does) not|(?:don'?t|do not) let {_SAID}) "
    rf"(?:appear|land|end up|stand) {_NOWHERE}|"
    rf"\b(?:don'?t|do not|shouldn'?t|kindly not|not) (?:keep|store|save|retain|record|note|write)(?: {_SAID})?"
    rf"(?: down)?{_AT_END}|\bnot to be (?:recorded|stored|written|kept|saved|noted)\b|"
    r"\b(?:not|n'?t)\b[^.,;!?\n]{0,20}\b(?:written|preserved|kept|stand|recorded)(?: down)? anywhere\b|"
    r"\bnowhere written\b|\b(?:not|nothing) for (?:any |your |my |the )?(?:notes?|records?)\b|"
    rf"\bkeep {_SAID} out of (?:any|the|your|my) (?:notes?|records?|memory|docs?)\b|"
    r"\bforget (?:it|that|this)(?: \w+)? (?:after|afterwards|as soon as|at once|immediately)\b|"
    rf"\b(?:erase|delete|burn)(?: (?:it|that|this))? after(?:wards)?(?: reading)?{_AT_END}|"
    rf"\bthen forget(?: it)?{_AT_END}|"
    r"\b(?:you|u) (?:never (?:saw|heard|read)|have not (?:seen|heard))(?: (?:it|that|this))?\b(?! of)|"
    r"\bshould(?:n'?t| not) have (?:typed|written|said|told|pasted) (?:that|this|it)\b|"
    r"\bask(?:ed)? you not to (?:record|keep|note|store)\b|"
    rf"\b(?:scrub|efface|erase) (?:that|this){_AT_END}|\bforget that i (?:said|typed|mentioned|told)\b"
)
UNRECORDED_PATTERN = re.compile(
    rf"(?P<command>{_NOT_KEPT})|{_UNSAID}|"
    r"\boff (?:the )?record\b|\bnot for (?:the|your) (?:record|notes|memory)\b|\bbetween (?:us|you and me)\b|"
    r"\bkeep (?:it|that|this) (?:private|secret|to yourself|between us)\b|\btell (?:nobody|no one)\b|\bnot a word\b",
    re.IGNORECASE,
)
MAX_MORE_WORDS = 4  # after the command, in a turn that is about the one before
# what was said before does not hold
_FORGET = (
    r"\b(?<!don't )(?<!dont )(?<!don’t )(?<!not )(?<!never )(?:scratch|strike|forget|ignore|disregard|delete|unlearn)"
)
_ABOUT = r" (?:about|regarding|concerning|on)\s+(?P<topic>[^.,;:!?\n]+)"
FORGET_TOPIC_PATTERN = re.compile(  # of earlier sessions too
    rf"{_FORGET} (?:{_TOLD}(?: \w+){{0,2}}?|(?:the|that|my|our|your|any|all) (?:\w+ )?(?:rule|note|memory|memorie|"
    rf"thing|part|bit)s?|"
    rf"everything|anything|all(?: of it)?){_ABOUT}|"
    r"\b(?:what|the thing) (?:i|we) said (?:\w+ ){0,2}?(?:about|on|of|regarding) (?P<said>[^.,;:!?\n]{1,60}),? "
    r"(?:please |pls |kindly )?(?:don'?t|do not|does not|doesn'?t|need not) |"
    r"\b(?<!don't )(?<!not )forget (?:the|that|my|our) (?P<name>[\w-]+(?: [\w-]+)?) (?:rule|thing|part|bit|note)\b",
    re.IGNORECASE,
)
DISMISS_TOPIC_PATTERN = re.compile(rf"(?:{_FORGET}|\bnever mind){_ABOUT}", re.IGNORECASE)  # of this session
FORGET_PATTERN = re.compile(rf"{_FORGET} (?:about )?(?:{_THAT}|{_TOLD})", re.IGNORECASE)
TAKE_BACK_PATTERN = re.compile(r"\bno,? wait\b|\bwait,? no\b|\bactually,? no\b", re.IGNORECASE)
POLITE_PATTERN = re.compile(r"(?:can|could|will|would) you\b", re.IGNORECASE)
COURTEOUS_PATTERN = re.compile(  # before "remember": "would you be so good as to", "I would ask you to"
    r"(?:^|[,;]\s*|\b(?:and|but|so)\s+)(?P<question>(?:would|could|will) you (?:please |kindly )?be so (?:good|kind)"
    r"(?: as)? to)\s*$|(?:^|[,;]\s*|\b(?:and|but|so)\s+)(?:i|we)(?:'d| would| must| do)? (?:like|want|need|ask|beg|"
    r"trouble) you to\s*$",
    re.IGNORECASE,
)
PASTE_PATTERN = re.compile(r"\n[ \t]*\n|^(?: {4}|\t)|^[ \t]*(?:```|~~~|>|<\w)", re.MULTILINE)
MAX_TYPED_CHARS = 1_000
# "summarize this issue?", "look at the following", "the log:"
INTRODUCTION_PATTERN = re.compile(
    r":\s*$|\b(?:the following|below|pasted?|(?:this|these|that|those|an?|the new|the last) (?:\w+ ){0,2}(?:issues?|"
    r"readme|pages?|sites?|docs?|articles?|posts?|blog|e?mails?|messages?|threads?|comments?|tickets?|reviews?|text|logs?|output|"
    r"errors?|trace(?:back)?|dumps?|snippets?|files?|letters?|transcripts?|notes|reports?|changelog|abstract|tutorial|"
    r"manual|chat|conversation|pr|pull request))\b[^.\n]{0,80}$",
    re.IGNORECASE,
)
BLANK_LINE_PATTERN = re.compile(r"\n[ \t]*\n")


class Retraction(NamedTuple):
    """A request to forget something."""

    topic: frozenset[str]  # its words; none: what was said last
    is_lasting: bool = False  # of earlier sessions too
    is_whole: bool = False  # the whole turn before, not only its last statement
    position: int = 0  # in its turn


def find_retractions(text: str, quotes: Sequence[tuple[int, int]]) -> tuple[list[Retraction], int]:
    """Return what a turn takes back, and from where on its own words hold."""
    retractions: list[Retraction] = []
    spans: list[tuple[int, int]] = list(quotes)
    typed_end = len(get_typed_part(text))  # a pasted text takes back nothing of earlier sessions
    valid_from = -1
    if match := UNRECORDED_PATTERN.search(text):
        rest = text[: match.start()], text[match.end() :]
        is_about_last = match["command"] and says_nothing(rest[0]) and len(rest[1].split()) <= MAX_MORE_WORDS
        return [Retraction(frozenset(), is_whole=True)] if is_about_last else [], len(text)
    for pattern in (FORGET_TOPIC_PATTERN, DISMISS_TOPIC_PATTERN, FORGET_PATTERN, TAKE_BACK_PATTERN):
        for match in pattern.finditer(text):
            if any(start <= match.start() < end for start, end in spans):
                continue
            spans.append(match.span())
            names = match.groupdict()
            topic = find_specific_words(names.get("topic") or names.get("said") or names.get("name") or "")
            if topic:
                is_lasting = pattern is FORGET_TOPIC_PATTERN and match.end() <= typed_end
                retractions.append(Retraction(frozenset(topic), is_lasting, False, match.start()))
                continue
            valid_from = max(valid_from, match.start())
            if says_nothing(text[: match.start()]):
                retractions.append(Retraction(frozenset(), is_whole=pattern is not TAKE_BACK_PATTERN))
    return retractions, valid_from


def get_typed_part(text: str) -> str:
    """Return how a turn begins, up to a blank line, code, a quotation or markup: what follows may be pasted."""
    start = len(text) - len(text.lstrip())
    match = PASTE_PATTERN.search(text, start)
    return text[: match.start() if match else len(text)][: start + MAX_TYPED_CHARS]


def remove_pasted_text(text: str) -> str:
    """Return a turn without the paragraphs that it introduces as somebody else's text."""
    blank = BLANK_LINE_PATTERN.search(text, len(text) - len(text.lstrip()))
    is_introduced = blank and INTRODUCTION_PATTERN.search(text[: blank.start()][-MAX_TYPED_CHARS:])
    return text[: blank.start()] if blank and is_introduced else text


def is_unrecorded(text: str) -> bool:
    """Return whether a person asks not to keep a turn."""
    return UNRECORDED_PATTERN.search(text) is not None


def says_nothing(text: str) -> bool:
    return len(WORD_PATTERN.findall(text)) < MIN_WORDS


def is_about(text: str, topic: frozenset[str], min_share: float = 0.5) -> bool:
    """Return whether a text has such a share of the words of a topic."""
    return bool(topic) and len(topic & find_specific_words(text)) >= min_share * len(topic)
