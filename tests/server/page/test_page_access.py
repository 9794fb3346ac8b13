"""Who gets into the page: one-time links, sessions, forms, other sites."""

import re
from pathlib import Path
from urllib.parse import urlencode, urlsplit

from page_tools import create_link

from athena.server.page.sessions import LINK_LIFETIME_S, SESSION_IDLE_S, PageSessions
from http_tools import Reply, RunningServer, run_server

FORM = "application/x-www-form-urlencoded"


def ask(server: RunningServer, method: str, path: str, body: bytes | None = None, **headers: str) -> Reply:
    given = {"Host": f"127.0.0.1:{server.port}"} | {name.replace("_", "-"): value for name, value in headers.items()}
    return server.ask(method, path, list(given.items()), body)


def open_session(server: RunningServer, *, read_only: bool = False) -> str:
    """Use a link; return the cookie."""
    return open_forms(server, read_only=read_only)[0]


def open_forms(server: RunningServer, *, read_only: bool = False) -> tuple[str, str]:
    """Use a link; return the cookie, and the token of forms that a browser keeps for the page's port."""
    link = urlsplit(create_link(server, read_only=read_only))
    reply = ask(server, "GET", f"{link.path}?{link.query}")
    assert reply.status == 303
    token = urlsplit(str(reply.header("location"))).fragment.removeprefix("form_token=")
    return str(reply.header("set-cookie")).partition(";")[0], token


def post(server: RunningServer, path: str, cookie: str, /, **fields: str) -> Reply:
    origin = f"http://127.0.0.1:{server.port}"
    return ask(
        server, "POST", path, urlencode(fields).encode(), Cookie=cookie, Origin=origin, Content_Type=FORM
    )  # fmt: skip


def test_link_opens_page_once(seeded: RunningServer) -> None:
    link = urlsplit(create_link(seeded))
    path = f"{link.path}?{link.query}"
    assert ask(seeded, "HEAD", path, Connection="close").status == 403  # a preview of the link does not use it up
    first = ask(seeded, "GET", path)
    assert first.status == 303
    cookie = str(first.header("set-cookie"))
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    again = ask(seeded, "GET", path)
    assert again.status == 403
    assert again.header("set-cookie") is None
    assert b"athena ui" in again.body
    assert ask(seeded, "GET", "/", Cookie=cookie.partition(";")[0]).status == 200


def test_wrong_address_shows_a_page_to_a_person(seeded: RunningServer) -> None:
    cookie = open_session(seeded)
    for path in ("/nosuch", "/graph/nosuch/address"):
        reply = ask(seeded, "GET", path, Cookie=cookie, Accept="text/html,*/*")
        assert reply.status == 404
        assert b"There is no such page." in reply.body
        assert b'href="/"' in reply.body
    missing = [ask(seeded, "GET", "/nosuch", Cookie=cookie), ask(seeded, "GET", "/nosuch", Accept="text/html")]
    missing.append(ask(seeded, "GET", "/nosuch", Cookie=f"athena_{seeded.port}=guess", Accept="text/html"))
    assert all(b"a token is needed" in reply.body for reply in missing)
    assert b"a token is needed" in ask(seeded, "POST", "/nosuch", b"", Cookie=cookie, Accept="text/html").body
    assert b"There is no such page." in ask(seeded, "GET", "/tools/discover", Cookie=cookie, Accept="text/html").body


def test_page_needs_session(seeded: RunningServer) -> None:
    for path in ("/", "/memories", "/memories/1", "/live"):
        for cookie in ("", f"athena_{seeded.port}=guess", f"athena_{seeded.port}={seeded.token}"):
            reply = ask(seeded, "GET", path, Cookie=cookie)
            assert reply.status == 401
            assert b"Friday" not in reply.body
    token_only = seeded.get("/memories")
    assert token_only.status == 401  # the token is for applications: it opens no page


def test_link_is_for_owner_alone(seeded: RunningServer) -> None:
    """The token does not make a link: the agent that holds it would then speak as a person."""
    reply = seeded.ask("POST", "/open/link", seeded.auth_headers, b"")
    assert reply.status == 403


def test_every_answer_has_strict_policy(seeded: RunningServer) -> None:
    cookie = open_session(seeded)
    for path in ("/", "/memories", "/memories/999999", "/open?key=x"):
        reply = ask(seeded, "GET", path, Cookie=cookie)
        policy = str(reply.header("content-security-policy"))
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert reply.header("x-frame-options") == "DENY"
        assert not re.search(rb"<script(?![^>]*\ssrc=)|\sstyle=|\son\w+=", reply.body)


