"""Read an agent's answers: causes and fixes that it found, results, and what it repeats of prompts.

A cause or fix is extracted for its cue ("root cause", "fixed"). Questions, plans, hedges, code and quotations are
skipped, and nothing is extracted that tells its reader to do something: an agent may repeat what a page says.
Clauses with a secret or a private detail are left out. What users say, `statements` reads.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from athena.core import redaction
from athena.core.private import remove_private_clauses
from athena.core.threads import check_stopped
from athena.memory.sessions import orders
from athena.memory.sessions.select import extract_words, measure_overlap

MIN_SENTENCE_WORDS, MAX_SENTENCE_WORDS, MAX_SENTENCE_CHARS = 4, 60, 400
DUPLICATE_OVERLAP = 0.6
MAX_FIXES = 12
MAX_CHARS_PER_ROLE = 300_000  # counted from the end of the conversation
CODE_FENCE_PATTERN = re.compile(
    r"^[ \t]*(```|~~~).*?^[ \t]*\1[^\n]*$|^[ \t]*(```|~~~)[\s\S]*\Z", re.MULTILINE | re.DOTALL
)
QUOTE_PATTERN = re.compile(
    r"(?<![\w\"])(?:\"(?=\S)[^\"]{12,4000}\"|“[^“”]{12,4000}”|„[^„“”]{12,4000}[“”]|«[^«»]{12,4000}»)(?!\w)"
)
MIN_QUOTE_WORDS = 4  # a shorter quotation is a name
ECHO_WORDS, MIN_ECHO_WORDS = 5, 3  # so many words of a prompt in a row, or a whole short prompt, are a quotation of it
BULLET_PATTERN = re.compile(r"^\s*(?:[-*+•]|\d+[.)]|#{1,6})\s+")
SENTENCE_BREAK_PATTERN = re.compile(r"(?<=[.!?])[\"')\]]*\s+(?=[A-Z\"'`(\[])")
SMALL_BREAK_PATTERN = re.compile(
    r"(?<!\be\.g\.)(?<!\bi\.e\.)(?<!\betc\.)(?<!\bvs\.)(?<!\bincl\.)(?<=[.!?])[\"')\]]*\s+(?=[\w\"'`(\[])"
)
SUMMARY_TAG_PATTERN = re.compile(r"<analysis>.*?(?:</analysis>|\Z)|</?summary>", re.DOTALL | re.IGNORECASE)
ECHO_BREAK_PATTERN = re.compile(r"(?<=[.!?;:])[\"')\]]*\s+|\n+")
ECHO_WORD_PATTERN = re.compile(r"\w+")
EMPHASIS_PATTERN = re.compile(r"\*\*|__|`")
WORD_PATTERN = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)?")


def _compile_any(*parts: str) -> re.Pattern[str]:
    return re.compile("|".join(parts), re.IGNORECASE)


CODE_PATTERN = _compile_any(
    r"[{};]\s*$",
    r"^\s*(?-i:import|from|def|class|return|const|let|var|for|while|if|SELECT|INSERT|UPDATE|DELETE|"
    r"CREATE)\s+\w.*[(=:{;]",
    r"=>|\b\w+\(.*\)\s*[;{]",
    r"^\s*[|$>]",
    r"^\s*\[[ x]\]",
    r"^(Traceback|File \"|at \S+ ?\()",
    r"^\w*(Error|Exception|Warning):",
    r"^\s*(git|npm|pnpm|yarn|cd|curl|pip|python3?|make|docker|kubectl|cargo|go|ls|cat|sudo|ssh)\s+[-\w./]+(\s|"
    r"$)(?!.*\b(is|are|must|never|always|only)\b)",
    r"^https?://\S+$", r"\bline \d+, in\b",
)  # fmt: skip
QUESTION_PATTERN = _compile_any(
    r"\?\s*$",
    r"^(what|why|how|when|where|which|who|whose|is|are|was|were|do|does|did|can|could|would|will|should|shall|"
    r"have|has)\b.*\?",
    r"\b(let me know|feel free|would you like|do you want|should i|shall i|if you (prefer|want|like))\b",
)  # fmt: skip
PLAN_PATTERN = _compile_any(
    r"\b(i'll|i will|i'm going to|i am going to|let me|"
    r"(let's|let us) (check|see|look|try|run|take|continue|start|begin|first)|"
    r"i need to|i'm about to)\b",
    r"^(next( steps?)?|first|then|now|to do this|my plan|plan|todo|the plan is to)\b[,: ]",
    r"\b(we|you|i) (could|might|may) ", r"^(please )?(start|begin) with\b",
    r"^(running|reading|searching|waiting|compiling|checking|looking|building|installing|fetching|updating|"
    r"writing)\b",
    r"\b(is|are) (still )?(running|building|compiling|loading|in progress)\b|\bwait for\b",
)  # fmt: skip
HEDGE_PATTERN = _compile_any(
    r"\b(maybe|perhaps|possibly|probably|might|may be|not sure|i think|i guess|i believe|i wonder|seems?|"
    r"apparently|at some point|someday|hopefully)\b",
    r"\b(could|would) (be|help|have|work|either)\b", r"^if\b|\bwhat if\b", r"\bsee (if|whether)\b",
)  # fmt: skip
CHATTER_PATTERN = _compile_any(
    r"^never (mind|seen)\b",
    r"^(always|never) (nice|good|great|fun|glad|happy|lovely|funny|interesting|an? (pleasure|joy|surprise|dull))\b",
    r"^we (always )?(use|say|do|take|go with|have) (this|that|it|them|(the|that) (first|second|third|last|other|same|"
    r"former|latter)( (one|option|way|approach|variant|thing|as before))?)( then| too| again)?[.!]*$",
    r"^we (use|do|take) .{0,40}\bthen[.!]*$",
    r"^(ok(ay)?(?! but)|yes|yeah|yep|no|nope|sure|thanks?|thank you|great|perfect|nice|cool|awesome|good|done|"
    r"finished|"
    r"hmm+|ugh|wait|hold on|stop|sorry|lgtm|right|interesting|my apologies|you're right|here('s| is| are)|"
    r"looks? good|that (should|makes|worked|looks))\b(?!.*\b(decided|agreed|root cause|because)\b)",
    r"\b(looks? (good|fine|weird)|great (work|question)|so far)\b", r":\s*$",
    r"^(the )?(tests?|build|checks?|suite)( now)? (pass|passes|passed|fail|fails|failed|is|are)\b",
    r"\ball \d* ?(tests|checks) pass",
)  # fmt: skip
CAUSE_PATTERN = _compile_any(
    r"\broot cause\b", r"\bturns? out\b", r"\b(the )?(cause|culprit|reason|problem|issue|bug) (was|is|turned out)\b",
    r"\b(was|were|is|came|comes|happened|happens|failed|fails|failing|broke|crashed|flaky)\b.*\b(because|due to|"
    r"caused by|from|since|as)\b.*",
    r"\bit was an? [\w -]+ (issue|problem|bug|race|leak|typo)\b", r"^fixed:", r"\bis fixed:",
)  # fmt: skip
FIX_PATTERN = _compile_any(
    r"\b(fix(es|ed)?|solv(es|ed)|resolv(es|ed)|cured?s?|stopped|got rid of|helped|cut)\b", r"\bworkaround\b",
    r"\broot cause\b|\bturns? out\b|\b(cause|culprit) (was|is)\b|\bcaused by\b",
)  # fmt: skip
FIX_FIRST_PATTERN = re.compile(
    r"^(upgrading|downgrading|setting|adding|removing|pinning|replacing|using|disabling|enabling|increasing|"
    r"switching|"
    r"changing|moving|restarting)\b.*\b(fixed|fixes|solved|solves|resolved|resolves|stopped|stops|cured|got rid)\b",
    re.IGNORECASE,
)
MIN_RESULT_WORDS = 2
FAILURE_PATTERN = re.compile(  # of a sentence that tells what is or was wrong
    r"\b(?:fail(?:s|ed|ing|ure)?|errors?|red|broken|breaks|missing|cannot|can't|doesn't|crash\w*|overflow\w*|"
    r"timed? ?out|no such|wrong(?:ly)?|mistakes?|culprit|cause[sd]?|(?:was|were|is|are) not|wasn't|isn't|too|"
    r"belongs|lost|lacks?|still|instead of|overlaps?|(?:was|were) \w+ (?:before|after|too|in))\b",
    re.IGNORECASE,
)
UNFINISHED_PATTERN = re.compile(r"\b(?:yet|started|begun|stays?|remains?|left|half|stopped|pending)\b", re.IGNORECASE)
PROPOSAL_PATTERN = re.compile(
    r"\bi (?:propose|suggest|recommend)\b|\b(?:would|could|might|i can|i'll|i will|between us)\b|"
    r"\bnot (?:noted|kept|stored|recorded)\b|^(?:used|noted|kept) (?:once|for|only)\b",
    re.IGNORECASE,
)
COURTESY_PATTERN = _compile_any(
    r"(sorry|my apologies|apologies|thanks?|thank you|you're (right|welcome)|good (luck|night|morning|idea|point|"
    r"question)|"
    r"great (work|question)|see you|have a|i hope|rest|get well|noted|"
    r"understood|got it|sure|ok(ay)?|will do|glad|happy|"
    r"anything else|"
    r"let me know|later then|enjoy|welcome|hello|hi)\b[^.]{0,40}[.!]*$",
)
RESULT_PATTERN = _compile_any(
    r"^((i|it|we|both|all|they)('ve|'s| have| has| is| are)? (just |now |also )?)?\w+(ed|ten|ne|de|ilt|nt)\b",
    r"\b(added|wrote|written|switched|changed|fixed|done|implemented|built|moved|created|removed|renamed|committed|"
    r"pushed|"
    r"deployed|updated|set up|works?|working|pass(es|ed)?|green|gone|in place|ready|finished|merged|tests?|built|"
    r"reads?|shows?|returns?|holds|measured|finds?|found|takes?|has been|is there|are there|validates?|runs?)\b",
)
REPORT_PATTERN = _compile_any(  # what others say, which the user may only have read
    r"\b(somebody|someone|some (guy|dude|blog|post|article)|a (blog|post|article|comment)|"
    r"the (forum|wiki|docs?|documentation|abstract|page|article|blog|post|readme|manual|tutorial|thread|ticket|vendor|"
    r"email|mail))\b.{0,30}\b(says?|said|wrote|writes|claims?|claimed|recommends?|recommended|suggests?|suggested|"
    r"tells?|states?|means)\b",
    r"\b(read|saw|heard) (somewhere|online|in a|on a)\b",
    r"\b(says?|means|thinks|claims) (that )?(one|we all|everyone|people) (should|must|has to)\b",
)  # fmt: skip
CONFIDENTIAL_PATTERN = _compile_any(
    r"\b(not a word|don'?t tell|do not tell|tell (nobody|no one)|between (us|you and me)|off the record|confidential|"
    r"keep (it|this|that) (to yourself|private|secret|between us)|(is|are) (private|personal)|"
    r"not for the (code|repo|record|log))\b",
    r"\bpins?\b.{0,30}\b\d{4,8}\b", r"\bmy (\w+ )?(number|code|salary|boss|therapist|landlord|bank)\b",
    r"\bi('m| am) (considering|thinking about|planning on) (leaving|quitting|resigning)\b",
)  # fmt: skip
USER_MESSAGES_PATTERN = re.compile(
    r"^[ \t]*(?:#+[ \t]*)?(?:\d+[.)][ \t]*)?[*_]*(?:all |the )?"
    r"(?:user(?:'s)? (?:messages?|prompts?|requests?|input)|primary request\b|(?:original|initial) (?:request|prompt))"
    r"[^\n]*\n(?:(?![ \t]*(?:#+|\d+[.)])[ \t]).*(?:\n|\Z))*",
    re.IGNORECASE | re.MULTILINE,
)


def strip_summary_tags(text: str) -> str:
    """Remove the <summary> tags and the <analysis> part of a client's summary."""
    return SUMMARY_TAG_PATTERN.sub("\n", text) if "<" in text else text


