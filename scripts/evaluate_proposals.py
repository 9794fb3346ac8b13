"""Measure what a language model that proposes every labelled statement would add to learning: an upper bound.

A stub on the loopback interface plays the model: it proposes the words of each clause of the held-out writers that is
labelled as worth keeping. No real model does that: the figures say what the rules let pass of perfect proposals, and
how much of bad ones: the same stub also proposes every clause that is labelled as not worth keeping.
"""

import json
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from labelled_sessions import JUDGES, Clause, Session, Turn, read_sessions

from athena.embedding.minilm import MiniLM
from athena.embedding.remote import Chat
from athena.memory.sessions.llm_proposals import KINDS, MAX_PROPOSALS, add_llm_proposals
from athena.memory.sessions.select import find_specific_words
from athena.memory.sessions.statements import Statement, find_statements
from athena.memory.sessions.values import Utterance

MIN_SHARE = 0.6  # of the words of a clause that a statement must have, and the other way around
Choose = Callable[[Clause], bool]


@contextmanager
def serve_proposals(proposals: list[dict[str, Any]]) -> Generator[Chat]:
    """Serve a model that gives these proposals, whatever it is asked."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            content = json.dumps({"statements": proposals})
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"choices": [{"message": {"content": content}}]}).encode())

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield Chat(f"http://127.0.0.1:{server.server_port}", "stub")
    finally:
        server.shutdown()
        server.server_close()


def learn_session(session: Session, choose: Choose | None, model: MiniLM) -> list[Statement]:
    """Return the statements of a session, with proposals of the clauses that `choose` selects."""
    messages = [
        Utterance(role, text)
        for turn in session.turns
        for role, text in (("assistant", turn.answer), ("user", turn.text))
    ]
    statements = find_statements(messages, model).statements
    proposals = [
        {"turn": i, "kind": clause.kind if clause.kind in KINDS else "fact", "quote": turn.text[slice(*clause[:2])]}
        for i, turn in enumerate(session.turns, 1)
        for clause in turn.clauses
        if choose and choose(clause)
    ]
    for i in range(0, len(proposals), MAX_PROPOSALS):
        with serve_proposals(proposals[i : i + MAX_PROPOSALS]) as chat:
            statements = add_llm_proposals(chat, messages, statements, model)
    return [one for one in statements if not one.is_weak]


def covers(text: str, other: str) -> bool:
    """Return whether a text has most words of another that say what it is about."""
    words = find_specific_words(other)
    return len(words & find_specific_words(text)) >= MIN_SHARE * len(words)


def measure(sessions: Sequence[Session], choose: Choose | None, model: MiniLM) -> str:
    labelled = kept = stated = right = 0
    for session in sessions:
        statements = learn_session(session, choose, model)
        for i, turn in enumerate(session.turns, 1):
            own = [one.text for one in statements if one.turn == i]
            worthy = list_worthy(turn)
            labelled, stated = labelled + len(worthy), stated + len(own)
            kept += sum(any(covers(text, words) for text in own) for words in worthy)
            right += sum(any(covers(words, text) or covers(text, words) for words in worthy) for text in own)
    return (
        f"kept {kept} of {labelled} ({kept / labelled:.0%}), worth keeping {right} of {stated} ({right / stated:.0%})"
    )


def list_worthy(turn: Turn) -> list[str]:
    return [turn.text[clause.start : clause.end] for clause in turn.clauses if clause.is_worth_keeping]


def main() -> None:
    model = MiniLM()
    sessions = [session for session in read_sessions() if session.writer in JUDGES]
    print("without a language model:", measure(sessions, None, model))
    print("all labels proposed:     ", measure(sessions, lambda clause: clause.is_worth_keeping, model))
    print("all else proposed:       ", measure(sessions, lambda clause: not clause.is_worth_keeping, model))


if __name__ == "__main__":
    main()
