"""Documents: which files and folders were read, their pieces in order; read one, bring it up to date, forget it."""

from starlette.responses import Response

from athena.errors import InvalidInput
from athena.server.page.forms import parse_whole
from athena.server.page.rendering import join_words
from athena.server.page.site import PageRequest, View

DOCUMENTS_A_PAGE = 100
PIECES_A_PAGE = 50
SKIPPED_SHOWN = 3


async def show_documents(page: PageRequest) -> Response:
    documents = sorted(await page.call("list_documents"), key=lambda document: -document.updated)
    words = page.params.get("find", "").lower()
    chosen = [document for document in documents if words in document.source.lower()]
    offset = parse_whole(page.params.get("offset"))
    return page.render(
        "documents_part.html" if page.is_fragment else "documents.html",
        documents=chosen[offset : offset + DOCUMENTS_A_PAGE],
        total=len(chosen),
        pieces=sum(document.pieces for document in chosen),
        find=words,
        offset=offset,
        next_offset=offset + DOCUMENTS_A_PAGE if offset + DOCUMENTS_A_PAGE < len(chosen) else None,
    )


async def show_document(page: PageRequest) -> Response:
    source = page.params.get("source", "")
    if not source:
        return page.redirect("/memories/documents")
    pieces = await page.call("get_document", source=source)
    offset = parse_whole(page.params.get("offset"))
    return page.render(
        "document.html",
        source=source,
        pieces=pieces[offset : offset + PIECES_A_PAGE],
        total=len(pieces),
        offset=offset,
        next_offset=offset + PIECES_A_PAGE if offset + PIECES_A_PAGE < len(pieces) else None,
    )


async def ingest_document(page: PageRequest) -> Response:
    path, tags = page.form.get("path", "").strip(), page.form.get("tags", "").strip()
    if not path:
        raise InvalidInput("there is no path", hint="name a file or a folder of this machine")
    result = await page.call("ingest_document", path=path, tags=tags or None)
    counts = [
        f"{count} {word}"
        for count, word in (
            (result.new, "new"),
            (result.changed, "changed"),
            (result.unchanged, "as before"),
            (result.withdrawn, "gone"),
        )
        if count
    ]
    text = f"Documents: {join_words(counts)}" if counts else "No document was found there"
    if result.skipped:
        text += f"; left out {len(result.skipped)}: {'; '.join(result.skipped[:SKIPPED_SHOWN])}"
    if result.redacted:
        text += f"; removed from it: {join_words(result.redacted)}"
    return page.redirect("/memories/documents", text, undo=True)


async def delete_document(page: PageRequest) -> Response:
    count = await page.call("delete_document", source=page.form.get("source", ""))
    return page.redirect("/memories/documents", f"Forgotten: {count} pieces", undo=True)


VIEWS = (
    View("GET", "/memories/documents", show_documents),
    View("GET", "/memories/documents/one", show_document),
    View("POST", "/memories/documents", ingest_document),
    View("POST", "/memories/documents/delete", delete_document),
)
