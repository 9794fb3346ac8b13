"""Find personal data, put tokens in its place, and see who received it."""

from collections import Counter
from dataclasses import dataclass
from typing import Annotated

from athena.core.operation import EVERYONE, Effect, Values, operation
from athena.core.redaction import find_secrets, redact
from athena.core.threads import run_in_thread
from athena.core.types import Param
from athena.operations.context import Context
from athena.operations.value_guard import SPEAKING_PROGRAMS
from athena.storage import scopes, vault_rows
from athena.storage.database import Transaction
from athena.storage.privacy_guard import PrivacyMode
from athena.storage.vault_rows import Disclosure

MAX_TEXT_CHARS = 1_000_000
AnyText = Annotated[str, Param("The text to search.", most=MAX_TEXT_CHARS)]


@dataclass(frozen=True, slots=True)
class PersonalData:
    """The place of a personal value or a secret in a text."""

    kind: str  # such as EMAIL; of a secret SECRET:kind
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Tokenized:
    text: str
    kinds: dict[str, int]  # how many values of each kind were replaced


@dataclass(frozen=True, slots=True)
class TokenEntry:
    token: str
    kind: str
    created: float
    forgotten: bool
    allowed: tuple[str, ...]  # of a secret: the servers and tools that may receive it


@dataclass(frozen=True, slots=True)
class Received:
    server: str
    tool: str
    kind: str
    sent: int  # values
    last_day: int  # days since 1970


@dataclass(frozen=True, slots=True)
class PrivacyReport:
    mode: PrivacyMode
    tokens: dict[str, int]  # tokens of this project and of `user`, by kind
    received: tuple[Received, ...]  # personal values that tools of servers were given


@operation(
    Effect.READ,
    callers=EVERYONE,
    values=Values.AS_GIVEN,
    short="detect",
    asks="is there personal data in this text; find the email addresses and phone numbers; does this contain "
    "sensitive information; check the text for pii; look for secrets in it",
)
async def detect_pii(ctx: Context, text: AnyText) -> list[PersonalData]:
    """Find personal data and secrets in a text: kind, start and end of each.

    Names are found only where you listed them or the graph knows a person of that name.

    >>> privacy.detect_pii(text="write to ada@example.com")
    """
    personal = await ctx.required_guard.find(ctx.scope, text, by_program=ctx.caller in SPEAKING_PROGRAMS)
    matches = [PersonalData(*match) for match in personal]
    secrets = await run_in_thread(find_secrets, text)
    matches += [PersonalData(f"SECRET:{match.kind}", match.start, match.end) for match in secrets]
    return sorted(matches, key=lambda match: match.start)


@operation(
    Effect.WRITE,
    callers=EVERYONE,
    values=Values.AS_GIVEN,
    asks="replace the personal data by tokens; anonymize this text; pseudonymize it; mask the addresses and phone "
    "numbers; make the text safe to share",
)
async def tokenize(ctx: Context, text: AnyText) -> Tokenized:
    """Replace personal values in a text by tokens of this project, and secrets by placeholders.

    The same value gets the same token every time; the vault keeps the values, encrypted.

    >>> privacy.tokenize(text="write to ada@example.com")
    """
    guard, by_program = ctx.required_guard, ctx.caller in SPEAKING_PROGRAMS
    kinds = await guard.count_kinds(ctx.scope, text, by_program=by_program)
    kinds += Counter(f"SECRET:{kind}" for kind in (await run_in_thread(redact, text)).kinds)
    return Tokenized(str(await guard.hide(ctx.scope, text, by_program=by_program)), dict(kinds))


@operation(
    Effect.READ,
    callers=EVERYONE,
    values=Values.AS_GIVEN,
    asks="which tokens are there; list the placeholders for personal data; what does the vault hold; which secrets "
    "can a program use by name",
)
async def list_tokens(ctx: Context) -> list[TokenEntry]:
    """List the tokens of this project, without their values, and the secrets that tools can receive by name.

    >>> privacy.list_tokens()
    """
    return [TokenEntry(*info) for info in await ctx.required_guard.vault.list_tokens(ctx.scope)]


@operation(
    Effect.READ,
    callers=EVERYONE,
    values=Values.AS_GIVEN,
    short="report",
    asks="who received personal data; which server got email addresses; privacy report; audit of what left; how much "
    "personal data was sent to tools",
)
async def privacy_report(ctx: Context) -> PrivacyReport:
    """Report the mode of privacy, the tokens by kind, and which tools received how many values of each kind.

    >>> privacy.privacy_report()
    """

    async def read(tx: Transaction) -> tuple[dict[str, int], list[Disclosure]]:
        scope_ids = await scopes.fetch_visible_ids(tx, ctx.scope.with_kind("memory"))
        return await vault_rows.count_kinds(tx, scope_ids), await vault_rows.list_disclosures(tx, scope_ids)

    kinds, received = await ctx.database.read(read)
    return PrivacyReport(ctx.required_guard.mode, kinds, tuple(Received(*row) for row in received))
