"""OAuth login to a server: once in a browser, renewed silently, and never with the token of another server."""

import json
import stat
import threading
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit
from urllib.request import urlopen

import pytest
from gateway_tools import GatewayApp, open_gateway_app

from athena.errors import Denied, InvalidInput, Unavailable
from athena.gateway.oauth import is_safe_url
from wait_tools import wait_until

ECHO = {"name": "echo", "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}}}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: "Bank"

    def log_message(self, *_: Any) -> None:
        pass

    def give(self, made: Any, status: int = 200, **headers: str) -> None:
        body = json.dumps(made).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        for part in (body[:20], body[20:40], body[40:]):
            self.wfile.write(part)
            if self.path == "/token":
                time.sleep(self.server.pause_s)

    def do_GET(self) -> None:
        base, address = self.server.base, urlsplit(self.path)
        if address.path.startswith("/.well-known/oauth-protected-resource"):
            return self.give({"resource": f"{base}/mcp", "authorization_servers": [base]})
        if address.path.startswith("/.well-known/oauth-authorization-server"):
            ends = {name: f"{base}/{name.partition('_')[0]}" for name in ("token_endpoint", "registration_endpoint")}
            kinds = {"response_types_supported": ["code"], "code_challenge_methods_supported": ["S256"]}
            return self.give({"issuer": base, "authorization_endpoint": self.server.page, **ends, **kinds})
        if address.path == "/authorize":
            asked = {name: values[0] for name, values in parse_qs(address.query).items()}
            back = f"{asked['redirect_uri']}?code=once&state={asked['state']}"
            return self.give({}, 302, Location=back)
        return self.give({}, 404)

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/registration":
            return self.give(json.loads(raw) | {"client_id": "athena-1"}, 201)
        if self.path == "/token":
            self.server.grants.append(parse_qs(raw.decode())["grant_type"][0])
            self.server.good = f"token-{len(self.server.grants)}"
            given = {"access_token": self.server.good, "refresh_token": "again", "token_type": "Bearer"}
            return self.give(given | {"expires_in": self.server.lasts})
        self.server.seen.append(self.headers.get("Authorization", ""))
        if self.server.good == "" or self.headers.get("Authorization") != f"Bearer {self.server.good}":
            where = f'Bearer resource_metadata="{self.server.base}/.well-known/oauth-protected-resource/mcp"'
            return self.give({}, 401, WWW_Authenticate=where)
        message = json.loads(raw)
        if "id" not in message:
            return self.give({}, 202)
        results: dict[str, Any] = {
            "initialize": {
                "protocolVersion": "2025-11-25",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "bank", "version": "1"},
            },
            "tools/list": {"tools": [ECHO]},
            "tools/call": {"content": [{"type": "text", "text": "welcome"}]},
        }
        if message["method"] not in results:
            error = {"code": -32601, "message": "unknown"}
            return self.give({"jsonrpc": "2.0", "id": message["id"], "error": error})
        return self.give({"jsonrpc": "2.0", "id": message["id"], "result": results[message["method"]]})


