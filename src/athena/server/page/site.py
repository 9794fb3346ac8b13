"""The page's routes: let a person in by a one-time link, and answer each request with a view.

Every request of a view goes through `PageSite._answer`: it asks for the session and, where something changes, for the
token of the session's forms.
"""

import hmac
import json
import sys
import time
import traceback
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from athena.core.approval import Approval, Approver
from athena.core.catalog import AnyOperation, Catalog
from athena.core.operation import Effect
from athena.core.redaction.personal import mask_private
from athena.core.threads import start_in_thread
from athena.core.types import to_json
from athena.core.values import Page
from athena.core.version import __version__
from athena.errors import AthenaError, Denied, InvalidInput, LimitExceeded, NotFound
from athena.memory.values import Change
from athena.server.admission import CallDispatcher
from athena.server.guard import MalformedRequest
from athena.server.page import rendering
from athena.server.page.forms import describe_problem, parse_whole
from athena.server.page.sessions import PageSession, PageSessions, find_cookie

SURFACE = "page"
CHANGES_SHOWN, LONG_CHANGES_SHOWN = 50, 20
MAX_FORM_FIELDS = 20_000
MAX_PROJECT_CHARS = 1_000
FORM_MEDIA_TYPE = "application/x-www-form-urlencoded"
FRAGMENT_HEADER = "x-athena-part"  # sent by our script: the page's frame is there already
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; worker-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
# with no-referrer, a browser sends `Origin: null` with our own forms
PAGE_HEADERS = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "referrer-policy": "same-origin",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
STATIC_CACHE = "public, max-age=31536000, immutable"

CreateContext = Callable[[str, Approval | None, str | None], Any]  # project, approval, idempotency key


@dataclass
class Section:
    """An entry of the navigation."""

    path: str
    title: str
    icon: str


@dataclass
class PageRequest:
    """One request of a person at the page, with what its view needs."""

    site: "PageSite"
    request: Request
    session: PageSession
    project: str
    form: Mapping[str, str] = field(default_factory=dict)
    form_lists: Mapping[str, list[str]] = field(default_factory=dict)
    project_names: list[str] = field(default_factory=list)
    began: float = field(default_factory=time.time)
    called: dict[str, AnyOperation] = field(default_factory=dict)  # by name
    told: str = ""
    offers_undo: bool = False

    @property
    def params(self) -> Mapping[str, str]:
        """The query of the address, without empty values."""
        return {name: value for name, value in self.request.query_params.items() if value.strip()}

    @property
    def is_fragment(self) -> bool:
        return FRAGMENT_HEADER in self.request.headers

    def get_path(self, name: str) -> str:
        return str(self.request.path_params[name])

    def get_number(self, name: str) -> int:
        """Return the number in the path; raise NotFound for what can be none."""
        if not (number := parse_whole(self.get_path(name))):
            raise NotFound("There is no such page.")
        return number

    def find_operation(self, name: str) -> AnyOperation:
        return self.site.find_operation(name)

    def describe_operation(self, name: str) -> str:
        """Return what an operation does, in a line."""
        try:
            return self.find_operation(name).summary
        except AthenaError:  # a tool of a server that is gone
            return ""

    async def call(self, name: str, /, **arguments: Any) -> Any:
        """Call an operation as the person at the page; return its result as it is."""
        return await self.call_approved(name, arguments, None)

    async def list_history(self, ref: int | str, kind: str | None = None) -> Page[Change]:
        """Return the latest changes of something, the oldest first; fewer where it is long."""
        arguments = {"memory_id": ref, "kind": kind}
        try:
            changes: Page[Change] = await self.call("memory_history", **arguments, limit=CHANGES_SHOWN)
        except LimitExceeded:
            changes = await self.call("memory_history", **arguments, limit=LONG_CHANGES_SHOWN)
        return changes

    async def call_approved(
        self, name: str, arguments: Mapping[str, Any], approval: Approval | None, key: str | None = None
    ) -> Any:
        operation = self.site.find_operation(name)
        self.called[operation.name] = operation
        if operation.effect is not Effect.READ:
            if self.request.method != "POST":
                raise RuntimeError(f"{name} changes something: only a form may call it")
            if self.session.is_read_only:
                raise Denied("this page is read-only", hint="open it again without --read-only: athena ui")
        context = self.site.create_context(self.project, approval, key)
        arguments = {key: value for key, value in arguments.items() if value is not None}
        return await self.site.dispatcher.dispatch(operation, arguments, context)

    def url(self, path: str, /, **params: Any) -> str:
        """Return the address of a page in the same project."""
        given = {name: value for name, value in params.items() if value not in (None, "", False)}
        if self.project != self.site.project and "project" not in given:
            given["project"] = self.project
        return f"{path}?{urlencode(given, doseq=True)}" if given else path

    def render(self, template: str, /, http_status: int = 200, **context: Any) -> Response:
        notice = None if self.is_fragment else self.session.take_notice()
        shared = {
            "page": self,
            "url": self.url,
            "sections": self.site.sections,
            "here": self.request.url.path,
            "notice": notice,
            "is_read_only": self.session.is_read_only,
            "is_fragment": self.is_fragment,
            "version": __version__,
        }
        return PendingPage(template, shared | context, http_status)

    def redirect(self, path: str, text: str = "", /, *, undo: bool = False, **params: Any) -> Response:
        """Go to another page after a form was sent; `text` is shown there, with an offer to undo what it changed."""
        self.told, self.offers_undo = text, undo
        return RedirectResponse(self.url(path, **params), 303, headers=PAGE_HEADERS)

    async def tell(self) -> None:
        """Keep the notice of this request for the next page; Undo is bound to what this request has changed."""
        if not self.told:
            return
        calls = await self.call("own_changes", since=self.began) if self.offers_undo else []
        self.session.tell(
            self.told, self.project, tuple(each.number for each in calls if each.operation in self.called)
        )

    def go_back(self, default: str, text: str = "", *, undo: bool = False) -> Response:
        """Go to the page that the form names, if it is one of ours."""
        self.told, self.offers_undo = text, undo
        back = self.form.get("back", "")
        return RedirectResponse(back if is_own_address(back) else self.url(default), 303, headers=PAGE_HEADERS)


