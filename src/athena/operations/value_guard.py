"""The values of a call on their way in and out: where privacy is on, each side sees what it may see.

`Operation.__call__` is the only way into an operation, so this is the one place where values cross: between models,
programs and people on one side, and texts in the store and tools of servers on the other.
"""

from collections import Counter
from functools import partial
from types import TracebackType
from typing import Any, Protocol

from athena.core.catalog import AnyOperation
from athena.core.operation import PEOPLE, CallerKind, Values
from athena.core.redaction.texts import MIN_SECRET_CHARS, SecretForms
from athena.core.values import Scope
from athena.errors import AthenaError, Denied
from athena.memory.store import Store
from athena.storage import vault_rows
from athena.storage.database import Transaction
from athena.storage.privacy_guard import PrivacyGuard

QUESTION_PARAMETERS = frozenset({"query", "queries", "phrase", "prompt", "question"})
SOURCE_PARAMETERS = frozenset({"code", "example"})  # hold programs
SPEAKING_PROGRAMS = frozenset({CallerKind.PROGRAM, CallerKind.MODEL})
FILE_PARAMETERS = frozenset({"path", "source"})  # of documents: they must lead to a file
MAX_WORDS_CHARS = 64_000  # of a server, in which values are looked for


class GuardedCaller(Protocol):
    """The parts of a context that decide what its caller may see."""

    @property
    def caller(self) -> CallerKind: ...

    @property
    def scope(self) -> Scope: ...

    @property
    def store(self) -> Store: ...