def split_sentences(text: str) -> Iterable[str]:
    """Yield the prose sentences of a text without Markdown marks; code blocks, tables and HTML are skipped."""
    prose = QUOTE_PATTERN.sub(_shorten_quote, CODE_FENCE_PATTERN.sub("\n", strip_summary_tags(text)))
    for line in prose.splitlines():
        if line.startswith(("    ", "\t", "|", "<")) or BULLET_PATTERN.sub("", line).lstrip().startswith(">"):
            continue
        # who begins lines with small letters begins sentences with them
        breaks = SMALL_BREAK_PATTERN if line.lstrip()[:1].islower() else SENTENCE_BREAK_PATTERN
        for part in breaks.split(EMPHASIS_PATTERN.sub("", BULLET_PATTERN.sub("", line)).strip()):
            if part.strip():
                yield part.strip()


def _shorten_quote(match: re.Match[str]) -> str:
    """Return a quotation of a name as it is, a longer one as an ellipsis: somebody else said it."""
    return match[0] if len(WORD_PATTERN.findall(match[0])) < MIN_QUOTE_WORDS else "…"


def is_fix(sentence: str) -> bool:
    """Return whether an agent's sentence tells a cause and its fix."""
    if len(sentence) > MAX_SENTENCE_CHARS:  # first: the patterns take long for a long one
        return False
    if not FIX_FIRST_PATTERN.search(sentence) and not (CAUSE_PATTERN.search(sentence) and FIX_PATTERN.search(sentence)):
        return False
    if not MIN_SENTENCE_WORDS <= len(WORD_PATTERN.findall(sentence)) <= MAX_SENTENCE_WORDS:
        return False
    skipped = (CODE_PATTERN, QUESTION_PATTERN, HEDGE_PATTERN, PLAN_PATTERN, REPORT_PATTERN, CONFIDENTIAL_PATTERN)
    if any(pattern.search(sentence) for pattern in skipped):
        return False
    # an agent may repeat an injected text
    return not (orders.has_command(sentence) or orders.has_request(sentence) or orders.has_injection(sentence))