def is_own_address(address: str) -> bool:
    """Return whether an address leads to this page: browsers read `//` and `/\\` as the beginning of a host."""
    return address.startswith("/") and not address.startswith(("//", "/\\")) and address.isprintable()


def find_last_address(request: Request) -> str:
    """Return the page of ours from which a request came, without its host; empty if it came from elsewhere."""
    address = urlsplit(request.headers.get("referer", ""))
    is_ours = address.netloc == request.headers.get("host", "") and address.path != request.url.path
    return f"{address.path}?{address.query}".removesuffix("?") if is_ours else ""


Handler = Callable[[PageRequest], Awaitable[Response]]


@dataclass(frozen=True)
class View:
    """A route of the page: `method` is GET for reading, POST for a form."""

    method: str
    path: str
    handler: Handler


class PageSite:
    """All views of one server, and the sessions of its visitors."""

    def __init__(
        self,
        views: Iterable[View],
        sections: Iterable[Section],
        catalog: Catalog,
        dispatcher: CallDispatcher,
        create_context: CreateContext,
        approver: Approver,
        project: str,
        cookie_name: str,
        is_owner: Callable[[Any], bool],
    ) -> None:
        self._views, self.sections = tuple(views), tuple(sections)
        self._catalog, self.dispatcher, self.create_context = catalog, dispatcher, create_context
        self.approver, self.project = approver, project
        self._cookie_name, self._is_owner = cookie_name, is_owner
        self.sessions = PageSessions()
        self.feeds: Any = None  # of live updates
        self.section_paths = {section.path for section in self.sections}
        self._first_segments = {route.path.split("/")[1] for route in self.create_routes()}

    def create_routes(self) -> list[Route]:
        routes = [
            Route("/open", self._open),
            Route("/open/link", self._create_link, methods=["POST"]),
            Route("/leave", partial(self._answer, self._leave), methods=["POST"]),
            Route("/static/{name:path}", self._send_static),
        ]
        views = [Route(view.path, partial(self._answer, view.handler), methods=[view.method]) for view in self._views]
        return [*routes, *views]

    def is_page_path(self, path: str) -> bool:
        """Return whether a path is the page's, which asks for its session instead of the token."""
        first = path.split("/")[1] if path.startswith("/") else ""
        return first in self._first_segments

    def find_operation(self, name: str) -> AnyOperation:
        if "." in name:
            self._catalog.refresh()
        return self._catalog.get_operation(name)

    # --- getting in ---------------------------------------------------------------------------------------------------

    def create_link_path(self, project: str, *, is_read_only: bool = False) -> str:
        """Return the path and query of a link that opens the page once."""
        return f"/open?{urlencode({'key': self.sessions.create_link(project, is_read_only=is_read_only)})}"

    async def _create_link(self, request: Request) -> Response:
        """Make a link for the owner at the Unix socket; the token alone gives none, since an agent may have it."""
        if not self._is_owner(request.scope):
            raise Denied("only a process of the owner gets a link", hint="athena ui")
        fields = dict(parse_qsl((await request.body()).decode("utf-8", "replace")))
        project = fields.get("project", self.project)[:MAX_PROJECT_CHARS]
        path = self.create_link_path(project, is_read_only=fields.get("read_only") == "on")
        return JSONResponse({"path": path})

    async def _open(self, request: Request) -> Response:
        opened = self.sessions.open_session(request.query_params.get("key", "")) if request.method == "GET" else None
        if opened is None:
            return self._show_door(request, 403, "This link was used already, or is too old.")
        secret, link, session = opened
        target = f"/?{urlencode({'project': link.project})}" if link.project != self.project else "/"
        # the script keeps the token for this port; a browser sends what follows `#` to nobody
        response = RedirectResponse(f"{target}#form_token={session.form_token}", 303, headers=PAGE_HEADERS)
        host = request.headers.get("host", "").rpartition(":")[0] or request.headers.get("host", "")
        is_local = host in ("localhost", "127.0.0.1", "[::1]")
        response.set_cookie(
            self._cookie_name, secret, max_age=7 * 86_400, httponly=True, samesite="strict", secure=not is_local
        )
        return response

    async def _leave(self, page: PageRequest) -> Response:
        """End the session of this browser."""
        self.sessions.end_session(find_cookie(page.request.headers, self._cookie_name))
        response = self._show_door(page.request, 200, "You have left. Nobody gets in with this browser now.")
        response.delete_cookie(self._cookie_name)
        return response

    def _show_door(self, request: Request, status: int, text: str) -> Response:
        """Tell a visitor without a session how to get in."""
        if FRAGMENT_HEADER in request.headers:
            return create_html_response("", status)
        return create_html_response(rendering.render("door.html", {"text": text}), status)

    async def _send_static(self, request: Request) -> Response:
        file = rendering.load_static_files().get(request.path_params["name"])
        if file is None:
            raise NotFound("there is no such file")
        is_exact = request.query_params.get("v") == file.tag  # else a later version may come under the same address
        cache = STATIC_CACHE if is_exact else "no-cache"
        headers = {"cache-control": cache, "vary": "accept-encoding", "etag": f'"{file.tag}"'}
        headers["content-security-policy"] = CONTENT_SECURITY_POLICY  # it holds for a worker, too
        if request.headers.get("if-none-match") == headers["etag"]:
            return Response(status_code=304, headers=headers)
        if file.compressed is not None and "gzip" in request.headers.get("accept-encoding", ""):
            headers["content-encoding"] = "gzip"
            return Response(file.compressed, media_type=file.media_type, headers=headers)
        return Response(file.body, media_type=file.media_type, headers=headers)

    # --- views --------------------------------------------------------------------------------------------------------

    async def _answer(self, handler: Handler, request: Request) -> Response:
        session = self.sessions.find_session(find_cookie(request.headers, self._cookie_name))
        if session is None:
            return self._show_door(request, 401, "Open the page with a link from your terminal.")
        project = (request.query_params.get("project") or self.project)[:MAX_PROJECT_CHARS]
        page = PageRequest(self, request, session, project)
        try:
            if request.method == "POST":
                page.form_lists = await _read_form(request)
                page.form = {name: values[-1] for name, values in page.form_lists.items()}
                if not hmac.compare_digest(page.form.get("form_token", "").encode(), session.form_token.encode()):
                    problem = "this form is not of your session, or the browser ran no script"
                    raise Denied(problem, hint="open the page again: athena ui")
                page.project = (page.form.get("project") or project)[:MAX_PROJECT_CHARS]
            if not page.is_fragment and request.url.path != "/live":
                page.project_names = await self._list_project_names(page)
            response = await handler(page)
            await page.tell()
            return await render_pending(response)
        except AthenaError as error:
            return await render_pending(self._show_error(page, error))
        except Exception as error:  # noqa: BLE001  # a bug of ours; the person gets an id to report
            lines = mask_private("".join(traceback.format_exception(error)))
            print(json.dumps({"request": request.scope["request_id"], "error": lines}), file=sys.stderr, flush=True)
            text = f"something went wrong here (request {request.scope['request_id']})"
            return await render_pending(self._show_error(page, AthenaError(text, hint="the server's log says more")))

    async def show_missing(self, scope: Any) -> Response | None:
        """Return the page for an address that does not exist; None for who has no session."""
        request = Request(scope)
        session = self.sessions.find_session(find_cookie(request.headers, self._cookie_name))
        if session is None:
            return None
        page = PageRequest(self, request, session, self.project, project_names=[self.project])
        return await render_pending(self._show_error(page, NotFound("There is no such page.")))

    async def _list_project_names(self, page: PageRequest) -> list[str]:
        projects = sorted(await page.call("list_projects"), key=lambda project: -(project.updated or 0))
        names = [project.name for project in projects]
        return names if page.project in names else [page.project, *names]

    def _show_error(self, page: PageRequest, error: AthenaError) -> Response:
        if isinstance(error, InvalidInput):
            error = describe_problem(error, page.called.values())
        if page.is_fragment:
            return page.render("part_error.html", http_status=error.http, error=error)
        headings = {
            404: "Not found",
            403: "Not allowed",
            409: "Something changed meanwhile",
            422: "Something is not right yet",
        }
        heading = headings.get(error.http, "That did not work")
        back = page.form.get("back", "") or find_last_address(page.request)
        back = back if is_own_address(back) else page.url("/")
        is_form = page.request.method == "POST"
        return page.render(
            "error.html", http_status=error.http, error=error, heading=heading, back=back, is_form=is_form
        )


