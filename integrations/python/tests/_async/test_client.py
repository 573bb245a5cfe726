"""The client against a real daemon. scripts/generate.py makes the tests of the synchronous client from these."""

from __future__ import annotations

import os
import signal
import subprocess
import tarfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from io import BytesIO
from pathlib import Path

import httpx
import pytest

import atoll
from atoll import AsyncClient, AsyncSandbox, Lifetime, Network, Spec, WorkspaceMount, errors, models
from scripts.daemon import Daemon

pytestmark = pytest.mark.anyio

HOST = Spec(provider="host")  # starts faster than a kernel


@asynccontextmanager
async def box(spec: Spec = HOST) -> AsyncIterator[AsyncSandbox]:
    async with await atoll.connect_async() as client, await client.create(spec) as sandbox:
        yield sandbox


async def test_run() -> None:
    async with box() as sandbox:
        done = await sandbox.run(["sh", "-c", "cat; echo $NAME $PWD >&2; exit 3"], env={"NAME": "v"}, cwd="/tmp", input=b"in\xff\x00")
        assert (done.code, done.stdout, done.stderr, done.ok) == (3, b"in\xff\x00", b"v /tmp\n", False)
        assert (await sandbox.run("printf '%s|' 'two\nlines' \"\"; exit 0")).stdout == b"two\nlines||"
        assert (await sandbox.run(["printf", "%s", b"\xfe\xff"])).stdout == b"\xfe\xff"
        assert (await sandbox.run(["sleep", "60"], timeout=0.2)).timed_out
        long = await sandbox.run("head -c 3000000 /dev/zero", output_limit=2_000_000)
        assert len(long.stdout) == 2_000_000
        assert long.truncated
        assert (await sandbox.run(["kill", "-9", "$$"])).code != 0


async def sees(terminal: atoll.AsyncTerminal, text: bytes) -> bytes:
    seen = b""
    while text not in seen:
        seen += await terminal.__anext__()
    return seen


async def test_viewers_share_a_terminal() -> None:
    async with box() as sandbox, await sandbox.terminal(cols=100, rows=30) as driving:
        await driving.write(b"echo a$((40+2))b\n")
        await sees(driving, b"a42b")
        async with await sandbox.terminal(watch=True) as watching:
            assert watching.process == driving.process
            await sees(watching, b"a42b")  # at once
            await watching.write(b"echo c$((1+1))d\n")
            await driving.write(b"echo e$((1+2))f\n")
            assert b"c2d" not in await sees(watching, b"e3f")
            viewers = sorted((s.kind, s.mode, s.viewers) for s in await sandbox.streams())
            assert viewers == [("terminal", "control", 1), ("terminal", "view", 1)]
            await sandbox.revoke_stream(watching.stream.id)
            with pytest.raises(errors.UnauthorizedError):
                await sees(watching, b"never")
        await driving._socket.close()  # as a network does
        await driving.write(b"echo g$((1+2))h; exit 7\n")
        await sees(driving, b"g3h")
        assert (await driving.wait()).code == 7


async def test_live_streams() -> None:
    async with box() as sandbox:
        async with await sandbox.exec("echo first; read line; echo got $line >&2; exit 5", stdin=True) as process:
            assert (await process.__anext__()).data == b"first\n"  # while the command runs
            await process.write(b"answer\n")
            assert (await process.communicate()) == (b"", b"got answer\n")
            assert (await process.wait()).code == 5
        big = os.urandom(1 << 20)
        async with await sandbox.exec("head -c 1048576 | tee /dev/stderr", stdin=True) as process:
            await process.write(big[: 200 << 10])
            out, err = await process.communicate(big[200 << 10 :])
            assert out == err == big


async def test_command_ends_with_its_connection() -> None:
    async with box() as sandbox:
        async with await sandbox.exec("echo ready; exec sleep 600") as process:
            await process.__anext__()
        for _ in range(100):
            if not any(p.running for p in await sandbox.processes()):
                return
            time.sleep(0.05)
        pytest.fail("the command still runs")


