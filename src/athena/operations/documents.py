"""Keep files and folders as memories that can be searched."""

from typing import Annotated

from athena.core.operation import EVERYONE, CallerKind, Effect, Reach, operation
from athena.core.types import Param
from athena.documents import ingest, library
from athena.documents.ingest import Ingested, StoredForm
from athena.documents.library import Document
from athena.operations import params
from athena.operations.context import Context

Source = Annotated[str, Param("The document's path or id, as list_documents shows it.", least=1, most=4_096)]
ENDING_SURFACES = ("cli", "python")  # whose process may end after the call, and its background with it
MAX_ENCODE_S = 20.0  # that other callers wait for vectors


@operation(
    Effect.WRITE,
    callers=EVERYONE,
    reach=[Reach.FILES],
    asks="read this file so that I can ask about it; import the folder; learn the handbook; index this "
    "document; load the pdf into your memory; make my notes folder searchable; take in these files; add "
    "the manual to your knowledge; study this document",
)
async def ingest_document(
    ctx: Context,
    path: Annotated[str, Param("A file, or a folder of them.", least=1, most=4_096, verbatim=True)],
    tags: params.Tags = None,
) -> Ingested:
    """Keep a file, or every file below a folder, as pieces that recall finds; again, it brings them up to date.

    It reads text, Markdown, HTML, PDF, DOCX, PPTX, XLSX, EPUB, CSV, JSON, notebooks, e-mail and source code, and
    follows .gitignore. Documents whose files are gone are forgotten. Programs and models may read below the project's
    own folder and the folders in `documents.roots`, and there no hidden files and no files that may hold keys.

    >>> documents.ingest_document(path="README.md", tags=["docs"])
    """
    is_waiting = ctx.surface in ENDING_SURFACES
    result = await ingest.ingest_path(
        ctx.store,
        ctx.create_file_access(),
        path,
        tags,
        ctx.call,
        ctx.progress,
        None if is_waiting else MAX_ENCODE_S,
        StoredForm(ctx.hide_in_document, ctx.reveal_stored) if ctx.hides_values else None,
    )
    return result.shorten() if ctx.caller is CallerKind.MODEL else result


@operation(
    Effect.READ,
    callers=EVERYONE,
    asks="which documents do you have; what files were imported; which books have you read; what have I "
    "uploaded to you; list the ingested files; sources you can search",
)
async def list_documents(ctx: Context) -> list[Document]:
    """List the documents that are kept, with how many pieces each has.

    >>> documents.list_documents()
    """
    return await library.list_documents(ctx.store, ctx.scope)


@operation(
    Effect.READ,
    callers=EVERYONE,
    reach=[Reach.FILES],  # a path is the caller's
    asks="show the imported document; the text of the handbook in order; open the manual you read; show all "
    "pieces of that document",
)
async def get_document(
    ctx: Context,
    source: Source,
    around: Annotated[int | None, Param("Id of a piece that recall found: only it and its neighbours.")] = None,
) -> list[str]:
    """Return a document's pieces in order.

    >>> documents.get_document(source="README.md")
    """
    path = await library.resolve_source(ctx.store, ctx.create_file_access(), source, ctx.scope)
    return await library.list_pieces(ctx.store, await ctx.hide_in_document(path), ctx.scope, around)


@operation(
    Effect.WRITE,
    callers=EVERYONE,
    reach=[Reach.FILES],
    asks="remove the imported document; forget the handbook; take that file out of your knowledge; the manual "
    "is outdated, drop it; un-import the file; erase an ingested document",
)
async def delete_document(ctx: Context, source: Source) -> int:
    """Forget a document; returns how many pieces it had; `undo` brings them back.

    >>> documents.delete_document(source="README.md")
    """
    path = await library.resolve_source(ctx.store, ctx.create_file_access(), source, ctx.scope)
    return await library.forget_document(ctx.store, await ctx.hide_in_document(path), ctx.call)
