# Generated from _async by scripts/generate.py; do not edit.
"""A command, connected to the caller."""

from __future__ import annotations

import json
from collections import deque
from types import TracebackType
from typing import Any

from typing_extensions import Self
from websockets.exceptions import ConnectionClosed, ConnectionClosedOK

from atoll import errors
from atoll import models as m
from atoll._io_sync import Condition, WebSocket
from atoll._sync._conn import Conn
from atoll.types import Output

STDIN, STDOUT, STDERR = 0, 1, 2
WINDOW = 256 << 10  # bytes of a channel that may be in flight unread
FRAME = 32 << 10


class Process:
    """One command. Iterating over it yields its output as it comes.

    A command that writes more than the buffers hold (256 KiB of a stream) waits until its output is read, unless it runs in the background.
    One may write while another reads. Closing kills the command, unless it runs in the background.
    """

    def __init__(self, socket: WebSocket, info: m.ProcessInfo):
        self.info = info
        self._socket = socket
        self._turn = Condition()
        self._receiving = False
        self._output: deque[Output] = deque()
        self._open = {STDOUT, STDERR}
        self._unacked = {STDOUT: 0, STDERR: 0}
        self._credit = WINDOW
        self._exit: m.Exit | None = None
        self._error: errors.AtollError | None = None
        self._ended = False
        self._input_open = True

    @property
    def id(self) -> str:
        """Unique in its sandbox; reconnect and signal take it."""
        return self.info.id

    @classmethod
    def start(cls, conn: Conn, path: str, command: m.ExecRequest | None) -> Process:
        socket = conn.websocket(path)
        try:
            if command is not None:
                socket.send(json.dumps({"type": "start", "command": command.to_json()}))
            first = socket.recv()
            message: dict[str, Any] = json.loads(first) if isinstance(first, str) else {}
            if message.get("type") != "started":
                raise errors.from_problem(message.get("error")) or errors.unreachable()
            self = cls(socket, m.ProcessInfo.model_validate(message["process"]))
            if command is not None and not command.stdin and command.tty is None:
                self.close_stdin()
            return self
        except ConnectionClosed as e:
            raise errors.unreachable(e) from e
        except BaseException:
            socket.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __iter__(self) -> Process:
        return self

    def __next__(self) -> Output:
        self._until(lambda: bool(self._output) or not self._open)
        if not self._output:
            if self._error and self._exit is None:
                raise self._error
            raise StopIteration
        out = self._output.popleft()
        channel = STDOUT if out.stream == "stdout" else STDERR
        self._unacked[channel] += len(out.data)
        if self._unacked[channel] >= WINDOW // 4 and not self._ended:
            n, self._unacked[channel] = self._unacked[channel], 0
            self._send({"type": "ack", "channel": channel, "n": n})
        return out

    def wait(self) -> m.Exit:
        """Wait for the end of the command. Unread output is buffered; a command that writes more than fits blocks until it is read."""
        self._until(lambda: self._exit is not None or self._error is not None)
        if self._exit is None:
            raise self._error or errors.unreachable()
        return self._exit

    def communicate(self, input: bytes | None = None) -> tuple[bytes, bytes]:
        """Write the input, then read all output until the command has closed it."""
        if input:
            self.write(input)
        self.close_stdin()
        out: dict[str, list[bytes]] = {"stdout": [], "stderr": []}
        for piece in self:
            out[piece.stream].append(piece.data)
        return b"".join(out["stdout"]), b"".join(out["stderr"])

    def write(self, data: bytes) -> None:
        """Write to the input of the command, which needs stdin=True or a terminal."""
        view = memoryview(data)
        while view:
            self._until(lambda: self._credit > 0)
            if self._ended or not self._input_open:
                raise errors.ConflictError("its input is closed", op="process.write", subject=self.info.id)
            n = min(len(view), self._credit, FRAME)
            self._credit -= n
            self._send(bytes([STDIN]) + view[:n])
            view = view[n:]

    def close_stdin(self) -> None:
        """The end of input."""
        if self._input_open:
            self._input_open = False
            self._send({"type": "eof", "channel": STDIN})

    def signal(self, number: int) -> None:
        """Send a signal, by its Linux number, to the process group of the command."""
        self._send({"type": "signal", "signal": number})

    def resize(self, cols: int, rows: int) -> None:
        """Set the size of the terminal."""
        self._send({"type": "resize", "size": {"cols": cols, "rows": rows}})

    def close(self) -> None:
        """Close the connection. A background command keeps running, any other is killed."""
        self._socket.close()

    def _send(self, message: dict[str, Any] | bytes) -> None:
        try:
            self._socket.send(message if isinstance(message, bytes) else json.dumps(message))
        except ConnectionClosed as e:
            if not isinstance(e, ConnectionClosedOK):
                raise errors.unreachable(e) from e

    def _until(self, ready: Any) -> None:
        """Receive until ready. If several callers wait, one of them receives for all."""
        with self._turn:
            while not ready() and not self._ended:
                if self._receiving:
                    self._turn.wait()
                    continue
                self._receiving = True
                self._turn.release()
                message: str | bytes | None = None
                failure: ConnectionClosed | None = None
                try:
                    message = self._socket.recv()
                except ConnectionClosed as e:
                    failure = e
                finally:
                    self._turn.acquire()
                    self._receiving = False
                    self._turn.notify_all()
                if message is None:
                    self._end(failure)
                else:
                    self._take(message)

    def _take(self, message: str | bytes) -> None:
        if isinstance(message, bytes):
            self._output.append(Output("stdout" if message[0] == STDOUT else "stderr", message[1:]))
            return
        data = json.loads(message)
        match data.get("type"):
            case "eof":
                self._open.discard(data["channel"])
            case "ack":
                self._credit += data["n"]
            case "exit":
                self._exit = m.Exit.model_validate(data["exit"])
            case "error":
                self._error = errors.from_problem(data["error"]) or errors.unreachable()

    def _end(self, failure: ConnectionClosed | None) -> None:
        self._ended = True
        self._open.clear()
        if self._exit is None and self._error is None:
            self._error = errors.unreachable(failure)