def strip_chatter(text: str, *, or_all: bool = True) -> str:
    """Remove plans, questions and courtesies from a text; with `or_all`, return it unchanged if nothing is left."""
    patterns = (PLAN_PATTERN, QUESTION_PATTERN, CHATTER_PATTERN)
    sentences = [
        sentence for sentence in split_sentences(text) if not any(pattern.search(sentence) for pattern in patterns)
    ]
    return " ".join(sentences) or (text if or_all else "")


def find_results(text: str) -> list[str]:
    """Return the sentences of an agent's answers that say what was done: no plans, questions, opinions, courtesies."""
    return [
        sentence
        for sentence in find_closing(text)
        if RESULT_PATTERN.search(sentence) and not PLAN_PATTERN.search(sentence)
    ]


def find_closing(text: str) -> list[str]:
    """Return the sentences of an agent's last answers, without questions and courtesies."""
    return [
        sentence
        for sentence in split_sentences(text)
        if len(WORD_PATTERN.findall(sentence)) >= MIN_RESULT_WORDS
        and not any(pattern.search(sentence) for pattern in (QUESTION_PATTERN, PROPOSAL_PATTERN))
        and not COURTESY_PATTERN.match(sentence)
    ]


def clean_answer(text: str, prompts: Iterable[str]) -> str:
    """Return an agent's text without secrets, private clauses and, at last, what it repeats of prompts."""
    return next(clean_all_answers([text], prompts))