async def test_terminal_and_signals() -> None:
    async with box() as sandbox:
        async with await sandbox.exec(
            "stty size; trap 'stty size; exit 7' USR1; echo ready; while :; do sleep 0.05; done", tty=(100, 40)
        ) as process:
            text = b""
            async for piece in process:
                text += piece.data
                if b"ready" in text:
                    break
            await process.resize(90, 30)
            await process.signal(signal.SIGUSR1)
            async for piece in process:
                text += piece.data
            assert b"40 100" in text
            assert b"30 90" in text
            assert (await process.wait()).code == 7


async def test_background() -> None:
    async with box() as sandbox:
        async with await sandbox.exec("echo begin; read line; echo $line; sleep 600", stdin=True, background=True) as process:
            number = process.info.id
        async with await sandbox.attach(number) as process:
            assert (await process.__anext__()).data == b"begin\n"
            await process.write(b"more\n")
            assert (await process.__anext__()).data == b"more\n"
        assert [p.running for p in await sandbox.processes()] == [True]
        await sandbox.signal(number, signal.SIGKILL)
        logs = [piece async for piece in sandbox.logs(number, follow=True)]
        assert b"".join(p.data for p in logs) == b"begin\nmore\n"


async def test_files() -> None:
    async with box() as sandbox:
        files = sandbox.files
        root = (await sandbox.run("pwd")).stdout.decode().strip() + "/d"
        data = os.urandom(300_000)
        info = await files.write(f"{root}/sub/a", data, mode=0o600)
        assert (info.size, info.mode & 0o777) == (len(data), 0o600)
        assert await files.read(f"{root}/sub/a") == data
        assert await files.read(f"{root}/sub/a", 10, 20) == data[10:30]
        assert await files.read(f"{root}/sub/a", 299_990) == data[-10:]
        with pytest.raises(errors.AlreadyExistsError):
            await files.write(f"{root}/sub/a", "x", replace=False)
        await files.mkdir(f"{root}/e")
        await files.move(f"{root}/sub/a", f"{root}/e/b")
        assert sorted([f.path async for f in files.list(root, depth=-1)]) == ["e", "e/b", "sub"]
        tar = b"".join([chunk async for chunk in files.export(f"{root}/e")])
        assert any(name.endswith("b") for name in tarfile.open(fileobj=BytesIO(tar)).getnames())
        await files.extract(f"{root}/copy", tar)
        assert len([f async for f in files.list(f"{root}/copy", depth=-1)]) >= 1
        assert not await files.exists(f"{root}/sub/a")
        await files.remove(root, recursive=True)
        with pytest.raises(errors.NotFoundError):
            await files.read(f"{root}/e/b")


async def test_source_code() -> None:
    async with box() as sandbox:
        root = (await sandbox.run("pwd")).stdout.decode().strip() + "/project"
        assert not (await sandbox.git().status()).is_repo
        setup = f"mkdir {root} && cd {root} && git init -q -b main && git config user.name Ada && git config user.email ada@example.com"
        assert (await sandbox.run(f"{setup} && echo one >a.txt && git add . && git commit -qm first")).ok
        files, git = sandbox.files, sandbox.git(root)
        with pytest.raises(errors.ConflictError):
            await files.write(f"{root}/a.txt", "two\n", expect=sha256(b"other").hexdigest())
        await files.write(f"{root}/a.txt", "two\n", expect=sha256(b"one\n").hexdigest())
        done = await files.patch(root, "*** Begin Patch\n*** Add File: b.py\n+print(1)\n*** End Patch")
        assert [(f.path, f.status) for f in done.files or []] == [("b.py", "added")]
        found = (await files.search(root, r"print\(\d\)", name="*.py")).matches or []
        assert [(f.path, f.line) for f in found] == [("b.py", 1)]
        status = await git.status()
        assert (status.head, [f.path for f in status.files or []]) == ("main", ["a.txt", "b.py"])
        diff = await git.diff(["a.txt"])
        assert [(f.additions, f.deletions) for f in diff.files or []] == [(1, 1)]
        assert [c.subject for c in (await git.log()).commits or []] == ["first"]
        async for state in git.watch():
            assert (state.is_repo, state.head, state.commit, state.reason) == (True, "main", status.commit, "start")
            assert state.dirty
            assert state.changed_file_count == len(status.files or [])
            assert state.revision > 0
            break
        assert (await git.show()).commit.author.name == "Ada"
        assert await git.read("a.txt") == b"one\n"
        assert [line.text for line in (await git.blame("a.txt")).lines or []] == ["two"]


