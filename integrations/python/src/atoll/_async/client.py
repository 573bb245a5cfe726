"""A connection to a daemon."""

from __future__ import annotations

import base64
import contextlib
import json
import secrets
from collections.abc import AsyncIterable, AsyncIterator, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any
from urllib.parse import quote

from typing_extensions import Self

from atoll import errors
from atoll import models as m
from atoll._address import Address, start_daemon
from atoll._async._conn import AsyncConn, clean, labels_query
from atoll._async.sandbox import AsyncSandbox
from atoll._async.session import AsyncSessions
from atoll._io_async import to_thread


async def connect_async(host: str | None = None, key: str | None = None, *, tenant: str | None = None) -> AsyncClient:
    """The daemon at host ("https://host:port" or "unix:///path"), else at $ATOLL_HOST, else the local one, which is started if none runs."""
    client = AsyncClient(host, key, tenant=tenant)
    if client.address.named:
        return client
    try:
        if not await client.answers():
            try:
                await to_thread(start_daemon)
            except errors.UnavailableError:
                if not await client.answers():  # unless another process has started one meanwhile
                    raise
            await client.ping()
    except BaseException:
        await client.aclose()
        raise
    return client


class AsyncClient:
    """A connection to a daemon, which connects when it is first used. See connect_async for one that finds or starts the daemon."""

    def __init__(self, host: str | None = None, key: str | None = None, *, tenant: str | None = None):
        """Only the owner of the machine may name a tenant other than their own."""
        self.address = Address.find(host, key, tenant)
        self._conn = AsyncConn(self.address)
        self.sessions = AsyncSessions(self._conn)
        self.workspaces = AsyncWorkspaces(self._conn)
        self.profiles = AsyncProfiles(self._conn)
        self.secrets = AsyncSecrets(self._conn)
        self.snapshots = AsyncSnapshots(self._conn)
        self.recordings = AsyncRecordings(self._conn)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections. Sandboxes keep running."""
        await self._conn.aclose()

    async def ping(self) -> None:
        """Check that a daemon answers, otherwise raise UnavailableError."""
        await self._conn.call("GET", "/healthz")

    async def answers(self) -> bool:
        try:
            await self.ping()
        except errors.UnavailableError:
            return False
        return True

    async def create(
        self, spec: m.Spec | m.CreateRequest | None = None, *, idempotency_key: str | None = None, **fields: Any
    ) -> AsyncSandbox:
        """Make a sandbox, which lives until it is destroyed or its lifetime ends. A repeated call with its key returns the same sandbox.

        Instead of a spec, its fields can be given by name: create(image="base").

        Without a key, a call that is canceled removes what the daemon may have made."""
        if spec is not None and fields:
            raise errors.InvalidError("give a spec or its fields, not both", op="sandbox.create", subject=", ".join(fields))
        body = spec or m.Spec(**fields)
        headers = {"Idempotency-Key": idempotency_key or secrets.token_hex(16)}
        try:
            info = await self._conn.get(m.Sandbox, "POST", "/v1/sandboxes", body, headers=headers)
        except BaseException as e:
            if idempotency_key is None and not isinstance(e, errors.AtollError):
                await self._uncreate(body, headers)
            raise
        return AsyncSandbox(self._conn, info)

    async def _uncreate(self, body: m.Spec | m.CreateRequest, headers: Mapping[str, str]) -> None:
        with contextlib.suppress(errors.NotFoundError, errors.GoneError):  # there was no sandbox
            abandon = {**headers, "Atoll-Abandon": "true"}  # ends the first request, if it is still served
            info = await self._conn.get(m.Sandbox, "POST", "/v1/sandboxes", body, headers=abandon)
            await self.remove(info.id)

    async def get(self, ref: str) -> AsyncSandbox:
        """The sandbox of that name or id, whatever its state."""
        return AsyncSandbox(self._conn, await self._conn.get(m.Sandbox, "GET", f"/v1/sandboxes/{quote(ref, safe='')}"))

    async def list(self, labels: Mapping[str, str] | None = None, states: Sequence[str] = ()) -> AsyncIterator[AsyncSandbox]:
        """The sandboxes that have all of the labels, newest first."""
        cursor: str | None = ""
        while cursor is not None:
            query = clean(label=labels_query(labels), state=[*states], cursor=cursor or None)
            page = await self._conn.get(m.ListOutputBody, "GET", "/v1/sandboxes", query=query)
            for info in page.sandboxes or []:
                yield AsyncSandbox(self._conn, info)
            cursor = page.next or None

    async def remove(self, ref: str) -> None:
        """Destroy the sandbox of that name or id. One that is already gone is success; one that never existed is NotFoundError."""
        await self._conn.call("DELETE", f"/v1/sandboxes/{quote(ref, safe='')}")

    async def providers(self) -> Sequence[m.Provider]:
        return (await self._conn.get(m.ProvidersOutputBody, "GET", "/v1/providers")).providers or []

    async def published_ports(self) -> Sequence[m.Publication]:
        """The ports of the daemon's machine that are forwarded to sandboxes."""
        return (await self._conn.get(m.PublishedOutputBody, "GET", "/v1/published-ports")).ports or []

    async def templates(self) -> Sequence[m.Template]:
        return (await self._conn.get(m.TemplatesOutputBody, "GET", "/v1/templates")).templates or []

    async def build(
        self,
        name: str,
        files: bytes | AsyncIterable[bytes],
        *,
        args: Mapping[str, str] | None = None,
        egress: Sequence[str] = (),
        no_cache: bool = False,
    ) -> m.Template:
        """Build a template from a tar of files with a Dockerfile, whose steps can reach only the hosts in egress."""
        query = clean(name=name, arg=[f"{k}={v}" for k, v in (args or {}).items()], egress=[*egress], noCache=no_cache)
        async with self._conn.stream("POST", "/v1/templates", query, files, {"Content-Type": "application/x-tar"}) as answer:
            async for line in answer.aiter_lines():
                data = json.loads(line)
                if error := errors.from_problem(data.get("problem")):
                    raise error
                if template := data.get("template"):
                    return m.Template.model_validate(template)
        raise errors.unreachable()

    async def events(
        self,
        *,
        after: int | None = None,
        sandbox: str | None = None,
        types: Sequence[str] = (),
        ops: Sequence[str] = (),
        since: datetime | None = None,
        until: datetime | None = None,
        follow: bool = False,
    ) -> AsyncIterator[m.Event]:
        """Events, oldest first; with follow, also new ones as they happen. To continue later, pass the seq of the last event as after."""
        query = clean(
            after=after,
            sandbox=sandbox,
            type=[*types],
            op=[*ops],
            since=since.isoformat() if since else None,
            until=until.isoformat() if until else None,
        )
        if follow:
            async for data in self._conn.events("/v1/events/stream", query):
                yield m.Event.model_validate(data)
            if until is None:
                raise errors.unreachable()
            return
        while page := (await self._conn.get(m.EventsOutputBody, "GET", "/v1/events", query=query)).events:
            for event in page:
                yield event
            query["after"] = page[-1].seq


