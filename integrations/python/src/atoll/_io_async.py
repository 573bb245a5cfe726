"""The asyncio primitives of the asynchronous client. _io_sync has the same with threads."""

from __future__ import annotations

import asyncio
import contextlib
from asyncio import Condition, sleep, to_thread
from collections.abc import Awaitable, Callable
from typing import Any

from websockets.asyncio.client import ClientConnection as WebSocket
from websockets.asyncio.client import connect, unix_connect

__all__ = ["Condition", "Every", "WebSocket", "open_websocket", "sleep", "to_thread"]


async def open_websocket(uri: str, socket: str, **options: Any) -> WebSocket:
    if socket:
        return await unix_connect(socket, uri, **options)
    return await connect(uri, **options)


class Every:
    """Calls do every so many seconds until it returns False or stop is called."""

    def __init__(self, seconds: float, do: Callable[[], Awaitable[bool]]):
        self._task = asyncio.create_task(self._run(seconds, do))

    async def _run(self, seconds: float, do: Callable[[], Awaitable[bool]]) -> None:
        while True:
            await asyncio.sleep(seconds)
            if not await do():
                return

    async def stop(self) -> None:
        if self._task is not asyncio.current_task():
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
