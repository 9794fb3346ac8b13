"""Remember, recall, change and forget what is worth knowing."""

from typing import Annotated, Any

from athena.core.operation import EVERYONE, ONLY_PERSONS, Effect, operation
from athena.core.types import Param
from athena.core.values import Kind
from athena.errors import InvalidInput
from athena.memory import duplicates, edit, inputs, lookup
from athena.memory import purge as purging
from athena.memory import recall as recalling
from athena.memory import remember as remembering
from athena.memory.duplicates import Group
from athena.memory.excerpts import shorten_hits
from athena.memory.lookup import TagCount, WithRelated
from athena.memory.recall import Query
from athena.memory.recall_kinds import recall_kinds
from athena.memory.values import Change, ChangingCall, Hit, Memory, Purgeable, RecentChange, Stored, clean_tags
from athena.operations import params
from athena.operations.context import Context, list_own_surfaces


@operation(
    Effect.WRITE,
    callers=EVERYONE,
    aliases=("store",),
    asks="keep in mind that we do it this way; note to self; for the record; save this for later; make a note; "
    "remember that I like this; from now on you should know; write this fact down; don't forget this; I "
    "want you to know for next time; save the following information; keep track of the fact that; this is "
    "important, store it; add to your memory; my preference is; always keep this in mind; just so you "
    "know; take note of the address; store the fact that the password is somewhere",
)
async def remember(
    ctx: Context,
    content: params.Content,
    tags: params.Tags = None,
    memory_type: Annotated[str, Param("The type of memory, e.g. note, decision, preference.")] = "note",
    metadata: params.Metadata = None,
    importance: params.Importance = 0.5,
) -> Stored:
    """Keep a text for later; the same text twice is kept once, with the tags of both.

    >>> memory.remember(content="Deploys run on Fridays at 15:00", tags=["deploy"])
    """
    draft = await inputs.clean_long(len(content), inputs.create_draft, content, tags, memory_type, metadata, importance)
    return (await remembering.remember(ctx.store, [draft], ctx.call))[0]


@operation(
    Effect.WRITE,
    callers=EVERYONE,
    asks="remember all of these facts; here are several things to keep in mind; store this list of notes; save "
    "all these preferences at once; add the whole list to your memory; memorize the following points",
)
async def remember_batch(ctx: Context, items: params.Items) -> list[Stored]:
    """Keep many texts at once; all are checked before any is kept.

    >>> memory.remember_batch(items=["one thing", {"content": "another", "tags": ["x"]}])
    """
    size = sum(len(item) if isinstance(item, str) else len(str(item.get("content"))) for item in items)
    drafts = await inputs.clean_long(size, inputs.parse_batch, items)
    return await remembering.remember(ctx.store, drafts, ctx.call)


@operation(
    Effect.READ,
    callers=EVERYONE,
    aliases=("search",),
    asks="find memories; find a memory; search memories; search for a memory; look something up in memory; "
    "what do you know about this; what did I tell you about it; do you remember what we decided; remind "
    "me what; what was the name of that again; have we talked about this before; what do I usually "
    "prefer; do you know anything about this; what have we learned about it so far; what have you got on "
    "this topic; search your memory; which one did I say I liked; look up what we noted about it; where "
    "did I say it was; what are my preferences; did I ever mention it; how do we usually do this here",
)
async def recall(
    ctx: Context,
    query: params.Question,
    k: params.Limit = 5,
    tags: params.Tags = None,
    memory_type: params.MemoryType = None,
    since: params.When = None,
    until: params.When = None,
    min_score: params.Score = None,
    offset: params.Offset = 0,
    understand_time: Annotated[bool, Param("Take time in the question ('last week') as a filter.")] = False,
    explain: Annotated[bool, Param("Say of each hit why it was chosen.")] = False,
    kinds: Annotated[list[Kind] | None, Param("What to look through; memories by default.", least=1)] = None,
    full: Annotated[bool, Param("Return whole texts; without it, the passages that answer.")] = True,
) -> list[Hit]:
    """Find the memories that fit a question best, by words and by meaning.

    A hit's score is the probability that it answers. If even the best hit is improbable, there are none.

    >>> memory.recall(query="how do we deploy", k=3)
    """
    criteria = inputs.create_filter(ctx.scope, tags, memory_type, since, until, now=ctx.store.clock())
    parsed = Query(
        inputs.clean_query(query), criteria, k, offset, min_score, understand_time, explain, as_probability=True
    )
    if kinds is None:
        hits = await recalling.recall(ctx.store, parsed, used=not ctx.is_browsing)
    else:
        hits = await recall_kinds(ctx.store, parsed, kinds, used=not ctx.is_browsing)
    return hits if full else await shorten_hits(ctx.store, ctx.scope, query, hits)


