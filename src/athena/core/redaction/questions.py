"""Tell whether a text asks for a secret: what a person answers to it is one, whatever it looks like."""

import re
from functools import cache

from athena.core.redaction.values import compile_pattern
from athena.core.redaction.words import CODE_QUALIFIERS, CODE_WORDS, PASSWORD_WORDS, PIN_WORDS, WHOLE_WORDS

LOGIN_STEMS = "login log_in signin sign_in credential zugang anmeld identifiant acceso credenc accesso логин ログイン"
_SENTENCE_PATTERN = r"[^.!?。？！\n]+[.!?。？！]*"
_VARIABLE_PATTERN = r"\b[A-Z][A-Z0-9]*_(?:PASS(?:WORD|PHRASE|WD)?|PWD|PW|KEY|TOKEN|SECRET|PIN)\b"
_YES_OR_NO_PATTERN = (
    r"(?i)(?:\W|and |or |so |ok(?:ay)? |then )*(?:shall|should|do|does|did|is|are|was|can|could|may|must|want|would|"
    r"will|have|has|soll|sollen|darf|ist|sind|kann|möchtest|est-ce|dois|es|debo|devo)\b"
)
_ASKING_PATTERN = (
    r"(?i)[?？]|\b(?:wh(?:at|ich)|what's|how|need|require|tell|give|enter|provide|type|paste|send|supply|missing|brauche|"
    r"benötige|nenn|gib|sag|welche|lautet|quel|donne|besoin|entre[rz]|cu[aá]l|dame|necesito|qual|preciso|quale|dammi|"
    r"serve|geef|welk|podaj|jakie|какой|нужен)\w*"
)


def asks_for_secret(text: str) -> bool:
    """Return whether a text asks for a password, PIN, code or key; not whether to use one."""
    return any(map(_asks, compile_pattern(_SENTENCE_PATTERN, re.UNICODE).findall(text)))


def _asks(sentence: str) -> bool:
    if not compile_pattern(_ASKING_PATTERN, re.UNICODE).search(sentence) or not _names_secret(sentence):
        return False
    return compile_pattern(_YES_OR_NO_PATTERN, re.UNICODE).match(sentence) is None


def _names_secret(sentence: str) -> bool:
    if compile_pattern(_VARIABLE_PATTERN).search(sentence):
        return True
    names, codes = _load_patterns()
    lower = sentence.lower()
    return names.search(lower) is not None or (
        codes.search(lower) is not None and any(word in lower for word in CODE_QUALIFIERS)
    )


@cache
def _load_patterns() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Return patterns of the names of secrets, and of codes, which are secrets only of a door or the like."""
    stems = [stem.replace("_", r"[\s_-]") for stem in f"{PASSWORD_WORDS} {PIN_WORDS} {LOGIN_STEMS}".split()]
    names = [rf"(?<!\w){stem}s?(?!\w)" if stem in WHOLE_WORDS else stem for stem in stems]
    codes = [rf"(?<!\w){stem}(?!\w)" for stem in (*CODE_WORDS.split(), "opens")]
    return re.compile("|".join(names)), re.compile("|".join(codes))
