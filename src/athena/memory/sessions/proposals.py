"""Find what of an agent's answer a turn is about: the proposal that it accepts, the question that it answers."""

import re
from collections.abc import Iterator, Sequence

from athena.memory.sessions import orders
from athena.memory.sessions.classifier import Prediction
from athena.memory.sessions.fragments import Fragment
from athena.memory.sessions.select import find_specific_words

SENTENCE_PATTERN = re.compile(r"[^.!?\n]+[.!?]*")
SENTENCE_BREAK_PATTERN = re.compile(r"(?<=[.!?;])\s+|\n")  # none in "recipes.yaml"
ACCEPT_PATTERN = re.compile(
    r"(?:(?:yes|yeah|yep|ok(?:ay)?|sure|agreed|right|perfect|great|good|fine|please|exactly|deal|sounds good|lgtm|"
    r"go (?:with|for) (?:it|that|this|the (?:first|second|third|last) one)|let'?s (?:do|go with) (?:it|that|this)|"
    r"do (?:it|that|this|so)|make it so|that works|works for me|i like (?:it|that)|go ahead|"
    r"(?:we )?(?:take|use|keep) (?:it|that|this))[\s,.!;]*)+",
    re.IGNORECASE,
)
PROPOSAL_PATTERN = re.compile(
    r"\b(?:i (?:could|can|would|suggest|propose|recommend)|we (?:could|can|should)|shall (?:i|we)|should (?:i|we)|"
    r"want me to|how about|option|instead)\b", re.IGNORECASE,
)  # fmt: skip
PROPOSAL_START_PATTERN = re.compile(
    r"^(?:(?:or )?(?:shall|should) (?:i|we)|want me to|i (?:could|can|would|suggest|propose|recommend)|"
    r"we (?:could|can|should)|how about)\s+(?:that |to |we )?", re.IGNORECASE,
)  # fmt: skip
# a step of the work, nothing that holds later
ROUTINE_PATTERN = re.compile(
    r"(?:now |also |then )?(?:(?:re)?run|commit|push|continue|proceed|go on|show|open|check|look|start|test|try|"
    r"explain|do|"
    r"(?:fix|build|implement|add|write|make|apply|use|take|change|finish) (?:it|that|this|them|one|"
    r"both))\b", re.IGNORECASE,
)  # fmt: skip
EXPLICIT_ACCEPT_PATTERN = re.compile(
    r"(?:(?:yes|yeah|yep|ok(?:ay)?|sure|perfect|great|good)[\s,.!]+)*(?:do (?:it|that|this|so)|go (?:with|for) (?:it|"
    r"that|this)|go ahead|"
    r"let'?s do (?:it|that|this)|agreed|sounds good|that works|works for me|deal|make it so)\b", re.IGNORECASE,
)  # fmt: skip

PLAIN_QUESTION_PATTERN = re.compile(
    r"(?:(?:and|so|or|ok)[, ]+)?(?:what|which|where|when|who|whose|how|why|do|does|did|should|shall|can|could|may|will|"
    r"would|is|are|was|were|has|have|any|in which|for which|at which|on which|from which|to which)\b"
    r"(?:(?!\b(?:since|given|because|now that|so that|as|after|although|though|while|if|once|whereas|who|that)\b)"
    r"[^;:()–—])*", re.IGNORECASE,
)  # fmt: skip
MAX_QUESTION_CHARS = 160
# "Weight of one loaf?", "Switch to the other list after 30 seconds?": so short that it asserts nothing beside
SHORT_QUESTION_PATTERN = re.compile(
    r"(?!.*\b(?:since|given|because|now that|so that|although|though|while|whereas)\b)"
    r"(?!.*\b(?:is|are|was|were|has|have|had|will|must|should|can|may|do|does|did|says?|said|needs?|requires?)\b.*[,:])"
    r"(?:[^\s;()–—]+\s+){1,11}[^\s;()–—]+", re.IGNORECASE,
)  # fmt: skip

