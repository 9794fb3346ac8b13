"""A stub for the API of a model: it records requests and returns given answers."""

import json
import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

EVENTS = "text/event-stream"


class Model(ThreadingHTTPServer):
    """Requests of a client in order; `says` is the next answer: a text, or a tool and its input."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Asked)
        self.requests: list[dict[str, Any]] = []
        self.says: list[str | tuple[str, dict[str, Any]]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def asked(self, words: str) -> dict[str, Any]:
        """Return the one request that has tools and answers a prompt."""
        found = [one for one in self.requests if one.get("tools") and words in json.dumps(one["messages"])]
        assert found, [json.dumps(one)[:2000] for one in self.requests]
        return found[0]


@contextmanager
def running() -> Generator[Model]:
    model = Model()
    thread = threading.Thread(target=model.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield model
    finally:
        model.shutdown()
        model.server_close()
        thread.join()


class _Asked(BaseHTTPRequestHandler):
    server: Model
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        data = json.loads(self.rfile.read(int(self.headers.get("content-length") or 0)) or b"{}")
        for part, write in (("GenerateContent", _gemini), ("/responses", _openai)):
            if part in self.path:
                self.server.requests.append(data)
                return self._answer(write(self.server.says.pop(0) if self.server.says else "Very well."), EVENTS)
        if not self.path.startswith("/v1/messages") or "count_tokens" in self.path:
            return self._answer(b'{"input_tokens": 1}', "application/json")
        self.server.requests.append(data)
        with_tools = bool(data.get("tools"))
        says = self.server.says.pop(0) if with_tools and self.server.says else "Very well."
        return self._answer(b"".join(_events(says)), EVENTS)

    def do_GET(self) -> None:
        self._answer(b"{}", "application/json")

    def do_HEAD(self) -> None:
        self._answer(b"", "application/json")

    def _answer(self, body: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


def _openai(says: object) -> bytes:
    item = {"type": "message", "role": "assistant", "id": "m1", "content": [{"type": "output_text", "text": says}]}
    usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
    made = _event("response.created", response={"id": "r1"}) + _event("response.output_item.done", item=item)
    return made + _event("response.completed", response={"id": "r1", "usage": usage})


def _gemini(says: object) -> bytes:
    content = {"role": "model", "parts": [{"text": says}]}
    usage = {"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2}
    said = {"candidates": [{"content": content, "finishReason": "STOP", "index": 0}], "usageMetadata": usage}
    return f"data: {json.dumps(said)}\r\n\r\n".encode()


def _events(says: str | tuple[str, dict[str, Any]]) -> Generator[bytes]:
    """Return the answer as a stream of events."""
    usage = {"input_tokens": 1, "output_tokens": 1}
    head = {"id": "msg_1", "type": "message", "role": "assistant", "model": "stub", "content": []}
    yield _event("message_start", message=head | {"stop_reason": None, "stop_sequence": None, "usage": usage})
    if isinstance(says, str):
        yield _event("content_block_start", index=0, content_block={"type": "text", "text": ""})
        yield _event("content_block_delta", index=0, delta={"type": "text_delta", "text": says})
    else:
        tool = {"type": "tool_use", "id": "toolu_1", "name": says[0], "input": {}}
        yield _event("content_block_start", index=0, content_block=tool)
        delta = {"type": "input_json_delta", "partial_json": json.dumps(says[1])}
        yield _event("content_block_delta", index=0, delta=delta)
    yield _event("content_block_stop", index=0)
    reason = "end_turn" if isinstance(says, str) else "tool_use"
    yield _event("message_delta", delta={"stop_reason": reason, "stop_sequence": None}, usage={"output_tokens": 1})
    yield _event("message_stop")


def _event(kind: str, **facts: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **facts})}\n\n".encode()
