"""The wording of a statement: what may be stored of a clause, without fillers, with its pronoun resolved."""

import re

from athena.core import redaction
from athena.core.private import remove_private_clauses
from athena.memory.sessions import orders
from athena.memory.sessions.commands import MIN_WORDS, NOT_REMEMBER_PATTERN, REMEMBER_PATTERN, WORD_PATTERN
from athena.memory.sessions.proposals import SENTENCE_PATTERN
from athena.memory.sessions.select import extract_words, find_specific_words

MIN_SURE_KEEP = 0.97  # the classifier alone decides
MIN_VAGUE_KEEP = 0.8  # for a statement that begins with a pronoun
MIN_SPECIFIC_WORDS, MIN_TELLING_WORDS = 2, 6
MIN_PART_SHARE = 0.8  # of the words of a statement that another one has
MAX_WORDS, MAX_STATEMENT_CHARS, MAX_RAW_CHARS = 60, 400, 1_000  # raw: before fillers are removed
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
TAKEN_BACK_PATTERN = re.compile(
    r"(?:scratch|strike|forget|disregard) (?:that|this|it|about)\b|"
    r"we (?:decided|agreed|said) (?:that|this|it)\b.{0,12}$",
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
TAG_QUESTION_PATTERN = re.compile(r"(?<![,\s])[,\s]+(?:ok(?:ay)?|alright|please|pls)\?+$", re.IGNORECASE)
PERSONAL_PATTERN = re.compile(  # what others can do with is for the person to tell
    r"\b(?:physio\w*|dentist|divorc(?:e|ed|ing)|custody|mortgage|my (?:\w+ )?(?:salary|pay|rent|raise|debts?|loan|"
    r"bank|landlord)|"
    r"(?:(?-i:[A-Z])\w+'s|his|her|their) (?:\w+ )?(?:salary|pay(?:check)?|wages?|rent|raise|debts?)|"
    r"(?:i|he|she|(?-i:[A-Z])\w+) (?:earns?|(?:gets?|is|am) paid|makes) [^\w\s]?\d[\d.,]*\s?(?:k|€|\$|eur|usd|euros?|"
    r"dollars?|a|per)?\b|"
    r"(?:doctor|hospital|therapy|vet)(?:'s)? (?:appointment|visit)|"
    r"(?:i|my (?:wife|husband|partner|m[ou]m|mother|dad|father|son|daughter|kids?|parents|brother|sister|girlfriend|"
    r"boyfriend|family|boss|friend)) lives? (?:\w+ ){0,2}?(?:on|at|in|near|by|next|over|behind|opposite|with)\b|"
    r"\bmy (?:home )?address(?= is\b|:)|"
    r"(?:irs|tax (?:office|man)|finanzamt|hmrc) (?:wants|sent|is after)|i owe (?:the|my|\W?\d)|overdraft|laid off|"
    r"(?:gets?|got|was|being) (?:fired|sacked)|performance plan|redundancy|(?:maternity|paternity|sick) leave|"
    r"interviewing (?:elsewhere|at|with)|job interview)\b",
    re.IGNORECASE,
)
HYPOTHESIS_PATTERN = re.compile(
    r"(?:(?:and|but|so|or|well|hm+|ok|also)[, ]+)*(?:if (?:we|i) (?:ever|had|were|could|lost|did)|hypothetically|"
    r"what if|"
    r"imagine|suppose|maybe|perhaps|one day|someday|in theory|(?:we|i|you) (?:could|might)|would be nice|"
    r"wouldn'?t it)\b",
    re.IGNORECASE,
)
ONCE_PATTERN = re.compile(  # what holds this time alone
    r"\b(?:for|on|in) (?:just )?this (?:one )?(?:commit|run|time|build|pr|merge|release|call|try|deploy|round|once)"
    r"(?: only| alone|,? just)\b|\b(?:only|just) (?:for )?(?:this|the) (?:once|one time|one commit|one run|one pr)\b|"
    r"\b(?:only|just) for (?:this (?:time|run|commit|build|pr)|today|tonight)\b|\b(?:only|just) this time\b|"
    r"\b(?:for )?(?:today|tonight|this (?:time|once)) only\b|^one[- ]time only\b|^one[- ]off:|"
    r"\bnur (?:dieses mal|diesmal|heute|für (?:diesen|heute))\b|"
    r"\b(?:solo|só|sólo) (?:esta vez|por hoy|hoje|desta vez)\b",
    re.IGNORECASE,
)
OPINION_PATTERN = re.compile(
    r"\b(?:(?-i:[A-Z])\w+|he|she|they|somebody|someone|my \w+) (?:also |even |still |once )?(?:thinks?|believes?|"
    r"suggest(?:s|ed)|is convinced|claim(?:s|ed)|reckons?|guess(?:es|ed)|swears?|wonders?|would (?:like|prefer))\b|"
    r"(?:the|a|an|this|that|some|their) (?:\w+ ){0,2}(?:page|site|docs?|readme|wiki|forum|ticket|issue|article|blog|"
    r"post|e?mail|thread|manual|vendor|comment|log|message|tutorial)\b.{0,30}\b(?:says?|said|reads|states?|claims?|"
    r"tells?|recommends?|suggests?|wants?)\b", re.IGNORECASE,
)  # fmt: skip
# a step of the work, for now
ERRAND_PATTERN = re.compile(
    r"(?:(?:bitte|please|pls|now|then|first|just|can you|could you)[, ]+)*(?:look at|show me|tell me|explain|try|rerun|"
    r"run it|see (?:if|whether)|let'?s do|go on|schau|zeig|sag|erklär|guck|regarde|montre|explique|revisa|mira)\b"
    r"(?!.*\b(?:always|never|every|each|only|must|from now on|whenever|immer|nie|jede[nrs]?|tomorrow|later|next)\b)",
    re.IGNORECASE,
)
PRONOUN_PATTERN = re.compile(r"(?:it|its|it's|they|they're|this|that|that's|these|those|he|she|them)\b", re.IGNORECASE)
PERSON_START_PATTERN = re.compile(r"(?:he|she)(?:'s|'ll|'d)?\b", re.IGNORECASE)  # who that is nobody knows later
VAGUE_START_PATTERN = re.compile(
    r"(?:not|because|which|that|then|except|otherwise|instead|just so|few facts|you|there'?s no|there is no|here'?s|"
    r"i know|i always|comes?|goes|leave|they'?re|we'?re)\b",
    re.IGNORECASE,
)
SUBJECT_PATTERN = re.compile(
    r"(?!it\b|this\b|that\b|there\b|we\b|i\b|you\b)(?:(?:the|our|my) )?"
    r"(?:(?!(?:i|we|you|he|she|they) )[\w/.-]+ ){1,3}?(?=(?:is|are|was|has|have|"
    r"runs?|"
    r"lives?|uses?|goes|go|must|may|can|needs?|stays?|sits?|sends?|writes?|reads?|returns?|comes?|listens?|moved|moves|"
    r"changed|changes|got|gets)\b)",
    re.IGNORECASE,
)
PERSON_PATTERN = re.compile(  # "Ines owns the tours. She approves every change."
    r"(?!(?:The|This|That|These|Those|There|We|You|They|It|He|She|If|When|Our|My|All|Every|Each|No|Not)\b)"
    r"[A-Z][a-z]+ (?=(?:[a-z]+s|will|can|may|must|has)\b)"
)
TRAILING_PATTERN = re.compile(
    r"(?<![\s,;:–—-])(?:[\s,;:–—-]|\b(?:and|but|so|or|because|pls|please|thanks?|thx|ok(?:ay)?|haha+|lol|btw|too|"
    r"then)\s*[.!]*$)+$", re.IGNORECASE
)  # fmt: skip


def is_vague(content: str, keep: float) -> bool:
    """Return whether a text is no statement of its own, or somebody else's."""
    if HYPOTHESIS_PATTERN.match(content) or PERSON_START_PATTERN.match(content) or ONCE_PATTERN.search(content):
        return True
    if keep >= MIN_SURE_KEEP:
        return False
    if ASKED_PATTERN.match(content) or OPINION_PATTERN.match(content) or ERRAND_PATTERN.match(content):
        return True
    starts_vaguely = PRONOUN_PATTERN.match(content) or VAGUE_START_PATTERN.match(content)
    return starts_vaguely is not None and keep < MIN_VAGUE_KEEP


def clean_statement(text: str) -> str:
    """Return a statement without fillers and closing courtesies, on one line, with a capital; empty if too long."""
    line = " ".join(text.split())
    if len(line) > MAX_RAW_CHARS:  # no statement, and the patterns take long for it
        return ""
    while (match := FILLER_PATTERN.match(line)) and match.end() < len(line):
        line = line[match.end() :]
    if (match := REMEMBER_PATTERN.match(line)) and not NOT_REMEMBER_PATTERN.match(line):
        line = line[match.end() :]
    line = TRAILING_PATTERN.sub("", TAG_QUESTION_PATTERN.sub("", line))
    return line[:1].upper() + line[1:]


def make_storable(text: str) -> str:
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


def resolve_pronoun(content: str, before: str) -> str:
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


def is_short(content: str) -> bool:
    """Return whether a text may be an answer that says nothing without its question."""
    return len(WORD_PATTERN.findall(content)) < MIN_TELLING_WORDS


def is_part(text: str, whole: str) -> bool:
    """Return whether nearly all words of a text are in another one."""
    words = extract_words(text)
    return len(words & extract_words(whole)) >= MIN_PART_SHARE * len(words)


def says_little(content: str) -> bool:
    """Return whether a statement names little ("so mapbox"): worth keeping only if it changes what is known."""
    return len(find_specific_words(content)) < MIN_SPECIFIC_WORDS and not any(map(str.isdigit, content))


def names_nothing(content: str) -> bool:
    """Return whether a statement has no word that says what it is about."""
    return not find_specific_words(content) and not any(map(str.isdigit, content))
