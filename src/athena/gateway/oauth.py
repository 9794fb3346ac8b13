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

from athena.core.threads import start
from athena.errors import Denied, Unavailable
from athena.gateway.config import LOCAL, LOGINS, write_privately

PATIENCE = 300.0  # seconds that a person has
PATH = "/callback"
DONE = b"You are logged in. This page can be closed."

Show = Callable[[str], None]


class Login:
    """What is known of a login to one address; the SDK's storage of tokens."""

    def __init__(self, home: str, server: str, url: str) -> None:
        self.server, self.url = server, url
        self._path = os.path.join(home, LOGINS, f"{server}.json")
        self.kept: dict[str, Any] = self._read()

    def _read(self) -> dict[str, Any]:
        try:
            with open(self._path, encoding="utf-8") as file:
                kept = json.load(file)
        except (OSError, ValueError):
            return {}
        return kept if isinstance(kept, dict) and kept.get("url") == self.url else {}  # another's tokens are not for it

    def _write(self, **more: Any) -> None:
        self.kept = self.kept | more | {"url": self.url}
        os.makedirs(os.path.dirname(self._path), mode=0o700, exist_ok=True)
        write_privately(self._path, json.dumps(self.kept))

    def forget(self) -> None:
        self.kept = {}

    async def get_tokens(self) -> Any:
        from mcp.shared.auth import OAuthToken

        return OAuthToken.model_validate(self.kept["tokens"]) if "tokens" in self.kept else None

    async def set_tokens(self, tokens: Any) -> None:
        until = None if tokens.expires_in is None else time.time() + tokens.expires_in
        self._write(tokens=tokens.model_dump(mode="json", exclude_none=True), until=until)

    async def get_client_info(self) -> Any:
        from mcp.shared.auth import OAuthClientInformationFull

        return OAuthClientInformationFull.model_validate(self.kept["client"]) if "client" in self.kept else None

    async def set_client_info(self, client_info: Any) -> None:
        self._write(client=client_info.model_dump(mode="json", exclude_none=True))

    def keep_endpoints(self, metadata: Any) -> None:
        """Remember where tokens are renewed, which the SDK would look for only after a refusal."""
        if metadata is not None:
            self._write(metadata=metadata.model_dump(mode="json", exclude_none=True))


def provider(login: Login, redirect: str, show: Any, answer: Any) -> Any:
    """Return what the HTTP client asks for a token."""
    from mcp.client.auth import OAuthClientProvider
    from mcp.shared.auth import OAuthClientMetadata, OAuthMetadata

    class Remembering(OAuthClientProvider):
        async def _initialize(self) -> None:
            await super()._initialize()
            self.context.token_expiry_time = login.kept.get("until")
            if "metadata" in login.kept:
                self.context.oauth_metadata = OAuthMetadata.model_validate(login.kept["metadata"])

        async def _handle_token_response(self, response: Any) -> None:
            await super()._handle_token_response(response)
            login.keep_endpoints(self.context.oauth_metadata)

    about = {
        "client_name": "Athena",
        "redirect_uris": [redirect],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": "none",
    }
    return Remembering(login.url, OAuthClientMetadata.model_validate(about), login, show, answer)


def silent(home: str, server: str, url: str) -> Any:
    """Return what renews a login at run time, where nobody can be asked; None where nobody has logged in."""
    login = Login(home, server, url)
    if "tokens" not in login.kept:
        return None

    async def nobody(*_: Any) -> Any:
        raise Denied(f"the login to {server} is over", hint=f"a person logs in again: athena servers login {server}")

    return provider(login, f"http://127.0.0.1:1{PATH}", nobody, nobody)


class Answering:
    """A page on this machine, to which the browser comes back with a code."""

    def __init__(self) -> None:
        self._came: asyncio.Future[dict[str, list[str]]] = asyncio.get_running_loop().create_future()
        self._server: asyncio.Server | None = None

    async def open(self) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=16 << 10)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}{PATH}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(10):
                words = (await reader.readline()).decode("latin-1").split()
            address = urlsplit(words[1] if len(words) > 1 else "")
            found = address.path == PATH and words[0] == "GET"
            if found and not self._came.done():
                self._came.set_result(parse_qs(address.query))
            head = "200 OK" if found else "404 Not Found"
            writer.write(f"HTTP/1.1 {head}\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n".encode())
            writer.write(DONE if found else b"")
            await writer.drain()
        except (OSError, TimeoutError, ValueError):
            pass  # whoever that was comes again
        finally:
            writer.close()

    async def result(self) -> Any:
        from mcp.shared.auth import AuthorizationCodeResult

        try:
            async with asyncio.timeout(PATIENCE):
                given = await self._came
        except TimeoutError:
            raise Unavailable(f"nobody logged in within {PATIENCE:g} s", hint="try again") from None
        if "code" not in given:
            why = " ".join(given.get("error_description") or given.get("error") or ["no code came"])
            raise Denied(f"the login was refused: {why[:200]}", hint="try again")
        first = {name: values[0] for name, values in given.items()}
        return AuthorizationCodeResult(code=first["code"], state=first.get("state"), iss=first.get("iss"))

    def close(self) -> None:
        if self._server is not None:
            self._server.close()


def safe_address(address: str) -> bool:
    """Tell whether an address that a server names may be opened or called: never a file, never a program."""
    url = urlsplit(address)
    return url.scheme == "https" or (url.scheme == "http" and url.hostname in LOCAL)


async def interactive(home: str, server: str, url: str, show: Show) -> tuple[Any, Answering]:
    """Return what asks a person to log in, with the page that waits for the answer."""
    login, page = Login(home, server, url), Answering()
    login.forget()  # who was registered before had another page to come back to
    redirect = await page.open()

    async def ask(address: str) -> None:
        if not safe_address(address):
            raise Denied(
                f"the server {server} wants {address[:100]!r} opened", hint="that is no address of a login page"
            )
        await start(show, address)  # on a thread that holds up nobody who gives up

    return provider(login, redirect, ask, page.result), page
