# Generated from _async by scripts/generate.py; do not edit.
"""Sessions: names that always refer to the sandbox that serves them now."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal
from urllib.parse import quote

from atoll import errors
from atoll import models as m
from atoll._io_sync import Every
from atoll._sync._conn import Conn, clean, labels_query
from atoll._sync.sandbox import Sandbox
from atoll.types import Result, result

BEAT_SECONDS = 30.0


class Session(Sandbox):
    """A handle on a session: the methods of the sandbox that serves it, which it holds until it is released or closed.

    If another sandbox has taken its place, methods raise StaleError and have no effect until acquire is called. As a context manager it
    releases the sandbox; destroy removes the session. Dropping it does not end the session.
    """

    def __init__(self, conn: Conn, session: m.Session, holder: m.HolderRef):
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

    def __exit__(self, *_: Any) -> None:
        self.close()

    def refresh(self) -> m.Sandbox:
        """The sandbox that serves the session."""
        receipt = self._receipt or self.acquire()
        return self._conn.get(m.Sandbox, "GET", f"/v1/sandboxes/{receipt.sandbox}")

    def refresh_session(self) -> m.Session:
        self._session = self._conn.get(m.Session, "GET", self._base)
        return self._session

    def acquire(self) -> m.Receipt:
        """Hold the sandbox that serves the session now, even if it is another one than before."""
        return self._acquire(None)

    def _acquire(self, epoch: int | None) -> m.Receipt:
        body = m.HolderRef(holder=self._holder.holder, kind=self._holder.kind, epoch=epoch)
        out = self._conn.get(m.Acquired, "POST", f"{self._base}/acquire", body)
        self._held(out.receipt)
        return out.receipt

    def _held(self, receipt: m.Receipt) -> None:
        self._receipt = receipt
        self._conn.headers.update({"Atoll-Epoch": str(receipt.epoch), "Atoll-Follow": "true"})
        if self._beat is None:
            self._beat = Every(BEAT_SECONDS, self._alive)

    def _alive(self) -> bool:
        epoch = self._receipt.epoch if self._receipt else None
        body = m.HolderRef(holder=self._holder.holder, kind=self._holder.kind, epoch=epoch)
        try:
            try:
                self._conn.call("POST", f"{self._base}/heartbeat", body)
            except errors.StaleError:  # the machine may have been suspended
                self._acquire(epoch)
        except errors.StaleError:
            self._beat = None
            return False
        except errors.AtollError:
            pass  # the next heartbeat may succeed
        return True

    def _let_go(self) -> bool:
        beat, self._beat = self._beat, None
        if beat is not None:
            beat.stop()
        self._conn.headers.clear()
        return beat is not None

    def release(self) -> None:
        """Stop holding the sandbox. If it has no other holder, it is saved and ended after a while."""
        self._let_go()
        self._conn.call("POST", f"{self._base}/release", self._holder)

    def close(self) -> None:
        """Release, if it holds the sandbox."""
        if self._beat is not None:
            self.release()

    def destroy(self) -> None:
        """Remove the session with its sandbox and its saved files. Workspaces are kept."""
        self._let_go()
        self._conn.call("DELETE", self._base)

    def save(self) -> m.Saved:
        """Save the workspaces or, without workspaces, the files of the sandbox."""
        return self._conn.get(m.Saved, "POST", f"{self._base}/save")

    def envelope(self) -> m.Envelope:
        """A description without secrets, from which the sandbox can be found again or rebuilt."""
        return self._conn.get(m.Envelope, "GET", f"{self._base}/envelope")

    def targets(self) -> Sequence[m.SessionTarget]:
        """The providers that the session can move to, and those that it cannot, with reasons."""
        return (self._conn.get(m.TargetsOutputBody, "GET", f"{self._base}/targets")).targets or []

    def swap(self, target: str) -> m.Swapped:
        """Move the session to another provider with its files."""
        out = self._conn.get(m.Swapped, "POST", f"{self._base}/swap", m.SwapRequest(target=target))
        if out.receipt and self._beat is not None:
            self._held(out.receipt)
        return out

    def run_on(self, target: str, command: m.ExecRequest) -> Result:
        """Run a command on another provider with a copy of the files; see atoll.types.command."""
        return result(self._conn.get(m.ExecResult, "POST", f"{self._base}/run-on", m.RunOnRequest(target=target, command=command)))

    def update_session(self, change: m.SessionChange) -> m.Session:
        self._session = self._conn.get(m.Session, "PATCH", self._base, change)
        return self._session

    def port_url(self, port: int) -> str:
        receipt = self._receipt or self.acquire()
        return self._conn.address.port_url(port, receipt.sandbox)


class Sessions:
    """The sessions of a daemon. Those that are created, attached and resumed hold their sandbox. A turn holds it even when this program ends
    without a release. Without a turn, it is released 90 seconds after that."""

    def __init__(self, conn: Conn):
        self._conn = conn

    def create(
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
    ) -> Session:
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
        return self._opened(self._conn.get(m.Opened, "POST", "/v1/sessions", body), holder)

    def resume(self, envelope: m.Envelope, *, name: str | None = None, turn: bool = False) -> Session:
        """The session of an envelope, with the sandbox that it names or one that is rebuilt."""
        holder = _holder(turn)
        body = m.ResumeRequest(envelope=envelope, name=name, holder=holder)
        return self._opened(self._conn.get(m.Opened, "POST", "/v1/sessions/resume", body), holder)

    def _opened(self, out: m.Opened, holder: m.HolderRef) -> Session:
        session = Session(self._conn, out.session, holder)
        if out.receipt is not None:
            session._held(out.receipt)
        return session

    def attach(self, ref: str, *, turn: bool = False) -> Session:
        """Acquire the sandbox of a session, by its name or id."""
        session = self.get(ref, turn=turn)
        session.acquire()
        return session

    def get(self, ref: str, *, turn: bool = False) -> Session:
        """A session without holding its sandbox. Each call goes to the sandbox that serves it at that time."""
        return Session(self._conn, self._conn.get(m.Session, "GET", f"/v1/sessions/{quote(ref, safe='')}"), _holder(turn))

    def list(self, labels: Mapping[str, str] | None = None) -> Sequence[m.Session]:
        query = clean(label=labels_query(labels))
        return (self._conn.get(m.SessionsOutputBody, "GET", "/v1/sessions", query=query)).sessions or []

    def remove(self, ref: str) -> None:
        """Remove a session with its sandbox and its saved files. Workspaces are kept."""
        self._conn.call("DELETE", f"/v1/sessions/{quote(ref, safe='')}")

    def usage(self, by: str, start: datetime | None = None, end: datetime | None = None) -> Sequence[m.SessionUsage]:
        """How long the sandboxes of sessions existed, by "label:KEY", "group" or "provider"."""
        query = {"by": by, **{k: v.isoformat() for k, v in (("from", start), ("to", end)) if v}}
        return (self._conn.get(m.SessionUsageOutputBody, "GET", "/v1/usage", query=query)).usage or []


def _holder(turn: bool) -> m.HolderRef:
    return m.HolderRef(kind="turn" if turn else "operator", holder=f"client-{secrets.token_hex(13)}")
