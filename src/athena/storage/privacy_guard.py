"""The guard at every boundary: replace personal values by tokens and secrets by placeholders, and turn tokens back."""

import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from typing import Any, Literal, NamedTuple

from athena.core.redaction import redact, redact_field
from athena.core.redaction.personal import NumberQuestions, PersonalRules, find_personal, split_name
from athena.core.redaction.personal_values import NAME, TOKEN_PATTERN, PersonalMatch
from athena.core.redaction.texts import (
    MIN_SECRET_CHARS,
    NUMBER_PREFIX,
    SecretForms,
    TextKey,
    find_literals,
    iter_texts,
    replace_in_literals,
    replace_texts,
)
from athena.core.threads import run_in_thread
from athena.core.types import is_long
from athena.core.values import Scope
from athena.errors import AthenaError, Unavailable
from athena.storage.database import Database
from athena.storage.privacy import join_marks
from athena.storage.vault import CUED_KINDS, SAID, SAID_APART, SHOWN_APART, Vault

PrivacyMode = Literal["off", "boundary", "strict"]
MAX_FIELD_CHARS = 100  # a longer text says itself what it is about
RULES_MAX_AGE_S = 5.0
PERSON_TYPES = ("person", "people", "human", "contact", "customer", "employee", "user", "friend", "colleague")
_TOKEN = re.compile(TOKEN_PATTERN, re.ASCII)
_SECRET = re.compile(r"\[VAULT:([A-Za-z][A-Za-z0-9_]{0,63})\]", re.ASCII)


class HiddenText(NamedTuple):
    """A text without secrets, and the personal values in it."""

    text: str
    matches: list[PersonalMatch]

    def iter_values(self) -> Iterable[tuple[str, str]]:
        return ((match.kind, self.text[match.start : match.end]) for match in self.matches)


class LoadedRules(NamedTuple):
    """What to look for in a project, as it was read some time ago."""

    read_at: float
    marks: dict[tuple[str, ...], str]  # private marks of names
    rules: PersonalRules  # without known numbers, which are looked up for each text


