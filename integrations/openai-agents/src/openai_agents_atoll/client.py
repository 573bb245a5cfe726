"""The sandbox client for a run."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from pathlib import Path

from agents.sandbox.manifest import Manifest
from agents.sandbox.session import SandboxSession, SandboxSessionState
from agents.sandbox.session.dependencies import Dependencies
from agents.sandbox.session.manager import Instrumentation
from agents.sandbox.session.sandbox_client import BaseSandboxClient
from agents.sandbox.snapshot import SnapshotBase, SnapshotSpec, resolve_snapshot

from atoll import AsyncClient, AsyncSession, connect_async, errors
from atoll import models as m
from openai_agents_atoll.errors import start_error
from openai_agents_atoll.options import AtollSandboxClientOptions, AtollSandboxSessionState
from openai_agents_atoll.session import AtollSandboxSession


class AtollSandboxClient(BaseSandboxClient[AtollSandboxClientOptions | None]):
    """Makes sandboxes with the daemon at host, or with the one that atoll.connect finds or starts."""

    backend_id = "atoll"
    supports_default_options = True

    def __init__(
        self,
        host: str | None = None,
        key: str | None = None,
        *,
        instrumentation: Instrumentation | None = None,
        dependencies: Dependencies | None = None,
    ) -> None:
        self._host, self._key = host, key
        self._instrumentation = instrumentation or Instrumentation()
        self._dependencies = dependencies
        self._connected: tuple[asyncio.AbstractEventLoop, AsyncClient] | None = None

    async def connect(self) -> AsyncClient:
        """The underlying client of the atoll package. Connections belong to an event loop."""
        loop = asyncio.get_running_loop()
        if self._connected is None or self._connected[0] is not loop:
            self._connected = loop, await connect_async(self._host, self._key)
        return self._connected[1]

    async def close(self) -> None:
        if self._connected is not None and self._connected[0] is asyncio.get_running_loop():
            await self._connected[1].aclose()
        self._connected = None

    async def __aenter__(self) -> AtollSandboxClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def create(
        self,
        *,
        snapshot: SnapshotSpec | SnapshotBase | None = None,
        manifest: Manifest | None = None,
        options: AtollSandboxClientOptions | None = None,
    ) -> SandboxSession:
        manifest, options = self._validate_manifest_for_create(manifest or Manifest()), options or AtollSandboxClientOptions()
        session_id = uuid.uuid4()
        client, session = await self._make(options, session_id, manifest)
        state = AtollSandboxSessionState(
            session_id=session_id, snapshot=resolve_snapshot(snapshot, str(session_id)), manifest=manifest,
            exposed_ports=options.exposed_ports, options=options, atoll_session=session.session.id,
        )  # fmt: skip
        return self._wrap_session(AtollSandboxSession(state, client, session), instrumentation=self._instrumentation)

    async def _make(
        self, options: AtollSandboxClientOptions, session_id: uuid.UUID, manifest: Manifest
    ) -> tuple[AsyncClient, AsyncSession]:
        name = f"openai-{uuid.uuid4().hex[:20]}"
        spec = options.to_spec({"openai-agents-session": session_id.hex})
        client: AsyncClient | None = None
        try:
            client = await self.connect()
            return client, await client.sessions.create(spec, name=name, labels=spec.labels, pause_on_exit=options.pause_on_exit)
        except BaseException as e:
            if client is not None:  # the daemon may have made it
                with contextlib.suppress(errors.AtollError):
                    await client.sessions.remove(name)
            if isinstance(e, errors.AtollError):
                raise start_error(e, Path(manifest.root)) from e
            raise

    async def resume(self, state: SandboxSessionState) -> SandboxSession:
        """The sandbox of a state, which is resumed, started, or rebuilt from its saved files."""
        if not isinstance(state, AtollSandboxSessionState):
            raise TypeError("AtollSandboxClient.resume expects an AtollSandboxSessionState")
        state.assert_path_grants_rebound()
        client = await self.connect()
        session = await self._find(client, state)
        if session is None:
            client, session = await self._make(state.options, state.session_id, state.manifest)
        state.atoll_session = session.session.id
        return self._wrap_session(AtollSandboxSession(state, client, session), instrumentation=self._instrumentation)

    async def _find(self, client: AsyncClient, state: AtollSandboxSessionState) -> AsyncSession | None:
        """The session of a state, or one from its envelope. It returns None only if the sandbox is proved to be gone."""
        try:
            with contextlib.suppress(errors.NotFoundError, errors.GoneError):
                return await client.sessions.attach(state.atoll_session)
            if state.envelope is not None:
                with contextlib.suppress(errors.NotFoundError, errors.GoneError):
                    session = await client.sessions.resume(m.Envelope.model_validate(state.envelope))
                    await session.update_session(
                        m.SessionChange(labels={**state.options.labels}, pause_on_exit=state.options.pause_on_exit)
                    )
                    return session
        except errors.AtollError as e:
            raise start_error(e, Path(state.manifest.root)) from e
        return None

    async def delete(self, session: SandboxSession) -> SandboxSession:
        """End a sandbox, or pause it if its options say so. One that is already gone is success."""
        inner = session._inner
        if not isinstance(inner, AtollSandboxSession):
            raise TypeError("AtollSandboxClient.delete expects an AtollSandboxSession")
        await inner.shutdown()
        return session

    async def discard(self, state: SandboxSessionState) -> None:
        """End the sandbox of a state, even if it is paused, and remove its saved files."""
        if not isinstance(state, AtollSandboxSessionState):
            raise TypeError("AtollSandboxClient.discard expects an AtollSandboxSessionState")
        client = await self.connect()
        with contextlib.suppress(errors.NotFoundError, errors.GoneError):
            await client.sessions.remove(state.atoll_session)
        if state.native_snapshot:
            with contextlib.suppress(errors.NotFoundError, errors.GoneError):
                await client.snapshots.remove(state.native_snapshot)

    def deserialize_session_state(self, payload: dict[str, object]) -> SandboxSessionState:
        return self._deserialize_session_state_payload(payload, AtollSandboxSessionState)