async def test_recordings() -> None:
    async with await atoll.connect_async() as client, await client.create(HOST) as sandbox:
        recording = await sandbox.record()
        async with await sandbox.terminal() as terminal:
            await terminal.write(b"echo a$((40+2))b\n")
            await sees(terminal, b"a42b")
        assert (await client.recordings.stop(recording.id)).state == "available"
        assert b"a42b" in await client.recordings.read(recording.id)
        assert [r.id async for r in client.recordings.list(sandbox.id)] == [recording.id]
        await client.recordings.remove(recording.id)
        with pytest.raises(errors.NotFoundError):
            await client.recordings.get(recording.id)


async def test_ports(daemon: Daemon) -> None:
    async with AsyncClient(daemon.host, daemon.key) as client, await client.create() as sandbox:
        server = "import http.server as h; s = h.HTTPServer(('127.0.0.1', 8000), h.SimpleHTTPRequestHandler); print('up', flush=True); s.serve_forever()"
        async with await sandbox.exec(["python3", "-c", server], cwd="/etc") as process:
            await process.__anext__()
            async with await sandbox.dial(8000) as tunnel:
                await tunnel.send(b"GET /hostname HTTP/1.0\r\n\r\n")
                await tunnel.send_eof()
                answer = b""
                while piece := await tunnel.receive():
                    answer += piece
                assert b"200 OK" in answer
            token = (await sandbox.port_token(8000, expires=60)).token
            url = httpx.URL(await sandbox.port_url(8000))
            assert url.host == f"8000-{sandbox.id}.localhost"
            where = url.copy_with(host="127.0.0.1", path="/hostname")
            assert httpx.get(where, headers={"Host": url.netloc.decode(), "Atoll-Token": token}).status_code == 200
            with pytest.raises(errors.DeniedError):  # of a key, even of an admin
                await sandbox.publish(8000)
        with pytest.raises(errors.UnavailableError):
            await sandbox.dial(8001)
    async with box() as sandbox:
        with pytest.raises(errors.UnsupportedError):
            await sandbox.port_url(8000)


async def test_published_ports() -> None:
    async with await atoll.connect_async() as client, await client.create(HOST) as sandbox:
        server = "cd /etc && exec python3 -u -m http.server 8000"
        async with await sandbox.exec(server, background=True) as process:
            await process.__anext__()
        published = await sandbox.publish(8000)
        assert published.host_port
        url = f"http://127.0.0.1:{published.host_port}/hostname"
        assert httpx.get(url).status_code == 200
        listed = [p for p in await client.published_ports() if p.sandbox == sandbox.id]
        assert [(p.port, p.host_port) for p in listed] == [(8000, published.host_port)]
        with pytest.raises(errors.ConflictError):
            await sandbox.publish(8001, published.host_port)
        await sandbox.unpublish(published.host_port)
        assert all(p.sandbox != sandbox.id for p in await client.published_ports())
        with pytest.raises(httpx.ConnectError):
            httpx.get(url)
        with pytest.raises(errors.UnsupportedError):
            await sandbox.preview(8000)
        with pytest.raises(errors.UnsupportedError):
            await sandbox.previews()


