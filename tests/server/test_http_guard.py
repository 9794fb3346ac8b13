"""HTTP access control: no web pages, no request without the token, and JSON only."""

import json
import socket
import struct
from collections.abc import Generator

import pytest

from http_tools import Reply, RunningServer, assert_secure_headers, read_reply, request, run_server

pytestmark = pytest.mark.sqlite_only("the server has a store of its own")

GETS = ("/tools/discover", "/tools/list", "/tools/search?q=tag", "/tools/remember", "/health", "/info", "/metrics")
ROUTES = [("GET", path) for path in (*GETS, "/openapi.json", "/nothing")] + [("POST", "/tools/remember/execute")]
BODY = json.dumps({"content": "planted by a web page"}).encode()
SITES = {
    "another name": [("Host", "evil.com")],
    "another name with our port": [("Host", "evil.com:{port}")],
    "another port": [("Host", "localhost:9999")],
    "no port": [("Host", "localhost")],
    "a name that resolves to us": [("Host", "127.0.0.1.nip.io:{port}")],
    "a name that begins like ours": [("Host", "localhost:{port}.evil.com")],
    "a user in front": [("Host", "localhost:{port}@evil.com")],
    "an empty Host": [("Host", "")],
    "no Host": [],
    "two Hosts": [("Host", "localhost:{port}"), ("Host", "evil.com")],
    "two equal Hosts": [("Host", "localhost:{port}"), ("Host", "localhost:{port}")],
    "Origin null": [("Host", "localhost:{port}"), ("Origin", "null")],
    "Origin evil": [("Host", "localhost:{port}"), ("Origin", "http://evil.com")],
    "Origin empty": [("Host", "localhost:{port}"), ("Origin", "")],
    "Origin with https": [("Host", "localhost:{port}"), ("Origin", "https://localhost:{port}")],
    "Origin of another port": [("Host", "localhost:{port}"), ("Origin", "http://localhost:1")],
    "two Origins": [("Host", "localhost:{port}"), ("Origin", "http://localhost:{port}"), ("Origin", "null")],
    "cross-site": [("Host", "localhost:{port}"), ("Sec-Fetch-Site", "cross-site")],
    "same-site": [("Host", "localhost:{port}"), ("Sec-Fetch-Site", "same-site")],
    "cross-site in capitals": [("Host", "localhost:{port}"), ("Sec-Fetch-Site", "Cross-Site")],
    "two kinds of site": [
        ("Host", "localhost:{port}"),
        ("Sec-Fetch-Site", "cross-site"),
        ("Sec-Fetch-Site", "same-origin"),
    ],
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Generator[RunningServer]:
    with run_server(tmp_path_factory.mktemp("guard")) as made:
        yield made


def ask(served: RunningServer, method: str, path: str, headers: list[tuple[str, str]]) -> Reply:
    if method == "GET":
        return served.ask(method, path, headers)
    return served.ask(method, path, [*headers, ("Content-Type", "application/json")], BODY)


@pytest.mark.parametrize("site", SITES)
def test_foreign_host_or_origin_is_refused(served: RunningServer, site: str) -> None:
    headers = [(name, value.format(port=served.port)) for name, value in SITES[site]]
    before = served.count()
    for method, path in ROUTES:
        reply = ask(served, method, path, [*headers, ("Authorization", f"Bearer {served.token}")])
        assert reply.status in (400, 403), (path, reply)
        assert reply.error["code"] in ("denied", "malformed")
        assert_secure_headers(reply)
    assert served.count() == before


def test_refused_host_names_the_option_that_allows_it(served: RunningServer) -> None:
    reply = ask(served, "GET", "/tools/discover", [("Host", f"memory.example.com:{served.port}")])
    assert "athena serve --allow-host" in reply.error["hint"]


@pytest.mark.parametrize("site", ["evil.com", "evil.com:80", "localhost:{port}@evil.com"])
def test_absolute_request_url_is_refused(served: RunningServer, site: str) -> None:
    before = served.count()
    for method, path in ROUTES:
        reply = ask(served, method, f"http://{site.format(port=served.port)}{path}", served.auth_headers)
        assert 400 <= reply.status < 500, reply
        assert reply.error
        assert_secure_headers(reply)
    assert served.count() == before


@pytest.mark.parametrize("host", ["localhost:{port}", "LOCALHOST:{port}", "127.0.0.1:{port}", "[::1]:{port}"])
def test_own_names_are_answered(served: RunningServer, host: str) -> None:
    name = host.format(port=served.port)
    headers = [("Host", name), ("Authorization", f"Bearer {served.token}")]
    for more in ([], [("Origin", f"http://{name}")], [("Sec-Fetch-Site", "same-origin")], [("Sec-Fetch-Site", "none")]):
        assert served.ask("GET", "/info", [*headers, *more]).status == 200


@pytest.mark.parametrize(
    "shown",
    [None, "", "Bearer", "Bearer ", "Bearer wrong", "Bearer {token}x", "Basic {token}", "{token}", "Bearer \xe9"],
)
def test_token_is_required_except_health(served: RunningServer, shown: str | None) -> None:
    before = served.count()
    headers = [("Host", f"localhost:{served.port}")]
    if shown is not None:
        headers.append(("Authorization", shown.format(token=served.token)))
    for method, path in ROUTES:
        reply = ask(served, method, path, headers)
        assert_secure_headers(reply)
        if path == "/health":
            assert (reply.status, reply.json) == (200, {"live": True, "ready": True})
            continue
        assert reply.status == 401, (path, reply)
        assert reply.error["code"] == "unauthenticated"
        assert reply.header("www-authenticate") == "Bearer"
    assert served.count() == before


def test_two_authorization_headers_are_refused(served: RunningServer) -> None:
    reply = served.get("/info", ("Authorization", "Bearer wrong"))
    assert reply.status == 400
    assert reply.error["code"] == "malformed"


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_token_opens_every_route(served: RunningServer, scheme: str) -> None:
    headers = [("Host", f"localhost:{served.port}"), ("Authorization", f"{scheme} {served.token}")]
    for path in (*GETS, "/openapi.json"):
        reply = served.ask("GET", path, headers)
        assert reply.status == 200, (path, reply)
        assert_secure_headers(reply)
    reply = ask(served, "POST", "/tools/remember/execute", headers)
    assert reply.json["data"]["hash"]
    assert_secure_headers(reply)
    served.call("forget", memory_id=reply.json["data"]["hash"])


def test_wrong_tokens_do_not_lock_owner(served: RunningServer) -> None:
    headers = [("Host", f"localhost:{served.port}"), ("Authorization", "Bearer guess")]
    assert {served.ask("GET", "/info", headers).status for _ in range(60)} == {401}
    assert served.get("/info").status == 200


def test_early_hangup_is_not_owner(served: RunningServer) -> None:
    """A broken connection has no address, like a Unix socket; only a Unix socket is trusted."""
    before = served.count()
    for number in range(rounds_of_hanging_up := 300):
        body = json.dumps({"content": f"planted {number} of {rounds_of_hanging_up}"}).encode()
        headers = [
            ("Host", f"localhost:{served.port}"),
            ("Content-Type", "application/json"),
            ("Content-Length", str(len(body))),
        ]
        connection = served.connect()
        connection.sendall(request("POST", "/tools/remember/execute", headers, body))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()  # with a reset
    assert served.count() == before


@pytest.mark.parametrize("forged", ["X-Forwarded-For", "X-Forwarded-Proto", "Forwarded", "X-Forwarded-Host"])
def test_proxy_headers_change_nothing(served: RunningServer, forged: str) -> None:
    headers = [("Host", f"localhost:{served.port}"), (forged, "")]
    assert served.ask("GET", "/info", headers).status == 401
    assert served.get("/info", (forged, "https")).status == 200


@pytest.mark.parametrize(
    "kind",
    [
        None,
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "text/plain; application/json",
        "application/jsonp",
        "application/json, text/plain",
    ],
)
def test_form_content_type_is_refused(served: RunningServer, kind: str | None) -> None:
    before = served.count()
    headers = [*served.auth_headers, *([("Content-Type", kind)] if kind else [])]
    reply = served.ask("POST", "/tools/remember/execute", headers, BODY)
    assert reply.status == 415
    assert reply.error["code"] == "not_json"
    assert_secure_headers(reply)
    assert served.count() == before


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW"])
def test_execute_accepts_only_post(served: RunningServer, method: str) -> None:
    with served.connect() as connection:
        connection.sendall(request(method, "/tools/remember/execute", served.auth_headers))
        reply = Reply(0, [], b"")
        if method != "HEAD":
            reply = read_reply(connection)
            assert reply.error["code"] == "method_not_allowed"
            assert_secure_headers(reply)
            assert (reply.status, reply.header("allow")) == (405, "POST")
        else:
            assert connection.recv(65_536).startswith(b"HTTP/1.1 405")


@pytest.mark.parametrize("path", [*GETS, "/openapi.json"])
def test_discovery_accepts_only_get(served: RunningServer, path: str) -> None:
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        reply = served.ask(method, path, [*served.auth_headers, ("Content-Type", "application/json")], b"{}")
        assert reply.status == 405, (method, path)
        assert reply.error
        assert_secure_headers(reply)


@pytest.mark.parametrize(
    "path",
    [
        "/nothing",
        "/tools",
        "/tools/",
        "/tools/no_such_tool",
        "/tools/Remember",
        "/tools/remember/",
        "/tools/../health",
        "/tools/%2e%2e/info",
        "/tools/%00",
        "/tools/%ff%fe",
        "//evil.com/",
        "/mcp/../info",
        "/tools/list?category=nothing",
        "/health/",
        "/HEALTH",
    ],
)
def test_unknown_path_is_not_found(served: RunningServer, path: str) -> None:
    reply = served.get(path)
    assert reply.status == 404, reply
    assert reply.error["code"] == "not_found"
    assert_secure_headers(reply)


def test_unknown_tool_error_suggests_name(served: RunningServer) -> None:
    reply = served.execute("remembr", {})
    assert reply.status == 404
    assert "remember" in json.dumps(reply.error)


@pytest.mark.parametrize(
    "upgrade", [[("Connection", "Upgrade"), ("Upgrade", "websocket"), ("Sec-WebSocket-Key", "x")], [("Upgrade", "h2c")]]
)
def test_upgrade_is_refused(served: RunningServer, upgrade: list[tuple[str, str]]) -> None:
    assert served.get("/tools/discover", *upgrade).status in (200, 400, 403, 404)
    assert served.ask("GET", "/tools/discover", [served.auth_headers[0], *upgrade]).status in (400, 401, 403)


def test_token_is_not_logged(served: RunningServer) -> None:
    served.get("/info")
    served.get("/nothing?x=1")
    served.send(b"GET / HTTP/1.1\r\nAuthorization: Bearer " + served.token.encode() + b"\r\n broken\r\n\x00\r\n\r\n")
    served.execute("remember", {"content": 3})
    log = served.log.read_text()
    assert '"path": "/nothing"' in log
    assert served.token not in log
    assert "Traceback" not in log
