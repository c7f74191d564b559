"""The socket server around the PMI-1 protocol: one thread, one world, gone when the world has formed."""

from __future__ import annotations

import itertools
import logging
import secrets
import selectors
import socket
import threading
import time
from collections.abc import Hashable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial

from singa_dask.cluster.pmi import MAX_LINE, Drop, PmiState, Send, process_mapping

logger = logging.getLogger(__name__)

AUTHENTICATION_S = 5.0


@dataclass(frozen=True)
class PmiEndpoint:
    """What a rank needs to join a world: where its server listens, the secret, and the world's name."""

    host: str
    port: int
    token: str
    kvsname: str

    def __repr__(self) -> str:
        return f"PmiEndpoint({self.host}:{self.port}, {self.kvsname})"  # the token stays out of logs


@dataclass
class _Connection:
    sock: socket.socket
    since: float
    pending: bytes = b""
    authenticated: bool = False


class PmiServer(AbstractContextManager["PmiServer", None]):
    """Lets `size` processes form one MPI world. Use as a context manager; closing ends all its connections.

    nodes: for every rank, something equal for ranks that share a machine.
    host: the address to listen on; loopback unless ranks are elsewhere.
    """

    def __init__(self, nodes: Sequence[Hashable], host: str = "127.0.0.1") -> None:
        token, kvsname = secrets.token_hex(32), f"singa_{secrets.token_hex(12)}"
        self.state = PmiState(len(nodes), token, kvsname, process_mapping(nodes))
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family, backlog=len(nodes) + 16)
        self._listener.setblocking(False)
        self.endpoint = PmiEndpoint(host, self._listener.getsockname()[1], token, kvsname)
        self._most = 2 * len(nodes) + 16
        self._wake, self._waker = socket.socketpair()
        self._connections: dict[int, _Connection] = {}
        # Not the descriptors: the next stranger would get the number, and so the rights, of one that was dropped.
        self._numbers = itertools.count()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._selector.register(self._wake, selectors.EVENT_READ, None)
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._serve, name="singa-pmi", daemon=True)
        self._thread.start()

    def __exit__(self, *exc: object) -> None:
        self.close()

    def missing(self) -> dict[int, str]:
        """The ranks that keep the world from forming, and how."""
        with self._lock:
            return self.state.missing()

    def fail(self, reason: str) -> None:
        """Give the world up and end all connections: ranks that wait in MPI_Init leave it by dying."""
        with self._lock:
            self.state.fail(reason)
        self.close()

    def close(self) -> None:
        """End the thread, the listener and every connection."""
        if self._thread.is_alive():
            self._waker.close()
            self._thread.join()

    def _serve(self) -> None:
        while True:
            for key, _ in self._selector.select(timeout=1.0):
                if key.data is None:
                    return self._end()
                with self._lock:
                    key.data()
            self._drop_strangers()

    def _end(self) -> None:
        for number in list(self._connections):
            self._drop(number)
        self._selector.close()
        self._listener.close()
        self._wake.close()

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError as error:  # the peer was gone again, or descriptors have run out
            logger.warning("a connection could not be accepted: %s", error)
            return
        if len(self._connections) >= self._most:
            # Strangers give way, the oldest first: they must not be able to keep the ranks out.
            self._drop(next(number for number, other in self._connections.items() if not other.authenticated))
        sock.setblocking(False)
        if sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        number = next(self._numbers)
        self._connections[number] = _Connection(sock, time.monotonic())
        self._selector.register(sock, selectors.EVENT_READ, partial(self._read, number))

    def _read(self, number: int) -> None:
        connection = self._connections.get(number)
        if connection is None:
            return
        try:
            received = connection.sock.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            received = b""
        *lines, connection.pending = (connection.pending + received).split(b"\n")
        if not received or any(len(line) > MAX_LINE for line in (*lines, connection.pending)):
            self._drop(number)
            return self._act(self.state.lost(number))
        for line in lines:
            if number in self._connections:
                self._act(self.state.handle(number, line.decode("ascii", "replace")))
                connection.authenticated = True  # a wrong first line has dropped it

    def _act(self, actions: Iterable[Send | Drop]) -> None:
        for action in actions:
            connection = self._connections.get(action.connection)
            if connection is None:
                continue
            if isinstance(action, Drop):
                logger.debug("dropped a connection: %s", action.reason)
                self._drop(action.connection)
                continue
            try:
                # A line of at most 1.2 KB, and one at a time: more than fits a buffer is a peer that never reads.
                connection.sock.sendall(action.line.encode() + b"\n")
            except OSError:
                self._drop(action.connection)
                self._act(self.state.lost(action.connection))

    def _drop(self, number: int) -> None:
        connection = self._connections.pop(number)
        self._selector.unregister(connection.sock)
        connection.sock.close()

    def _drop_strangers(self) -> None:
        oldest = time.monotonic() - AUTHENTICATION_S
        for number, connection in list(self._connections.items()):
            if not connection.authenticated and connection.since < oldest:
                self._drop(number)
