"""Store records that were read from a file: memories with their times, tags and links, and entities.

What is known already stays as it is, so the same file again adds nothing. Without a person's trust nothing of the file
is merged into it, and no link touches it, unless it was an import that brought it. All changes belong to one call,
which `undo` takes back together.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, cast, get_args

from athena.core import clock
from athena.core.values import Author, Call, Scope
from athena.errors import InvalidInput
from athena.memory import history_rows, inputs, link_rows, rows
from athena.memory.graph import rows as graph_rows
from athena.memory.graph.entities import open_nodes, to_entity_key
from athena.memory.graph.observations import create_entity
from athena.memory.graph.relations import create_relations
from athena.memory.graph.values import NewEntity, NewRelation
from athena.memory.prepare import PreparedMemory, add_vectors, prepare_memory
from athena.memory.remember import WriteContext, upsert_memory
from athena.memory.rows import CONTRADICTED_BY, RESERVED_RELATIONS, MemoryRow
from athena.memory.store import Store
from athena.storage import calls, scopes
from athena.storage.database import Database, Transaction
from athena.storage.privacy import PrivateReads, WatchedDatabase, check_marks

BATCH_MEMORIES, BATCH_CHARS = 64, 400_000  # stored in one transaction, at most
MAX_LISTED_SKIPS = 1_000


class ImportedLink(NamedTuple):
    relation: str
    hash: str  # of the other memory, as the file names it
    at: float | None = None


@dataclass(frozen=True, slots=True)
class ImportedMemory:
    """A memory as a file has it; `where` names its place there, and `hash` what links in the file call it."""

    where: str
    content: str
    tags: tuple[str, ...] = ()
    memory_type: str = "note"
    metadata: dict[str, Any] = field(default_factory=dict)
    importance: float = 0.5
    created: float | None = None
    updated: float | None = None
    author: Author = "agent"
    private: str = ""
    project: str | None = None  # None: that of the call
    hash: str = ""
    links: tuple[ImportedLink, ...] = ()


@dataclass(frozen=True, slots=True)
class ImportedEntity:
    """An entity as a file has it; without a type it is only the name that relations begin at."""

    where: str
    name: str
    entity_type: str | None
    observations: tuple[str, ...] = ()
    metadata: dict[str, Any] = field(default_factory=dict)
    relations: tuple[NewRelation, ...] = ()
    created: float | None = None
    project: str | None = None
    private: str = ""


class SkippedRecord(NamedTuple):
    where: str
    reason: str


Record = ImportedMemory | ImportedEntity | SkippedRecord


@dataclass(slots=True)
class ImportReport:
    """What an import did, or with a dry run would do."""

    memories: int = 0  # new ones
    known: int = 0  # memories that were there already
    entities: int = 0
    observations: int = 0
    relations: int = 0
    skipped: list[str] = field(default_factory=list)  # each with the reason; the first ones
    skipped_count: int = 0
    redacted: list[str] = field(default_factory=list)  # the kinds of secrets that were removed

    def add_skip(self, where: str, reason: str) -> None:
        self.skipped_count += 1
        if len(self.skipped) < MAX_LISTED_SKIPS:
            self.skipped.append(f"{where}: {reason}")


HideValues = Callable[[Scope, Any], Awaitable[Any]]  # takes the project, and returns a value as it may be stored


class PendingLink(NamedTuple):
    memory: int
    scope: Scope
    link: ImportedLink


class RecordImport:
    """One run that stores the records of a file."""

    def __init__(
        self,
        store: Store,
        call: Call,
        *,
        dry_run: bool = False,
        is_trusted: bool = False,
        on_stored: Callable[[int], None] = lambda _: None,
        hide: HideValues | None = None,
    ) -> None:
        """Begin an import; unless it `is_trusted`, no text becomes a person's, and all goes to the call's project."""
        self.report = ImportReport()
        self._store, self._call, self._dry_run, self._on_stored = store, call, dry_run, on_stored
        self._hide, self._is_trusted = hide, is_trusted
        self._now = store.clock()
        self._links: list[PendingLink] = []
        self._dry_names: set[tuple[Scope, str]] = set()  # of the entities that a dry run has counted
        self._ids: dict[tuple[Scope, str], int] = {}  # by the file's hash, where the stored text has another one

    async def store_records(self, records: Iterable[Record]) -> ImportReport:
        """Store records in batches; return what was new, known or could not be taken."""
        for batch in _batch_records(records):
            batch = [await self._hide_values(record) for record in batch]
            first = batch[0]
            if isinstance(first, ImportedMemory):
                await self._store_memories(self._get_scope(first), [m for m in batch if isinstance(m, ImportedMemory)])
            elif isinstance(first, ImportedEntity):
                await self._store_entity(first)
            else:
                self.report.add_skip(*first)
            self._on_stored(len(batch))
        await self._store_links()
        return self.report

    async def _hide_values(self, record: Record) -> Record:
        """Return a record with tokens in place of personal values, where texts in the store hold tokens."""
        if self._hide is None or not isinstance(record, ImportedMemory | ImportedEntity):
            return record
        hidden: ImportedMemory | ImportedEntity = await self._hide(self._get_scope(record), record)
        return replace(hidden, project=record.project)

    def _get_scope(self, record: ImportedMemory | ImportedEntity) -> Scope:
        own = record.project is None or not self._is_trusted
        return self._call.scope if own else Scope.from_name(record.project)

    # --- memories -----------------------------------------------------------------------------------------------------

    async def _store_memories(self, scope: Scope, batch: list[ImportedMemory]) -> None:
        prepared: list[tuple[ImportedMemory, PreparedMemory]] = []
        for record in batch:
            try:
                item = await inputs.clean_long(len(record.content), self._prepare_memory, record)
            except InvalidInput as error:
                self.report.add_skip(record.where, str(error))
            else:
                prepared.append((record, item))
                self.report.redacted += item.draft.redacted

        async def read_digests(tx: Transaction) -> tuple[set[str], set[str]]:
            visible = await scopes.fetch_visible_ids(tx, scope)
            digests = [item.digest for _, item in prepared]
            known = await rows.find_known_digests(tx, scope, digests)
            return known, await history_rows.find_forgotten_digests(tx, visible, digests) - known

        known, forgotten = await self._store.database.read(read_digests)
        for record, item in prepared:
            if item.digest in forgotten:
                self.report.add_skip(record.where, "it was forgotten here; athena remember stores it again")
        prepared = [pair for pair in prepared if pair[1].digest not in forgotten]
        if self._dry_run:
            new = {item.digest for _, item in prepared} - known
            self.report.memories += len(new)
            self.report.known += len(prepared) - len(new)
            return
        items = await add_vectors(self._store.encoder, [item for _, item in prepared], known)
        call_id = await self._record_call()

        async def write_batch(tx: Transaction) -> list[tuple[int, str]]:
            scope_id = await scopes.ensure_scope(tx, scope)
            pairs = zip([record for record, _ in prepared], items, strict=True)
            return [await self._store_memory(tx, scope_id, call_id, record, item) for record, item in pairs]

        outcomes = await self._store.database.write(write_batch)
        for (record, item), (memory_id, outcome) in zip(prepared, outcomes, strict=True):
            self.report.memories += outcome != "known"
            self.report.known += outcome == "known"
            self._links += [PendingLink(memory_id, scope, link) for link in record.links]
            if record.hash and not item.digest.startswith(record.hash):
                self._ids[scope, record.hash] = memory_id

    def _prepare_memory(self, record: ImportedMemory) -> PreparedMemory:
        if not 0 <= record.importance <= 1:
            raise InvalidInput("importance must be from 0 to 1")
        _check_times(record.created, record.updated, *(link.at for link in record.links))
        check_marks(record.private)
        if record.author not in get_args(Author):
            raise InvalidInput(f"there is no author {record.author!r:.40}")
        draft = inputs.create_draft(record.content, record.tags, record.memory_type, record.metadata, record.importance)
        created = self._now if record.created is None else record.created
        is_person = record.author == "person" and not self._is_trusted
        return prepare_memory(replace(draft, author="agent" if is_person else record.author), created)

    async def _store_memory(
        self, tx: Transaction, scope: int, call_id: int, record: ImportedMemory, item: PreparedMemory
    ) -> tuple[int, str]:
        matches = await rows.find_rows_by_digest(tx, scope, item.digest)
        if matches and matches[0].deleted is None:
            memory = matches[0].memory
            has_tags = {tag.casefold() for tag in item.draft.tags} <= {tag.casefold() for tag in memory.tags}
            if not self._is_trusted or (has_tags and item.draft.metadata.items() <= memory.metadata.items()):
                return memory.id, "known"
        created = self._now if matches or record.created is None else record.created
        memory_id, outcome = await upsert_memory(self._store, tx, WriteContext(scope, call_id, created), item)
        if outcome == "new":
            await rows.set_updated(tx, scope, memory_id, created if record.updated is None else record.updated)
        await rows.add_marks(tx, memory_id, record.private)
        return int(memory_id), str(outcome)

    async def _store_links(self) -> None:
        """Link memories once all are stored, since a link may lead to a later one."""
        if self._dry_run:
            return

        async def write_links(tx: Transaction, pending: list[PendingLink]) -> int:
            count = 0
            for memory_id, scope, link in pending:
                own, *_ = visible = await scopes.fetch_visible_ids(tx, scope)
                other_id = self._ids.get((scope, link.hash))
                if other_id is not None:
                    matches = await rows.find_rows_by_id(tx, [own], other_id)
                else:
                    matches = await rows.find_rows_by_hash_prefix(tx, visible, link.hash)
                live = [row for row in matches if row.deleted is None]
                if len(live) != 1:
                    self.report.add_skip(link.hash, "a link to a memory that is not there")
                    continue
                [other] = live
                ends = [*await rows.find_rows_by_id(tx, [own], memory_id), other]
                if other.memory.id in await link_rows.list_linked_ids(tx, own, memory_id, link.relation):
                    continue
                if not all([await self._may_link(tx, end) for end in ends]):
                    self.report.add_skip(link.hash, "a link would touch what was known before; --trust sets it")
                    continue
                count += await link_rows.insert_recorded_link(
                    tx, own, memory_id, other.memory.id, link.relation, self._now, call_id, since=link.at
                )
            return count

        call_id = await self._record_call() if self._links else 0
        usable: list[PendingLink] = []
        for entry in self._links:
            try:
                relation = inputs.redact_name(entry.link.relation, "relation")
            except InvalidInput as error:
                self.report.add_skip(entry.link.hash, str(error))
                continue
            if relation == CONTRADICTED_BY and not self._is_trusted:
                self.report.add_skip(entry.link.hash, f"{relation!r} silences a memory; --trust sets it")
            elif relation not in RESERVED_RELATIONS:
                usable.append(entry._replace(link=entry.link._replace(relation=relation)))
        for i in range(0, len(usable), BATCH_MEMORIES):
            pending = usable[i : i + BATCH_MEMORIES]
            self.report.relations += await self._store.database.write(partial(write_links, pending=pending))

    async def _may_link(self, tx: Transaction, row: MemoryRow) -> bool:
        """Return whether a link may show at a memory: without trust only at what nothing but an import has changed."""
        origin = await history_rows.fetch_last_origin(tx, row.scope, row.memory.id)
        is_imported = origin is not None and origin.operation == self._call.operation
        return self._is_trusted or (is_imported and row.memory.author != "person")

    async def _record_call(self) -> int:
        """Record the call with its first change, and return its id."""
        if (call_id := self._call.recorded_id) is None:
            call_id = await self._store.database.write(lambda tx: calls.record_call(tx, self._call, "done"))
            self._call = self._call._replace(recorded_id=call_id)
        return call_id

    # --- the graph ----------------------------------------------------------------------------------------------------

    async def _store_entity(self, record: ImportedEntity) -> None:
        scope = self._get_scope(record).with_kind("entity")
        try:
            periods = [time for edge in record.relations for time in (edge.get("since"), edge.get("until"))]
            _check_times(record.created, *periods)
            check_marks(record.private)
            known = await open_nodes(self._store, [record.name], scope)
            entity = next((item for item in known["entities"] if item["name"] == record.name), None)
            old_texts = set(entity["observations"]) if entity else set()
            new_texts = {text for text in record.observations if text.strip()} - old_texts
            relations = [relation for relation in record.relations if not await self._has_relation(scope, relation)]
            if not self._dry_run and (entity is None or new_texts or relations):
                await self._record_call()
            if not self._dry_run and (entity is None or new_texts):
                is_merged = entity is None or self._is_trusted
                await self._write_entity(record if is_merged else replace(record, metadata={}), scope)
            if not self._dry_run and relations:
                await create_relations(self._open_store(record), relations, self._call._replace(scope=scope))
        except InvalidInput as error:
            self.report.add_skip(record.where, str(error))
            return
        is_new = entity is None and record.entity_type is not None and (scope, record.name) not in self._dry_names
        if is_new and self._dry_run:
            self._dry_names.add((scope, record.name))
        self.report.entities += is_new
        self.report.observations += len(new_texts) if record.entity_type is not None else 0
        self.report.relations += len(relations)

    async def _write_entity(self, record: ImportedEntity, scope: Scope) -> None:
        if record.entity_type is None:
            return
        texts = [text for text in record.observations if text.strip()]
        entity = NewEntity(name=record.name, entityType=record.entity_type, observations=texts)
        await create_entity(self._open_store(record), entity, record.metadata, self._call._replace(scope=scope))

    def _open_store(self, record: ImportedEntity) -> Store:
        """Return the store with the clock at the time when the entity was created, and which writes its marks."""
        store, created = self._store, record.created
        if record.private:
            watched = WatchedDatabase(store.database, PrivateReads(record.private))
            store = store._replace(database=cast("Database", watched))
        return store if created is None else store._replace(clock=lambda: created)

    async def _has_relation(self, scope: Scope, relation: NewRelation) -> bool:
        key = to_entity_key(relation["from"]), to_entity_key(relation["to"]), relation["relationType"]

        async def find_period(tx: Transaction) -> bool:
            own = await scopes.fetch_own_ids(tx, scope)
            found = await graph_rows.find_relations(tx, own, *key)
            wanted = relation.get("since"), relation.get("until")
            return any((edge.began, edge.ended) == wanted or wanted == (None, None) for edge in found)

        return await self._store.database.read(find_period)


def _check_times(*moments: float | str | None) -> None:
    for moment in moments:
        if isinstance(moment, int | float) and not clock.is_in_calendar(moment):
            raise InvalidInput("a time is out of range")


def _batch_records(records: Iterable[Record]) -> Iterator[list[Record]]:
    """Group memories of the same project; everything else comes alone."""
    batch: list[Record] = []
    size = 0
    for record in records:
        is_full = len(batch) >= BATCH_MEMORIES or size >= BATCH_CHARS
        if batch and (is_full or not _belong_together(batch[0], record)):
            yield batch
            batch, size = [], 0
        batch.append(record)
        size += len(record.content) if isinstance(record, ImportedMemory) else 0
    if batch:
        yield batch


def _belong_together(one: Record, other: Record) -> bool:
    return isinstance(one, ImportedMemory) and isinstance(other, ImportedMemory) and one.project == other.project
