"""The vault: personal values and secrets, encrypted, each behind a token that means something in its project only.

Values are encrypted with AES-256-GCM, and bound to their project and token. The key is a file outside of the folder of
the database. Nothing is cached: a value that was forgotten resolves nowhere from the next call on.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from functools import partial
from typing import NamedTuple

from athena.core.clock import Clock
from athena.core.redaction.personal import strip_number
from athena.core.redaction.personal_values import BIRTH_DATE, EMAIL, NAME, NATIONAL_ID, PHONE
from athena.core.threads import check_stopped, run_in_thread
from athena.core.values import Scope
from athena.errors import Denied, InvalidInput, LimitExceeded, NotFound, Unavailable
from athena.storage import privacy, runs, scopes, vault_rows, workspaces
from athena.storage.database import Database, Transaction
from athena.storage.vault_keys import RECEIPTS_KEY, Cipher, KeyFolder, derive_key
from athena.storage.vault_rows import PersonName, VaultRow

MAX_SECRET_CHARS = 100_000
SECRET_KIND = "SECRET"  # of what a person put there by name
# Numbers that are found by a word beside them, or the name of their field: later they may stand alone.
CUED_KINDS = (BIRTH_DATE, NATIONAL_ID, PHONE)
MAX_PEOPLE = 2_000  # names of people that are looked for, of each source
HOUR_S = 3_600
# New values that programs and models may say in an hour, in one project: each is a row, and a try in the mode strict.
MAX_SAID_PER_HOUR, MAX_SAID_PER_HOUR_STRICT = 50_000, 200
SAID, SAID_APART, SHOWN_APART = 1, 2, 3
LOOKUP_BATCH = 20_000
NAME_PATTERN = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
Token = tuple[str, int]  # kind and number


class TokenInfo(NamedTuple):
    """A token, without its value."""

    token: str
    kind: str
    created: float
    is_forgotten: bool
    allowed: tuple[str, ...]  # of a secret: the servers and tools that may receive it


def to_spelling(kind: str, value: str) -> str:
    """Return what all spellings of a value have in common."""
    if kind in (EMAIL, NAME):
        return " ".join(value.casefold().split())
    return strip_number(value) if kind in CUED_KINDS else "".join(filter(str.isalnum, value)).casefold()


def _hash_spelling(cipher: Cipher, scope: int, kind: str, value: str) -> bytes:
    # a number is looked up before its kind is known
    return cipher.hash("spelling", scope, "NUMBER" if kind in CUED_KINDS else kind, to_spelling(kind, value))


def _name_lookup(kind: str, said: int) -> str:
    """Return under which name a value is hashed: a guessed one does not get the token of somebody else's.

    An address that a program says does, at the price of a try; one that it puts together in the store does not.
    """
    shared = {SAID_APART: (EMAIL, NAME), SHOWN_APART: (NAME,)}.get(said)
    return "lookup" if shared is None or kind in shared else "said"


def _hash_numbers(cipher: Cipher, scope_ids: Sequence[int], numbers: Sequence[str]) -> dict[bytes, str]:
    return {_hash_spelling(cipher, scope, PHONE, number): number for number in numbers for scope in scope_ids}


class Vault:
    """The values of one store. `keys` holds the key; a new one is created with the first value.

    `identify_server` tells which server has a name now: whoever gets the name later is another one.
    """

    def __init__(
        self, database: Database, clock: Clock, keys: KeyFolder, identify_server: Callable[[str], str]
    ) -> None:
        self._database, self._clock, self.keys, self._identify_server = database, clock, keys, identify_server
        self._ciphers: dict[str, Cipher] = {}
        self._first_key = ""
        self._writes = [0, 0]  # that assigned tokens, and how many of them are durable; shared by the views of all runs

    # --- values and tokens --------------------------------------------------------------------------------------------

    def with_database(self, database: Database) -> "Vault":
        """Return this vault as a run sees it: what it reads marks the run, what it adds has the marks of the run."""
        vault = copy(self)
        vault._database = database
        return vault

    async def assign_tokens(
        self, scope: Scope, values: Iterable[tuple[str, str]], *, said: int = 0, private: str = ""
    ) -> dict[tuple[str, str], str]:
        """Return the token of each kind and value; new ones get the next numbers, and private marks."""
        wanted = list(dict.fromkeys(values))
        if not wanted:
            return {}
        known = await self._database.read(lambda tx: self._find_tokens(tx, scope, wanted, said))
        if missing := [pair for pair in wanted if pair not in known]:
            # not synced by itself: a text with the token is written later, and so is never durable without it
            database = self._database.deferred_sync
            known |= await database.write(lambda tx: self._insert_values(tx, scope, missing, said, private))
            self._writes[0] += 1
        return known

    async def make_durable(self) -> None:
        """Sync the tokens of before: one that was shown, and lost with the power, would be given to another value."""
        written, durable = self._writes
        if durable < written:
            await self._database.sync()
            self._writes[1] = max(written, self._writes[1])

    async def find_spellings(self, scope: Scope, values: Iterable[tuple[str, str]]) -> dict[tuple[str, str], list[str]]:
        """Return all tokens of each value that is known, whatever its spelling, in the project and in `user`."""
        wanted = list(values)

        async def read(tx: Transaction) -> dict[tuple[str, str], list[str]]:
            cipher = await self._load_cipher(tx)
            scope_ids = await scopes.fetch_visible_ids(tx, scope.with_kind("memory"))
            if cipher is None:
                return {}
            hashes = {
                _hash_spelling(cipher, scope_id, kind, value): (kind, value)
                for kind, value in wanted
                for scope_id in scope_ids
            }
            found: dict[tuple[str, str], list[str]] = {}
            for row in await vault_rows.find_by_spelling(tx, scope_ids, hashes):
                if row.spelling is not None:
                    found.setdefault(hashes[row.spelling], []).append(format_token(row.kind, row.number))
            return found

        return await self._database.read(read)

    async def resolve_tokens(self, scope: Scope, tokens: Iterable[Token]) -> dict[str, str]:
        """Return the value of each token that this project or `user` has; others are left out."""
        wanted = list(dict.fromkeys(tokens))
        if not wanted:
            return {}

        async def read(tx: Transaction) -> dict[str, str]:
            scope_ids = await scopes.fetch_visible_ids(tx, scope.with_kind("memory"))
            rows = await vault_rows.find_by_token(tx, scope_ids, wanted)
            return {format_token(row.kind, row.number): self._decrypt(row) for row in rows if _is_personal(row)}

        return await self._database.read(read)

    async def find_numbers(self, scope: Scope, numbers: Iterable[str], *, said: bool) -> dict[str, str]:
        """Return the kinds of those bare numbers that the vault has; `said`: only what programs and models said."""
        cipher, scope_ids = await self._database.read(lambda tx: self._load_cipher_and_scopes(tx, scope))
        if cipher is None or not scope_ids:
            return {}
        wanted, known = list(numbers), dict[str, str]()
        for first in range(0, len(wanted), LOOKUP_BATCH):
            check_stopped()
            hashes = await run_in_thread(_hash_numbers, cipher, scope_ids, wanted[first : first + LOOKUP_BATCH])
            rows = await self._database.read(
                partial(vault_rows.find_by_spelling, scope_ids=scope_ids, spellings=hashes)
            )
            for row in rows:
                if row.spelling is not None and (row.said in (SAID, SAID_APART) or not said):
                    known[hashes[row.spelling]] = row.kind
        return known

    async def list_people(self, scope: Scope, types: Sequence[str]) -> list[PersonName]:
        """Return the names of people to look for: those in the vault, and entities; a bounded number."""

        async def read(tx: Transaction) -> tuple[list[VaultRow], list[PersonName]]:
            own_ids = await scopes.fetch_visible_ids(tx, scope.with_kind("memory"))
            entity_ids = await scopes.fetch_visible_ids(tx, scope.with_kind("entity"))
            rows = await vault_rows.list_names(tx, own_ids, NAME, MAX_PEOPLE)
            return rows, await vault_rows.list_person_names(tx, entity_ids, types, MAX_PEOPLE)

        rows, people = await self._database.read(read)
        return [*await run_in_thread(lambda: [PersonName(self._decrypt(row), row.private) for row in rows]), *people]

    async def note_marks(self, marks: str) -> None:
        """Mark the run that was told something which these marks belong to."""

        async def note(tx: Transaction) -> None:
            privacy.note_read(marks)

        await self._database.read(note)

    async def _load_cipher_and_scopes(self, tx: Transaction, scope: Scope) -> tuple[Cipher | None, list[int]]:
        return await self._load_cipher(tx), await scopes.fetch_visible_ids(tx, scope.with_kind("memory"))

    async def list_tokens(self, scope: Scope) -> list[TokenInfo]:
        """Return every token of the project and of `user`, without values."""

        async def read(tx: Transaction) -> list[TokenInfo]:
            scope_ids = await scopes.fetch_visible_ids(tx, scope.with_kind("memory"))
            return [_describe_row(row) for row in await vault_rows.list_rows(tx, scope_ids)]

        return await self._database.read(read)

    async def _find_tokens(
        self, tx: Transaction, scope: Scope, wanted: Sequence[tuple[str, str]], said: int
    ) -> dict[tuple[str, str], str]:
        """Return the tokens that this project, else `user`, has for values."""
        cipher = await self._load_cipher(tx)
        if cipher is None:
            return {}
        scope_ids = await scopes.fetch_visible_ids(tx, scope.with_kind("memory"))
        hashes = {
            cipher.hash(_name_lookup(kind, said), scope_id, kind, value): (kind, value)
            for kind, value in wanted
            for scope_id in scope_ids
        }
        found: dict[tuple[str, str], str] = {}
        rows = await vault_rows.find_by_lookup(tx, scope_ids, hashes)
        for row in sorted(rows, key=lambda row: -scope_ids.index(row.scope)):  # the project's own comes last and counts
            if row.lookup is not None:
                found[hashes[row.lookup]] = format_token(row.kind, row.number)
        return found

    async def _insert_values(
        self, tx: Transaction, scope: Scope, missing: Sequence[tuple[str, str]], said: int, private: str
    ) -> dict[tuple[str, str], str]:
        cipher = await self._ensure_cipher(tx)
        scope_id = await scopes.ensure_scope(tx, scope.with_kind("memory"))
        if said:
            await self._check_said(tx, scope_id, len(missing), said)
        marks = privacy.add_current_marks(private)
        by_kind: dict[str, list[str]] = {}
        for kind, value in missing:
            by_kind.setdefault(kind, []).append(value)
        for kind, values in by_kind.items():
            first = await vault_rows.allocate_numbers(tx, kind, len(values))
            new = (
                self._create_row(cipher, scope_id, kind, number, value, said)._replace(private=marks)
                for number, value in enumerate(values, first)
            )
            await vault_rows.insert_rows(tx, new)
        return await self._find_tokens(tx, scope, missing, said)  # another process may have added some first

    async def _check_said(self, tx: Transaction, scope_id: int, count: int, said: int) -> None:
        most = MAX_SAID_PER_HOUR_STRICT if said == SAID_APART else MAX_SAID_PER_HOUR
        if count + await vault_rows.count_said(tx, scope_id, said, self._clock() - HOUR_S) > most:
            verb = "read" if said == SHOWN_APART else "say"
            raise LimitExceeded(
                f"programs and models may {verb} {most:,} new personal values in an hour in this project",
                hint="pass tokens, which tools turn into values; or let a person do it",
            )

    def _create_row(self, cipher: Cipher, scope: int, kind: str, number: int, value: str, said: int = 0) -> VaultRow:
        return VaultRow(
            scope,
            kind,
            number,
            "",
            "",
            cipher.key,
            cipher.hash(_name_lookup(kind, said), scope, kind, value),
            _hash_spelling(cipher, scope, kind, value),
            cipher.encrypt(scope, kind, number, value),
            self._clock(),
            said=said,
        )

    # --- secrets by name ----------------------------------------------------------------------------------------------

    async def put_secret(self, scope: Scope, name: str, value: str, allowed: Iterable[str]) -> TokenInfo:
        """Store a secret under a name; one that is there is replaced. `allowed` are servers and tools."""
        if not NAME_PATTERN.fullmatch(name):
            raise InvalidInput(
                f"{name!r:.60} is no name for a secret", hint="a letter, then letters, digits and _, at most 64"
            )
        if not value or len(value) > MAX_SECRET_CHARS:
            raise InvalidInput(f"a secret has 1 to {MAX_SECRET_CHARS:,} characters", hint="type it, or pipe it in")
        receivers = " ".join(self.bind_receivers(allowed))

        async def write(tx: Transaction) -> VaultRow:
            cipher = await self._ensure_cipher(tx)
            scope_id = await scopes.ensure_scope(tx, scope.with_kind("memory"))
            rows = await vault_rows.find_by_name(tx, [scope_id], [name])
            number = rows[0].number if rows else await vault_rows.allocate_numbers(tx, SECRET_KIND, 1)
            row = VaultRow(
                scope_id,
                SECRET_KIND,
                number,
                name,
                receivers,
                cipher.key,
                None,
                None,
                cipher.encrypt(scope_id, SECRET_KIND, number, value),
                self._clock(),
            )
            await (vault_rows.update_row(tx, row) if rows else vault_rows.insert_rows(tx, [row]))
            return row

        return _describe_row(await self._database.write(write))

    def bind_receivers(self, receivers: Iterable[str]) -> list[str]:
        """Return servers and tools with the identity of each server as it is now; those that have one stay."""
        wanted = dict.fromkeys(receivers)
        return [name if "@" in name else f"{name}@{self._identify_server(name.partition('.')[0])}" for name in wanted]

    async def withdraw_leave(self, server: str) -> None:
        """Let a server receive no secret of any project any more."""
        await self._database.write(lambda tx: vault_rows.remove_receiver(tx, server))

    async def resolve_secrets(self, scope: Scope, names: Iterable[str], tool: str) -> dict[str, str]:
        """Return the values of secrets by their tokens, for one tool; a secret that it may not receive is refused."""
        wanted = list(dict.fromkeys(names))
        receivers = {*self.bind_receivers([tool, tool.partition(".")[0]])}

        async def read(tx: Transaction) -> dict[str, str]:
            scope_ids = await scopes.fetch_visible_ids(tx, scope.with_kind("memory"))
            rows = {row.name: row for row in reversed(await vault_rows.find_by_name(tx, scope_ids, wanted))}
            values: dict[str, str] = {}
            for name in wanted:
                row = rows.get(name)
                if row is None or row.value is None:
                    continue
                if receivers.isdisjoint(row.allowed.split()):
                    raise Denied(
                        f"{tool} may not receive the secret {name}",
                        hint=f"a person allows it: athena vault allow {name} {tool}",
                    )
                values[f"[VAULT:{name}]"] = self._decrypt(row)
            return values

        return await self._database.read(read)

    async def allow_secret(self, scope: Scope, name: str, receivers: Iterable[str]) -> TokenInfo:
        """Let servers or tools receive a secret, in place of those that may now."""
        listed = " ".join(self.bind_receivers(receivers))

        async def write(tx: Transaction) -> VaultRow:
            [row] = await self._require_secret(tx, scope, name)
            await vault_rows.update_row(tx, row._replace(allowed=listed))
            return row._replace(allowed=listed)

        return _describe_row(await self._database.write(write))

    async def list_secrets(self, scope: Scope) -> dict[str, str]:
        """Return the secrets that this project and `user` have by name, each with its token; both may have one name."""

        async def read(tx: Transaction) -> dict[str, str]:
            scope_ids = await scopes.fetch_visible_ids(tx, scope.with_kind("memory"))
            rows = await vault_rows.list_rows(tx, scope_ids, [SECRET_KIND])
            return {self._decrypt(row): f"[VAULT:{row.name}]" for row in rows if row.name and row.value is not None}

        return await self._database.read(read)

    async def _require_secret(self, tx: Transaction, scope: Scope, name: str) -> list[VaultRow]:
        own = await scopes.fetch_own_ids(tx, scope.with_kind("memory"))
        rows = await vault_rows.find_by_name(tx, own, [name])
        if not rows:
            raise NotFound(f"there is no secret {name!r:.60} in this project", hint="athena vault lists them")
        return rows

    # --- forgetting and keys ------------------------------------------------------------------------------------------

    async def forget(self, scope: Scope, token: str) -> str:
        """Forget the value of a token, or a secret by its name, and return the token; the number is not used again.

        Programs may have the value in variables, or wait with it for an approval: of this project both are deleted.
        The file is rewritten, so that not even the encrypted value is left.
        """

        async def write(tx: Transaction) -> VaultRow:
            if (parsed := parse_token(token)) is None:
                [row] = await self._require_secret(tx, scope, token.removeprefix("[VAULT:").removesuffix("]"))
            else:
                own = await scopes.fetch_own_ids(tx, scope.with_kind("memory"))
                rows = await vault_rows.find_by_token(tx, own, [parsed])
                if not rows or rows[0].value is None:
                    raise NotFound(f"there is no value behind {token!r:.60} in this project", hint="athena vault")
                row = rows[0]
            gone = row._replace(name="", allowed="", lookup=None, spelling=None, value=None)
            await vault_rows.update_row(tx, gone)
            if not row.name:  # programs never see a secret by name
                await workspaces.delete_workspaces(tx, scope)
                await runs.clear_run_contents(tx, scope)
            return row

        row = await self._database.write(write)
        if not await self._database.compact():
            raise Unavailable(
                f"{token!r:.60} is forgotten, but another process still reads the store's files as they were",
                hint="close it, and run: athena vault rotate",
            )
        return f"[VAULT:{row.name}]" if row.name else format_token(row.kind, row.number)

    async def show(self, scope: Scope, token: str) -> str:
        """Return the value of a token or of a secret; for people."""

        async def read(tx: Transaction) -> str:
            scope_ids = await scopes.fetch_visible_ids(tx, scope.with_kind("memory"))
            if (parsed := parse_token(token)) is None:
                name = token.removeprefix("[VAULT:").removesuffix("]")
                rows = await vault_rows.find_by_name(tx, scope_ids, [name])
            else:
                rows = await vault_rows.find_by_token(tx, scope_ids, [parsed])
            if not rows or rows[0].value is None:
                raise NotFound(f"there is no value behind {token!r:.60} in this project", hint="athena vault")
            return self._decrypt(rows[0])

        return await self._database.read(read)

    async def rotate_key(self) -> int:
        """Encrypt every value with a new key and delete the old one; return how many there are.

        Backups from before cannot be read any more: neither their values nor those that were forgotten since.
        """
        new_key, is_written = self.keys.create(), False
        old_keys: set[str] = set()

        async def write(tx: Transaction) -> int:
            nonlocal is_written
            is_written = False
            await vault_rows.claim_keys(tx)
            cipher = Cipher(new_key, self.keys.read(new_key))
            rows = await vault_rows.list_readable_rows(tx)
            for row in rows:
                old_keys.add(row.key)
                value = self._decrypt(row)
                new = self._create_row(cipher, row.scope, row.kind, row.number, value, row.said)
                if row.name:
                    new = new._replace(name=row.name, allowed=row.allowed, lookup=None, spelling=None)
                await vault_rows.update_row(tx, new._replace(created=row.created, private=row.private))
            if (current := await vault_rows.fetch_current_key(tx)) is not None:
                old_keys.add(current)
            await vault_rows.delete_other_keys(tx, "")
            await vault_rows.insert_key(tx, new_key, self._clock())
            is_written = True  # from here on it may be committed, whatever becomes of the answer
            return len(rows)

        try:
            count = await self._database.write(write)
        except Exception:
            if not is_written:
                self.keys.delete(new_key)
            raise
        for key in old_keys - await self._database.read(vault_rows.list_used_keys):
            self.keys.delete(key)
        self.keys.delete(RECEIPTS_KEY)  # values that were forgotten can be guessed no more, either
        return count

    async def derive_program_key(self) -> bytes:
        """Return the key that encrypts the variables of programs."""

        async def write(tx: Transaction) -> str:
            return (await self._ensure_cipher(tx)).key

        current = await self._database.read(vault_rows.fetch_current_key)
        if current is None:
            current = await self._database.write(write)
        return derive_key(self.keys.read(current), b"programs")

    async def _load_cipher(self, tx: Transaction) -> Cipher | None:
        key = await vault_rows.fetch_current_key(tx)
        return None if key is None else self._get_cipher(key)

    async def _ensure_cipher(self, tx: Transaction) -> Cipher:
        await vault_rows.claim_keys(tx)
        if (cipher := await self._load_cipher(tx)) is not None:
            return cipher
        self._first_key = self._first_key or self.keys.create()  # the transaction may run twice
        await vault_rows.insert_key(tx, self._first_key, self._clock())
        return self._get_cipher(self._first_key)

    def _get_cipher(self, key: str) -> Cipher:
        if key not in self._ciphers:
            self._ciphers[key] = Cipher(key, self.keys.read(key))
        return self._ciphers[key]

    def _decrypt(self, row: VaultRow) -> str:
        return self._get_cipher(row.key).decrypt(row)


def format_token(kind: str, number: int) -> str:
    return f"[{kind}_{number}]"


def parse_token(text: str) -> Token | None:
    """Return the kind and the number of a token, with or without its brackets."""
    match = re.fullmatch(r"\[?([A-Z][A-Z0-9_]{0,39})_([1-9][0-9]{0,14})\]?", text.strip(), re.ASCII)
    return (match[1], int(match[2])) if match else None


def _is_personal(row: VaultRow) -> bool:
    """Return whether a row still has a value, and one that tokens of texts stand for: no secret by name."""
    return row.value is not None and not row.name


def _describe_row(row: VaultRow) -> TokenInfo:
    token = f"[VAULT:{row.name}]" if row.name else format_token(row.kind, row.number)
    receivers = tuple(name for name, _, identity in (one.partition("@") for one in row.allowed.split()) if identity)
    return TokenInfo(token, row.kind, row.created, row.value is None, receivers)
