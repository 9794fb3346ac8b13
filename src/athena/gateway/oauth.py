"""OAuth logins to HTTP servers: a person logs in once with a browser, then tokens are renewed without one.

The SDK runs the protocol. The tokens are in one file a server, valid only for the URL that they were made for.
"""

import asyncio
import hmac
import json
import os
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

from athena.core.files import create_private_folder, write_file_atomically
from athena.core.threads import start_in_thread
from athena.errors import Denied, Unavailable
from athena.gateway.config import LOGINS_FOLDER, LOOPBACK_HOSTS

LOGIN_TIMEOUT_S = 300.0
CALLBACK_TIMEOUT_S = 10.0
CALLBACK_PATH = "/callback"
MAX_REQUEST_BYTES = 16 << 10
LOGIN_DONE_PAGE = b"You are logged in. This page can be closed."
LOGIN_REFUSED_PAGE = b"This is not the end of a login that Athena waits for, or the login was refused."
# fmt: off
OAUTH_ERRORS = frozenset((  # of RFC 6749, section 4.1.2.1
    "invalid_request", "unauthorized_client", "access_denied", "unsupported_response_type", "invalid_scope",
    "server_error", "temporarily_unavailable",
))
# fmt: on

ShowUrl = Callable[[str], None]


class OAuthTokenStore:
    """The stored login to one URL; the SDK calls the get and set methods."""

    def __init__(self, home: str, server: str, url: str) -> None:
        self.server, self.url = server, url
        self._path = os.path.join(home, LOGINS_FOLDER, f"{server}.json")
        self.data: dict[str, Any] = self._load()

    def _load(self) -> dict[str, Any]:
        try:
            with open(self._path, encoding="utf-8") as file:
                stored = json.load(file)
        except (OSError, ValueError):
            return {}
        # never send the tokens of another URL
        return stored if isinstance(stored, dict) and stored.get("url") == self.url else {}

    def _save(self, **fields: Any) -> None:
        self.data = self.data | fields | {"url": self.url}
        create_private_folder(os.path.dirname(self._path))
        write_file_atomically(self._path, json.dumps(self.data).encode())

    def clear(self) -> None:
        self.data = {}

    async def get_tokens(self) -> Any:
        from mcp.shared.auth import OAuthToken  # the SDK is slow to import

        return OAuthToken.model_validate(self.data["tokens"]) if "tokens" in self.data else None

    async def set_tokens(self, tokens: Any) -> None:
        expires_at = None if tokens.expires_in is None else time.time() + tokens.expires_in
        self._save(tokens=tokens.model_dump(mode="json", exclude_none=True), until=expires_at)

    async def get_client_info(self) -> Any:
        from mcp.shared.auth import OAuthClientInformationFull  # the SDK is slow to import

        return OAuthClientInformationFull.model_validate(self.data["client"]) if "client" in self.data else None

    async def set_client_info(self, client_info: Any) -> None:
        self._save(client=client_info.model_dump(mode="json", exclude_none=True))

    def save_endpoints(self, metadata: Any) -> None:
        """Store the token endpoint: the SDK would look for it only after the server refused a token."""
        if metadata is not None:
            self._save(metadata=metadata.model_dump(mode="json", exclude_none=True))


def create_provider(store: OAuthTokenStore, redirect_url: str, open_page: Any, wait_for_code: Any) -> Any:
    """Return the HTTP client's auth object, which sends and renews tokens."""
    from mcp.client.auth import OAuthClientProvider  # the SDK is slow to import
    from mcp.shared.auth import OAuthClientMetadata, OAuthMetadata

    class PersistentOAuthProvider(OAuthClientProvider):
        async def _initialize(self) -> None:
            await super()._initialize()
            self.context.token_expiry_time = store.data.get("until")
            if "metadata" in store.data:
                self.context.oauth_metadata = OAuthMetadata.model_validate(store.data["metadata"])

        async def _handle_token_response(self, response: Any) -> None:
            await super()._handle_token_response(response)
            store.save_endpoints(self.context.oauth_metadata)

    metadata = {
        "client_name": "Athena",
        "redirect_uris": [redirect_url],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": "none",
    }
    return PersistentOAuthProvider(
        store.url, OAuthClientMetadata.model_validate(metadata), store, open_page, wait_for_code
    )


