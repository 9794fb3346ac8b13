"""Keep files and folders as memories that can be searched."""

from dataclasses import dataclass
from typing import Annotated

from athena.documents.pieces import cut
from athena.documents.reading import Skipped, read
from athena.kernel.operation import Effect, operation
from athena.kernel.shapes import Param
from athena.memory import documents, draft
from athena.memory.documents import Document
from athena.operations import params
from athena.operations.context import Context
from athena.threads import aside

Source = Annotated[str, Param("The document's path, as list_documents shows it.", least=1, most=4_096)]


@dataclass(frozen=True, slots=True)
class Ingested:
    documents: int
    pieces: int
    skipped: tuple[str, ...]  # each with the reason
    redacted: tuple[str, ...]  # the kinds of secrets that were taken out


@operation(Effect.WRITE)
async def ingest_document(
    ctx: Context,
    path: Annotated[str, Param("A text file, or a folder of them.", least=1, most=4_096)],
    tags: params.Tags = None,
) -> Ingested:
    """Keep a file, or every text file below a folder, as pieces that recall finds; again, it brings them up to date.

    >>> documents.ingest_document(path="README.md", tags=["docs"])
    """
    found = await aside(lambda: list(read(path)))
    skipped = tuple(f"{one.path}: {one.reason}" for one in found if isinstance(one, Skipped))
    count = pieces = 0
    redacted: list[str] = []
    for one in found:
        if not isinstance(one, Skipped):
            drafts = [
                draft.clean(text, tags, documents.KIND, {"source": one.path, "session_id": one.path})
                for text in cut(one.text)
            ]
            redacted += [kind for made in drafts for kind in made.redacted]
            pieces += await documents.replace(ctx.store, one.path, drafts, ctx.call)
            count += 1
    return Ingested(count, pieces, skipped, tuple(redacted))


@operation(Effect.READ)
async def list_documents(ctx: Context) -> list[Document]:
    """List the documents that are kept, with how many pieces each has.

    >>> documents.list_documents()
    """
    return await documents.listed(ctx.store, ctx.scope)


@operation(Effect.READ)
async def get_document(ctx: Context, source: Source) -> list[str]:
    """Return a document's pieces in order.

    >>> documents.get_document(source="README.md")
    """
    return await documents.pieces(ctx.store, source, ctx.scope)


@operation(Effect.WRITE)
async def delete_document(ctx: Context, source: Source) -> int:
    """Forget all pieces of a document and return how many there were; `undo` brings them back.

    >>> documents.delete_document(source="README.md")
    """
    return await documents.forget(ctx.store, source, ctx.call)