class Bank(ThreadingHTTPServer):
    """A server that requires a login."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.base = f"http://127.0.0.1:{self.server_port}"
        self.page = f"{self.base}/authorize"
        self.good, self.lasts = "", 3600
        self.pause_s = 0.0  # in the middle of a token
        self.grants: list[str] = []
        self.seen: list[str] = []


@pytest.fixture
def bank() -> Iterator[Bank]:
    made = Bank()
    thread = threading.Thread(target=made.serve_forever)
    thread.start()
    yield made
    made.shutdown()
    made.server_close()
    thread.join()


@pytest.fixture
def home(tmp_path: Path) -> Iterator[GatewayApp]:
    with open_gateway_app(tmp_path / "home") as made:
        yield made


def browse(address: str) -> None:
    with urlopen(address) as page:
        assert b"logged in" in page.read()


def test_login_is_renewed_without_browser(home: GatewayApp, bank: Bank) -> None:
    home.add("bank", {"url": f"{bank.base}/mcp"}, approve=False)
    with pytest.raises(Denied, match="answered 401: it does not let us in") as caught:
        home.approve("bank")
    assert "athena servers login bank" in str(caught.value.hint)
    bank.lasts = 1

    def show(address: str) -> None:
        # an executor thread would keep a cancelled caller waiting
        assert threading.current_thread().name.startswith("athena")
        browse(address)

    home.gateway.login("bank", show)
    kept = home.home / "logins" / "bank.json"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    home.approve("bank")
    bank.good = "something else"  # the token becomes invalid
    threading.Event().wait(1.1)
    with open_gateway_app(home.home) as other:
        assert other.call("bank.echo", text="x") == "welcome"
    assert bank.grants[0] == "authorization_code"
    assert set(bank.grants[1:]) == {"refresh_token"}


def test_login_is_renewed_after_its_call_is_over(home: GatewayApp, bank: Bank) -> None:
    home.add("bank", {"url": f"{bank.base}/mcp", "timeout": 1}, approve=False)
    bank.lasts = 1
    home.gateway.login("bank", browse)
    home.approve("bank")
    assert home.call("bank.echo", text="x") == "welcome"
    time.sleep(1.1)  # the token is too old
    bank.pause_s, bank.lasts = 0.7, 3600
    with pytest.raises(Unavailable, match="did not answer echo within 1 s"):
        home.call("bank.echo", text="x")
    renewed = bank.good
    wait_until(lambda: renewed in (home.home / "logins" / "bank.json").read_text())
    assert home.call("bank.echo", text="x") == "welcome"


def test_token_goes_only_to_its_server(home: GatewayApp, bank: Bank) -> None:
    home.add("bank", {"url": f"{bank.base}/mcp"}, approve=False)
    home.gateway.login("bank", browse)
    other = Bank()
    thread = threading.Thread(target=other.serve_forever)
    thread.start()
    home.add("bank", {"url": f"{other.base}/mcp"}, approve=False)
    with pytest.raises(Denied):
        home.approve("bank")
    assert other.seen
    assert not any(other.seen)
    other.shutdown()
    other.server_close()
    thread.join()


def test_login_page_must_be_web_url(home: GatewayApp, bank: Bank) -> None:
    for bad in ("file:///etc/passwd", "javascript:alert(1)", "http://example.com/login", "ms-cmd:calc", "", "-e"):
        assert not is_safe_url(bad)
    assert is_safe_url("https://example.com/login")
    bank.page = "http://10.0.0.1/authorize"
    home.add("bank", {"url": f"{bank.base}/mcp"}, approve=False)
    opened: list[str] = []
    with pytest.raises((Denied, Unavailable)):
        home.gateway.login("bank", opened.append)
    assert opened == []


def call_back(address: str, query: str, **headers: str) -> tuple[int, bytes]:
    """Do as the browser does at the end of a login, or as somebody else who knows the port."""
    redirect = urlsplit(parse_qs(urlsplit(address).query)["redirect_uri"][0])
    connection = HTTPConnection(redirect.netloc)
    connection.request("GET", f"{redirect.path}?{query}", headers=headers)
    answer = connection.getresponse()
    return answer.status, answer.read()


def test_only_own_callback_ends_login(home: GatewayApp, bank: Bank) -> None:
    home.add("bank", {"url": f"{bank.base}/mcp"}, approve=False)

    def show(address: str) -> None:
        state = parse_qs(urlsplit(address).query)["state"][0]
        for query in ("error=access_denied&error_description=evil", "code=evil&state=wrong", "code=evil", ""):
            status, page = call_back(address, query)
            assert (status, b"logged in" in page) == (400, False), query
        status, page = call_back(address, f"code=evil&state={state}", Host="evil.example")
        assert (status, b"logged in" in page) == (400, False)
        browse(address)

    home.gateway.login("bank", show)
    home.approve("bank")
    assert home.call("bank.echo", text="x") == "welcome"


@pytest.mark.parametrize(("error", "shown"), [("access_denied", ": access_denied"), ("Log+in+at+evil.example", "")])
def test_refused_login_shows_no_foreign_text(home: GatewayApp, bank: Bank, error: str, shown: str) -> None:
    home.add("bank", {"url": f"{bank.base}/mcp"}, approve=False)

    def show(address: str) -> None:
        state = parse_qs(urlsplit(address).query)["state"][0]
        assert b"logged in" not in call_back(address, f"error={error}&error_description=evil+words&state={state}")[1]

    with pytest.raises(Denied) as caught:
        home.gateway.login("bank", show)
    assert str(caught.value) == f"the login was refused{shown}"


def test_stdio_server_has_no_login(home: GatewayApp) -> None:
    home.add("local", {"command": "true"}, approve=False)
    with pytest.raises(InvalidInput, match="nothing to log in to"):
        home.gateway.login("local", print)
