# Generated from _async by scripts/generate.py; do not edit.
"""Terminals that viewers share."""

from __future__ import annotations

import contextlib
import json
import time
from collections import deque
from types import TracebackType
from typing import Any
from uuid import uuid4

from typing_extensions import Self
from websockets.exceptions import ConnectionClosed

from atoll import errors
from atoll import models as m
from atoll._io_sync import Condition, WebSocket, sleep
from atoll._sync._conn import Conn

MAX_TYPED = 256 << 10  # bytes of input that wait for the daemon
FRAME = 16 << 10
SEARCH_SECONDS = 60.0
PAUSE_SECONDS = 0.2


class Terminal:
    """One viewer of a terminal that others may view too.

    Iterating over it yields what draws the current screen, then the output. When the connection is lost, it is made again for a minute, and
    no byte is lost or repeated in either direction. One may write while another reads; what is shown is received while one of them waits.
    """

    def __init__(self, conn: Conn, base: str, request: dict[str, Any]):
        self._conn = conn
        self._base = base
        self._request = request
        self._size: dict[str, int] = request["size"]
        self._client = str(uuid4())
        self._access: m.StreamAccess
        self._socket: WebSocket
        self._turn = Condition()
        self._writing = Condition()  # orders input
        self._receiving = False
        self._picture = False  # the next bytes are the screen
        self._ready = False  # the daemon has said how the output goes on
        self._terminal = ""
        self._offset = 0
        self._typed = b""  # input that has not arrived
        self._arrived = 0
        self._unread: deque[bytes] = deque()
        self._exit: m.Exit | None = None
        self._error: errors.AtollError | None = None
        self._closed = False

    @classmethod
    def open(cls, conn: Conn, base: str, request: dict[str, Any]) -> Terminal:
        self = cls(conn, base, request)
        self._ask()
        self._connect()
        return self

    @property
    def stream(self) -> m.StreamAccess:
        """The stream of this viewer."""
        return self._access

    @property
    def process(self) -> str:
        """The command in the terminal."""
        return self._access.process or ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __iter__(self) -> Terminal:
        return self

    def __next__(self) -> bytes:
        self._until(lambda: bool(self._unread))
        if self._unread:
            return self._unread.popleft()
        if self._error and not self._closed:
            raise self._error
        raise StopIteration

    def wait(self) -> m.Exit:
        """Wait for the end of the command. Unread output is buffered."""
        self._until(lambda: False)
        if self._exit is None:
            raise self._error or errors.ConflictError("the terminal was closed", op="stream.view")
        return self._exit

    def write(self, data: bytes) -> None:
        """Type. Without the right to, it is dropped."""
        if self._request["mode"] != "control":
            return
        for start in range(0, len(data), FRAME):
            self._type(data[start : start + FRAME])

    def _type(self, part: bytes) -> None:
        while True:
            self._until(lambda: self._ready and len(self._typed) + len(part) <= MAX_TYPED)
            if self._over():
                raise self._error or errors.ConflictError("the terminal has ended", op="stream.view")
            with self._writing:
                if self._ready:
                    self._typed += part
                    self._send(part)
                    return

    def resize(self, cols: int, rows: int) -> None:
        """Set the size of the viewer's window. The terminal's is that of the smallest window of those who may type."""
        self._size = {"cols": cols, "rows": rows}
        with self._writing:
            if self._ready:
                self._send(json.dumps({"type": "size", "size": self._size}))

    def close(self) -> None:
        """Leave the terminal. What runs in it goes on."""
        self._closed = True
        self._socket.close()

    def _over(self) -> bool:
        return self._closed or self._exit is not None or self._error is not None

    def _ask(self) -> None:
        self._access = self._conn.get(m.StreamAccess, "POST", f"{self._base}/streams", self._request)

    def _connect(self) -> None:
        with self._writing:
            self._picture = self._ready = False
        self._socket = self._conn.websocket(self._access.url)
        join = {"type": "join", "size": self._size, "client": self._client, "terminal": self._terminal, "offset": self._offset}
        self._send(json.dumps({"token": self._access.token}))
        self._send(json.dumps(join))

    def _again(self) -> None:
        until = time.monotonic() + SEARCH_SECONDS
        while True:
            try:
                try:
                    path = f"{self._base}/streams/{self._access.id}/token"
                    self._access = self._conn.get(m.StreamAccess, "POST", path, {})
                except errors.NotFoundError:  # another daemon
                    self._request["process"] = self.process
                    self._ask()
                self._connect()
                return
            except errors.UnavailableError as e:
                if time.monotonic() > until:
                    self._error = e
                    return
                sleep(PAUSE_SECONDS)
            except errors.AtollError as e:
                self._error = e
                return

    def _send(self, message: str | bytes) -> None:
        with contextlib.suppress(ConnectionClosed):  # the next connection sends it
            self._socket.send(message)

    def _until(self, ready: Any) -> None:
        """Receive until ready. If several callers wait, one of them receives for all."""
        with self._turn:
            while not ready() and not self._over():
                if self._receiving:
                    self._turn.wait()
                    continue
                self._receiving = True
                self._turn.release()
                try:
                    self._receive()
                finally:
                    self._turn.acquire()
                    self._receiving = False
                    self._turn.notify_all()

    def _receive(self) -> None:
        try:
            message = self._socket.recv()
        except ConnectionClosed as e:
            if e.rcvd is not None and e.rcvd.code == 1008:
                self._error = ended(e.rcvd.reason)
            elif not self._over():
                self._again()
            return
        if isinstance(message, bytes):
            if not self._picture:
                self._offset += len(message)
            self._picture = False
            self._unread.append(message)
            return
        data = json.loads(message)
        match data.get("type"):
            case "screen":
                self._picture = True
                if "terminal" in data:
                    self._begin(data)
                else:
                    self._offset = data.get("offset", 0)
            case "resume":
                self._begin(data)
            case "input":
                with self._writing:
                    self._acknowledge(data.get("input", 0))
            case "exit":
                self._exit = m.Exit.model_validate(data["exit"])

    def _begin(self, data: dict[str, Any]) -> None:
        """Send the input that has not arrived over a new connection."""
        with self._writing:
            if self._terminal and data["terminal"] != self._terminal:
                self._arrived = 0
            else:
                self._acknowledge(data.get("input", 0))
            self._terminal, self._offset = data["terminal"], data.get("offset", 0)
            rest = self._typed
            for start in range(0, len(rest), FRAME):
                self._send(rest[start : start + FRAME])
            self._ready = True

    def _acknowledge(self, n: int) -> None:
        more = min(n - self._arrived, len(self._typed))
        if more > 0:
            self._typed = self._typed[more:]
            self._arrived += more


def ended(reason: str) -> errors.AtollError:
    match reason:
        case "unauthorized" | "revoked" | "grant-revoked":
            return errors.UnauthorizedError(f"the terminal was closed: {reason}", op="stream.view")
        case "taken-over":
            return errors.ConflictError("another connection has taken over the command", op="stream.view")
        case "box-rollover":
            return errors.StaleError("another sandbox serves the session now", op="stream.view")
    return errors.GoneError(f"the terminal was closed: {reason}", op="stream.view")
