"""The threading primitives of the synchronous client. _io_async has the same with asyncio."""

from __future__ import annotations

import threading
from collections.abc import Callable
from threading import Condition
from time import sleep
from typing import Any, ParamSpec, TypeVar

from websockets.sync.client import ClientConnection as WebSocket
from websockets.sync.client import connect, unix_connect

__all__ = ["Condition", "Every", "WebSocket", "open_websocket", "sleep", "to_thread"]

P = ParamSpec("P")
T = TypeVar("T")


def to_thread(do: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    return do(*args, **kwargs)


def open_websocket(uri: str, socket: str, **options: Any) -> WebSocket:
    if socket:
        return unix_connect(socket, uri, **options)
    return connect(uri, **options)


class Every:
    """Calls do every so many seconds until it returns False or stop is called."""

    def __init__(self, seconds: float, do: Callable[[], bool]):
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(seconds, do), daemon=True)
        self._thread.start()

    def _run(self, seconds: float, do: Callable[[], bool]) -> None:
        while not self._stopped.wait(seconds) and do():
            pass

    def stop(self) -> None:
        self._stopped.set()
        if self._thread is not threading.current_thread():
            self._thread.join()