class AsyncSnapshots:
    """The snapshots of a daemon. AsyncSandbox.snapshot makes one."""

    def __init__(self, conn: AsyncConn):
        self._conn = conn

    async def get(self, ref: str) -> m.Snapshot:
        return await self._conn.get(m.Snapshot, "GET", f"/v1/snapshots/{quote(ref, safe='')}")

    async def list(self, labels: Mapping[str, str] | None = None) -> AsyncIterator[m.Snapshot]:
        cursor: str | None = ""
        while cursor is not None:
            query = clean(label=labels_query(labels), cursor=cursor or None)
            page = await self._conn.get(m.SnapshotListOutputBody, "GET", "/v1/snapshots", query=query)
            for snapshot in page.snapshots or []:
                yield snapshot
            cursor = page.next or None

    async def remove(self, ref: str) -> None:
        await self._conn.call("DELETE", f"/v1/snapshots/{quote(ref, safe='')}")

    async def prune(self, labels: Mapping[str, str] | None = None) -> Sequence[m.Snapshot]:
        """Remove the snapshots with all of the labels from which no existing sandbox was made."""
        return (
            await self._conn.get(m.SnapshotListOutputBody, "POST", "/v1/snapshots/prune", {"labels": dict(labels or {})})
        ).snapshots or []


class AsyncRecordings:
    """Recordings of terminals, as asciicast files, and of desktops, as MP4 files. AsyncSandbox.record starts one."""

    def __init__(self, conn: AsyncConn):
        self._conn = conn

    def _path(self, id: str, rest: str = "") -> str:
        return f"/v1/recordings/{quote(id, safe='')}{rest}"

    async def get(self, id: str) -> m.Recording:
        return await self._conn.get(m.Recording, "GET", self._path(id))

    async def list(self, sandbox: str | None = None, session: str | None = None) -> AsyncIterator[m.Recording]:
        """The recordings of a sandbox, of a session or of all, newest first."""
        cursor: str | None = ""
        while cursor is not None:
            query = clean(sandbox=sandbox, session=session, cursor=cursor or None)
            page = await self._conn.get(m.RecordingListOutputBody, "GET", "/v1/recordings", query=query)
            for recording in page.recordings or []:
                yield recording
            cursor = page.next or None

    async def stop(self, id: str) -> m.Recording:
        """End a recording, and wait until it is stored. One that has ended is success."""
        return await self._conn.get(m.Recording, "POST", self._path(id, "/stop"))

    async def read(self, id: str) -> bytes:
        """The file of a recording. Of one that runs, what was recorded until now."""
        return b"".join([chunk async for chunk in self.stream(id)])

    async def stream(self, id: str) -> AsyncIterator[bytes]:
        """The file of a recording in chunks."""
        async with self._conn.stream("GET", self._path(id, "/content")) as answer:
            async for chunk in answer.aiter_bytes():
                yield chunk

    async def remove(self, id: str) -> None:
        """Remove a recording. One that runs ends."""
        await self._conn.call("DELETE", self._path(id))