@operation(
    Effect.READ,
    callers=EVERYONE,
    aliases=("get",),
    asks="show me that memory in full; open the note with this id; the whole text of one memory; read out that "
    "memory completely; details of a single memory; give me the entry with its related ones",
)
async def get_memory(ctx: Context, memory_id: params.Ref) -> WithRelated:
    """Return one memory whole, with the memories it is related to.

    >>> memory.get_memory(memory_id=1)
    """
    return await lookup.get_memory(ctx.store, memory_id, ctx.scope)


@operation(
    Effect.READ,
    callers=EVERYONE,
    short="list",
    asks="what have you saved lately; show my newest notes; everything you remember; list all memories; what "
    "have I asked you to remember; browse everything stored; the most recent things you learned",
)
async def list_memories(
    ctx: Context,
    k: params.Limit = 20,
    offset: params.Offset = 0,
    tags: params.Tags = None,
    memory_type: params.MemoryType = None,
    since: params.When = None,
    until: params.When = None,
    after: params.After = None,
) -> list[Memory]:
    """List memories, the newest first.

    >>> memory.list_memories(k=10, since="last week")
    """
    criteria = inputs.create_filter(ctx.scope, tags, memory_type, since, until, now=ctx.store.clock())
    return await lookup.list_newest(ctx.store, criteria, k, offset, after)


@operation(
    Effect.READ,
    callers=EVERYONE,
    asks="everything tagged with this; all notes with that label; what is filed under this tag; filter my "
    "memories by tag; show what I marked as; notes in this category; anything under the label",
)
async def search_by_tag(
    ctx: Context,
    tags: Annotated[str | list[str], Param("One tag, several between commas, or a list.", least=1)],
    k: params.Limit = 10,
    match: params.Match = "any",
    offset: params.Offset = 0,
    after: params.After = None,
) -> list[Memory]:
    """List memories by tag: those that have any or all of some tags, the newest first.

    >>> memory.search_by_tag(tags=["deploy"], match="any")
    """
    criteria = inputs.create_tag_filter(ctx.scope, tags, match)
    return await lookup.list_newest(ctx.store, criteria, k, offset, after)


@operation(
    Effect.READ,
    callers=EVERYONE,
    asks="which tags are there; what labels have been used; all the topics I file notes under; what categories "
    "do my notes have; show the keywords in use; how are my notes labelled",
)
async def list_tags(ctx: Context) -> list[TagCount]:
    """List the tags in use, the most used first.

    >>> memory.list_tags()
    """
    return await lookup.list_tags(ctx.store, ctx.scope)


@operation(
    Effect.WRITE,
    callers=EVERYONE,
    aliases=("update",),
    asks="that note is out of date; correct what you remember; this fact has changed; what you know is wrong, "
    "it is now; edit that memory; change the note to say something else; I was wrong about that, fix it; "
    "the stored address is not right any more; amend what you saved",
)
async def update_memory(
    ctx: Context,
    memory_id: params.Ref,
    content: Annotated[str | None, Param("The new text.")] = None,
    tags: Annotated[str | list[str] | None, Param("The new tags, instead of the old ones.")] = None,
    memory_type: params.MemoryType = None,
    metadata: Annotated[dict[str, Any] | None, Param("Added to the old; a null removes a key.")] = None,
    importance: params.NewImportance = None,
    expect_updated: params.ExpectUpdated = None,
) -> Stored:
    """Change a memory; what it said before stays in its history.

    >>> memory.update_memory(memory_id=1, content="Deploys run on Mondays at 15:00")
    """
    changes, redacted = await inputs.clean_long(
        len(content or ""), inputs.clean_changes, content, tags, memory_type, metadata, importance
    )
    return await edit.update_memory(ctx.store, memory_id, changes, ctx.call, redacted, expect_updated)


@operation(
    Effect.WRITE,
    callers=ONLY_PERSONS,
    asks="let this memory say again what it said before; go back to an earlier version of a note",
)
async def restore_version(
    ctx: Context,
    memory_id: params.Ref,
    version: Annotated[str, Param("The hash that it had then, as its history names it.", least=4, most=64)],
    expect_updated: params.ExpectUpdated = None,
) -> Stored:
    """Let a memory say again what it said before, as the words of whoever said it; for people.

    >>> memory.restore_version(memory_id=1, version="7d49c4b4")
    """
    return await edit.restore_version(ctx.store, memory_id, version, expect_updated, ctx.call)


