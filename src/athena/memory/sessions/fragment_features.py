"""What the classifier sees of a fragment: its words and their classes, its neighbours and its form."""

import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from athena.memory.sessions.fragments import Fragment

HASH_BUCKETS = 1 << 14
MAX_WORDS = 40  # of a fragment
NGRAM_CHARS = 4
WORD_PATTERN = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)?|\d+|[^\w\s]")
IDENTIFIER_PATTERN = re.compile(r"[/_]|\w\.\w|\w\(|[a-z][A-Z]|`")
NAME_PATTERN = re.compile(r"\b[A-Z][a-z]")
_CLASS_WORDS = {
    "RULE": "always never ever every everywhere everything all only must mustn't should shouldn't shall cannot rule "
    "rules convention policy standard default generally usually normally anymore forever everybody everyone nobody "
    "nothing nowhere whenever wherever strictly ban banned forbidden allowed mandatory",
    "NOW": "now today tonight currently atm yet still again already moment morning afternoon evening minute minutes "
    "yesterday quickly quick",
    "LATER": "later tomorrow next monday tuesday wednesday thursday friday saturday sunday week weeks month sprint "
    "todo someday eventually soon before after until till once deadline",
    "HEDGE": "maybe perhaps guess might probably wonder suppose seems apparently possibly kinda sorta wondering "
    "thinking idea imagine either dunno unsure idk hypothetically theoretically",
    "SAY": "says said say thinks thought claims told wrote according asks asked suggested suggests insists swears "
    "reckons wants mentions mentioned complains writes posted",
    "WE": "we our us ours we're we'll we've we'd let's lets",
    "I": "i my me i'm i'd i've i'll mine im ive id myself",
    "YOU": "you your you're u ya you've yours",
    "HE": "he she they his her their them him they're she's he's someone somebody",
    "IT": "it this that these those there it's that's its here there's",
    "BE": "is are was were be been am isn't aren't wasn't weren't being",
    "DO": "do does did don't doesn't didn't dont doesnt didnt",
    "CAN": "can could would can't couldn't wouldn't cant may",
    "HAVE": "have has had haven't hasn't got gets get",
    "WILL": "will won't gonna going wont",
    "NEG": "not no without instead rather nope nor none neither less stop avoid",
    "LIKE": "like love hate prefer want want's wanna please need needs rather enjoy dislike favourite favorite",
    "DOV": "add fix run make change rename remove delete drop put move write check look show try commit push revert "
    "update create test build deploy give let tell explain set start bump install open skip leave split wrap print "
    "send pull merge replace turn find read paste go see revise rerun rewrite undo roll finish continue have take "
    "clean",
    "USE": "use uses using used keep keeps stay stays stick live lives goes runs owns means comes belongs handles "
    "signs needs takes sits gets called named",
    "DECIDE": "decided decide agreed settled settle pick picked choose chose chosen switch switched switching going "
    "final official approved deal dropping moving",
    "OK": "ok okay thanks thank thx cool nice great good perfect lovely hi hello hey lol haha yes yep yeah sure right "
    "well hm hmm oh ah wow fine super sweet alright ha ugh sorry cheers morning bye k aha yup",
    "PRIV": "wife husband kid kids daughter son mum mom mother dad father doctor hospital tired sick headache sleep "
    "salary divorce back pain birthday dentist therapy flu fever pregnant baby school rent cat dog hungry lunch coffee "
    "knee migraine girlfriend boyfriend sister brother",
    "SEC": "password key token secret pin passphrase apikey credentials pw pass login cvv pat",
    "REM": "remember note forget record memo memory remind reminder btw fyi mind noted",
    "CTRL": "forget scratch erase record keep unsay ignore disregard",
    "STATE": "works worked failed fails broke broken red green crashes crashed slow error errors fail hangs passes "
    "passed failing weird stuck happens flaky timeout times 500 404 looks",
    "WH": "what why how where when who which whose",
    "WRONG": "wrong mistake actually incorrect misread mean meant typo correction nope sorry wasn't changed mind",
    "BEC": "because cos cuz since so otherwise therefore cause as",
}
WORD_CLASSES: dict[str, list[str]] = {}
for _name, _words in _CLASS_WORDS.items():
    for _word in _words.split():
        WORD_CLASSES.setdefault(_word, []).append(_name)


class _FragmentWords:
    """The words of a fragment in the forms that features use."""

    def __init__(self, text: str) -> None:
        self.text = text
        raw = _split_words(text)
        self.words = _fold_words(raw)
        self.plain = [word for word in self.words if word[0].isalnum()]
        self.sequence = _classify_sequence(raw)
        self.classes = {name for word in raw for name in WORD_CLASSES.get(word.lower(), ())}