def clean_all_answers(texts: Iterable[str], prompts: Iterable[str]) -> Iterator[str]:
    """Return each of an agent's texts without secrets, private clauses and, at last, what it repeats of prompts.

    In this order: what is left of a sentence after a part of it went may hide a secret from us.
    """
    safe_prompts = [redaction.redact(prompt[-MAX_CHARS_PER_ROLE:]).text for prompt in prompts]  # once for all texts
    return remove_all_echoes((remove_private_clauses(redaction.redact(text).text) for text in texts), safe_prompts)


def remove_echoes(text: str, prompts: Iterable[str]) -> str:
    """Return a text without the sentences that repeat what a user said, word for word."""
    return next(iter(remove_all_echoes([text], prompts)))


def remove_all_echoes(texts: Iterable[str], prompts: Iterable[str]) -> Iterator[str]:
    """Yield each text without the sentences that repeat what a user said, word for word."""
    runs = {run for prompt in prompts for run in _list_echoes(prompt)}
    lengths = {len(run) for run in runs}
    for text in texts:
        check_stopped()
        yield _remove_runs(text, runs, lengths) if runs else text


def _remove_runs(text: str, runs: set[tuple[str, ...]], lengths: set[int]) -> str:
    matches = list(ECHO_WORD_PATTERN.finditer(text.casefold() if len(text.casefold()) == len(text) else text.lower()))
    words = [match[0] for match in matches]
    starts = [0, *(match.end() for match in ECHO_BREAK_PATTERN.finditer(text)), len(text)]
    repeated: set[int] = set()  # the parts of the text, by number
    for length in lengths:
        for i in range(len(words) - length + 1):
            if tuple(words[i : i + length]) in runs:
                first = bisect_right(starts, matches[i].start()) - 1
                repeated.update(range(first, bisect_left(starts, matches[i + length - 1].end())))
    parts = [text[start:end] for i, (start, end) in enumerate(pairwise(starts)) if i not in repeated]
    return "".join(parts).strip()


