"""Client of a chat model behind an OpenAI-compatible server. Every caller works without an answer, too."""

import http.client
import json
import re
from urllib.error import URLError
from urllib.request import ProxyHandler, Request, build_opener

from athena.embedding.remote import LOOPBACK_HOSTS, NoRedirectHandler, parse_endpoint
from athena.errors import Misconfigured, Unavailable

MAX_CHAT_RESPONSE_BYTES = 1_000_000
SERVICE_NAME = "language model"


class Chat:
    """A chat model on a server."""

    def __init__(self, url: str, model: str, key: str | None = None, timeout: float = 30) -> None:
        self._url, host = parse_endpoint(url, "/chat/completions", SERVICE_NAME)
        self._key = key.strip() if key else None
        if self._key and not re.fullmatch(r"[!-~]+", self._key):
            raise Misconfigured(f"the key of the {SERVICE_NAME} has characters that no header can carry")
        self._model, self._timeout = model, timeout
        proxies = [ProxyHandler({})] if host in LOOPBACK_HOSTS else []
        self._opener = build_opener(NoRedirectHandler(), *proxies)

    def complete(self, task: str, text: str) -> str:
        """Return the model's answer; blocks."""
        messages = [{"role": "system", "content": task}, {"role": "user", "content": text}]
        body = json.dumps({"model": self._model, "messages": messages, "temperature": 0})
        headers = {"Content-Type": "application/json", "User-Agent": "athena"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        try:
            with self._opener.open(Request(self._url, body.encode(), headers), timeout=self._timeout) as response:
                answer = json.loads(response.read(MAX_CHAT_RESPONSE_BYTES))
            return str(answer["choices"][0]["message"]["content"])
        except (URLError, OSError, http.client.HTTPException) as error:
            raise Unavailable(f"the {SERVICE_NAME} is not available: {type(error).__name__}") from None
        except (ValueError, TypeError, KeyError, IndexError):
            raise Unavailable(
                f"the {SERVICE_NAME} does not answer as an OpenAI-compatible server does", retry=False
            ) from None
