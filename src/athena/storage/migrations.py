"""The schema of the store, as numbered migration steps that both engines run; a released step is never edited.

Each store has a fingerprint of the statements that created it: a store of an unreleased version may have the same
format number and other tables.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping

from athena.errors import Misconfigured

# {braces} stand for SQL that differs by engine (its DIALECT). The scope leads every key, so that a store can
# be partitioned by it; SQLite, which is never partitioned, keys some tables by id alone. Times are seconds since 1970.
#
# What the names mean where they do not say it:
#   scopes.passages        how many passage ids the scope has assigned (SQLite)
#   memories.digest, hash  SHA-256 of the text and the session; its shortest unambiguous beginning
#   memories.happened      when the fact was true or the event took place; `created` and `updated` are about the row
#   memories.author        who said it: person, agent, tool or document
#   memories.private       the private sources that its text may quote, separated by spaces; empty for most
#   memories.strength      how much it was recalled lately, as of the time `used`
#   the same column in other tables: of what a program left there
#   tags                   of live memories only; `happened` is that of the memory
#   counts                 live memories of a scope by facet: `type`, `tag` and `day` (days since 1970, in UTC); on
#                          SQLite one row for each name, on PostgreSQL one for each change, whose sum is the count
#   passages.session       the id of the session's first memory; the memory's own id where it has no session
#   passages.voice         1: the speaker is an assistant, a tool or the system; 2: a speaker talks about themselves
#   passages.live          1 where searches may see it
#   passages.windowed      1 where its vector includes the text of its neighbours; 0: the vector is stale
#   passages.stamp         the value of the counter `stamp` at the last change; vector caches read by it (SQLite)
#   vector_blocks          what vector caches need of the passages, packed (SQLite): storage/sqlite/vector_blocks.py
#   passages.code          the vector; `tokens.signs` has the signs of each token's vector
#   waiting                memories whose passages are not written yet: a search or the deferred write does it
#   receipts.fingerprint   a hash of the arguments with a key that is not in the store, so that one idempotency key
#                          cannot serve two different calls; empty in those of earlier versions
#   usage.given, returned, shown   tokens of arguments, of results, and of the part of results that a model saw
#   consolidations.newest  the last event that a consolidation has read
#   runs.claimed           when a run went on after it had waited for approval
#   injections             the memories that hooks gave to a session; `over`: 1 where the session has begun afresh since
#   vault.lookup, spelling  keyed hashes of the value, as it is and as a search compares it; NULL once it is forgotten
#   vault.value            the value, encrypted; `key` is the id of the key, `name` that of a secret a person put there,
#                          `allowed` the servers and tools that may receive it, each
#                          with a digest of the server that a person saw; without one it does not count
#   vault.private, said    marks of what the run had read that brought the value; 1: a program or a model said it,
#                          2: and in the mode strict, so that its token is nobody else's; 3: it read it there
#   disclosures            how many values of a kind a tool has received on a day
#   learned_turns          keyed hashes of the turns of sessions that learning has read, and of how far answers were
#   counters               `stamp` grows with every write, `purges` with every purge; `announced N`: the last memory
#                          of scope N that learning stored and a session start has announced; `token KIND`: the last
#                          number of a token; `vault keys`: changes with each new key or value
STEPS: tuple[str, ...] = (
    """
    CREATE TABLE scopes (
        id {alone},
        name TEXT NOT NULL,
        kind TEXT NOT NULL,
        passages BIGINT NOT NULL DEFAULT 0,
        UNIQUE (name, kind)
    );
    CREATE TABLE memories (
        id {identity},
        scope BIGINT NOT NULL REFERENCES scopes (id),
        digest TEXT NOT NULL,
        hash TEXT NOT NULL,
        content TEXT NOT NULL,
        label TEXT NOT NULL,
        tags TEXT NOT NULL,
        memory_type TEXT NOT NULL,
        metadata TEXT NOT NULL,
        session TEXT,
        happened DOUBLE PRECISION NOT NULL,
        created DOUBLE PRECISION NOT NULL,
        updated DOUBLE PRECISION NOT NULL,
        deleted DOUBLE PRECISION,
        importance DOUBLE PRECISION NOT NULL,
        occurrences BIGINT NOT NULL DEFAULT 1,
        strength DOUBLE PRECISION NOT NULL DEFAULT 0,
        used DOUBLE PRECISION NOT NULL DEFAULT 0
        {scope_and_id}
    );
    CREATE UNIQUE INDEX memories_live ON memories (scope, digest) WHERE deleted IS NULL;
    CREATE INDEX memories_by_digest ON memories (scope, digest);
    CREATE INDEX memories_by_time ON memories (scope, happened) WHERE deleted IS NULL;
    CREATE INDEX memories_unfinished ON memories (scope, happened)
        WHERE deleted IS NULL AND memory_type IN ('open', 'in_progress');
    CREATE INDEX memories_landmarks ON memories (scope, happened)
        WHERE deleted IS NULL AND memory_type IN ('episode', 'work');
    CREATE INDEX memories_by_session ON memories (scope, session, id) WHERE session IS NOT NULL;
    CREATE TABLE tags (
        scope BIGINT NOT NULL,
        tag TEXT NOT NULL,
        memory BIGINT NOT NULL,
        PRIMARY KEY (scope, tag, memory)
    ) {clustered};
    CREATE INDEX tags_of_memory ON tags (scope, memory);
    CREATE TABLE passages (
        id {key},
        scope BIGINT NOT NULL,
        memory BIGINT NOT NULL,
        start BIGINT NOT NULL,
        length BIGINT NOT NULL,
        words BIGINT NOT NULL,
        session BIGINT NOT NULL,
        voice BIGINT NOT NULL,
        live BIGINT NOT NULL,
        windowed BIGINT NOT NULL,
        stamp BIGINT NOT NULL,
        model BIGINT,
        code {vector}
        {scope_and_id}
    );
    CREATE TABLE tokens (passage {key}, scope BIGINT NOT NULL, signs {blob} NOT NULL {scope_and_passage});
    CREATE INDEX passages_of_session ON passages (scope, session, id);
    CREATE INDEX passages_behind ON passages (id) WHERE live = 1 AND windowed = 0;
    CREATE INDEX passages_of_memory ON passages (scope, memory);
    CREATE INDEX passages_changed ON passages (scope, stamp);
    CREATE INDEX passages_by_model ON passages (model, scope) WHERE live = 1;
    CREATE TABLE models (id {alone}, name TEXT NOT NULL UNIQUE);
    CREATE TABLE history (
        id {identity},
        scope BIGINT NOT NULL,
        memory BIGINT NOT NULL,
        call BIGINT NOT NULL,
        at DOUBLE PRECISION NOT NULL,
        action TEXT NOT NULL,
        digest TEXT,
        before TEXT,
        undone BIGINT NOT NULL DEFAULT 0
        {scope_and_id}
    );
    CREATE INDEX history_of_memory ON history (scope, memory, id);
    CREATE INDEX history_of_call ON history (call);
    CREATE INDEX history_by_digest ON history (scope, digest) WHERE digest IS NOT NULL;
    CREATE TABLE links (
        scope BIGINT NOT NULL,
        memory BIGINT NOT NULL,
        other BIGINT NOT NULL,
        relation TEXT NOT NULL,
        at DOUBLE PRECISION NOT NULL,
        PRIMARY KEY (scope, memory, other, relation)
    ) {clustered};
    CREATE INDEX links_back ON links (other);
    CREATE TABLE relations (
        id {identity},
        scope BIGINT NOT NULL,
        source TEXT NOT NULL,
        target TEXT NOT NULL,
        source_name TEXT NOT NULL,
        target_name TEXT NOT NULL,
        relation TEXT NOT NULL,
        began DOUBLE PRECISION,
        ended DOUBLE PRECISION,
        created DOUBLE PRECISION NOT NULL,
        removed DOUBLE PRECISION
        {scope_and_id}
    );
    CREATE UNIQUE INDEX relations_live ON relations (scope, source, target, relation, coalesce(began, -1e300))
        WHERE removed IS NULL;
    CREATE INDEX relations_back ON relations (scope, target) WHERE removed IS NULL;
    CREATE TABLE waiting (
        scope BIGINT NOT NULL,
        memory BIGINT NOT NULL,
        PRIMARY KEY (scope, memory)
    ) {clustered};
    CREATE TABLE mentions (
        scope BIGINT NOT NULL,
        key TEXT NOT NULL,
        memory BIGINT NOT NULL,
        PRIMARY KEY (scope, key, memory)
    ) {clustered};
    CREATE INDEX mentions_of_memory ON mentions (scope, memory);
    CREATE TABLE calls (
        id {identity},
        scope TEXT NOT NULL,
        operation TEXT NOT NULL,
        surface TEXT NOT NULL,
        at DOUBLE PRECISION NOT NULL,
        elapsed_ms DOUBLE PRECISION,
        outcome TEXT NOT NULL,
        run TEXT
        {scope_and_id}
    );
    CREATE TABLE receipts (
        scope TEXT NOT NULL,
        key TEXT NOT NULL,
        operation TEXT NOT NULL,
        fingerprint TEXT NOT NULL,
        result TEXT NOT NULL,
        at DOUBLE PRECISION NOT NULL,
        PRIMARY KEY (scope, key)
    ) {clustered};
    CREATE TABLE usage (
        scope TEXT NOT NULL,
        day BIGINT NOT NULL,
        operation TEXT NOT NULL,
        surface TEXT NOT NULL,
        calls BIGINT NOT NULL,
        given BIGINT NOT NULL,
        returned BIGINT NOT NULL,
        shown BIGINT NOT NULL,
        PRIMARY KEY (scope, day, operation, surface)
    ) {clustered};
    CREATE TABLE consolidations (
        scope TEXT NOT NULL,
        strategy TEXT NOT NULL,
        days DOUBLE PRECISION NOT NULL,
        began DOUBLE PRECISION NOT NULL,
        seen DOUBLE PRECISION NOT NULL,
        ended DOUBLE PRECISION,
        stage TEXT NOT NULL,
        fingerprint TEXT NOT NULL,
        newest BIGINT NOT NULL,
        progress TEXT NOT NULL,
        result TEXT NOT NULL,
        PRIMARY KEY (scope, strategy, days)
    ) {clustered};
    CREATE TABLE workspaces (
        scope TEXT NOT NULL,
        name TEXT NOT NULL,
        owner TEXT NOT NULL,
        state {blob},
        variables TEXT NOT NULL,
        updated DOUBLE PRECISION NOT NULL,
        PRIMARY KEY (scope, name)
    );
    CREATE TABLE files (
        scope TEXT NOT NULL,
        workspace TEXT NOT NULL,
        path TEXT NOT NULL,
        content TEXT NOT NULL,
        size BIGINT NOT NULL,
        updated DOUBLE PRECISION NOT NULL,
        PRIMARY KEY (scope, workspace, path)
    );
    CREATE TABLE runs (
        scope TEXT NOT NULL,
        id TEXT NOT NULL,
        workspace TEXT NOT NULL,
        status TEXT NOT NULL,
        process TEXT NOT NULL,
        started DOUBLE PRECISION NOT NULL,
        elapsed_ms DOUBLE PRECISION,
        calls BIGINT NOT NULL,
        engine TEXT NOT NULL,
        error TEXT,
        fingerprint TEXT NOT NULL,
        waits_for TEXT,
        snapshot {blob},
        answer TEXT,
        claimed DOUBLE PRECISION,
        PRIMARY KEY (scope, id)
    );
    CREATE INDEX runs_by_time ON runs (scope, started);
    CREATE TABLE injections (
        id {identity},
        scope TEXT NOT NULL,
        session TEXT NOT NULL,
        at DOUBLE PRECISION NOT NULL,
        event TEXT NOT NULL,
        memory BIGINT NOT NULL,
        reason TEXT NOT NULL,
        score DOUBLE PRECISION NOT NULL,
        tokens BIGINT NOT NULL,
        over BIGINT NOT NULL DEFAULT 0,
        key TEXT
        {scope_and_id}
    );
    CREATE INDEX injections_of_session ON injections (scope, session, id);
    CREATE TABLE counters (name TEXT PRIMARY KEY, value BIGINT NOT NULL);
    INSERT INTO counters VALUES ('purges', 0), ('stamp', 0);
    """,
    """
    ALTER TABLE memories ADD COLUMN author TEXT NOT NULL DEFAULT 'agent';
    ALTER TABLE memories ADD COLUMN private TEXT NOT NULL DEFAULT '';
    ALTER TABLE workspaces ADD COLUMN private TEXT NOT NULL DEFAULT '';
    ALTER TABLE files ADD COLUMN private TEXT NOT NULL DEFAULT '';
    ALTER TABLE runs ADD COLUMN private TEXT NOT NULL DEFAULT '';
    ALTER TABLE relations ADD COLUMN private TEXT NOT NULL DEFAULT '';
    ALTER TABLE injections ADD COLUMN private TEXT NOT NULL DEFAULT '';
    UPDATE memories SET author = 'document', private = 'files' WHERE memory_type = 'document';
    UPDATE memories SET private = 'files' WHERE id IN (
        SELECT l.memory FROM links l JOIN memories d ON d.id = l.other
        WHERE l.relation IN ('quotes', 'quoted') AND d.memory_type = 'document'
    );
    UPDATE memories SET author = 'person' WHERE id IN (
        SELECT h.memory FROM history h JOIN calls c ON c.id = h.call
        WHERE c.surface = 'cli' AND c.operation IN ('remember', 'remember_batch') AND h.action = 'remembered'
    );
    """,
    """
    ALTER TABLE tags ADD COLUMN happened DOUBLE PRECISION NOT NULL DEFAULT 0;
    DELETE FROM tags WHERE NOT EXISTS (
        SELECT 1 FROM memories m WHERE m.scope = tags.scope AND m.id = tags.memory AND m.deleted IS NULL
    );
    UPDATE tags SET happened = (
        SELECT m.happened FROM memories m WHERE m.scope = tags.scope AND m.id = tags.memory
    );
    CREATE INDEX tags_by_time ON tags (scope, tag, happened, memory);
    CREATE INDEX memories_by_type ON memories (scope, memory_type, happened) WHERE deleted IS NULL;
    CREATE INDEX memories_recalled ON memories (scope, strength, used) WHERE deleted IS NULL AND strength > 0;
    CREATE INDEX memories_forgotten ON memories (scope, id) WHERE deleted IS NOT NULL;
    CREATE INDEX memories_private ON memories (scope, private) WHERE private <> '';
    CREATE TABLE counts (
        {count_id}
        scope BIGINT NOT NULL,
        facet TEXT NOT NULL,
        name TEXT NOT NULL,
        memories BIGINT NOT NULL,
        characters BIGINT NOT NULL,
        occurrences BIGINT NOT NULL,
        in_session BIGINT NOT NULL,
        PRIMARY KEY (scope, facet, {count_key})
    ) {clustered};
    CREATE TABLE vector_blocks (
        scope BIGINT NOT NULL,
        number BIGINT NOT NULL,
        stamp BIGINT NOT NULL,
        purges BIGINT NOT NULL,
        models TEXT NOT NULL,
        dimensions BIGINT NOT NULL,
        data {blob} NOT NULL,
        PRIMARY KEY (scope, number)
    );
    INSERT INTO counts (scope, facet, name, memories, characters, occurrences, in_session)
        SELECT scope, 'type', memory_type, count(*), sum(length(content)), sum(occurrences), count(session)
        FROM memories WHERE deleted IS NULL GROUP BY scope, memory_type;
    INSERT INTO counts (scope, facet, name, memories, characters, occurrences, in_session)
        SELECT scope, 'day', CAST(floor(happened / 86400) AS BIGINT) || '', count(*), 0, 0, 0
        FROM memories WHERE deleted IS NULL GROUP BY 1, 3;
    INSERT INTO counts (scope, facet, name, memories, characters, occurrences, in_session)
        SELECT scope, 'tag', tag, count(*), 0, 0, 0 FROM tags GROUP BY scope, tag;
    """,
    """
    CREATE INDEX memories_by_change ON memories (scope, updated) WHERE deleted IS NULL;
    {row_checksums}
    """,
    """
    CREATE TABLE vault_keys (id TEXT PRIMARY KEY, created DOUBLE PRECISION NOT NULL);
    CREATE TABLE vault (
        scope BIGINT NOT NULL,
        kind TEXT NOT NULL,
        number BIGINT NOT NULL,
        name TEXT NOT NULL,
        allowed TEXT NOT NULL,
        key TEXT NOT NULL,
        lookup {blob},
        spelling {blob},
        value {blob},
        created DOUBLE PRECISION NOT NULL,
        PRIMARY KEY (scope, kind, number)
    );
    CREATE UNIQUE INDEX vault_values ON vault (scope, lookup) WHERE lookup IS NOT NULL;
    CREATE INDEX vault_spellings ON vault (scope, spelling) WHERE spelling IS NOT NULL;
    CREATE UNIQUE INDEX vault_names ON vault (scope, name) WHERE name <> '';
    CREATE TABLE disclosures (
        scope BIGINT NOT NULL,
        day BIGINT NOT NULL,
        server TEXT NOT NULL,
        tool TEXT NOT NULL,
        kind TEXT NOT NULL,
        sent BIGINT NOT NULL,
        PRIMARY KEY (scope, day, server, tool, kind)
    ) {clustered};
    """,
    """
    ALTER TABLE vault ADD COLUMN private TEXT NOT NULL DEFAULT '';
    ALTER TABLE vault ADD COLUMN said BIGINT NOT NULL DEFAULT 0;
    CREATE INDEX vault_said ON vault (scope, created) WHERE said > 0;
    """,
    """
    UPDATE receipts SET fingerprint = '';
    UPDATE runs SET fingerprint = '';
    """,
    """
    CREATE TABLE learned_turns (
        scope BIGINT NOT NULL,
        turn BIGINT NOT NULL,
        PRIMARY KEY (scope, turn)
    ) {clustered};
    """,
)

FINGERPRINT_COUNTER = "schema"  # a row of `counters`


def compute_fingerprint(dialect: Mapping[str, str], indexes: tuple[str, ...]) -> int:
    """Return a number that only this schema has; white space does not change it."""
    steps = (iter_statements(step, dialect, indexes) for step in range(len(STEPS)))
    text = ";".join(" ".join(statement.split()) for statements in steps for statement in statements)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7])  # fits into a BIGINT


def create_schema_error(location: str, differences: list[str]) -> Misconfigured:
    return Misconfigured(
        f"{location} has format {len(STEPS)}, but other tables than this version: {', '.join(differences[:5])}",
        hint="an unreleased version wrote it, or somebody changed it: open it with the Athena that wrote it, or move "
        "it away and restore a backup",
    )


def describe_foreign(part: Iterable[str]) -> str:
    """Say what somebody else has added to a store: a trigger, a view, a table."""
    return f"{' '.join(part)[:100]} was put there, not by Athena"


def iter_statements(step: int, dialect: Mapping[str, str], indexes: tuple[str, ...]) -> Iterator[str]:
    """Yield the statements of one step; the first step also creates the engine's own indexes."""
    for statement in STEPS[step].format(**dialect).split(";"):
        if statement.strip():
            yield statement
    if step == 0:
        yield from indexes