async def test_main_flow() -> None:
    """Snapshots, forks and pauses, with real kernels."""
    async with (
        await atoll.connect_async() as client,
        await client.create(Spec(name="flow", labels={"team": "a"}, lifetime=Lifetime(timeout_ms=600_000))) as sandbox,
    ):
        assert sandbox.info.expires is not None
        async with await sandbox.exec(
            "echo 0 > /tmp/n; echo started; while :; do echo x >> /tmp/n; sleep 0.02; done", background=True
        ) as process:
            await process.__anext__()
        copies = await sandbox.fork(2, labels={"copy": "yes"})
        for copy in copies:
            async with copy:
                grows = "a=$(wc -l < /tmp/n); while [ $(wc -l < /tmp/n) -le $a ]; do sleep 0.02; done"
                assert (await copy.run(grows, timeout=60)).ok, "its processes run on"
        await sandbox.files.write("/root/kept", "before")
        snapshot = await sandbox.snapshot(models.SnapshotRequest(name="flow-1", memory=False))
        assert [s.name async for s in client.snapshots.list()] == ["flow-1"]
        async with await client.create(Spec(snapshot="flow-1")) as restored:
            assert await restored.files.read("/root/kept") == b"before"
        await client.snapshots.remove(snapshot.id)
        assert (await sandbox.pause()).state == "paused"
        assert (await sandbox.resume()).state == "running"
        assert (await sandbox.update(models.Change(labels={"team": "b"}))).labels == {"team": "b"}
        assert [s.name async for s in client.list({"team": "b"})] == ["flow"]
        assert (await sandbox.usage()).memory > 0
        assert (await sandbox.stop(grace=1)).state == "stopped"
        assert (await sandbox.start()).state == "running"
        assert (await (await client.get("flow")).run(["cat", "/root/kept"])).stdout == b"before"
    with pytest.raises(errors.AtollError):
        await (await atoll.connect_async()).get("flow-1")


async def test_sessions() -> None:
    async with await atoll.connect_async() as client:
        async with await client.sessions.create(HOST, name="notes", labels={"k": "v"}, turn=True) as session:
            assert session.receipt is not None
            assert (session.receipt.outcome, session.id, session.name) == ("created", session.session.id, "notes")
            assert (await session.run(["echo", "x"])).stdout == b"x\n"
            envelope = await session.envelope()
            with pytest.raises(errors.AlreadyExistsError):
                await client.sessions.create(name="notes")
            again = await client.sessions.resume(models.Envelope.model_validate_json(envelope.model_dump_json(by_alias=True)))
            assert again.receipt is not None
            assert (again.receipt.outcome, again.receipt.sandbox) == ("attached", session.receipt.sandbox)
            await again.release()
            await client.remove(session.receipt.sandbox)  # behind its back
            old = session.receipt.sandbox
            with pytest.raises(errors.StaleError):
                await session.run(["true"])
            assert (await session.acquire()).sandbox != old
            assert (await session.run(["echo", "y"])).ok
            assert (await session.refresh()).state == "running"
            assert [s.name for s in await client.sessions.list({"k": "v"})] == ["notes"]
        assert (await client.sessions.attach("notes")).receipt is not None
        await client.sessions.remove("notes")
        with pytest.raises(errors.NotFoundError):
            await client.sessions.get("notes")


async def test_owner_acts_in_a_tenant(daemon: Daemon) -> None:
    acme = f"acme-{time.monotonic_ns()}"
    daemon.cli("tenant", "create", acme)
    async with await atoll.connect_async(tenant=acme) as theirs, await theirs.create(HOST) as sandbox:
        assert [s.name async for s in theirs.list()] == [sandbox.name]
        async with await atoll.connect_async() as own:
            assert sandbox.name not in [s.name async for s in own.list()]
    async with await atoll.connect_async(tenant="nobody") as none:
        with pytest.raises(errors.NotFoundError):
            await none.get("any")
    async with await atoll.connect_async(daemon.host, daemon.key, tenant=acme) as refused:
        with pytest.raises(errors.DeniedError):
            await refused.get("any")


