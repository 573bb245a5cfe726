"""Sessions: names that always refer to the sandbox that serves them now."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal
from urllib.parse import quote

from atoll import errors
from atoll import models as m
from atoll._async._conn import AsyncConn, clean, labels_query
from atoll._async.sandbox import AsyncSandbox
from atoll._io_async import Every
from atoll.types import Result, result

BEAT_SECONDS = 30.0


class AsyncSession(AsyncSandbox):
    """A handle on a session: the methods of the sandbox that serves it, which it holds until it is released or closed.

    If another sandbox has taken its place, methods raise StaleError and have no effect until acquire is called. As a context manager it
    releases the sandbox; destroy removes the session. Dropping it does not end the session.
    """

    def __init__(self, conn: AsyncConn, session: m.Session, holder: m.HolderRef):
        self._session, self._holder = session, holder
        self._receipt: m.Receipt | None = None
        self._beat: Every | None = None
        info = m.Sandbox.model_construct(id=session.id, name=session.name)
        super().__init__(conn.with_headers(), info, f"/v1/sessions/{quote(session.id, safe='')}")

    @property
    def id(self) -> str:
        return self._session.id

    @property
    def name(self) -> str:
        return self._session.name

    @property
    def session(self) -> m.Session:
        """The state at the time of the last request; see refresh_session."""
        return self._session

    @property
    def receipt(self) -> m.Receipt | None:
        """The receipt of the last acquisition: whether the sandbox existed, and what was lost."""
        return self._receipt

    async def __aexit__(self, *_: Any) -> None:
        await self.aclose()

    async def refresh(self) -> m.Sandbox:
        """The sandbox that serves the session."""
        receipt = self._receipt or await self.acquire()
        return await self._conn.get(m.Sandbox, "GET", f"/v1/sandboxes/{receipt.sandbox}")

    async def refresh_session(self) -> m.Session:
        self._session = await self._conn.get(m.Session, "GET", self._base)
        return self._session

    async def acquire(self) -> m.Receipt:
        """Hold the sandbox that serves the session now, even if it is another one than before."""
        return await self._acquire(None)

    async def _acquire(self, epoch: int | None) -> m.Receipt:
        body = m.HolderRef(holder=self._holder.holder, kind=self._holder.kind, epoch=epoch)
        out = await self._conn.get(m.Acquired, "POST", f"{self._base}/acquire", body)
        await self._held(out.receipt)
        return out.receipt

    async def _held(self, receipt: m.Receipt) -> None:
        self._receipt = receipt
        self._conn.headers.update({"Atoll-Epoch": str(receipt.epoch), "Atoll-Follow": "true"})
        if self._beat is None:
            self._beat = Every(BEAT_SECONDS, self._alive)

    async def _alive(self) -> bool:
        epoch = self._receipt.epoch if self._receipt else None
        body = m.HolderRef(holder=self._holder.holder, kind=self._holder.kind, epoch=epoch)
        try:
            try:
                await self._conn.call("POST", f"{self._base}/heartbeat", body)
            except errors.StaleError:  # the machine may have been suspended
                await self._acquire(epoch)
        except errors.StaleError:
            self._beat = None
            return False
        except errors.AtollError:
            pass  # the next heartbeat may succeed
        return True

    async def _let_go(self) -> bool:
        beat, self._beat = self._beat, None
        if beat is not None:
            await beat.stop()
        self._conn.headers.clear()
        return beat is not None

    async def release(self) -> None:
        """Stop holding the sandbox. If it has no other holder, it is saved and ended after a while."""
        await self._let_go()
        await self._conn.call("POST", f"{self._base}/release", self._holder)

    async def aclose(self) -> None:
        """Release, if it holds the sandbox."""
        if self._beat is not None:
            await self.release()

    async def destroy(self) -> None:
        """Remove the session with its sandbox and its saved files. Workspaces are kept."""
        await self._let_go()
        await self._conn.call("DELETE", self._base)

    async def save(self) -> m.Saved:
        """Save the workspaces or, without workspaces, the files of the sandbox."""
        return await self._conn.get(m.Saved, "POST", f"{self._base}/save")

    async def envelope(self) -> m.Envelope:
        """A description without secrets, from which the sandbox can be found again or rebuilt."""
        return await self._conn.get(m.Envelope, "GET", f"{self._base}/envelope")

    async def targets(self) -> Sequence[m.SessionTarget]:
        """The providers that the session can move to, and those that it cannot, with reasons."""
        return (await self._conn.get(m.TargetsOutputBody, "GET", f"{self._base}/targets")).targets or []

    async def swap(self, target: str) -> m.Swapped:
        """Move the session to another provider with its files."""
        out = await self._conn.get(m.Swapped, "POST", f"{self._base}/swap", m.SwapRequest(target=target))
        if out.receipt and self._beat is not None:
            await self._held(out.receipt)
        return out

    async def run_on(self, target: str, command: m.ExecRequest) -> Result:
        """Run a command on another provider with a copy of the files; see atoll.types.command."""
        return result(await self._conn.get(m.ExecResult, "POST", f"{self._base}/run-on", m.RunOnRequest(target=target, command=command)))

    async def update_session(self, change: m.SessionChange) -> m.Session:
        self._session = await self._conn.get(m.Session, "PATCH", self._base, change)
        return self._session

    async def port_url(self, port: int) -> str:
        receipt = self._receipt or await self.acquire()
        return self._conn.address.port_url(port, receipt.sandbox)


class AsyncSessions:
    """The sessions of a daemon. Those that are created, attached and resumed hold their sandbox. A turn holds it even when this program ends
    without a release. Without a turn, it is released 90 seconds after that."""

    def __init__(self, conn: AsyncConn):
        self._conn = conn

    async def create(
        self,
        spec: m.Spec | None = None,
        *,
        name: str | None = None,
        group: str | None = None,
        labels: dict[str, str] | None = None,
        pause_on_exit: bool = False,
        record: Literal["manual", "on-turn"] | None = None,
        attach_if_exists: bool = False,
        turn: bool = False,
    ) -> AsyncSession:
        holder = _holder(turn)
        body = m.NewSession(
            spec=spec,
            name=name,
            group=group,
            labels=labels,
            pause_on_exit=pause_on_exit or None,
            record=record,
            if_exists="attach" if attach_if_exists else None,
            holder=holder,
        )
        return await self._opened(await self._conn.get(m.Opened, "POST", "/v1/sessions", body), holder)

    async def resume(self, envelope: m.Envelope, *, name: str | None = None, turn: bool = False) -> AsyncSession:
        """The session of an envelope, with the sandbox that it names or one that is rebuilt."""
        holder = _holder(turn)
        body = m.ResumeRequest(envelope=envelope, name=name, holder=holder)
        return await self._opened(await self._conn.get(m.Opened, "POST", "/v1/sessions/resume", body), holder)

    async def _opened(self, out: m.Opened, holder: m.HolderRef) -> AsyncSession:
        session = AsyncSession(self._conn, out.session, holder)
        if out.receipt is not None:
            await session._held(out.receipt)
        return session

    async def attach(self, ref: str, *, turn: bool = False) -> AsyncSession:
        """Acquire the sandbox of a session, by its name or id."""
        session = await self.get(ref, turn=turn)
        await session.acquire()
        return session

    async def get(self, ref: str, *, turn: bool = False) -> AsyncSession:
        """A session without holding its sandbox. Each call goes to the sandbox that serves it at that time."""
        return AsyncSession(self._conn, await self._conn.get(m.Session, "GET", f"/v1/sessions/{quote(ref, safe='')}"), _holder(turn))

    async def list(self, labels: Mapping[str, str] | None = None) -> Sequence[m.Session]:
        query = clean(label=labels_query(labels))
        return (await self._conn.get(m.SessionsOutputBody, "GET", "/v1/sessions", query=query)).sessions or []

    async def remove(self, ref: str) -> None:
        """Remove a session with its sandbox and its saved files. Workspaces are kept."""
        await self._conn.call("DELETE", f"/v1/sessions/{quote(ref, safe='')}")

    async def usage(self, by: str, start: datetime | None = None, end: datetime | None = None) -> Sequence[m.SessionUsage]:
        """How long the sandboxes of sessions existed, by "label:KEY", "group" or "provider"."""
        query = {"by": by, **{k: v.isoformat() for k, v in (("from", start), ("to", end)) if v}}
        return (await self._conn.get(m.SessionUsageOutputBody, "GET", "/v1/usage", query=query)).usage or []


def _holder(turn: bool) -> m.HolderRef:
    return m.HolderRef(kind="turn" if turn else "operator", holder=f"client-{secrets.token_hex(13)}")
