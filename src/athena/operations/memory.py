"""Remember, recall, change and forget what is worth knowing."""

from typing import Annotated, Any

from athena.core.operation import Effect, operation
from athena.core.types import Param
from athena.core.values import Kind
from athena.memory import duplicates, edit, inputs, lookup
from athena.memory import recall as recalling
from athena.memory import remember as remembering
from athena.memory.duplicates import Group
from athena.memory.lookup import TagCount, WithRelated
from athena.memory.recall import Query
from athena.memory.values import Change, Hit, Memory, Stored
from athena.operations import params
from athena.operations.context import Context


@operation(Effect.WRITE)
async def remember(
    ctx: Context,
    content: params.Content,
    tags: params.Tags = None,
    memory_type: Annotated[str, Param("The kind of memory, e.g. note, decision, preference.")] = "note",
    metadata: params.Metadata = None,
    importance: params.Importance = 0.5,
) -> Stored:
    """Keep a text for later; the same text twice is kept once, with the tags of both.

    >>> memory.remember(content="Deploys run on Fridays at 15:00", tags=["deploy"])
    """
    made = inputs.create_draft(content, tags, memory_type, metadata, importance)
    return (await remembering.remember(ctx.store, [made], ctx.call))[0]


@operation(Effect.WRITE)
async def remember_batch(ctx: Context, items: params.Items) -> list[Stored]:
    """Keep many texts at once; all are checked before any is kept.

    >>> memory.remember_batch(items=["one thing", {"content": "another", "tags": ["x"]}])
    """
    drafts = inputs.parse_batch(items)
    return await remembering.remember(ctx.store, drafts, ctx.call)


@operation(Effect.READ)
async def recall(
    ctx: Context,
    query: params.Question,
    k: params.Limit = 5,
    tags: params.Tags = None,
    memory_type: params.MemoryType = None,
    since: params.When = None,
    until: params.When = None,
    min_score: params.Score = 0.0,
    offset: params.Offset = 0,
    understand_time: Annotated[bool, Param("Take time in the question ('last week') as a filter.")] = False,
    explain: Annotated[bool, Param("Say of each hit why it was chosen.")] = False,
    kinds: Annotated[list[Kind] | None, Param("What to look through; memories by default.", least=1)] = None,
) -> list[Hit]:
    """Find the memories that fit a question best, by words and by meaning.

    >>> memory.recall(query="how do we deploy", k=3)
    """
    only = inputs.create_filter(ctx.scope, tags, memory_type, since, until, now=ctx.store.clock())
    asked = Query(inputs.clean_query(query), only, k, offset, min_score, understand_time, explain)
    if kinds is None:
        return await recalling.recall(ctx.store, asked)
    return await recalling.recall_kinds(ctx.store, asked, kinds)


@operation(Effect.READ)
async def get_memory(ctx: Context, memory_id: params.Ref) -> WithRelated:
    """Return one memory whole, with the memories it is related to.

    >>> memory.get_memory(memory_id=1)
    """
    return await lookup.get_memory(ctx.store, memory_id, ctx.scope)


@operation(Effect.READ)
async def list_memories(
    ctx: Context,
    k: params.Limit = 20,
    offset: params.Offset = 0,
    tags: params.Tags = None,
    memory_type: params.MemoryType = None,
    since: params.When = None,
    until: params.When = None,
) -> list[Memory]:
    """List memories, the newest first.

    >>> memory.list_memories(k=10, since="last week")
    """
    only = inputs.create_filter(ctx.scope, tags, memory_type, since, until, now=ctx.store.clock())
    return await lookup.list_newest(ctx.store, only, k, offset)


@operation(Effect.READ)
async def search_by_tag(
    ctx: Context,
    tags: Annotated[str | list[str], Param("One tag, several between commas, or a list.", least=1)],
    k: params.Limit = 10,
    match: params.Match = "any",
    offset: params.Offset = 0,
) -> list[Memory]:
    """List memories by tag: those that have any or all of some tags, the newest first.

    >>> memory.search_by_tag(tags=["deploy"], match="any")
    """
    only = inputs.create_tag_filter(ctx.scope, tags, match)
    return await lookup.list_newest(ctx.store, only, k, offset)


@operation(Effect.READ)
async def list_tags(ctx: Context) -> list[TagCount]:
    """List the tags in use, the most used first.

    >>> memory.list_tags()
    """
    return await lookup.list_tags(ctx.store, ctx.scope)