@operation(
    Effect.WRITE,
    callers=EVERYONE,
    aliases=("delete",),
    asks="forget what I said; you need not remember that any more; drop this memory; delete that note of mine; "
    "stop remembering this; remove that from your memory; scrap that note; that fact is not needed any "
    "longer; erase what you know about me",
)
async def forget(ctx: Context, memory_id: params.Ref, kind: params.OfKind = None) -> bool:
    """Forget a memory, an event or a task; `restore_memory` or `undo` brings it back. False if there was none.

    >>> memory.forget(memory_id=1)
    """
    return await edit.forget(ctx.store, [memory_id], kind, ctx.call) == 1


@operation(
    Effect.WRITE,
    callers=EVERYONE,
    asks="forget all of these memories; delete several notes at once; remove a bunch of memories; get rid of "
    "all those notes; drop these ten entries",
)
async def forget_batch(ctx: Context, memory_ids: params.Refs) -> int:
    """Forget several memories; returns how many there were.

    >>> memory.forget_batch(memory_ids=[1, 2])
    """
    return await edit.forget(ctx.store, memory_ids, None, ctx.call)


@operation(
    Effect.WRITE,
    callers=EVERYONE,
    asks="forget everything with this tag; delete all notes labelled so; clear out everything under a label; "
    "remove all memories of that category",
)
async def forget_by_tag(
    ctx: Context,
    tags: Annotated[str | list[str], Param("One tag, several between commas, or a list.", least=1)],
    expect: params.Expect = None,
) -> int:
    """Forget memories by tag: all that have any of some tags, if they are exactly `expect`.

    >>> memory.forget_by_tag(tags=["obsolete"], expect=0)
    """
    return await edit.forget_matching(ctx.store, inputs.create_tag_filter(ctx.scope, tags, "any"), expect, ctx.call)


@operation(
    Effect.WRITE,
    callers=ONLY_PERSONS,
    asks="add a tag to several memories at once; take a label off these notes",
)
async def tag_memories(
    ctx: Context,
    memory_ids: params.Refs,
    add: params.Tags = None,
    remove: params.Tags = None,
) -> int:
    """Add tags to memories, or take tags away; returns how many changed; for people.

    >>> memory.tag_memories(memory_ids=[1, 2], add=["deploy"])
    """
    if not (add or remove):
        raise InvalidInput("no tag is given", hint="write one, or several between commas")
    return await edit.tag_memories(ctx.store, memory_ids, inputs.redact_tags(add), clean_tags(remove), ctx.call)


@operation(
    Effect.WRITE,
    callers=ONLY_PERSONS,
    asks="keep one of these duplicates and forget the others",
)
async def merge_memories(ctx: Context, memory_id: params.Ref, other_ids: params.Refs) -> int:
    """Keep one of several memories, with the tags of all, and forget the others; for people.

    >>> memory.merge_memories(memory_id=1, other_ids=[2])
    """
    return await edit.merge_memories(ctx.store, memory_id, other_ids, ctx.call)


@operation(
    Effect.WRITE,
    callers=EVERYONE,
    asks="bring back the note I deleted; recover a forgotten memory; I removed a memory by mistake; get back "
    "what was forgotten; undelete a memory; I still need the note that I threw away",
)
async def restore_memory(ctx: Context, memory_id: params.Ref, kind: params.OfKind = None) -> bool:
    """Bring a forgotten memory back; False if it was not forgotten.

    >>> memory.restore_memory(memory_id=1)
    """
    return await edit.restore_memory(ctx.store, memory_id, kind, ctx.call, ctx.may_take_back)


@operation(
    Effect.WRITE,
    callers=EVERYONE,
    asks="undo that; take back the last change; oops, revert what you just did; put it back as it was before; "
    "cancel the last action; that was a mistake, go back; roll back what just changed; I did not mean "
    "that; reverse it",
)
async def undo(
    ctx: Context,
    anyone: Annotated[bool, Param("Take back the last change of this project, whoever made it.")] = False,
) -> list[Change]:
    """Take back your last change in this project: what it kept, changed, forgot or restored.

    Yours are those that came the same way (command line, API, model), and those of programs. `by` says whose it was.

    >>> memory.undo()
    """
    surfaces = None if anyone else list_own_surfaces(ctx.surface)
    return await edit.undo_change(ctx.store, ctx.call, ctx.may_take_back, surfaces)


@operation(
    Effect.WRITE,
    callers=ONLY_PERSONS,
    asks="take back exactly this change; undo the change with this number, and no other",
)
async def undo_call(
    ctx: Context, number: Annotated[int, Param("The call's number, as own_changes names it.", least=1)]
) -> list[Change]:
    """Take back one change of yours, if it is still your last in this project; for people.

    >>> memory.undo_call(number=1)
    """
    return await edit.undo_change(ctx.store, ctx.call, ctx.may_take_back, list_own_surfaces(ctx.surface), number)


