"""Embeddings from a remote server: batches, retries and errors."""

import json
import socket
import threading
from collections import deque
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

import numpy as np
import pytest

from athena.embedding.embedder import Embedder
from athena.embedding.remote import RemoteEmbedder
from athena.errors import AthenaError, Misconfigured, Unavailable

KEY = "sk-very-secret-0123456789"


class Reply(NamedTuple):
    """A reply that the server sends instead of vectors."""

    status: int
    body: str = ""
    location: str | None = None


class Request(NamedTuple):
    path: str
    authorization: str | None
    texts: list[str]


class Server(ThreadingHTTPServer):
    """A local embedding server whose vectors encode the length of each text."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.replies: deque[Reply] = deque()
        self.requests: list[Request] = []
        self.url = f"http://127.0.0.1:{self.server_port}"

    def embedder(self, **settings: Any) -> RemoteEmbedder:
        return RemoteEmbedder(self.url, "tiny", **({"pauses": (0, 0)} | settings))


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        content = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append(Request(self.path, self.headers["Authorization"], content["input"]))
        if self.server.replies:
            reply = self.server.replies.popleft()
        else:
            entries = [
                {"index": place, "embedding": [float(len(text)), 1.0, 0.0]}
                for place, text in enumerate(content["input"])
            ]
            # In reverse order: only `index` says which text a vector belongs to.
            reply = Reply(200, json.dumps({"model": content["model"], "data": entries[::-1]}))
        self.send_response(reply.status)
        if reply.location:
            self.send_header("Location", reply.location)
        self.send_header("Content-Length", str(len(reply.body.encode())))
        self.end_headers()
        self.wfile.write(reply.body.encode())

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def refused_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port


def test_remote_is_embedder(server: Server) -> None:
    embedder: Embedder = server.embedder()
    assert embedder.name == "tiny@127.0.0.1"
    assert embedder.dimensions == 3


def test_vectors_keep_order_and_unit_length(server: Server) -> None:
    vectors = server.embedder().embed(["a", "abc", "ab"])
    np.testing.assert_allclose(vectors[:, 0] / vectors[:, 1], [1, 3, 2], rtol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-6)
    assert vectors.dtype == np.float32


def test_many_texts_are_sent_in_batches(server: Server) -> None:
    vectors = server.embedder().embed(["x" * (number + 1) for number in range(150)])
    np.testing.assert_allclose(vectors[:, 0] / vectors[:, 1], np.arange(1, 151), rtol=1e-5)
    assert [len(request.texts) for request in server.requests] == [64, 64, 22]


def test_batch_and_text_length_are_limited(server: Server) -> None:
    server.embedder().embed(["x" * 30_000] * 6)
    assert [len(request.texts) for request in server.requests] == [4, 2]
    assert {len(text) for request in server.requests for text in request.texts} == {24_000}


def test_empty_batch_returns_no_vectors(server: Server) -> None:
    assert server.embedder(dimensions=3).embed([]).shape == (0, 3)
    assert server.requests == []


def test_unsendable_text_is_cleaned(server: Server) -> None:
    server.embedder().embed(["", "a\ud800b"])
    assert server.requests[0].texts == [" ", "a?b"]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("", "/v1/embeddings"),
        ("/", "/v1/embeddings"),
        ("/v1", "/v1/embeddings"),
        ("/v1/", "/v1/embeddings"),
        ("/v1/embeddings", "/v1/embeddings"),
        ("/api", "/api/v1/embeddings"),
        ("/openai/v1beta", "/openai/v1beta/embeddings"),
    ],
)
def test_base_url_accepts_version(server: Server, path: str, expected: str) -> None:
    RemoteEmbedder(server.url + path, "tiny").load()
    assert server.requests[0].path == expected


def test_key_is_sent_as_bearer_token(server: Server) -> None:
    server.embedder(key=KEY + "\n").load()
    server.embedder().load()
    assert [request.authorization for request in server.requests] == [f"Bearer {KEY}", None]


@pytest.mark.parametrize("status", [429, 500, 503])
def test_busy_server_is_retried(server: Server, status: int) -> None:
    server.replies.extend([Reply(status), Reply(status)])
    assert server.embedder().embed(["a"]).shape == (1, 3)
    assert len(server.requests) == 3


def test_busy_server_raises_unavailable(server: Server) -> None:
    server.replies.extend([Reply(503, "loading model")] * 3)
    with pytest.raises(Unavailable, match=f"{server.url}/v1/embeddings .*503: loading model") as caught:
        server.embedder().embed(["a"])
    assert caught.value.retry
    assert len(server.requests) == 3


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (Reply(401, '{"error": {"message": "wrong key ' + KEY + '"}}'), Misconfigured),
        (Reply(404, '{"error": "no model tiny for ' + KEY + '"}'), Misconfigured),
        (Reply(400, KEY), Unavailable),
        (Reply(307, "", f"http://127.0.0.1:1/{KEY}"), Misconfigured),
        (Reply(200, KEY), Unavailable),
    ],
)
def test_refusal_error_hides_key(server: Server, reply: Reply, kind: type[AthenaError]) -> None:
    server.replies.append(reply)
    with pytest.raises(kind) as caught:
        server.embedder(key=KEY).embed(["a"])
    assert server.url in str(caught.value)
    assert KEY not in f"{caught.value} {caught.value.hint} {caught.value.__cause__}"
    assert caught.value.hint
    assert not caught.value.retry
    assert len(server.requests) == 1


def test_redirect_is_not_followed(server: Server) -> None:
    with Server() as other:
        server.replies.append(Reply(308, "", other.url + "/v1/embeddings"))
        with pytest.raises(Misconfigured, match=f"redirects to {other.url}"):
            server.embedder(key=KEY).embed(["a"])


@pytest.mark.parametrize(
    "body",
    [
        "",
        "<html>",
        "[]",
        "{}",
        '{"data": 1}',
        '{"data": [1]}',
        '{"data": []}',
        '{"data": [{"index": 1, "embedding": [1, 2, 3]}]}',
        '{"data": [{"index": 0, "embedding": "AAAA"}]}',
        '{"data": [{"index": 0, "embedding": []}]}',
        '{"data": [{"index": 0, "embedding": [NaN, 1, 2]}]}',
        '{"data": [{"index": 0, "embedding": [[1, 2], [3]]}]}',
    ],
)
def test_malformed_answer_error_names_url(server: Server, body: str) -> None:
    server.replies.append(Reply(200, body))
    with pytest.raises(Unavailable, match=f"{server.url}/v1/embeddings does not answer as"):
        server.embedder().embed(["a"])


def test_wrong_dimension_is_error(server: Server) -> None:
    with pytest.raises(Misconfigured, match="3 dimensions, not 768"):
        server.embedder(dimensions=768).load()


def test_changing_dimension_is_error(server: Server) -> None:
    embedder = server.embedder()
    embedder.load()
    server.replies.append(Reply(200, '{"data": [{"index": 0, "embedding": [1, 2]}]}'))
    with pytest.raises(Misconfigured, match="2 dimensions, not 3"):
        embedder.embed(["a"])


def test_unreachable_server_raises_unavailable() -> None:
    url = f"http://127.0.0.1:{refused_port()}"
    with pytest.raises(Unavailable, match=f"{url}/v1/embeddings is not available: .*refused") as caught:
        RemoteEmbedder(url, "tiny", KEY, pauses=(0, 0)).load()
    assert caught.value.retry
    assert KEY not in str(caught.value)


def test_silent_server_raises_unavailable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        embedder = RemoteEmbedder(f"http://127.0.0.1:{silent.getsockname()[1]}", "tiny", timeout=0.05, pauses=())
        with pytest.raises(Unavailable, match="timed out"):
            embedder.load()


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost:11434",
        "ftp://localhost/v1",
        "file:///etc/passwd",
        "http://",
        "http://localhost:port",
        f"http://user:{KEY}@localhost/v1",
        f"http://localhost/v1?key={KEY}",
    ],
)
def test_invalid_url_is_refused_at_start(url: str) -> None:
    with pytest.raises(Misconfigured) as caught:
        RemoteEmbedder(url, "tiny")
    assert KEY not in str(caught.value)


def test_invalid_key_error_hides_key() -> None:
    with pytest.raises(Misconfigured) as caught:
        RemoteEmbedder("http://localhost", "tiny", f"{KEY}\nX-Other: 1")
    assert KEY not in str(caught.value)