@operation(Effect.WRITE)
async def update_memory(
    ctx: Context,
    memory_id: params.Ref,
    content: Annotated[str | None, Param("The new text.")] = None,
    tags: Annotated[str | list[str] | None, Param("The new tags, instead of the old ones.")] = None,
    memory_type: params.MemoryType = None,
    metadata: Annotated[dict[str, Any] | None, Param("Added to the old; a null removes a key.")] = None,
    importance: params.NewImportance = None,
) -> Stored:
    """Change a memory; what it said before stays in its history.

    >>> memory.update_memory(memory_id=1, content="Deploys run on Mondays at 15:00")
    """
    changes, redacted = inputs.clean_changes(content, tags, memory_type, metadata, importance)
    return await edit.update_memory(ctx.store, memory_id, changes, ctx.call, redacted)


@operation(Effect.WRITE)
async def forget(ctx: Context, memory_id: params.Ref, kind: params.OfKind = None) -> bool:
    """Forget a memory, an event or a task; `restore_memory` or `undo` brings it back. False if there was none.

    >>> memory.forget(memory_id=1)
    """
    return await edit.forget(ctx.store, [memory_id], kind, ctx.call) == 1


@operation(Effect.WRITE)
async def forget_batch(ctx: Context, memory_ids: params.Refs) -> int:
    """Forget several memories; returns how many there were.

    >>> memory.forget_batch(memory_ids=[1, 2])
    """
    return await edit.forget(ctx.store, memory_ids, None, ctx.call)


@operation(Effect.WRITE)
async def forget_by_tag(
    ctx: Context,
    tags: Annotated[str | list[str], Param("One tag, several between commas, or a list.", least=1)],
    expect: params.Expect = None,
) -> int:
    """Forget memories by tag: all that have any of some tags, if they are exactly `expect`.

    >>> memory.forget_by_tag(tags=["obsolete"], expect=0)
    """
    return await edit.forget_matching(ctx.store, inputs.create_tag_filter(ctx.scope, tags, "any"), expect, ctx.call)


@operation(Effect.WRITE)
async def restore_memory(ctx: Context, memory_id: params.Ref, kind: params.OfKind = None) -> bool:
    """Bring a forgotten memory back; False if it was not forgotten.

    >>> memory.restore_memory(memory_id=1)
    """
    return await edit.restore_memory(ctx.store, memory_id, kind, ctx.call)


@operation(Effect.WRITE)
async def undo(ctx: Context) -> list[Change]:
    """Take back the last change in this project: what it kept, changed, forgot or restored.

    >>> memory.undo()
    """
    return await edit.undo_change(ctx.store, ctx.call)


@operation(Effect.READ)
async def memory_history(ctx: Context, memory_id: params.Ref, kind: params.OfKind = None) -> list[Change]:
    """Show every change of a memory, with what it was before.

    >>> memory.memory_history(memory_id=1)
    """
    return await lookup.list_changes(ctx.store, memory_id, kind, ctx.scope)


@operation(Effect.WRITE)
async def relate_memories(
    ctx: Context,
    memory_id: params.Ref,
    other_id: params.Ref,
    relation: Annotated[str, Param("How they belong together, e.g. causes, contradicts, part of.")] = "related",
) -> bool:
    """Note that two memories belong together.

    >>> memory.relate_memories(memory_id=1, other_id=2, relation="explains")
    """
    await edit.relate_memories(ctx.store, memory_id, other_id, inputs.redact_name(relation, "relation"), ctx.call)
    return True


@operation(Effect.READ)
async def find_duplicates(
    ctx: Context,
    threshold: Annotated[float, Param("How alike in meaning, from 0 to 1.", least=0.5, most=1)] = 0.92,
    k: params.Limit = 20,
) -> list[Group]:
    """Find memories that say nearly the same, in groups, the most alike first.

    >>> memory.find_duplicates(threshold=0.9)
    """
    return await duplicates.find_groups(ctx.store, ctx.scope, threshold, k)


@operation(Effect.DESTROY, approval=True)
async def purge(
    ctx: Context,
    memory_ids: Annotated[list[int | str] | None, Param("Ids or hashes; without them, all forgotten memories.")] = None,
    expect: params.Expect = None,
    dry_run: Annotated[bool, Param("Only count them.")] = False,
) -> int:
    """Remove memories for good, with their history, from every file. Nothing brings them back.

    >>> memory.purge(expect=0)
    """
    if dry_run:
        return await edit.count_purgeable(ctx.store, memory_ids, ctx.scope)
    return await edit.purge(ctx.store, memory_ids, expect, ctx.call)
