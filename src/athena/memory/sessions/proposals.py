"""Find the proposal of an agent that a person accepts: "yes, do that"."""

import re

from athena.memory.sessions import orders

SENTENCE_PATTERN = re.compile(r"[^.!?\n]+[.!?]*")
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
