"""A language model may reword patterns if the meaning stays."""

import json
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from consolidation_tools import call

from athena.app import settings
from athena.app.compose import App
from athena.embedding.remote import Chat
from athena.errors import Misconfigured
from athena.memory.consolidation.run import is_faithful
from conftest import MODEL, Engine

OPPOSED = ("The deploy runs every Friday at 15:00.", "The deploy runs every Thursday at 15:00.")


@contextmanager
def model(answer: Callable[[str], str]) -> Generator[tuple[str, list[dict[str, str]]]]:
    """Serve a stub model; yield its URL and the requests that it gets."""
    asked: list[dict[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append({"path": self.path, "key": self.headers.get("Authorization", ""), **body["messages"][1]})
            said = {"choices": [{"message": {"content": answer(body["messages"][1]["content"])}}]}
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(said).encode())

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", asked
    server.shutdown()
    server.server_close()


def summary(engine: Engine, tmp_path: Path, url: str) -> str:
    app = App(engine.open(tmp_path / "athena.db"), MODEL, chat=Chat(url, "small", "k3y"))
    for text in OPPOSED:
        call(app, "remember", content=text)
    patterns = call(app, "consolidate").patterns
    app.close()
    assert [one.type for one in patterns] == ["contradiction"]
    return str(patterns[0].summary)


def test_model_rewords_pattern(engine: Engine, tmp_path: Path) -> None:
    better = "The deploy was every Friday at 15:00, but runs every Thursday at 15:00 by now."
    with model(lambda _: better) as (url, asked):
        assert summary(engine, tmp_path, url) == better
    assert asked[0]["path"] == "/v1/chat/completions"
    assert asked[0]["key"] == "Bearer k3y"


@pytest.mark.parametrize("wrong", ["The deploy is at 16:00.", "Deploys vary.", "", "Ask Bob " * 60])
def test_changed_meaning_is_rejected(engine: Engine, tmp_path: Path, wrong: str) -> None:
    with model(lambda _: wrong) as (url, _asked):
        assert "contradicts the older" in summary(engine, tmp_path, url)


def test_missing_model_loses_nothing(engine: Engine, tmp_path: Path) -> None:
    assert "contradicts the older" in summary(engine, tmp_path, "http://127.0.0.1:9")


def test_numbers_and_names_must_match() -> None:
    plain = "5 times, every Monday: backup of orders-db by Ann"
    assert is_faithful(plain, "Every Monday, 5 times so far, Ann made a backup of orders-db.")
    assert not is_faithful(plain, "Every Monday, 6 times so far, Ann made a backup of orders-db.")
    assert not is_faithful(plain, "Every Monday, 5 times so far, Bob made a backup of orders-db.")
    assert not is_faithful(plain, "Every Monday, 5 times so far, there was a backup.")


def test_settings_name_model(tmp_path: Path) -> None:
    found = settings.load_settings(
        {"ATHENA_HOME": str(tmp_path), "ATHENA_LLM_URL": "http://localhost:1", "ATHENA_LLM_MODEL": "m"}
    )
    assert (found.llm_url, found.llm_model, found.llm_key) == ("http://localhost:1", "m", None)
    with pytest.raises(Misconfigured):
        settings.load_settings({"ATHENA_HOME": str(tmp_path), "ATHENA_LLM_URL": "http://localhost:1"})