def test_other_sites_get_nothing(seeded: RunningServer) -> None:
    cookie = open_session(seeded)
    refused = (
        {"Host": "evil.example"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
    )
    for headers in refused:
        reply = ask(seeded, "GET", "/memories", None, Cookie=cookie, **headers)
        assert reply.status == 403, headers
        assert b"Friday" not in reply.body


def test_form_needs_its_token(seeded: RunningServer) -> None:
    (cookie, right), (_, other) = open_forms(seeded), open_forms(seeded)
    for token in ("", "guess", other):
        reply = post(seeded, "/memories/remember", cookie, content="forged words", form_token=token)
        assert reply.status == 403
    assert ask(seeded, "GET", f"/memories/forget?id=1&form_token={right}", Cookie=cookie).status >= 400
    assert seeded.call("recall", query="forged words", k=1, min_score=0.5) == []


def test_cookie_alone_changes_and_calls_nothing(seeded: RunningServer, tmp_path: Path) -> None:
    """Another server of this machine gets the cookie: browsers send it to every port."""
    cookie, token = open_forms(seeded)
    count = seeded.count()
    (secret := tmp_path / "notes.txt").write_text("The key of the cellar lies under the mat")
    forms = {
        "/memories/remember": {"content": "forged words"},
        "/memories/documents": {"path": str(secret)},
        "/servers/tools/documents.ingest_document": {"path": str(secret)},
        "/programs/run": {"code": "memory.remember(content='forged words')"},
    }
    for page in ("/", "/memories", "/memories/documents", "/servers/tools/documents.ingest_document", "/programs"):
        body = ask(seeded, "GET", page, Cookie=cookie).body.decode()
        shown = set(re.findall(r'name="form_token"(?: value="([^"]*)")?', body))
        assert shown
        for path, fields in forms.items():
            for found in shown:
                assert post(seeded, path, cookie, form_token=found, **fields).status == 403, path
        assert token not in body
    assert seeded.count() == count
    assert seeded.call("list_documents") == []


def test_read_only_page_changes_nothing(seeded: RunningServer) -> None:
    cookie, token = open_forms(seeded, read_only=True)
    count = seeded.count()
    reply = post(seeded, "/memories/remember", cookie, content="not allowed", form_token=token)
    assert reply.status == 403
    assert b"read-only" in reply.body
    assert b"Write something down" not in ask(seeded, "GET", "/memories", Cookie=cookie).body
    assert seeded.count() == count


def test_form_goes_back_to_own_pages_only(seeded: RunningServer) -> None:
    cookie, token = open_forms(seeded)
    for back in ("https://evil.example/", "//evil.example", "/\\evil.example", "javascript:alert(1)"):
        fields = {"content": "Backups are kept for a year", "form_token": token, "back": back}
        reply = post(seeded, "/memories/remember", cookie, **fields)
        assert reply.status == 303
        assert str(reply.header("location")).startswith("/memories"), back


def test_old_links_and_sessions_end() -> None:
    now = 0.0
    sessions = PageSessions(lambda: now)
    link, late = sessions.create_link("p"), sessions.create_link("p")
    opened = sessions.open_session(link)
    assert opened is not None
    assert sessions.find_session(opened[0]) is not None
    now = LINK_LIFETIME_S + 1
    assert sessions.open_session(late) is None
    now += SESSION_IDLE_S + 1
    assert sessions.find_session(opened[0]) is None


def test_static_files_are_cached_by_content(seeded: RunningServer) -> None:
    body = ask(seeded, "GET", "/open").body.decode()
    match = re.search(r'href="(/static/page.css\?v=\w+)"', body)
    assert match
    assert "immutable" in str(ask(seeded, "GET", match[1]).header("cache-control"))
    assert ask(seeded, "GET", "/static/page.css").header("cache-control") == "no-cache"
    for path in ("/static/../site.py", "/static/%2e%2e/site.py", "/static/vendor/vendor.json", "/static/"):
        assert ask(seeded, "GET", path).status == 404


def test_who_leaves_is_out(seeded: RunningServer) -> None:
    cookie, token = open_forms(seeded)
    assert post(seeded, "/leave", cookie, form_token="guess").status == 403
    assert ask(seeded, "GET", "/", Cookie=cookie).status == 200
    assert post(seeded, "/leave", cookie, form_token=token).status == 200
    assert ask(seeded, "GET", "/", Cookie=cookie).status == 401


def test_page_behind_proxy_needs_tls(tmp_path: Path) -> None:
    """Under a name that is not this machine's, the cookie is for TLS alone, and forms may come from https."""
    with run_server(tmp_path, "--port", "0", "--allow-host", "athena.example") as server:
        link = urlsplit(create_link(server))
        path = f"{link.path}?{link.query}"
        reply = ask(server, "GET", path, Host="athena.example")
        assert "; Secure" in str(reply.header("set-cookie"))
        cookie = str(reply.header("set-cookie")).partition(";")[0]
        headers = {"Host": "athena.example", "Cookie": cookie, "Origin": "https://athena.example"}
        assert ask(server, "GET", "/", None, **headers).status == 200
        assert ask(server, "GET", "/", None, **headers | {"Origin": "https://evil.example"}).status == 403