async def test_workspaces() -> None:
    async with await atoll.connect_async() as client:
        mount = WorkspaceMount(name="months", create=True)
        async with await client.create(Spec(workspaces=[mount])) as sandbox:
            await sandbox.files.write("/workspace/a", "1")
            assert (await client.workspaces.persist("months", "first")).number >= 1
        async with await client.create(Spec(workspaces=[mount])) as sandbox:
            assert await sandbox.files.read("/workspace/a") == b"1"
        assert [w.name for w in await client.workspaces.list()] == ["months"]
        assert len(await client.workspaces.versions("months")) >= 1
        await client.workspaces.remove("months")


async def test_profiles_and_secrets() -> None:
    async with await atoll.connect_async() as client:
        rule = models.Rule(hosts=["example.com"], action="allow")
        stored = await client.profiles.create(models.Profile(name="web", rules=[rule]))
        assert (await client.profiles.test("web", "https://example.com/x")).allow
        assert not (await client.profiles.test("web", "https://example.org/x")).allow
        assert (await client.profiles.get("web")).version == stored.version
        secret = await client.secrets.create(models.NewSecret(name="TOKEN", value="hunter2-value", hosts=["example.com"]))
        assert "hunter2" not in secret.model_dump_json()
        assert (await client.secrets.rotate("TOKEN", "other")).version == secret.version + 1
        async with await client.create(Spec(network=Network(profile="web"), secrets=[atoll.SecretRef(name="TOKEN")])) as sandbox:
            env = (await sandbox.run(["env"])).stdout
            assert b"TOKEN=" in env
            assert b"hunter2" not in env
        assert [s.name for s in await client.secrets.list()] == ["TOKEN"]
        await client.secrets.remove("TOKEN")
        await client.profiles.remove("web")


async def test_events() -> None:
    async with await atoll.connect_async() as client:
        async with await client.create(HOST) as sandbox:
            past = [e async for e in client.events(sandbox=sandbox.id)]
            assert "sandbox.create" in [e.op for e in past]
            await sandbox.run(["echo", "seen"])
            async for event in client.events(after=past[-1].seq, sandbox=sandbox.id, follow=True):
                if event.program == "echo":
                    break


async def test_watch() -> None:
    async with box(Spec()) as sandbox:
        async with await sandbox.exec("while :; do date > /tmp/changing; sleep 0.05; done"):
            async for event in sandbox.files.watch("/tmp"):
                assert event.path == "changing"
                assert event.revision > 0
                break


async def test_errors(daemon: Daemon, tmp_path: Path) -> None:
    async with await atoll.connect_async() as client:
        with pytest.raises(errors.NotFoundError) as caught:
            await client.get("nobody")
        assert (caught.value.code, caught.value.subject) == ("not_found", "nobody")
        with pytest.raises(errors.InvalidError):
            await client.create(Spec(name="Not A Name"))
        async with await client.create(Spec(provider="host", name="taken")) as sandbox:
            with pytest.raises(errors.AlreadyExistsError):
                await client.create(Spec(provider="host", name="taken"))
            assert (await sandbox.run(["no-such-program"])).code == 127
        with pytest.raises(errors.UnsupportedError):
            await client.create(Spec(provider="host", network=Network(egress=["example.com"])))
    with pytest.raises(errors.UnauthorizedError):
        await AsyncClient(daemon.host, "wrong").get("x")
    with pytest.raises(errors.UnavailableError, match="atoll up"):
        await AsyncClient(f"unix://{tmp_path}/none.sock").ping()
    with pytest.raises(errors.UnavailableError):
        await (await AsyncClient(f"unix://{tmp_path}/none.sock").sessions.get("x")).exec(["true"])
    with pytest.raises(errors.InvalidError):
        AsyncClient("example.com")