class CallValues:
    """The arguments of one call as its operation gets them, and its result as its caller gets it."""

    def __init__(
        self, ctx: GuardedCaller, guard: PrivacyGuard, operation: AnyOperation, arguments: dict[str, Any]
    ) -> None:
        self._ctx, self._guard, self._operation, self.arguments = ctx, guard, operation, arguments
        self.given = dict(arguments)  # as the caller wrote them
        self.secrets = SecretForms({})  # that this tool may answer with
        self._revealed: dict[str, str] = {}  # tokens by their values, which the operation got
        self.said_path = ""  # of a document, as the caller wrote it

    async def __aenter__(self) -> "CallValues":
        self._guard.require_current()
        if self._operation.values is Values.REAL:
            if self._guard.mode == "strict" and self._is_by_program:  # what a tool gives back may tell: each is a try
                self.arguments = await self._guard.hide(self._ctx.scope, self.arguments, secrets=False, by_program=True)
        elif not self._guard.is_on or self._operation.values is Values.AS_GIVEN:
            pass
        elif self._operation.values is Values.STORED or self._guard.mode == "strict":
            await self._admit_tokens()
        else:  # a program of the mode boundary works with values, but its workspace is stored under a name
            await self._guard.note_values(self._ctx.scope, self.arguments)
            if isinstance(workspace := self.arguments.get("workspace"), str):
                self.arguments["workspace"] = await self._guard.hide(self._ctx.scope, workspace)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, AthenaError):
            words = (error.args, error.hint, getattr(error, "__notes__", []))
            for forms in self._list_hidden_forms():
                words = await self._guard.hide_known(words, forms)
            error.args, error.hint, error.__notes__ = words
            if self._sees_tokens:
                await self._guard.hide_error(self._ctx.scope, error, from_store=self._answers_from_store)
        if self._ctx.caller is not CallerKind.PROGRAM:  # what a program gets stays here until it ends
            await self._guard.vault.make_durable()

    async def release(self, result: Any) -> Any:
        """Return a result as the caller may see it."""
        result = await self._guard.hide_known(result, self.secrets)
        if not self._guard.is_on or self._operation.values is Values.AS_GIVEN:
            return result
        if self._sees_tokens:
            # beside other letters no rule finds a value; a short one is a part of many words
            long = {value: token for value, token in self._revealed.items() if len(value) >= MIN_SECRET_CHARS}
            result = await self._guard.hide_known(result, SecretForms(long))
            mark = self._operation.private_mark
            return await self._guard.hide(self._ctx.scope, result, from_store=self._answers_from_store, private=mark)
        if self._operation.values is Values.STORED:
            return (await self._guard.reveal(self._ctx.scope, result))[0]
        await self._guard.note_values(self._ctx.scope, result)
        return result

    def hide_words(self, words: str) -> str:
        """Return what a server says without the values that it got; nobody may cut it before: a part is not recognized.

        Of a very long text only its length is left, since it would be cut to be searched.
        """
        searched = self._list_hidden_forms()
        if searched and len(words) > MAX_WORDS_CHARS:
            return f"a text of {len(words):,} characters"
        for forms in searched:
            words = forms.hide_in(words)
        return words

    def _list_hidden_forms(self) -> list[SecretForms]:
        """Return the values that the operation got and the caller may not see."""
        revealed = SecretForms(self._revealed if self._sees_tokens else {})
        return [forms for forms in (self.secrets, revealed) if forms.secrets]

    @property
    def _is_by_program(self) -> bool:
        """Return whether a program or a model says the arguments."""
        return self._ctx.caller in SPEAKING_PROGRAMS

    @property
    def _answers_from_store(self) -> bool:
        """Return whether all that the operation answers comes from the store or a program, none of it from a server."""
        return self._operation.values is not Values.REAL

    @property
    def _sees_tokens(self) -> bool:
        """Return whether the caller may not see real values."""
        if not self._guard.is_on:
            return False
        if self._ctx.caller is CallerKind.PROGRAM:
            return self._guard.mode == "strict"
        return self._ctx.caller not in PEOPLE or self._operation.values is Values.PROGRAM

    async def _admit_tokens(self) -> None:
        """Replace personal values in the arguments by tokens; the operation itself looks for secrets."""
        ctx, guard = self._ctx, self._guard
        unchanged = FILE_PARAMETERS if self._operation.category == "documents" else frozenset[str]()
        sources = {
            name: await guard.hide_source(ctx.scope, value, by_program=self._is_by_program)
            for name, value in self.arguments.items()
            if name in SOURCE_PARAMETERS and isinstance(value, str)
        }
        paths = {name: value for name, value in self.arguments.items() if name in unchanged}
        if ctx.caller in PEOPLE:
            self.arguments |= (await guard.reveal(ctx.scope, paths))[0]
        elif isinstance(path := paths.get("path"), str):  # a source is stored with tokens
            self.said_path = path
            self.arguments["path"] = await guard.reveal_path(ctx.scope, path, self._revealed)
        others = {name: value for name, value in self.arguments.items() if name not in unchanged | sources.keys()}
        self.arguments |= sources
        self.arguments |= await guard.hide(
            ctx.scope,
            others,
            secrets=False,
            every_spelling=QUESTION_PARAMETERS & frozenset(self.arguments),
            by_program=self._is_by_program,
        )

    async def resolve(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return checked arguments with the values behind tokens, if the tool may receive their kinds; count them.

        Nobody checks them again: an error would tell of values that the caller may not see. The server does.
        """
        ctx, guard, tool = self._ctx, self._guard, self._operation.name
        kinds: Counter[str] = Counter()
        if guard.is_on:
            arguments, kinds = await guard.reveal(ctx.scope, arguments, self._revealed)
            kinds |= await guard.count_kinds(ctx.scope, arguments, by_program=self._is_by_program)
            allowed = self._operation.received_kinds
            if allowed is not None and (refused := sorted(kinds.keys() - allowed)):
                raise Denied(
                    f"{tool} may not receive {', '.join(refused)}",
                    hint=f"a person decides: athena servers privacy {self._operation.category} --receives",
                )
        arguments, sent = await guard.reveal_secrets(ctx.scope, arguments, tool)
        self.secrets = await guard.load_secrets(ctx.scope, sent)  # it may know one from an earlier call
        kinds["SECRET"] += len(sent)
        if counted := {kind: count for kind, count in kinds.items() if count}:
            # who received what: kinds and counts, no values
            work = partial(_count_disclosures, ctx.scope, ctx.store.clock(), tool, counted)
            ctx.store.database.defer_write(work)
        return arguments


async def _count_disclosures(scope: Scope, now: float, tool: str, kinds: dict[str, int], tx: Transaction) -> None:
    await vault_rows.add_disclosures(tx, scope, now, tool, kinds)
