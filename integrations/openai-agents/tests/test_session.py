"""A session against a real daemon."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import tarfile
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from agents.sandbox import Manifest
from agents.sandbox.entries import Dir, File
from agents.sandbox.errors import (
    ConfigurationError,
    ExecNonZeroError,
    ExecTimeoutError,
    ExecTransportError,
    ExposedPortUnavailableError,
    InvalidManifestPathError,
    PtySessionNotFoundError,
    SandboxError,
    WorkspaceArchiveWriteError,
    WorkspaceReadNotFoundError,
    WorkspaceStartError,
)
from agents.sandbox.manifest import Environment
from agents.sandbox.session import SandboxSession
from agents.sandbox.snapshot import LocalSnapshotSpec

from atoll import Client, models
from openai_agents_atoll import AtollSandboxClient, AtollSandboxClientOptions, AtollSandboxSession, AtollSandboxSessionState
from scripts.daemon import Daemon

pytestmark = pytest.mark.anyio

Options = AtollSandboxClientOptions


@asynccontextmanager
async def opened(options: Options | None = None, manifest: Manifest | None = None, **more: Any) -> AsyncIterator[SandboxSession]:
    async with AtollSandboxClient() as client:
        session = await client.create(options=options, manifest=manifest, **more)
        try:
            async with session:
                yield session
        finally:
            await client.delete(session)


def inner(session: SandboxSession) -> AtollSandboxSession:
    assert isinstance(session._inner, AtollSandboxSession)
    return session._inner


async def until(session: SandboxSession, number: int | None, chars: str, text: bytes) -> None:
    """Write to a terminal and wait for what it shows."""
    assert number is not None
    seen = b""
    for _ in range(200):
        seen += (await session.pty_write_stdin(session_id=number, chars=chars, yield_time_s=0.3)).output
        if text in seen:
            return
        chars = "\n"
    pytest.fail(f"{text!r} is not in {seen!r}")


async def test_exec() -> None:
    manifest = Manifest(environment=Environment(value={"NAME": "v"}))
    async with opened(manifest=manifest) as session:
        done = await session.exec("printf", "%s|", "a b", "two\nlines", "", shell=False)
        assert done.stdout == b"a b|two\nlines||"
        done = await session.exec("cd /tmp || exit\npwd; echo $NAME; printf '\\377\\000' >&2; exit 3")
        assert (done.stdout, done.stderr, done.exit_code) == (b"/tmp\nv\n", b"\xff\x00", 3)
        assert (await session.exec("pwd")).stdout == b"/workspace\n"
        assert (await session.exec("id -un", user="nobody")).stdout == b"nobody\n"
        assert len((await session.exec("head -c 5000000 /dev/zero")).stdout) == 5_000_000
        with pytest.raises(ExecTimeoutError):
            await session.exec("sleep 60", timeout=0.3)
        with pytest.raises(ExecTransportError):
            await session.exec("head -c 20000000 /dev/zero")
        assert await session.running()
        outputs = await asyncio.gather(*(session.exec(f"sleep 0.1; echo {n}") for n in range(8)))
        assert [o.stdout for o in outputs] == [f"{n}\n".encode() for n in range(8)]


async def test_files() -> None:
    async with opened() as session:
        data = os.urandom(100_000)
        await session.write(Path("a/b.bin"), io.BytesIO(data))
        assert (await session.read(Path("a/b.bin"))).read() == data
        assert await session.read_bounded(Path("a/b.bin"), max_bytes=10) == data[:10]
        await session.write(Path("script"), io.BytesIO(b"#!/bin/sh\n"))
        await session.exec("chmod 755 script")
        await session.write(Path("script"), io.BytesIO(b"#!/bin/sh\necho ran\n"))
        assert (await session.exec("./script")).stdout == b"ran\n", "a file that is replaced keeps its mode"
        with pytest.raises(FileExistsError):
            await session._write_new_file(Path("script"), io.BytesIO(b""))
        await session._write_new_file(Path("new/one"), io.BytesIO(b"1"))
        await session.mv("new/one", "a/b.bin")
        assert (await session.read(Path("a/b.bin"))).read() == b"1"
        with pytest.raises(ExecNonZeroError):
            await session.mv("a/b.bin", "new")
        with pytest.raises(ExecNonZeroError):
            await session.mv("a", "elsewhere")
        await session.exec("ln -s script link")
        assert await session.same_file("link", "script")
        assert not await session.same_file("link", "script", follow_symlinks=False)
        assert not await session.same_file("link", "a/b.bin")
        assert sorted(Path(e.path).name for e in await session.ls(".")) == ["a", "link", "new", "script"]
        await session.mkdir("deep/er", parents=True)
        await session.rm("deep", recursive=True)
        with pytest.raises(WorkspaceReadNotFoundError):
            await session.read(Path("nope"))
        with pytest.raises(WorkspaceReadNotFoundError):
            await session.read_bounded(Path("nope"), max_bytes=1)
        await session.exec("ln -s /etc out")
        for path in ("../x", "out/passwd", "/etc/passwd"):
            with pytest.raises(InvalidManifestPathError):
                await session.read(Path(path))
        with pytest.raises(InvalidManifestPathError):
            await session.write(Path("out/passwd"), io.BytesIO(b""))
        await session.write(Path("nobody.txt"), io.BytesIO(b"n"), user="root")


async def test_manifest_and_archives() -> None:
    manifest = Manifest(entries={"d": Dir(children={"f": File(content=b"1")}), "g": File(content=b"2")})
    async with opened(manifest=manifest) as session:
        assert (await session.exec("cat d/f g")).stdout == b"12"
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w") as tar:
            member = tarfile.TarInfo("x/y")
            member.size = 3
            tar.addfile(member, io.BytesIO(b"abc"))
        out.seek(0)
        await session.extract("in.tar", out)
        assert (await session.exec("cat x/y")).stdout == b"abc"


async def test_terminals() -> None:
    async with opened() as session:
        done = await session.pty_exec_start("echo out; echo err >&2; exit 4", yield_time_s=30)
        assert (done.process_id, done.exit_code, sorted(done.output.split())) == (None, 4, [b"err", b"out"])
        shell = await session.pty_exec_start("sh", tty=True, yield_time_s=0.3)
        assert shell.process_id is not None
        await until(session, shell.process_id, "tty; stty size\n", b"24 80")
        await until(session, shell.process_id, "echo be''gun; sleep 600\n", b"begun")
        await session.pty_write_stdin(session_id=shell.process_id, chars="\x03", yield_time_s=0.3)
        await until(session, shell.process_id, "echo en''ded\n", b"ended")
        got = await session.pty_write_stdin(session_id=shell.process_id, chars="exit 5\n", yield_time_s=30)
        assert (got.process_id, got.exit_code) == (None, 5)
        with pytest.raises(PtySessionNotFoundError):
            await session.pty_write_stdin(session_id=shell.process_id, chars="")
        plain = await session.pty_exec_start("sleep 60", yield_time_s=0.3)
        assert plain.process_id is not None
        with pytest.raises(RuntimeError, match=r"^stdin is not available for this process$"):
            await session.pty_write_stdin(session_id=plain.process_id, chars="x")
        left = await session.pty_exec_start("sleep 600 & echo started", yield_time_s=30)
        assert (left.process_id, left.exit_code, left.output) == (None, 0, b"started\n"), "a process that it left behind holds nothing up"
        await session.pty_terminate_all()
        with pytest.raises(PtySessionNotFoundError):
            await session.pty_write_stdin(session_id=plain.process_id, chars="")


async def test_many_terminals() -> None:
    async with opened() as session:
        first = await session.pty_exec_start("sleep 600", yield_time_s=0.25)
        assert first.process_id is not None
        inner(session)._terminals.all[first.process_id].used = 0
        await asyncio.gather(*(session.pty_exec_start("sleep 600", yield_time_s=0.25) for _ in range(64)))
        with pytest.raises(PtySessionNotFoundError):
            await session.pty_write_stdin(session_id=first.process_id, chars="")
        assert len(inner(session)._terminals.all) == 64


async def test_ports(daemon: Daemon) -> None:
    async with AtollSandboxClient(daemon.host, daemon.key) as client:
        session = await client.create(options=Options(exposed_ports=(8000,)))
        async with session:
            server = await session.pty_exec_start(
                "cd /etc && exec python3 -u -m http.server --bind 127.0.0.1 8000", tty=True, yield_time_s=0.3
            )
            if b"Serving" not in server.output:
                await until(session, server.process_id, "\n", b"Serving")
            url = (await session.resolve_exposed_port(8000)).url_for("http")
            status = await asyncio.to_thread(lambda: urllib.request.urlopen(url + "hostname").status)
            assert status == 200
            with pytest.raises(ExposedPortUnavailableError):
                await session.resolve_exposed_port(8001)
            public, headers = await inner(session).public_port(8000)
            assert public.startswith("http://8000-sb-")
            assert headers["Atoll-Token"]
        await client.delete(session)
        with pytest.raises(ExposedPortUnavailableError) as caught:
            await session.resolve_exposed_port(8000)
        assert caught.value.context["reason"] == "backend_unavailable"


async def test_what_a_sandbox_may_be(daemon: Daemon) -> None:
    with Client(daemon.socket) as own:
        own.profiles.create(models.Profile(name="agents", rules=[models.Rule(hosts=["example.com"], action="allow")]))
        own.secrets.create(models.NewSecret(name="AGENT_TOKEN", value="hunter2-value", hosts=["example.com"]))
        options = Options(
            image="host", memory=256 << 20, cpus=1, pids=100, profile="agents", secrets=("AGENT_TOKEN",), workspace="agents",
            labels={"team": "a"}, lifetime_s=600,
        )  # fmt: skip
        async with opened(options) as session:
            info = await inner(session).session.refresh()
            assert info.resources is not None
            assert (info.resources.memory, info.resources.cpus, info.image) == (256 << 20, 1, "host")
            assert (info.labels or {})["team"] == "a"
            assert info.expires is not None
            assert b"AGENT_TOKEN=" in (await session.exec("env")).stdout
            await session.write(Path("kept"), io.BytesIO(b"k"))
            text = str(AtollSandboxClient().serialize_session_state(session.state))
            assert "hunter2" not in text
        async with opened(Options(workspace="agents")) as session:
            assert (await session.read(Path("kept"))).read() == b"k"
        for bad in (
            Options(image="Not An Image"),
            Options(profile="nope"),
            Options(secrets=("NOPE",)),
            Options(provider="nope"),
            Options(from_snapshot="nope"),
        ):
            with pytest.raises(ConfigurationError):
                async with opened(bad):
                    pass
        assert [s.name for s in own.sessions.list()] == []
        own.workspaces.remove("agents")
        own.secrets.remove("AGENT_TOKEN")
        own.profiles.remove("agents")


@pytest.mark.parametrize("persistence", ["tar", "snapshot"])
async def test_restore_into_a_new_sandbox(persistence: Any, tmp_path: Path, daemon: Daemon) -> None:
    async with AtollSandboxClient() as client:
        options = Options(workspace_persistence=persistence)
        session = await client.create(options=options, snapshot=LocalSnapshotSpec(base_path=tmp_path))
        async with session:
            await session.exec(
                "mkdir -p d/e; echo 1 > d/f; ln d/f hard; ln -s d/f link; ln -s /usr/bin/env abs; mkfifo pipe; chmod 700 d; echo x > /root/outside"
            )
            await session.exec("python3 -c \"open('n' * 200 + '\\u00e9', 'w').write('long')\"")
        await client.delete(session)
        await client.delete(session)
        payload = client.serialize_session_state(session.state)
        [size] = [os.path.getsize(tmp_path / name) for name in os.listdir(tmp_path)]
        assert (size < 500) == (persistence == "snapshot")
        assert isinstance(payload["snapshot_fingerprint_version"], str)
        assert payload["snapshot_fingerprint_version"].endswith("_v2")
        again = await client.resume(client.deserialize_session_state(payload))
        async with again:
            done = await again.exec("cat d/f hard link; readlink abs; stat -c %a d; cat nnn*; cat /root/outside")
            outside = b"x\n" if persistence == "snapshot" else b""
            assert done.stdout == b"1\n1\n1\n/usr/bin/env\n700\nlong" + outside
            assert inner(again).state.atoll_session != inner(session).state.atoll_session
        await client.delete(again)
        await client.discard(again.state)
    with Client(daemon.socket) as own:
        assert [*own.snapshots.list()] == []
        assert own.sessions.list() == []


async def test_bad_archives() -> None:
    async with opened() as session:
        for name, kind in (("../x", tarfile.REGTYPE), ("hard", tarfile.LNKTYPE), ("dev", tarfile.CHRTYPE)):
            out = io.BytesIO()
            with tarfile.open(fileobj=out, mode="w") as tar:
                member = tarfile.TarInfo(name)
                member.type, member.linkname = kind, "a"
                tar.addfile(member)
            out.seek(0)
            with pytest.raises(WorkspaceArchiveWriteError) as caught:
                await session.hydrate_workspace(out)
            assert caught.value.context["reason"] == "unsafe_or_invalid_tar"
        with pytest.raises(WorkspaceArchiveWriteError):
            await session.hydrate_workspace(io.BytesIO(b"no archive"))
        with pytest.raises(WorkspaceArchiveWriteError):
            await session.hydrate_workspace(io.BytesIO(b'ATOLL_SANDBOX_SNAPSHOT_V1\n{"snapshot": "nope"}'))


@pytest.mark.parametrize("became", ["running", "paused", "stopped", "paused by its owner", "gone", "removed"])
async def test_resume(became: str, daemon: Daemon) -> None:
    """With the state of a sandbox, resume finds it again, or makes a new one and reports that."""
    manifest = Manifest(entries={"given": File(content=b"given")})
    async with AtollSandboxClient() as client:
        session = await client.create(options=Options(pause_on_exit=became == "paused"), manifest=manifest)
        await session.start()
        await session.exec("echo made > made; echo changed > given; sleep 600 &")
        box = inner(session).session
        id = (await box.refresh()).id
        own = await client.connect()
        match became:
            case "paused":
                await session.shutdown()
                assert not await session.running(), "to ask does not wake it"
                assert (await own.get(id)).info.state == "paused"
            case "stopped":
                await box.stop()
            case "paused by its owner":
                await box.pause(to_disk=True)
            case "gone":
                await own.remove(id)
            case "removed":
                await box.destroy()
        payload = client.serialize_session_state(session.state)
    async with AtollSandboxClient() as client:  # as another process would
        again = await client.resume(client.deserialize_session_state(payload))
        async with again:
            kept = became not in ("gone", "removed")
            assert (await again.exec("cat made given")).stdout == (b"made\nchanged\n" if kept else b"given")
            assert ((await inner(again).session.refresh()).id == id) == kept
            if became in ("running", "paused"):
                assert (await again.exec("pgrep -x sleep")).exit_code == 0, "its processes run on"
        await client.delete(again)
        await client.discard(again.state)
    with Client(daemon.socket) as owner:
        assert owner.sessions.list() == []


async def test_start_again_within_a_process() -> None:
    async with opened() as session:
        await session.exec("echo 1 > f")
        await inner(session).session.stop()
        assert not await session.running()
        await session.start()
        assert (await session.exec("cat f")).stdout == b"1\n"


async def test_no_daemon(tmp_path: Path) -> None:
    async with AtollSandboxClient(f"unix://{tmp_path}/none.sock") as client:
        with pytest.raises(WorkspaceStartError) as caught:
            await client.create()
        assert caught.value.retryable


@pytest.mark.parametrize("code", ["unavailable", "conflict"])
async def test_failures(code: str, daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure at any call is an error of the SDK, and leaves no orphan."""
    from atoll import errors
    from atoll._async._conn import AsyncConn

    calls, fail_at, failed = 0, 0, 0

    def fails(name: str) -> None:
        real = getattr(AsyncConn, name)

        def wrapped(self: AsyncConn, *args: Any, **kwargs: Any) -> Any:
            nonlocal calls, failed
            calls += 1
            if calls == fail_at:
                failed += 1
                raise errors.AtollError.classes[code]("injected")
            return real(self, *args, **kwargs)

        monkeypatch.setattr(AsyncConn, name, wrapped)

    for name in ("send", "stream", "websocket"):
        fails(name)

    async def scenario(client: AtollSandboxClient) -> None:
        session = await client.create(options=Options(exposed_ports=(1,)))
        try:
            async with session:
                await session.exec("true", shell=False)
                await session.write(Path("a"), io.BytesIO(b"1"))
                await session.read(Path("a"))
                await session.read_bounded(Path("a"), max_bytes=1)
                await session.mv("a", "b")
                await session.pty_exec_start("echo", yield_time_s=1)
                await session.hydrate_workspace(await session.persist_workspace())
                await session.resolve_exposed_port(1)
        finally:
            await client.delete(session)

    with Client(daemon.socket) as own:
        while True:
            calls, fail_at, failed = 0, fail_at + 1, 0
            async with AtollSandboxClient(daemon.socket) as client:
                with contextlib.suppress(SandboxError):
                    await scenario(client)
                assert own.sessions.list() == [], f"call {fail_at} left an orphan"
            if not failed:
                break
        assert fail_at > 20


def test_registered() -> None:
    assert AtollSandboxSessionState._subclass_registry["atoll"] is AtollSandboxSessionState