def create_silent_auth(home: str, server: str, url: str) -> Any:
    """Return an auth object that renews a login but never asks a person; None if nobody has logged in."""
    store = OAuthTokenStore(home, server, url)
    if "tokens" not in store.data:
        return None

    async def refuse_login(*_: Any) -> Any:
        raise Denied(f"the login to {server} is over", hint=f"a person logs in again: athena servers login {server}")

    return create_provider(store, f"http://127.0.0.1:1{CALLBACK_PATH}", refuse_login, refuse_login)


class CallbackServer:
    """A web server on this machine, to which the browser returns with the authorization code.

    Any page and any process of this machine can call it, so only a request with the state of this login counts.
    """

    def __init__(self) -> None:
        self._callback_params: asyncio.Future[dict[str, str]] = asyncio.get_running_loop().create_future()
        self._server: asyncio.Server | None = None
        self._host, self._state = "", ""

    async def start(self) -> str:
        self._server = await asyncio.start_server(self._serve_callback, "127.0.0.1", 0, limit=MAX_REQUEST_BYTES)
        self._host = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return f"http://{self._host}{CALLBACK_PATH}"

    def expect_state(self, address: str) -> None:
        """Take the state of the login from the address that the person opens."""
        self._state = parse_qs(urlsplit(address).query).get("state", [""])[0]

    async def _serve_callback(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(CALLBACK_TIMEOUT_S):
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            params = self._read_params(head)
            if params is not None and not self._callback_params.done():
                self._callback_params.set_result(params)
            status, page = "200 OK", LOGIN_DONE_PAGE
            if params is None or "code" not in params:
                status, page = ("400 Bad Request" if params is None else status), LOGIN_REFUSED_PAGE
            writer.write(f"HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n".encode() + page)
            await writer.drain()
        except (OSError, TimeoutError, ValueError, EOFError, asyncio.LimitOverrunError):
            pass  # the browser can load the page again
        finally:
            writer.close()

    def _read_params(self, head: list[str]) -> dict[str, str] | None:
        """Return the parameters of a callback of this login; None for any other request."""
        method, _, target = head[0].partition(" ")
        url = urlsplit(target.partition(" ")[0])
        hosts = [line.partition(":")[2].strip() for line in head[1:] if line.lower().startswith("host:")]
        params = {name: values[0] for name, values in parse_qs(url.query).items()}
        is_ours = method == "GET" and url.path == CALLBACK_PATH and hosts == [self._host] and bool(self._state)
        is_ours = is_ours and hmac.compare_digest(params.get("state", "").encode(), self._state.encode())
        return params if is_ours else None

    async def wait_for_code(self) -> Any:
        from mcp.shared.auth import AuthorizationCodeResult  # the SDK is slow to import

        try:
            async with asyncio.timeout(LOGIN_TIMEOUT_S):
                params = await self._callback_params
        except TimeoutError:
            raise Unavailable(f"nobody logged in within {LOGIN_TIMEOUT_S:g} s", hint="try again") from None
        if "code" not in params:
            error = params.get("error")  # its description could be any text, on the terminal
            reason = f": {error}" if error in OAUTH_ERRORS else ""
            raise Denied(f"the login was refused{reason}", hint="try again")
        return AuthorizationCodeResult(code=params["code"], state=params["state"], iss=params.get("iss"))

    def close(self) -> None:
        if self._server is not None:
            self._server.close()


def is_safe_url(address: str) -> bool:
    """Return whether a URL that a server sent may be opened: never a file, never a program."""
    url = urlsplit(address)
    return url.scheme == "https" or (url.scheme == "http" and url.hostname in LOOPBACK_HOSTS)


async def create_login_auth(home: str, server: str, url: str, show: ShowUrl) -> tuple[Any, CallbackServer]:
    """Return an auth object that lets a person log in, and the server that waits for the browser."""
    store, callback_server = OAuthTokenStore(home, server, url), CallbackServer()
    store.clear()  # an earlier registration has another redirect URL
    redirect_url = await callback_server.start()

    async def open_login_page(address: str) -> None:
        if not is_safe_url(address):
            raise Denied(
                f"the server {server} wants {address[:100]!r} opened", hint="that is no address of a login page"
            )
        callback_server.expect_state(address)
        await start_in_thread(show, address)  # opening a browser may block

    return create_provider(store, redirect_url, open_login_page, callback_server.wait_for_code), callback_server