class AsyncWorkspaces:
    """Durable directories."""

    def __init__(self, conn: AsyncConn):
        self._conn = conn

    def _path(self, name: str, rest: str = "") -> str:
        return f"/v1/workspaces/{quote(name, safe='')}{rest}"

    async def create(self, new: m.NewWorkspace) -> m.Workspace:
        return await self._conn.get(m.Workspace, "POST", "/v1/workspaces", new)

    async def get(self, name: str) -> m.Workspace:
        return await self._conn.get(m.Workspace, "GET", self._path(name))

    async def list(self) -> Sequence[m.Workspace]:
        return (await self._conn.get(m.WorkspacesOutputBody, "GET", "/v1/workspaces")).workspaces or []

    async def remove(self, name: str) -> None:
        await self._conn.call("DELETE", self._path(name))

    async def versions(self, name: str) -> Sequence[m.WorkspaceVersion]:
        return (await self._conn.get(m.VersionsOutputBody, "GET", self._path(name, "/versions"))).versions or []

    async def persist(self, name: str, note: str = "") -> m.WorkspaceVersion:
        return await self._conn.get(m.WorkspaceVersion, "POST", self._path(name, "/persist"), {"note": note})

    async def restore(self, name: str, version: int, note: str = "") -> m.WorkspaceVersion:
        return await self._conn.get(m.WorkspaceVersion, "POST", self._path(name, "/restore"), {"version": version, "note": note})

    async def diff(self, name: str, start: int, end: int) -> m.DiffOutputBody:
        return await self._conn.get(m.DiffOutputBody, "GET", self._path(name, "/diff"), query={"from": start, "to": end})


class AsyncProfiles:
    """Egress profiles."""

    def __init__(self, conn: AsyncConn):
        self._conn = conn

    def _path(self, name: str, rest: str = "") -> str:
        return f"/v1/profiles/{quote(name, safe='')}{rest}"

    async def create(self, profile: m.Profile) -> m.StoredProfile:
        return await self._conn.get(m.StoredProfile, "POST", "/v1/profiles", profile)

    async def apply(self, profile: m.Profile, if_version: int | None = None) -> m.StoredProfile:
        """Make or replace a profile. With a version, the stored profile must have that version."""
        return await self._conn.get(m.StoredProfile, "PUT", self._path(profile.name or ""), profile, clean(ifVersion=if_version))

    async def get(self, name: str, version: int | None = None) -> m.StoredProfile:
        return await self._conn.get(m.StoredProfile, "GET", self._path(name), query=clean(version=version))

    async def list(self) -> Sequence[m.StoredProfile]:
        return (await self._conn.get(m.ProfilesOutputBody, "GET", "/v1/profiles")).profiles or []

    async def remove(self, name: str) -> None:
        await self._conn.call("DELETE", self._path(name))

    async def test(self, name: str, url: str, method: str | None = None) -> m.Explanation:
        """Check a request against the profile, without sending it."""
        return await self._conn.get(m.Explanation, "POST", self._path(name, "/test"), m.ProfileTest(url=url, method=method))


class AsyncSecrets:
    """Stored secrets. Their values cannot be read."""

    def __init__(self, conn: AsyncConn):
        self._conn = conn

    async def create(self, secret: m.NewSecret) -> m.StoredSecret:
        return await self._conn.get(m.StoredSecret, "POST", "/v1/secrets", secret)

    async def rotate(self, name: str, value: str | bytes) -> m.StoredSecret:
        raw = value.encode() if isinstance(value, str) else value
        body = {"valueBase64": base64.b64encode(raw).decode()}
        return await self._conn.get(m.StoredSecret, "PUT", f"/v1/secrets/{quote(name, safe='')}/value", body)

    async def list(self) -> Sequence[m.StoredSecret]:
        return (await self._conn.get(m.SecretsOutputBody, "GET", "/v1/secrets")).secrets or []

    async def remove(self, name: str, *, force: bool = False) -> None:
        await self._conn.call("DELETE", f"/v1/secrets/{quote(name, safe='')}", query=clean(force=force))
