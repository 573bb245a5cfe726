"""Interactive commands of an agent."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from dataclasses import dataclass, field

from agents.sandbox.session.pty_output import collect_pty_output
from agents.sandbox.session.pty_types import PTY_PROCESSES_MAX, PtyExecUpdate, allocate_pty_process_id, process_id_to_prune_from_meta

from atoll import AsyncProcess, errors

LINGER_SECONDS = 1.0
"""How long output is awaited after a command has ended: processes that it left behind may hold it open for ever."""


@dataclass(eq=False)
class Terminal:
    """A command and its unread output."""

    process: AsyncProcess
    tty: bool
    chunks: deque[bytes] = field(default_factory=deque)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    notify: asyncio.Event = field(default_factory=asyncio.Event)
    closed: bool = False
    exit_code: int | None = None
    used: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._wait())]
        self._came = time.monotonic()

    async def _read(self) -> None:
        with contextlib.suppress(errors.AtollError):
            async for piece in self.process:
                async with self.lock:
                    self.chunks.append(piece.data)
                self._came = time.monotonic()
                self.notify.set()

    async def _wait(self) -> None:
        with contextlib.suppress(errors.AtollError):
            self.exit_code = (await self.process.wait()).code
            while not self._tasks[0].done() and (left := self._came + LINGER_SECONDS - time.monotonic()) > 0:
                await asyncio.wait(self._tasks[:1], timeout=left)
        self.closed = True
        self.notify.set()

    async def collect(self, yield_ms: int, max_tokens: int | None) -> tuple[bytes, int | None, bool]:
        return await collect_pty_output(
            output_chunks=self.chunks, output_lock=self.lock, output_notify=self.notify, is_done=lambda: self.closed,
            yield_time_ms=yield_ms, max_output_tokens=max_tokens,
        )  # fmt: skip

    async def end(self) -> None:
        """Kill the command, if it still runs."""
        with contextlib.suppress(errors.AtollError):
            await self.process.aclose()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class Terminals:
    """The commands of a session."""

    def __init__(self) -> None:
        self.all: dict[int, Terminal] = {}

    async def add(self, terminal: Terminal) -> int:
        """Assign a number to a terminal. If there are too many, the least recently used one is ended."""
        number = allocate_pty_process_id(set(self.all))
        pruned = None
        if len(self.all) >= PTY_PROCESSES_MAX:
            pruned = process_id_to_prune_from_meta([(n, t.used, t.closed) for n, t in self.all.items()])
        old = self.all.pop(pruned) if pruned is not None else None
        self.all[number] = terminal
        if old is not None:
            await old.end()
        return number

    async def update(self, number: int, yield_ms: int, max_tokens: int | None) -> PtyExecUpdate:
        """The output until the command ended or the time was over."""
        terminal = self.all[number]
        output, tokens, closed = await terminal.collect(yield_ms, max_tokens)
        terminal.used = time.monotonic()
        if closed and self.all.pop(number, None) is not None:
            await terminal.end()
        return PtyExecUpdate(
            process_id=None if closed else number,
            output=output,
            exit_code=terminal.exit_code if closed else None,
            original_token_count=tokens,
        )

    async def end(self) -> None:
        every = [*self.all.values()]
        self.all.clear()
        await asyncio.gather(*(t.end() for t in every))