async def _read_form(request: Request) -> dict[str, list[str]]:
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != FORM_MEDIA_TYPE:
        raise MalformedRequest("a form is sent as " + FORM_MEDIA_TYPE)
    try:
        pairs = parse_qsl((await request.body()).decode(), keep_blank_values=True, max_num_fields=MAX_FORM_FIELDS)
    except ValueError:
        raise InvalidInput("the form cannot be read", hint="go back and try with less") from None
    fields: dict[str, list[str]] = {}
    for name, value in pairs:
        fields.setdefault(name, []).append(value)
    return fields


class PendingPage(Response):
    """A page of which the template is not rendered yet: texts of others may be long, and no other call waits."""

    def __init__(self, template: str, context: Mapping[str, Any], status: int) -> None:
        super().__init__(status_code=status)
        self.template, self.context = template, context


async def render_pending(response: Response) -> Response:
    """Return a page with its text, rendered on another thread; any other response as it is."""
    if not isinstance(response, PendingPage):
        return response
    text = await start_in_thread(rendering.render, response.template, response.context)
    return create_html_response(text, response.status_code)


def create_html_response(text: str, status: int = 200) -> Response:
    body = text.encode("utf-8", "replace")
    return Response(body, status, media_type="text/html", headers=PAGE_HEADERS)


def to_plain(value: Any) -> Any:
    """Return a result as plain JSON values, as templates read it."""
    return to_json(value)
