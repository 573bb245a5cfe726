"""Ports of a sandbox, forwarded to addresses of this machine."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from atoll import AsyncTunnel, errors


class Forwarder:
    """Listens on the loopback and forwards each connection to a port of a sandbox."""

    def __init__(self, dial: Callable[[], Awaitable[AsyncTunnel]]):
        self._dial = dial
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0

    async def start(self) -> Forwarder:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._carry(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with await self._dial() as tunnel:
                out = asyncio.create_task(self._outward(reader, tunnel))
                try:
                    while data := await tunnel.receive():
                        writer.write(data)
                        await writer.drain()
                finally:
                    out.cancel()
        except (errors.AtollError, ConnectionError):
            pass  # the caller's connection is closed
        finally:
            writer.close()

    @staticmethod
    async def _outward(reader: asyncio.StreamReader, tunnel: AsyncTunnel) -> None:
        with contextlib.suppress(errors.AtollError, ConnectionError):
            while data := await reader.read(32 << 10):
                await tunnel.send(data)
            await tunnel.send_eof()

    async def close(self) -> None:
        self._server.close()
        for task in [*self._tasks]:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
