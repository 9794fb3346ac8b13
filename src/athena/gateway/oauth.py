"""OAuth logins to HTTP servers: a person logs in once with a browser, then tokens are renewed without one.

The SDK runs the protocol. The tokens are in one file a server, valid only for the URL that they were made for.
"""

import asyncio
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
LOGIN_DONE_PAGE = b"You are logged in. This page can be closed."

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
    """A web server on this machine, to which the browser returns with the authorization code."""

    def __init__(self) -> None:
        self._callback_params: asyncio.Future[dict[str, list[str]]] = asyncio.get_running_loop().create_future()
        self._server: asyncio.Server | None = None

    async def start(self) -> str:
        self._server = await asyncio.start_server(self._serve_callback, "127.0.0.1", 0, limit=16 << 10)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}{CALLBACK_PATH}"

    async def _serve_callback(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(CALLBACK_TIMEOUT_S):
                request = (await reader.readline()).decode("latin-1").split()
            url = urlsplit(request[1] if len(request) > 1 else "")
            is_callback = url.path == CALLBACK_PATH and request[0] == "GET"
            if is_callback and not self._callback_params.done():
                self._callback_params.set_result(parse_qs(url.query))
            status = "200 OK" if is_callback else "404 Not Found"
            writer.write(f"HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n".encode())
            writer.write(LOGIN_DONE_PAGE if is_callback else b"")
            await writer.drain()
        except (OSError, TimeoutError, ValueError):
            pass  # the browser can load the page again
        finally:
            writer.close()

    async def wait_for_code(self) -> Any:
        from mcp.shared.auth import AuthorizationCodeResult  # the SDK is slow to import

        try:
            async with asyncio.timeout(LOGIN_TIMEOUT_S):
                params = await self._callback_params
        except TimeoutError:
            raise Unavailable(f"nobody logged in within {LOGIN_TIMEOUT_S:g} s", hint="try again") from None
        if "code" not in params:
            reason = " ".join(params.get("error_description") or params.get("error") or ["no code came"])
            raise Denied(f"the login was refused: {reason[:200]}", hint="try again")
        first = {name: values[0] for name, values in params.items()}
        return AuthorizationCodeResult(code=first["code"], state=first.get("state"), iss=first.get("iss"))

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
        await start_in_thread(show, address)  # opening a browser may block

    return create_provider(store, redirect_url, open_login_page, callback_server.wait_for_code), callback_server
