"""HTTP connections: a timeout for request heads, the owner alone on the Unix socket, and answers to refused bodies."""

import asyncio
import contextlib
import os
import secrets
import socket
from collections.abc import Callable
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from athena.core.home import sockets
from athena.server.guard import MAX_BODY_BYTES, SECURITY_HEADERS, MalformedRequest, format_error_response

HEAD_TIMEOUT_S = 10.0
MAX_CONNECTIONS = 2_000
MAX_DRAINED_BYTES = 2 * MAX_BODY_BYTES  # of a refused body, that are read so that the client sees the answer
DRAIN_BODY_TIMEOUT_S = 5.0


class GuardedProtocol(H11Protocol):
    """uvicorn's protocol, with a timeout for request heads; only the owner may use the Unix socket."""

    max_connections = MAX_CONNECTIONS
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        self._draining = transport = DrainingTransport(transport, self._has_unread_body, self.loop)
        super().connection_made(transport)
        peer = transport.get_extra_info("socket")
        is_other_user = peer.family == socket.AF_UNIX and sockets.get_peer_uid(peer) != os.getuid()
        # a client that is gone already has no address, and the guard trusts connections without one
        is_gone = peer.family != socket.AF_UNIX and self.client is None
        if is_other_user or is_gone:
            transport.abort()
        elif len(self.connections) > self.max_connections:
            # one that sends nothing gives way, or anybody who can reach the port could shut all others out
            others = (other for other in self.connections if isinstance(other, GuardedProtocol) and other is not self)
            others = (other for other in others if not (other._is_answering() or other.transport.is_closing()))
            next(others, self).transport.abort()
        self._start_head_timer()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            self._draining.drop(data)
            return
        if self._head_timer is None and not self._is_answering():
            self._start_head_timer()
        super().data_received(data)
        if self._head_timer is not None and self._is_answering():
            self._head_timer.cancel()
            self._head_timer = None

    def connection_lost(self, exc: Exception | None) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
        self._draining.stop_draining()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Answer invalid HTTP with the same error format and headers as every other error."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            headers, body = format_error_response(MalformedRequest("this is not a valid HTTP request"))
            request_id = secrets.token_hex(8).encode()
            headers = [*headers, *SECURITY_HEADERS, (b"cache-control", b"no-store"), (b"x-request-id", request_id)]
            for event in (h11.Response(status_code=400, headers=headers), h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        if self._is_answering():
            self.cycle.disconnected = True  # drop the response of the call in progress
        self.transport.close()

    def _has_unread_body(self) -> bool:
        cycle: Any = self.cycle  # None before the first request, despite its annotation
        return cycle is not None and cycle.more_body and cycle.response_complete

    def _start_head_timer(self) -> None:
        self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self._abort_slow_request)

    def _abort_slow_request(self) -> None:
        self._head_timer = None
        if not self._is_answering():
            self.transport.abort()

    def _is_answering(self) -> bool:
        cycle: Any = self.cycle  # None before the first request, despite its annotation
        return cycle is not None and not cycle.response_complete


class DrainingTransport:
    """Wraps a connection: `close` first reads what the client still sends of a refused body.

    A connection that is closed before all input is read is reset, and then most clients never see the answer.
    """

    def __init__(self, transport: Any, has_unread_body: Callable[[], bool], loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._has_unread_body, self._loop = transport, has_unread_body, loop
        self._bytes_left = MAX_DRAINED_BYTES
        self._timer: asyncio.TimerHandle | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        return self._timer is not None or self._transport.is_closing()

    def close(self) -> None:
        if self.is_closing() or not self._has_unread_body():
            self._transport.close()
            return
        self._timer = self._loop.call_later(DRAIN_BODY_TIMEOUT_S, self._transport.close)
        with contextlib.suppress(OSError, RuntimeError):  # the client is gone
            self._transport.write_eof()
            self._transport.resume_reading()

    def drop(self, data: bytes) -> None:
        """Take input that nobody reads; close the connection after too much of it."""
        self._bytes_left -= len(data)
        if self._bytes_left < 0:
            self._transport.close()

    def stop_draining(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