def _list_echoes(prompt: str) -> Iterable[tuple[str, ...]]:
    """Return the runs of words by which a quotation of a prompt is recognised; of a short prompt, all its words."""
    words = ECHO_WORD_PATTERN.findall(prompt.casefold() if len(prompt.casefold()) == len(prompt) else prompt.lower())
    if len(words) >= ECHO_WORDS:
        return zip(*(words[i:] for i in range(ECHO_WORDS)), strict=False)
    is_telling = len(words) >= MIN_ECHO_WORDS or any(not word.isalpha() and not word.isdecimal() for word in words)
    return [tuple(words)] if is_telling else []


def strip_user_messages(summary: str) -> str:
    """Remove the parts of a client's summary that list what the user said."""
    return USER_MESSAGES_PATTERN.sub("", summary)


def find_fixes(answers: Sequence[str], limit: int = MAX_FIXES) -> list[str]:
    """Return the sentences that tell a cause and its fix, in order; of similar ones and of too many, the last."""
    fixes: list[str] = []
    fix_words: list[frozenset[str]] = []
    chars_left = MAX_CHARS_PER_ROLE
    for text in reversed(answers):
        if chars_left <= 0 or len(fixes) >= limit:
            break
        scanned, chars_left = text[-chars_left:], chars_left - len(text)
        if not any(map(is_fix, split_sentences(scanned))):
            continue  # looking for private details takes long, and most answers tell no fix
        for sentence in reversed([one for one in split_sentences(remove_private_clauses(scanned)) if is_fix(one)]):
            words = extract_words(sentence)
            if all(measure_overlap(words, others) < DUPLICATE_OVERLAP for others in fix_words):
                fixes.append(sentence)
                fix_words.append(words)
    return fixes[:limit][::-1]