class PrivacyGuard:
    """What a project's texts look like on each side of a boundary."""

    def __init__(
        self,
        vault: Vault,
        mode: PrivacyMode = "off",
        names: Iterable[str] = (),
        patterns: Mapping[str, str] | None = None,
        is_current: Callable[[], bool] = lambda: True,
    ) -> None:
        self.vault, self.mode, self.is_current = vault, mode, is_current
        self._names, self._patterns = frozenset(names), dict(patterns or {})
        self._rules: dict[str, LoadedRules] = {}
        self._secrets: dict[str, tuple[float, SecretForms]] = {}

    def for_run(self, database: Database) -> "PrivacyGuard":
        """Return this guard for the calls of a run, whose database notes what is read and marks what is written."""
        guard = copy(self)
        guard.vault = self.vault.with_database(database)
        return guard

    def _grade(self, by_program: bool, from_store: bool = False) -> int:
        if self.mode == "strict":
            return SAID_APART if by_program else SHOWN_APART if from_store else 0
        return SAID if by_program else 0

    def require_current(self) -> None:
        """Refuse calls where the settings say something else by now: people rely on what they have written there."""
        if not self.is_current():
            raise Unavailable(
                "the settings of privacy in config.toml are not those that this process was started with",
                hint="start it again (athena daemon stop, or Ctrl-C and athena serve), or correct config.toml",
            )

    @property
    def is_on(self) -> bool:
        return self.mode != "off"

    @property
    def fixed_rules(self) -> PersonalRules:
        """The names and patterns of the settings, for logs, which belong to no project."""
        return PersonalRules(self._names, self._patterns)

    # --- to tokens ----------------------------------------------------------------------------------------------------

    async def hide(
        self,
        scope: Scope,
        value: Any,
        *,
        secrets: bool = True,
        every_spelling: frozenset[str] = frozenset(),
        by_program: bool = False,
        from_store: bool = False,
        private: str = "",
    ) -> Any:
        """Return a value with tokens for personal values and, unless `secrets` is False, placeholders for secrets.

        In fields named in `every_spelling`, which hold questions, a value becomes all tokens that its spellings have.
        `by_program`: a program or a model says it. `from_store`: it reads it there, where it may have put it in a form
        that was not recognized. `private` are the marks of where it comes from.
        """
        hidden = await self._search(scope, value, secrets=secrets, by_program=by_program or from_store)
        values = [pair for text in hidden.values() for pair in text.iter_values()]
        if not values:
            return self._replace_secrets(value, hidden)
        grade = self._grade(by_program, from_store)
        tokens = await self.vault.assign_tokens(scope, values, said=grade, private=private)
        questions = [
            pair for (name, _), text in hidden.items() if name in every_spelling for pair in text.iter_values()
        ]
        spellings = await self.vault.find_spellings(scope, questions) if questions else {}
        self._note_new_names(scope, values)

        def write_token(name: str, pair: tuple[str, str]) -> str:
            others = spellings.get(pair, ()) if name in every_spelling else ()
            return " ".join(dict.fromkeys([tokens[pair], *others]))

        texts = {
            key: _join_pieces(text, [write_token(key[0], pair) for pair in text.iter_values()])
            for key, text in hidden.items()
        }
        return replace_texts(value, {key: text for key, text in texts.items() if text != key[1]})

    async def hide_error(self, scope: Scope, error: AthenaError, *, from_store: bool) -> None:
        """Hide personal values and secrets in the words of an error."""
        words = [str(error), error.hint, list(getattr(error, "__notes__", []))]
        message, hint, notes = await self.hide(scope, words, from_store=from_store)
        error.args, error.hint = (message, *error.args[1:]), hint
        if notes:
            error.__notes__ = notes
        error.__cause__ = error.__context__ = None  # a traceback would show them

    async def note_values(self, scope: Scope, value: Any) -> None:
        """Learn the numbers that only their fields or words tell, before a program takes them out of there."""
        hidden = await self._search(scope, value, secrets=False)
        values = [pair for text in hidden.values() for pair in text.iter_values() if pair[0] in CUED_KINDS]
        if values:
            await self.vault.assign_tokens(scope, values)

    async def hide_source(self, scope: Scope, source: str, *, by_program: bool = False) -> str:
        """Return a program with tokens in its string literals and comments, and in place of numbers."""
        literals = find_literals(source)
        matches = await self.find(scope, source, by_program=by_program)
        prefixes = [""] * len(matches)
        if literals is not None:  # what cannot be read as a program is a text
            placed = [(match, literal) for match in matches for literal in literals if _is_inside(match, literal)]
            prefixes = [literal[2] for _, literal in placed]
            matches = [
                PersonalMatch(match.kind, *literal[:2]) if literal[2] == NUMBER_PREFIX else match
                for match, literal in placed
            ]
        hidden = HiddenText(source, matches)
        tokens = await self.vault.assign_tokens(scope, hidden.iter_values(), said=self._grade(by_program))
        self._note_new_names(scope, tokens)
        written = [
            self._write_number(pair[1], tokens[pair]) if prefix == NUMBER_PREFIX else tokens[pair]
            for pair, prefix in zip(hidden.iter_values(), prefixes, strict=True)
        ]
        return _join_pieces(hidden, written)

    def _write_number(self, value: str, token: str) -> str:
        """Return what stands for a number in a program: programs of the mode `strict` handle its token, a text."""
        if self.mode == "strict":
            return f'"{token}"'
        return f'int("{token}")' if value.isdigit() else f'float("{token}")'

    async def count_kinds(self, scope: Scope, value: Any, *, by_program: bool = False) -> Counter[str]:
        """Count the personal values inside of a value, by kind."""
        hidden = await self._search(scope, value, secrets=False, by_program=by_program)
        return Counter(kind for text in hidden.values() for kind, _ in text.iter_values())

    async def find(self, scope: Scope, text: str, *, by_program: bool = False) -> list[PersonalMatch]:
        """Return the positions of personal values in a text."""
        hidden = await self._search(scope, text, secrets=False, by_program=by_program)
        return next((text.matches for text in hidden.values()), [])

    async def _search(
        self, scope: Scope, value: Any, *, secrets: bool, by_program: bool = False
    ) -> dict[TextKey, HiddenText]:
        """Search each text; what is known of its numbers is looked up, so that the work is bounded by the text.

        A program or model of the mode `strict` must not learn which bare numbers the vault has: only those count that
        such callers said themselves.
        """
        loaded = await self._load_rules(scope)
        questions = NumberQuestions()

        def search(known: Mapping[str, str]) -> dict[TextKey, HiddenText]:
            people = _find_new_people(value)
            rules = loaded.rules._replace(names=loaded.rules.names | people, known=known)
            return {key: search_text(*key, rules, secrets=secrets) for key in dict.fromkeys(iter_texts(value))}

        is_slow = is_long(value)
        hidden = await run_in_thread(search, questions) if is_slow else search(questions)
        only_said = by_program and self.mode == "strict"
        known = await self.vault.find_numbers(scope, questions.asked, said=only_said) if questions.asked else {}
        if known:
            hidden = await run_in_thread(search, known) if is_slow else search(known)
        names = [split_name(pair[1]) for text in hidden.values() for pair in text.iter_values() if pair[0] == NAME]
        if loaded.marks and names:
            # of a name inside of an encoded part it is not known which one it is
            every = join_marks(" ".join(loaded.marks.values()).split())
            indexed = {split_name(name) for name in loaded.rules.names}
            marks = {loaded.marks.get(name, "" if name in indexed else every) for name in names}
            if noted := join_marks(" ".join(marks).split()):
                await self.vault.note_marks(noted)
        return hidden

    def _replace_secrets(self, value: Any, hidden: Mapping[TextKey, HiddenText]) -> Any:
        changed = {key: text.text for key, text in hidden.items() if text.text != key[1]}
        return replace_texts(value, changed) if changed else value

    # --- from tokens --------------------------------------------------------------------------------------------------

    async def reveal(
        self, scope: Scope, value: Any, revealed: dict[str, str] | None = None
    ) -> tuple[Any, Counter[str]]:
        """Return a value with the values of its tokens, and how many of each kind; unknown tokens stay.

        With `revealed`, which gets the tokens by their values, those in keys stay, too: errors name keys.
        """
        keys = (key for key in iter_texts(value) if "_" in key[1] and (revealed is None or key[0]))
        texts = {key: _TOKEN.findall(key[1]) for key in keys}
        tokens = {(kind, int(number)) for found in texts.values() for kind, number in found}
        values = await self.vault.resolve_tokens(scope, tokens)
        if not values:
            return value, Counter()
        if revealed is not None:
            revealed |= {real: token for token, real in values.items()}
        kinds: Counter[str] = Counter()

        def write_value(match: re.Match[str]) -> str:
            kinds[match[1]] += match[0] in values
            return values.get(match[0], match[0])

        changed = {key: _TOKEN.sub(write_value, key[1]) for key, found in texts.items() if found}
        return replace_texts(value, {key: text for key, text in changed.items() if text != key[1]}), kinds

    async def reveal_path(self, scope: Scope, path: str, revealed: dict[str, str]) -> str:
        """Return a path with the values of tokens that are whole names in it."""
        names = path.split(os.sep)
        tokens = [name for name in names if _TOKEN.fullmatch(name)]
        found, _ = await self.reveal(scope, {"names": tokens}, revealed)
        values = dict(zip(tokens, found["names"], strict=True))
        return os.sep.join(values.get(name, name) for name in names)

    async def reveal_source(self, scope: Scope, source: str) -> str:
        """Return a program with the values of the tokens in its string literals."""
        tokens = {(kind, int(number)) for kind, number in _TOKEN.findall(source)}
        values = await self.vault.resolve_tokens(scope, tokens)
        return replace_in_literals(source, _TOKEN, values.get) if values else source

    async def reveal_secrets(self, scope: Scope, value: Any, tool: str) -> tuple[Any, dict[str, str]]:
        """Return a value with the secrets that a tool may receive by name, and these secrets by their tokens.

        No key of an object gets one: errors name keys.
        """
        keys = [key for key in iter_texts(value) if key[0] and "[VAULT:" in key[1]]
        names = [name for _, text in keys for name in _SECRET.findall(text)]
        secrets = await self.vault.resolve_secrets(scope, names, tool) if names else {}
        changed = {key: _SECRET.sub(lambda match: secrets.get(match[0], match[0]), key[1]) for key in keys}
        return replace_texts(value, changed) if secrets else value, secrets

    async def load_secrets(self, scope: Scope, sent: Mapping[str, str]) -> SecretForms:
        """Return the secrets of a project, but for those that are so short that they are words, and those just sent."""
        loaded, now = self._secrets.get(scope.project), time.monotonic()
        if loaded is None or now - loaded[0] > RULES_MAX_AGE_S:
            secrets = await self.vault.list_secrets(scope)
            known = {secret: token for secret, token in secrets.items() if len(secret) >= MIN_SECRET_CHARS}
            loaded = self._secrets[scope.project] = now, SecretForms(known)
        known = dict(loaded[1].secrets)
        new = {secret: token for token, secret in sent.items() if secret and secret not in known}
        return SecretForms(known | new) if new else loaded[1]

    async def hide_known(self, value: Any, secrets: SecretForms) -> Any:
        """Return a value with tokens in place of secrets."""
        if not secrets.secrets:
            return value
        return await run_in_thread(secrets.hide_in, value) if is_long(value) else secrets.hide_in(value)

    # --- rules --------------------------------------------------------------------------------------------------------

    async def _load_rules(self, scope: Scope) -> LoadedRules:
        """Return what to look for in a project: the names of people, a bounded number of them, and patterns."""
        loaded, now = self._rules.get(scope.project), time.monotonic()
        if loaded is not None and now - loaded.read_at < RULES_MAX_AGE_S:
            return loaded
        people = [person for person in await self.vault.list_people(scope, PERSON_TYPES) if _is_name(person.name)]
        names = self._names | {person.name for person in people}
        unmarked = {split_name(name) for name in self._names} | {split_name(p.name) for p in people if not p.private}
        marks = {split_name(person.name): person.private for person in people if person.private}
        marks = {key: private for key, private in marks.items() if key not in unmarked}
        loaded = LoadedRules(now, marks, PersonalRules(names, self._patterns))
        self._rules[scope.project] = loaded
        return loaded

    def forget_rules(self) -> None:
        """Read names and known values again at the next call."""
        self._rules.clear()
        self._secrets.clear()

    def _note_new_names(self, scope: Scope, values: Iterable[tuple[str, str]]) -> None:
        """Look for new names from now on, not only when the rules are read again."""
        loaded = self._rules.get(scope.project)
        if loaded is not None and any(kind == NAME and value not in loaded.rules.names for kind, value in values):
            self._rules.pop(scope.project, None)