def hash_fragments(text: str, fragments: Sequence[Fragment], answer: str) -> Iterator[list[int]]:
    """Yield for each fragment of a turn the buckets of its features."""
    parts = [_FragmentWords(text[fragment.start : fragment.end]) for fragment in fragments]
    sentences: dict[int, list[int]] = {}
    for i, fragment in enumerate(fragments):
        sentences.setdefault(fragment.sentence, []).append(i)
    turn_classes = {name for part in parts for name in part.classes}
    follows_question = answer.rstrip().endswith("?")
    line_count = min(text.count("\n"), 4)
    for i, fragment in enumerate(fragments):
        siblings = sentences[fragment.sentence]
        names = [
            *_iter_own_features(parts[i], fragment, text),
            *_iter_sentence_features(text, fragments, parts, siblings, i),
            *_iter_neighbor_features(fragments, parts, i),
            *(f"tc:{name}" for name in turn_classes),
            f"tot:{min(len(fragments), 10)}",
            f"nl:{line_count}",
        ]
        if follows_question:
            names += ["agent:?", *(f"aq:{word}" for word in parts[i].plain[:2])]
        yield sorted({zlib.crc32(name.encode()) & (HASH_BUCKETS - 1) for name in names})


def _iter_own_features(part: _FragmentWords, fragment: Fragment, text: str) -> Iterator[str]:
    words, plain, sequence = part.words, part.plain, part.sequence
    yield from (f"u:{word}" for word in set(words))
    yield from (f"b:{first} {second}" for first, second in pairwise(words))
    yield from (f"f{count}:{' '.join(plain[:count])}" for count in (1, 2, 3))
    yield f"l1:{' '.join(plain[-1:])}"
    yield f"n:{min(len(plain), 12)}"
    yield f"bef:{fragment.before}"
    yield f"end:{_get_mark(part.text)}"
    yield from (f"c:{name}" for name in part.classes)
    yield from (f"cb:{first} {second}" for first, second in pairwise(sequence))
    yield from (f"ct:{' '.join(sequence[i : i + 3])}" for i in range(len(sequence) - 2))
    yield from (f"cf:{' '.join(sequence[:2])}", f"cf3:{' '.join(sequence[:3])}", f"cl:{' '.join(sequence[-2:])}")
    ordered = sorted(part.classes)
    yield from (f"cc:{first}{second}" for i, first in enumerate(ordered) for second in ordered[i + 1 :])
    for word in set(plain):
        if len(word) >= NGRAM_CHARS:
            bounded = f"<{word}>"
            yield from (f"k:{bounded[i : i + NGRAM_CHARS]}" for i in range(len(bounded) - NGRAM_CHARS + 1))
    tests = {
        "has:digit": any(map(str.isdecimal, part.text)),
        "has:ident": IDENTIFIER_PATTERN.search(part.text),
        "has:name": NAME_PATTERN.search(part.text[1:]),
        "has:quote": '"' in part.text or "“" in part.text,
        "in:quote": text.count('"', 0, fragment.start) % 2,
        "block": fragment.is_block,
    }
    yield from (name for name, is_true in tests.items() if is_true)


def _iter_sentence_features(
    text: str, fragments: Sequence[Fragment], parts: Sequence[_FragmentWords], siblings: Sequence[int], i: int
) -> Iterator[str]:
    raw = _split_words(text[fragments[siblings[0]].start : fragments[siblings[-1]].end])
    words = _fold_words(raw)
    yield f"send:{_get_mark(parts[siblings[-1]].text)}"
    yield from (f"s:{word}" for word in set(words))
    yield f"sf:{' '.join(words[:2])}"
    yield f"sn:{min(len(siblings), 6)}"
    yield f"spos:{min(i - siblings[0], 4)}"
    yield from {f"sc:{name}" for j in siblings for name in parts[j].classes}
    if siblings[0] != i:
        yield f"csf:{' '.join(_classify_sequence(raw[:2]))}"


def _iter_neighbor_features(fragments: Sequence[Fragment], parts: Sequence[_FragmentWords], i: int) -> Iterator[str]:
    if i:
        before = parts[i - 1]
        yield from (f"pf:{' '.join(before.words[:2])}", f"pl:{' '.join(before.words[-1:])}")
        yield from (f"p:{word}" for word in set(before.words))
        yield from (f"pc:{name}" for name in before.classes)
    else:
        yield "first"
    if i + 1 < len(fragments):
        after = parts[i + 1]
        yield from (f"nf:{' '.join(after.words[:2])}", f"nb:{fragments[i + 1].before}")
        yield from (f"nx:{word}" for word in set(after.words))
        yield from (f"nc:{name}" for name in after.classes)
    else:
        yield "last"


def _split_words(text: str) -> list[str]:
    return WORD_PATTERN.findall(text.replace("’", "'"))[:MAX_WORDS]


def _fold_words(words: Iterable[str]) -> list[str]:
    return ["0" if word.isdigit() else word.lower() for word in words]


def _classify_sequence(words: Sequence[str]) -> list[str]:
    """Return for each word its class, else its ending."""
    return [_classify_word(word, is_first=i == 0) for i, word in enumerate(words)]


def _classify_word(word: str, *, is_first: bool) -> str:
    lower = word.lower()
    if lower in WORD_CLASSES:
        return WORD_CLASSES[lower][0]
    if lower.isdigit():
        return "#"
    if not lower[0].isalnum():
        return lower
    if lower.endswith("n't"):
        return "NEG"
    if not is_first and word[0].isupper():
        return "NAME"
    for ending, min_length in (("ing", 5), ("ed", 4), ("s", 4)):
        if len(lower) >= min_length and lower.endswith(ending):
            return ending
    return "w"


def _get_mark(text: str) -> str:
    return "w" if text[-1].isalnum() else text[-1]