ADOPTION_PATTERN = re.compile(
    r"\b(?:(?!(?:that|this|it|all|everything|you)\b)\w+(?:'s| is| are|'re) (?:so |absolutely |probably )?"
    r"(?:right|correct)|"
    r"(?:fair|good) point|good idea|makes sense|"
    r"(?:let'?s|we|i'?ll|we'?ll) (?:adopt|take|keep|do|make|change|follow|apply) (?:that|it|this)(?: one)?|"
    r"make (?:it|that|this) (?:a|the|our) (?:rule|standard|default)|this one we keep|"
    r"i agree with (?:him|her|them|(?-i:[A-Z])\w+))\b",
    re.IGNORECASE,
)
REPORT_PATTERN = re.compile(
    r"\b(?:sa(?:y|ys|id)|suggest(?:s|ed)?|propose[sd]?|recommend(?:s|ed)?|thinks?|thought|wants?|reckons?|wrote|told|"
    r"asks?|asked|insists?|likes?|prefers?)\b",
    re.IGNORECASE,
)
DENIAL_PATTERN = re.compile(r"\b(?:not|never|no|nope|nah|wrong|but|don'?t|isn'?t|unless)\b", re.IGNORECASE)


def find_accepted_proposal(text: str, answer: str, *, is_all: bool) -> str:
    """Return the agent's proposal that a turn accepts, else nothing; `is_all`: the turn states nothing else."""
    first = next(iter(SENTENCE_PATTERN.findall(text)), "").strip()
    if is_all and (not first or not ACCEPT_PATTERN.fullmatch(first) or text.rstrip().endswith("?")):
        return ""
    if not is_all and not EXPLICIT_ACCEPT_PATTERN.match(first):
        return ""
    proposals = [one.strip().rstrip("?!. ") for one in SENTENCE_PATTERN.findall(answer) if PROPOSAL_PATTERN.search(one)]
    proposals = [one for one in (PROPOSAL_START_PATTERN.sub("", one) for one in proposals) if one]
    proposal = next((one for one in reversed(proposals) if not ROUTINE_PATTERN.match(one)), "")
    return "" if orders.has_command(proposal) or orders.has_request(proposal) else proposal


def find_question(answer: str) -> str:
    """Return the question an answer ends with, if it only asks: what it asserts would be in the person's name."""
    question = SENTENCE_BREAK_PATTERN.split(answer.strip())[-1]
    if not question.endswith("?") or len(question) > MAX_QUESTION_CHARS or not find_specific_words(question):
        return ""
    if not PLAIN_QUESTION_PATTERN.fullmatch(question) and not SHORT_QUESTION_PATTERN.fullmatch(question):
        return ""
    if orders.has_command(question) or orders.has_injection(question) or orders.has_request(question):
        return ""
    return question


def add_question(content: str, answer: str) -> str:
    """Return a short answer with the agent's question before it, without which nobody would understand it."""
    return f"{find_question(answer)} {content}".lstrip()


def find_adoptions(
    text: str, fragments: Sequence[Fragment], predictions: Sequence[Prediction]
) -> Iterator[tuple[int, int, float]]:
    """Yield the fragments that tell what others said, first and last, where the person makes it their own.

    "Priya suggested X, and she's right, that's the rule": with the probability that the sentence is worth keeping.
    """
    for i, fragment in enumerate(fragments):
        own = text[fragment.start : fragments[min(i + 1, len(fragments) - 1)].end]  # "let's change / that"
        if ADOPTION_PATTERN.search(own) is None or DENIAL_PATTERN.search(own):
            continue
        sentence = fragment.sentence
        last = next((j for j in range(i - 1, -1, -1) if predictions[j].kind == "quote"), None)
        if last is None or fragments[last].sentence < sentence - 1:
            continue
        first = last
        while first and predictions[first - 1].kind == "quote" and fragments[first - 1].sentence >= sentence - 1:
            first -= 1
        keep = max(one.keep for one, other in zip(predictions, fragments, strict=True) if other.sentence == sentence)
        yield first, last, keep


def is_report(content: str) -> bool:
    """Return whether a text tells what somebody said, and is no order to a model."""
    return REPORT_PATTERN.search(content) is not None and not (
        orders.has_command(content) or orders.has_request(content)
    )