@operation(
    Effect.READ,
    callers=ONLY_PERSONS,
    asks="which of my calls changed something just now; what of mine could be undone",
)
async def own_changes(
    ctx: Context, since: Annotated[float, Param("Only calls from this time on, in seconds since 1970.", least=0)] = 0.0
) -> list[ChangingCall]:
    """List your latest calls that changed something and are not undone, the newest first; for people.

    >>> memory.own_changes()
    """
    return await lookup.list_changing_calls(ctx.store, ctx.scope, list_own_surfaces(ctx.surface), since)


@operation(
    Effect.READ,
    callers=EVERYONE,
    asks="what did this note say before; earlier versions of a memory; when was this memory changed; how has "
    "this note changed over time; show the edits of a memory; what was the old version; who changed it "
    "and when",
)
async def memory_history(
    ctx: Context,
    memory_id: params.Ref,
    kind: params.OfKind = None,
    limit: Annotated[int | None, Param("Only so many, the latest.", least=1, most=10_000)] = None,
    offset: Annotated[int, Param("How many of the latest to skip first.", least=0, most=10**15)] = 0,
) -> list[Change]:
    """Show every change of a memory, with what it was before.

    >>> memory.memory_history(memory_id=1)
    """
    return await lookup.list_changes(ctx.store, memory_id, kind, limit, offset, ctx.scope)


@operation(
    Effect.READ,
    callers=ONLY_PERSONS,
    asks="what has changed in this project lately; who changed something just now",
)
async def recent_changes(
    ctx: Context,
    after: Annotated[int | None, Param("Only changes with a higher number.", least=0)] = None,
    limit: params.Limit = 50,
) -> list[RecentChange]:
    """List the latest changes of this project, whoever made them, the newest first; for people.

    >>> memory.recent_changes(limit=10)
    """
    return await lookup.list_recent_changes(ctx.store, ctx.scope, after, limit)


@operation(
    Effect.WRITE,
    callers=EVERYONE,
    asks="link these two notes; these memories belong together; connect one note with another; tie these two "
    "facts together; make a connection between notes; this belongs to that other memory",
)
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


@operation(
    Effect.READ,
    callers=EVERYONE,
    asks="did I save the same thing twice; which notes say nearly the same; find repeated memories; is "
    "anything stored more than once; clean out doubled notes; similar entries in my memory; redundant "
    "memories",
    reads_all=True,
)
async def find_duplicates(
    ctx: Context,
    threshold: Annotated[float, Param("How alike in meaning, from 0 to 1.", least=0.5, most=1)] = 0.92,
    k: params.Limit = 20,
) -> list[Group]:
    """Find memories that say nearly the same, in groups, the most alike first.

    >>> memory.find_duplicates(threshold=0.9)
    """
    return await duplicates.find_groups(ctx.store, ctx.scope, threshold, k)


@operation(
    Effect.DESTROY,
    callers=EVERYONE,
    approval=True,
    asks="erase it from memory permanently; destroy private data for good; wipe it so that nobody can recover "
    "it; delete it beyond recovery; legal wants this gone for ever; remove all traces; sensitive data "
    "must vanish completely",
)
async def purge(
    ctx: Context,
    memory_ids: Annotated[list[int | str] | None, Param("Ids or hashes; without them, all forgotten memories.")] = None,
    expect: params.Expect = None,
    dry_run: Annotated[bool, Param("Only count them.")] = False,
    digest: Annotated[str | None, Param("Of exactly these, from list_purgeable; then `expect` is not needed.")] = None,
) -> int:
    """Remove memories for good, with their history and what repeats them, from every file. Nothing brings them back.

    >>> memory.purge(expect=0)
    """
    if dry_run:
        return await purging.count_purgeable(ctx.store, memory_ids, ctx.scope)
    return await purging.purge(ctx.store, memory_ids, expect, digest, ctx.call)


@operation(
    Effect.READ,
    callers=ONLY_PERSONS,
    asks="which memories would a purge remove; show what would be gone for good before it is",
)
async def list_purgeable(
    ctx: Context,
    memory_ids: Annotated[list[int | str] | None, Param("Ids or hashes; without them, all forgotten memories.")] = None,
    k: params.Limit = 20,
) -> Purgeable:
    """Show what purge would remove for good, with the same ids, and what repeats it; for people.

    >>> memory.list_purgeable(k=10)
    """
    return await purging.list_purgeable(ctx.store, memory_ids, ctx.scope, k)