def search_text(name: str, text: str, rules: PersonalRules, *, secrets: bool) -> HiddenText:
    """Search the text of a field; its name may tell what it holds."""
    if secrets:
        text = redact_field(name, text)[1] if name else redact(text).text
    matches = find_personal(text, rules)
    if not matches and name and len(text) <= MAX_FIELD_CHARS and any(map(str.isdigit, text)):
        label = f"{re.sub(r'(?<=[a-z])(?=[A-Z])|_', ' ', name[:60])}: "
        shifted = find_personal(label + text, rules)
        matches = [PersonalMatch(m.kind, m.start - len(label), m.end - len(label)) for m in shifted]
        matches = [match for match in matches if match.start >= 0]
    return HiddenText(text, matches)


def _is_inside(match: PersonalMatch, literal: tuple[int, int, str]) -> bool:
    return literal[0] <= match.start and match.end <= literal[1]


def _join_pieces(hidden: HiddenText, tokens: list[str]) -> str:
    pieces, done = [], 0
    for match, token in zip(hidden.matches, tokens, strict=True):
        pieces += [hidden.text[done : match.start], token]
        done = match.end
    return "".join([*pieces, hidden.text[done:]])


def _is_name(name: str) -> bool:
    """Return whether a name can be looked for: it is no token, and not so short that it is a word."""
    return len(name) >= 3 and "[" not in name


def _find_new_people(value: Any) -> frozenset[str]:
    """Return the names of entities in arguments that are said to be people."""
    names: list[str] = []
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, Mapping):
            kind, name = item.get("entityType"), item.get("name")
            if isinstance(kind, str) and isinstance(name, str) and kind.strip().casefold() in PERSON_TYPES:
                names.append(name)
            pending += item.values()
        elif isinstance(item, list | tuple):
            pending += item
    return frozenset(filter(_is_name, names))