async def test_idempotent_create() -> None:
    async with await atoll.connect_async() as client:
        key = os.urandom(8).hex()
        async with await client.create(HOST, idempotency_key=key) as sandbox:
            assert (await client.create(HOST, idempotency_key=key)).id == sandbox.id
        with pytest.raises(errors.GoneError):
            await client.create(HOST, idempotency_key=key)


async def test_connect_starts_a_daemon(program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = tmp_path / "state"
    monkeypatch.setenv("ATOLL_STATE_DIR", str(state))
    monkeypatch.setenv("ATOLL_NO_DAEMON", "1")
    with pytest.raises(errors.UnavailableError, match="no daemon runs"):
        await atoll.connect_async()
    monkeypatch.delenv("ATOLL_NO_DAEMON")
    try:
        async with await atoll.connect_async() as client:
            await client.ping()
        async with await atoll.connect_async() as client:  # the same one
            assert [s async for s in client.list()] == []
    finally:
        subprocess.run([program, "down", "--state-dir", str(state)], check=True)


async def test_connect_names(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATOLL_HOST", daemon.host)
    monkeypatch.setenv("ATOLL_KEY", daemon.key)
    async with await atoll.connect_async() as client:
        await client.providers()
        assert daemon.key not in repr(client.address)
    async with await atoll.connect_async(daemon.socket) as client:
        await client.providers()


def context(dockerfile: str) -> bytes:
    out = BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        member = tarfile.TarInfo("Dockerfile")
        member.size = len(dockerfile)
        tar.addfile(member, BytesIO(dockerfile.encode()))
    return out.getvalue()


async def test_build() -> None:
    async with await atoll.connect_async() as client:
        built = await client.build("built", context("FROM host\nARG A\nRUN echo $A > /made\n"), args={"A": "here"})
        assert (built.name, built.tag) == ("built", "latest")
        async with await client.create(Spec(image="template:built")) as sandbox:
            assert (await sandbox.run(["cat", "/made"])).stdout == b"here\n"
        with pytest.raises(errors.InvalidError):
            await client.build("built", context("FROM host\nNOSUCH step\n"))
        with pytest.raises(errors.AtollError, match="exit"):
            await client.build("built", context("FROM host\nRUN exit 3\n"))


async def test_code() -> None:
    async with box(Spec()) as sandbox:
        first = await sandbox.run_code("import sys\nx = 6 * 7\nprint('out')\nprint('err', file=sys.stderr)\nx", env={"A": "b"})
        assert (first.ok, first.text, first.stdout, first.stderr, first.count) == (True, "42", "out\n", "err\n", 1)
        events: list[models.CodeEvent] = []
        assert (await sandbox.run_code("x + 1", on_event=events.append)).text == "43"
        assert [e.type for e in events] == ["started", "result", "end"]
        failed = await sandbox.run_code("1 / 0")
        assert failed.error is not None
        assert (failed.error.name, failed.ok) == ("ZeroDivisionError", False)
        late = await sandbox.run_code("while True: print(1)", timeout=0.5)
        assert late.error is not None
        assert (late.error.name, late.timed_out) == ("KeyboardInterrupt", True)
        picture = "class P:\n    def _repr_png_(self): return b'png'\nP()"
        assert (await sandbox.run_code(picture)).png == [b"png"]
        other = await sandbox.create_code_context("bash", "/tmp")
        assert (await sandbox.run_code("pwd", context=other.id)).stdout == "/tmp\n"
        assert {c.language for c in await sandbox.code_contexts()} >= {"python", "bash"}
        await sandbox.restart_code_context(other.id)
        await sandbox.interrupt_code_context(other.id)
        await sandbox.remove_code_context(other.id)
        with pytest.raises(errors.NotFoundError):
            await sandbox.run_code("pwd", context=other.id)
        with pytest.raises(errors.InvalidError, match="klingon"):
            await sandbox.run_code("1", language="klingon")
