"""Logging in to a server over HTTP: once by a person, with a browser; renewed without one.

The SDK does the talking. What it keeps is a file for each server, bound to the server's address.
"""

import asyncio
import json
import os
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

from athena.core.threads import start_in_thread
from athena.errors import Denied, Unavailable
from athena.gateway.config import LOGINS_FOLDER, LOOPBACK_HOSTS, write_private_file

LOGIN_TIMEOUT_S = 300.0  # seconds that a person has
CALLBACK_PATH = "/callback"
LOGIN_DONE_PAGE = b"You are logged in. This page can be closed."

ShowUrl = Callable[[str], None]


class OAuthTokenStore:
    """What is known of a login to one address; the SDK's storage of tokens."""

    def __init__(self, home: str, server: str, url: str) -> None:
        self.server, self.url = server, url
        self._path = os.path.join(home, LOGINS_FOLDER, f"{server}.json")
        self.data: dict[str, Any] = self._load()

    def _load(self) -> dict[str, Any]:
        try:
            with open(self._path, encoding="utf-8") as file:
                kept = json.load(file)
        except (OSError, ValueError):
            return {}
        return kept if isinstance(kept, dict) and kept.get("url") == self.url else {}  # another's tokens are not for it

    def _save(self, **more: Any) -> None:
        self.data = self.data | more | {"url": self.url}
        os.makedirs(os.path.dirname(self._path), mode=0o700, exist_ok=True)
        write_private_file(self._path, json.dumps(self.data))

    def clear(self) -> None:
        self.data = {}

    async def get_tokens(self) -> Any:
        from mcp.shared.auth import OAuthToken

        return OAuthToken.model_validate(self.data["tokens"]) if "tokens" in self.data else None

    async def set_tokens(self, tokens: Any) -> None:
        until = None if tokens.expires_in is None else time.time() + tokens.expires_in
        self._save(tokens=tokens.model_dump(mode="json", exclude_none=True), until=until)

    async def get_client_info(self) -> Any:
        from mcp.shared.auth import OAuthClientInformationFull

        return OAuthClientInformationFull.model_validate(self.data["client"]) if "client" in self.data else None

    async def set_client_info(self, client_info: Any) -> None:
        self._save(client=client_info.model_dump(mode="json", exclude_none=True))

    def save_endpoints(self, metadata: Any) -> None:
        """Remember where tokens are renewed, which the SDK would look for only after a refusal."""
        if metadata is not None:
            self._save(metadata=metadata.model_dump(mode="json", exclude_none=True))


def create_provider(login: OAuthTokenStore, redirect: str, show: Any, answer: Any) -> Any:
    """Return what the HTTP client asks for a token."""
    from mcp.client.auth import OAuthClientProvider
    from mcp.shared.auth import OAuthClientMetadata, OAuthMetadata

    class PersistentOAuthProvider(OAuthClientProvider):
        async def _initialize(self) -> None:
            await super()._initialize()
            self.context.token_expiry_time = login.data.get("until")
            if "metadata" in login.data:
                self.context.oauth_metadata = OAuthMetadata.model_validate(login.data["metadata"])

        async def _handle_token_response(self, response: Any) -> None:
            await super()._handle_token_response(response)
            login.save_endpoints(self.context.oauth_metadata)

    about = {
        "client_name": "Athena",
        "redirect_uris": [redirect],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": "none",
    }
    return PersistentOAuthProvider(login.url, OAuthClientMetadata.model_validate(about), login, show, answer)


def create_silent_auth(home: str, server: str, url: str) -> Any:
    """Return what renews a login at run time, where nobody can be asked; None where nobody has logged in."""
    login = OAuthTokenStore(home, server, url)
    if "tokens" not in login.data:
        return None

    async def refuse_login(*_: Any) -> Any:
        raise Denied(f"the login to {server} is over", hint=f"a person logs in again: athena servers login {server}")

    return create_provider(login, f"http://127.0.0.1:1{CALLBACK_PATH}", refuse_login, refuse_login)


class CallbackServer:
    """A page on this machine, to which the browser comes back with a code."""

    def __init__(self) -> None:
        self._callback_params: asyncio.Future[dict[str, list[str]]] = asyncio.get_running_loop().create_future()
        self._server: asyncio.Server | None = None

    async def start(self) -> str:
        self._server = await asyncio.start_server(self._serve_callback, "127.0.0.1", 0, limit=16 << 10)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}{CALLBACK_PATH}"

    async def _serve_callback(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(10):
                words = (await reader.readline()).decode("latin-1").split()
            address = urlsplit(words[1] if len(words) > 1 else "")
            found = address.path == CALLBACK_PATH and words[0] == "GET"
            if found and not self._callback_params.done():
                self._callback_params.set_result(parse_qs(address.query))
            head = "200 OK" if found else "404 Not Found"
            writer.write(f"HTTP/1.1 {head}\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n".encode())
            writer.write(LOGIN_DONE_PAGE if found else b"")
            await writer.drain()
        except (OSError, TimeoutError, ValueError):
            pass  # whoever that was comes again
        finally:
            writer.close()

    async def wait_for_code(self) -> Any:
        from mcp.shared.auth import AuthorizationCodeResult

        try:
            async with asyncio.timeout(LOGIN_TIMEOUT_S):
                given = await self._callback_params
        except TimeoutError:
            raise Unavailable(f"nobody logged in within {LOGIN_TIMEOUT_S:g} s", hint="try again") from None
        if "code" not in given:
            why = " ".join(given.get("error_description") or given.get("error") or ["no code came"])
            raise Denied(f"the login was refused: {why[:200]}", hint="try again")
        first = {name: values[0] for name, values in given.items()}
        return AuthorizationCodeResult(code=first["code"], state=first.get("state"), iss=first.get("iss"))

    def close(self) -> None:
        if self._server is not None:
            self._server.close()


def is_safe_url(address: str) -> bool:
    """Tell whether an address that a server names may be opened or called: never a file, never a program."""
    url = urlsplit(address)
    return url.scheme == "https" or (url.scheme == "http" and url.hostname in LOOPBACK_HOSTS)


async def create_login_auth(home: str, server: str, url: str, show: ShowUrl) -> tuple[Any, CallbackServer]:
    """Return what asks a person to log in, with the page that waits for the answer."""
    login, page = OAuthTokenStore(home, server, url), CallbackServer()
    login.clear()  # who was registered before had another page to come back to
    redirect = await page.start()

    async def open_login_page(address: str) -> None:
        if not is_safe_url(address):
            raise Denied(
                f"the server {server} wants {address[:100]!r} opened", hint="that is no address of a login page"
            )
        await start_in_thread(show, address)  # on a thread that holds up nobody who gives up

    return create_provider(login, redirect, open_login_page, page.wait_for_code), page
