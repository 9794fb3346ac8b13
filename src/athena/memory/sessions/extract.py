"""Extract decisions, preferences, conventions, facts and fixes from a conversation, without a language model.

A sentence is extracted for a cue ("we decided", "never", "root cause") or, as a fact, because it states something
lasting about a specific thing. Questions, plans, hedges, reports of the work itself and code are skipped. Only users
decide and make rules; an agent may repeat what a file or a page says, so that it contributes facts and fixes only.
Nothing is extracted from quotations, and clauses with a secret or a private detail are left out.
Precision goes before recall: a user can store a missed sentence by hand, but a wrong one goes to every later session.
"""

import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise

from athena.core import redaction
from athena.core.private import remove_private_clauses
from athena.memory.sessions import orders
from athena.memory.sessions.select import extract_words, measure_overlap
from athena.memory.sessions.values import Candidate, Utterance

MIN_SENTENCE_WORDS, MAX_SENTENCE_WORDS, MAX_SENTENCE_CHARS = 4, 60, 400
DUPLICATE_OVERLAP = 0.6
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
HEADING_PATTERN = re.compile(
    r"^((key|main|final|our) )?(decisions?|notes?|conventions?|preferences?|summary)( made)?:\s*", re.IGNORECASE
)
ECHO_BREAK_PATTERN = re.compile(r"(?<=[.!?;:])[\"')\]]*\s+|\n+")
ECHO_WORD_PATTERN = re.compile(r"\w+")
THANKS_PATTERN = re.compile(
    r"[,;. ]+((ok(ay)?|and|many|alright|great|cool)[, ]+)*(thanks|thank you|thx|cheers|ok(ay)?)[.! ]*$", re.IGNORECASE
)
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
WORK_REPORT_PATTERN = _compile_any(  # changes that were just made: the repository records them better
    r"^(i|i've|i have|we've just) (just )?(added|updated|changed|renamed|moved|fixed|removed|created|wrote|"
    r"written|refactored|implemented|ran|run|committed|pushed|checked|looked|read|found|see|made|misread|have a)\b",
    r"\bnow (\w+s|pass|return|have|use)\b|^(after|with) this change\b|\bthe new \w+ (has|is|requires|returns|"
    r"takes)\b",
    r"\bi committed\b|\bthis is the \w+ time\b",
    r"^the (error|log|output|message|warning|diff|second|result)s? (says?|shows?|is|run)\b",
)  # fmt: skip
DECISION_PATTERN = _compile_any(
    r"\b(we|i|they|team)('ve| have)?( all)? (decided|agreed|settled|chose|picked|opted|concluded)\b",
    r"^(decisions?|decided|agreed)\b[:,]?",
    r"\bas (agreed|decided)\b",
    r"\b(we're|we are|let's) (going|go) with\b",
    r"\bfrom (now|here) on\b",
    r"\boff the table\b",
    r"\b(we're|we are) (dropping|switching|moving|keeping|replacing|removing|staying|using)\b",
    r"\b(we'll|we will) (use|keep|store|stay|drop|not|never|only|support|switch|move|go|stick)\b",
    r"^(starting|beginning) (with|from|in)\b.*\bwe\b",
    r"\b(stays?|remains?|is|are) (frozen|final|as (it|they) (is|are))\b",
    r"\bdecided against\b",
    r"\bthe decision (is|was)\b",
)  # fmt: skip
PREFERENCE_PATTERN = _compile_any(
    r"\bi('d| would)? (really |always |strongly |much )?(prefer|rather|like|love|want|hate|dislike|"
    r"expect)\b(?! (you |us |me )?to\b|.* to (see|know|understand|ask)\b)",
    r"^prefer\b",
    r"^(please )?(don't|do not|never) (use|add|write|put|make|touch|force|push|commit|create|explain|"
    r"summari[sz]e|ask)\b(?!.*\b(they|it) (is|are)\b)",
    r"^please (always|never|don't|keep|use)\b",
    r"^keep (your |the )?(\w+ )?(answers?|explanations?|replies|responses|commits?|messages?|functions?|it|them)\b",
    r"^when(ever)? you\b.*\b(ask|tell|stop|use|show|check)\b",
    r"^(always )?use \w+ (spelling|english|style|quotes|formatting|indentation)\b",
    r"\bon my behalf\b",
)  # fmt: skip
RULE_PATTERN = _compile_any(
    r"^always\b",
    r"^never\b",
    r"\b(we|must|should|are|is|may) (always|never)\b",
    r"\bmust (be|not|have|return|use|pass|start|go|run|come|follow|stay|contain|include|review)\b",
    r"\b(every|all|each|any|new) [\w+. -]{2,40} (needs?|must|has to|have to|requires?|gets?|returns?|goes?|go)\b",
    r"^use [^,.;]+,? (and )?(never|not|instead of|rather than|only)\b",
    r"\b(start|begin|end)s? with (the|a|an|our)\b",
    r"\b(go|goes|belongs?|live) (in|into|under)\b", r"\bfollows? (the )?[\w.<>-]+",
    r"\bwe use\b",
    r"\bis (forbidden|mandatory|required|not allowed)\b",
    r"^(don't|do not) (commit|edit|merge|push|deploy|mock|change|delete|import|log|store|rely)\b",
    r"\b(are|is) (lower|upper|snake|camel|kebab)[ -]?case\b",
    r"\b(are|is) (tagged|named|documented|written|removed|called|sorted|grouped) (as |in |with |by |within |"
    r"\w+ and )",
    r"\bby convention\b", r"\bopen a pull request\b", r"\bin strict mode\b",
)  # fmt: skip
NO_RULE_PATTERN = _compile_any(  # "No wildcards in IAM actions", but not "no problem"
    r"^(use |with )?\bno (?!(problem|worries|idea|need|thanks?|thx|one|more|longer|wait|way|rush|hurry|clue|we|i|it|"
    r"that|this|you|they|he|she|not|hard|offense|big|good|but|and|so|just|luck|chance|matter|doubt|the|an?|there|"
    r"what|why|please)\b)"
    r"[\w`][\w`./-]+ \S+",
)  # fmt: skip
CONSTRAINT_PATTERN = _compile_any(
    r"\bmay (not|only|never|be only)\b",
    r"\w, (not|no|never) (?!(sure|yet|now|really|again|thanks?|problem|idea|need|that|just|so|too|at|because|only|one|"
    r"a)\b)[\w`./-]+( [\w`./-]+){0,3}[.!]?$",
    r"[\w`)]{3,} only(?=[.!,;(]|\s*$|\s\()",
    r"^(hard |safety |general |house |one )?(rules?|requirements?|constraints?|policy|convention|guideline)"
    r"( change)?\s*:\s*\S",
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
LASTING_STATE_PATTERN = _compile_any(
    r"\b(lives?|runs?|owns?|uses?|is (called|limited|deployed|written|named|hosted|stored|kept|loaded|managed|"
    r"wiped|based|on|in)|are (limited|loaded|rejected|stored|kept|created|written|retried|hosted|enforced|"
    r"overridden|deployed|published))\b",
    r"\b(resets?|rotates?|expires?|accepts?|needs?|requires?|depends? on|calls?|listens? on|points? to|writes?|"
    r"reads?|has|have|supports?|contains?|belongs? to|handles?|serves?|allows?|takes \d)\b",
    r"\bonly (works?|runs?|listens?)\b|\b(are|is) mostly\b",
    r"\bis (the|a|an|only|no|not|\d+)\b|\bthere (is|are) no\b|\bcannot\b|\bcan't\b|\bstill\b",
)  # fmt: skip
SPECIFIC_PATTERNS = (
    re.compile(r"\d"),
    re.compile(r"(?<!^)(?<![.!?:] )\b(?!I\b|I')[A-Z][\w]*[a-zA-Z]"),  # a name inside of the sentence
    re.compile(r"\b[\w-]+[./_][\w./-]*\w|\b[a-z]+[A-Z]\w+|\"[^\"]+\"|\b\w+-\w+-\w+"),  # an identifier, a path
    re.compile(r"\b(every|until|before|after|only|per|because|so that|so|not|never|each|by hand|"
    r"instead)\b", re.IGNORECASE),
    re.compile(r"\b(production|staging|database|server|cluster|service|deploy\w*|repo|branch|release|customer|"
    r"team|queue|"
               r"runners?|ci|api|default|vendor|legacy|nightly|test users?|scheduler|endpoint|repository|"
               r"pipeline|port|users|laptop|machine|backups?)\b", re.IGNORECASE),
)  # fmt: skip
VALUE_PATTERN = _compile_any(  # what something is, with a number or a part's name
    r"^(it|this|that)('s| is) an? [\w-]*\d[\w-]*\b", r"^(it|this|that)('s| is) an? [\w -]+ (with|on|for) [\w -]*\d",
    r"^(the )?[\w-]+( [\w-]+)? (is|are|=) (at most |at least |about |max )?\d[\d.,]* ?"
    r"(%|[kmgt]?i?b|ms|s|seconds?|minutes?|hours?|days?|weeks?|months?|px|hz|v|mm|degrees?|rows?|items?|times?)\b",
)  # fmt: skip
SUBJECT_PATTERN = re.compile(
    r"^(the|our|my|this (service|repo|project|codebase|app|package|module is)|customer|production|staging|test|"
    r"ci|source|"
    r"uploads?|settings|there (is|are) no|we (have|run|host|deploy)|all|each|every|"
    r"(?!(It|To|This|That|These|Those|They|You|He|She|I|We|After|Before|If|When|While|As|For|In|On|With|By|From|Now|"
    r"Then|Here|Both|Some|Because|Since|Also|So|And|But|Or|Not|Your|Its|Their|At|Of|Until|Once|Option|Two|Three|"
    r"Always|Never|Please|Don|Do|Use|Run|Make|Add|Set|Keep|Send|Install|Ignore|Remember)\b|"
    r"[A-Z]\w+(ed|ing)\b)[A-Z][\w-]+)\b"
)
THIS_PROJECT_PATTERN = re.compile(r"^this (service|repo|project|codebase|app|package|module is)\b", re.IGNORECASE)
VAGUE_SUBJECT_PATTERN = re.compile(
    r"^(this|that|it|these|those|the (\w+ )?(function|class|method|file|test|code|error|variable|module|script|"
    r"build|output|"
    r"header|color|colour|change|problem|issue|line|argument|parameter|loop|component|response|commit|command|"
    r"type|fix)s?"
    r"|the (first|second|third|last|new|old|other|same))\b|\b(class|method|function|argument|parameter|"
    r"props?) \w+|\bline \d+\b",
    re.IGNORECASE,
)
MIN_RESULT_WORDS = 2
COURTESY_PATTERN = _compile_any(
    r"(sorry|my apologies|apologies|thanks?|thank you|you're (right|welcome)|good (luck|night|morning|idea|point|"
    r"question)|"
    r"great (work|question)|see you|have a|i hope|understood|noted|got it|sure|ok(ay)?|will do|glad|happy|"
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
BUG_REPORT_PATTERN = _compile_any(
    r"\breturns? (an? )?(error|[45]\d\d)\b",
    r"\b(fails?|crashes|breaks|happens|does(n't| not) work|is (blank|broken|empty|wrong))\b",
    r"\bsee (the )?log\b|\bevery time i\b|\btoo (big|small|slow)\b",
)  # fmt: skip
LEAD_IN_PATTERN = re.compile(r"^(ok(ay)?[ ,]+but|but|note|fyi|also|and|btw|remember)\b[:, ]+", re.IGNORECASE)
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
VAGUE_WORD_PATTERN = re.compile(r"\b(somewhere|something|some(how|one)|whatever|stuff|things?)\b", re.IGNORECASE)


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


def classify_sentence(sentence: str, role: str) -> str | None:
    """Return the memory type of a sentence that is worth storing, else None."""
    if (
        len(sentence) > MAX_SENTENCE_CHARS
        or not _get_min_words(sentence, role) <= len(WORD_PATTERN.findall(sentence)) <= MAX_SENTENCE_WORDS
    ):
        return None
    if CODE_PATTERN.search(sentence):
        return None
    if QUESTION_PATTERN.search(sentence) or HEDGE_PATTERN.search(sentence) or PLAN_PATTERN.search(sentence):
        return None
    if REPORT_PATTERN.search(sentence) or CONFIDENTIAL_PATTERN.search(sentence):
        return None
    # An agent may repeat an injected text.
    if role != "user" and (
        orders.has_command(sentence) or orders.has_request(sentence) or orders.has_injection(sentence)
    ):
        return None
    if FIX_FIRST_PATTERN.search(sentence) or (CAUSE_PATTERN.search(sentence) and FIX_PATTERN.search(sentence)):
        return "fix"
    is_no_rule = role == "user" and NO_RULE_PATTERN.search(sentence) is not None
    if (CHATTER_PATTERN.search(sentence) and not is_no_rule) or WORK_REPORT_PATTERN.search(sentence):
        return None
    # An agent may repeat a file or a page that says "we decided".
    if DECISION_PATTERN.search(sentence):
        return "decision" if role == "user" else None
    if role == "user" and PREFERENCE_PATTERN.search(sentence):
        return "preference"
    is_rule = is_no_rule or RULE_PATTERN.search(sentence) or CONSTRAINT_PATTERN.search(sentence)
    if role == "user" and is_rule and not VAGUE_SUBJECT_PATTERN.search(sentence):
        return "convention"
    if role == "user" and VALUE_PATTERN.search(sentence) and not BUG_REPORT_PATTERN.search(sentence):
        return "fact"
    return "fact" if _is_fact(sentence) else None


def _get_min_words(sentence: str, role: str) -> int:
    """Return how many words a statement must have: "Terraform 1.9, not OpenTofu" is a rule."""
    is_short_rule = role == "user" and any(map(str.isdigit, sentence)) and CONSTRAINT_PATTERN.search(sentence)
    return MIN_SENTENCE_WORDS - 2 if is_short_rule else MIN_SENTENCE_WORDS


def _is_fact(sentence: str) -> bool:
    sentence = LEAD_IN_PATTERN.sub("", sentence)
    if BUG_REPORT_PATTERN.search(sentence):
        return False
    if VAGUE_WORD_PATTERN.search(sentence) or (
        VAGUE_SUBJECT_PATTERN.search(sentence) and not THIS_PROJECT_PATTERN.search(sentence)
    ):
        return False
    if not SUBJECT_PATTERN.search(sentence) and not SUBJECT_PATTERN.search(sentence[:1].lower() + sentence[1:]):
        return False
    return (
        bool(LASTING_STATE_PATTERN.search(sentence))
        and sum(bool(pattern.search(sentence)) for pattern in SPECIFIC_PATTERNS) >= 2
    )


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
        and not QUESTION_PATTERN.search(sentence)
        and not COURTESY_PATTERN.match(sentence)
    ]


def trim_sentence(sentence: str, kind: str, role: str) -> str:
    """Remove a heading and closing thanks from a sentence, if its type stays the same without them."""
    for rest in (THANKS_PATTERN.sub("", HEADING_PATTERN.sub("", sentence)), THANKS_PATTERN.sub("", sentence)):
        if rest != sentence and classify_sentence(rest, role) == kind:
            return rest[:1].upper() + rest[1:]
    return sentence


def _find_statements(text: str, role: str) -> list[tuple[str, str]]:
    """Return the sentences of a message that are worth storing, without private clauses, and their types."""

    def classify_all(prose: str) -> list[tuple[str, str]]:
        return [(part, kind) for part in split_sentences(prose) if (kind := classify_sentence(part, role))]

    # looking for private details takes long, and most messages hold no statement
    statements = classify_all(text)
    return classify_all(remove_private_clauses(text)) if statements else []


def clean_answer(text: str, prompts: Iterable[str]) -> str:
    """Return an agent's text without secrets, private clauses and, at last, what it repeats of prompts.

    In this order: what is left of a sentence after a part of it went may hide a secret from us.
    """
    text = remove_private_clauses(redaction.redact(text).text)
    return remove_echoes(text, [redaction.redact(prompt[-MAX_CHARS_PER_ROLE:]).text for prompt in prompts])


def remove_echoes(text: str, prompts: Iterable[str]) -> str:
    """Return a text without the sentences that repeat what a user said, word for word."""
    runs = {run for prompt in prompts for run in _list_echoes(prompt)}
    if not runs:
        return text
    matches = list(ECHO_WORD_PATTERN.finditer(text.casefold() if len(text.casefold()) == len(text) else text.lower()))
    words = [match[0] for match in matches]
    starts = [0, *(match.end() for match in ECHO_BREAK_PATTERN.finditer(text)), len(text)]
    repeated: set[int] = set()  # the parts of the text, by number
    for length in {len(run) for run in runs}:
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


def find_candidates(messages: Sequence[Utterance], limit: int = 12) -> list[Candidate]:
    """Return the sentences that are worth storing, in order; of similar ones and of too many, the last."""
    candidates: list[Candidate] = []
    candidate_words: list[frozenset[str]] = []
    chars_left: defaultdict[str, int] = defaultdict(lambda: MAX_CHARS_PER_ROLE)
    for role, text in reversed(messages):
        if chars_left[role] <= 0:
            continue
        scanned, chars_left[role] = text[-chars_left[role] :], chars_left[role] - len(text)
        for sentence, kind in reversed(_find_statements(scanned, role)):
            words = extract_words(sentence)
            if all(measure_overlap(words, others) < DUPLICATE_OVERLAP for others in candidate_words):
                candidates.append(Candidate(trim_sentence(sentence, kind, role), kind, role))
                candidate_words.append(words)
            if len(candidates) == limit:
                return candidates[::-1]
    return candidates[::-1]
