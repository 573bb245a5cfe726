# Generated from _async by scripts/generate.py; do not edit.
"""The client against a real daemon. scripts/generate.py makes the tests of the synchronous client from these."""

from __future__ import annotations

import os
import signal
import subprocess
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from io import BytesIO
from pathlib import Path

import httpx
import pytest

import atoll
from atoll import Client, Lifetime, Network, Sandbox, Spec, WorkspaceMount, errors, models
from scripts.daemon import Daemon

pytestmark = pytest.mark.anyio

HOST = Spec(provider="host")  # starts faster than a kernel


@contextmanager
def box(spec: Spec = HOST) -> Iterator[Sandbox]:
    with atoll.connect() as client, client.create(spec) as sandbox:
        yield sandbox


def test_run() -> None:
    with box() as sandbox:
        done = sandbox.run(["sh", "-c", "cat; echo $NAME $PWD >&2; exit 3"], env={"NAME": "v"}, cwd="/tmp", input=b"in\xff\x00")
        assert (done.code, done.stdout, done.stderr, done.ok) == (3, b"in\xff\x00", b"v /tmp\n", False)
        assert (sandbox.run("printf '%s|' 'two\nlines' \"\"; exit 0")).stdout == b"two\nlines||"
        assert (sandbox.run(["printf", "%s", b"\xfe\xff"])).stdout == b"\xfe\xff"
        assert (sandbox.run(["sleep", "60"], timeout=0.2)).timed_out
        long = sandbox.run("head -c 3000000 /dev/zero", output_limit=2_000_000)
        assert len(long.stdout) == 2_000_000
        assert long.truncated
        assert (sandbox.run(["kill", "-9", "$$"])).code != 0


def sees(terminal: atoll.Terminal, text: bytes) -> bytes:
    seen = b""
    while text not in seen:
        seen += terminal.__next__()
    return seen


def test_viewers_share_a_terminal() -> None:
    with box() as sandbox, sandbox.terminal(cols=100, rows=30) as driving:
        driving.write(b"echo a$((40+2))b\n")
        sees(driving, b"a42b")
        with sandbox.terminal(watch=True) as watching:
            assert watching.process == driving.process
            sees(watching, b"a42b")  # at once
            watching.write(b"echo c$((1+1))d\n")
            driving.write(b"echo e$((1+2))f\n")
            assert b"c2d" not in sees(watching, b"e3f")
            viewers = sorted((s.kind, s.mode, s.viewers) for s in sandbox.streams())
            assert viewers == [("terminal", "control", 1), ("terminal", "view", 1)]
            sandbox.revoke_stream(watching.stream.id)
            with pytest.raises(errors.UnauthorizedError):
                sees(watching, b"never")
        driving._socket.close()  # as a network does
        driving.write(b"echo g$((1+2))h; exit 7\n")
        sees(driving, b"g3h")
        assert (driving.wait()).code == 7


def test_live_streams() -> None:
    with box() as sandbox:
        with sandbox.exec("echo first; read line; echo got $line >&2; exit 5", stdin=True) as process:
            assert (process.__next__()).data == b"first\n"  # while the command runs
            process.write(b"answer\n")
            assert (process.communicate()) == (b"", b"got answer\n")
            assert (process.wait()).code == 5
        big = os.urandom(1 << 20)
        with sandbox.exec("head -c 1048576 | tee /dev/stderr", stdin=True) as process:
            process.write(big[: 200 << 10])
            out, err = process.communicate(big[200 << 10 :])
            assert out == err == big


def test_command_ends_with_its_connection() -> None:
    with box() as sandbox:
        with sandbox.exec("echo ready; exec sleep 600") as process:
            process.__next__()
        for _ in range(100):
            if not any(p.running for p in sandbox.processes()):
                return
            time.sleep(0.05)
        pytest.fail("the command still runs")


def test_terminal_and_signals() -> None:
    with box() as sandbox:
        with sandbox.exec("stty size; trap 'stty size; exit 7' USR1; echo ready; while :; do sleep 0.05; done", tty=(100, 40)) as process:
            text = b""
            for piece in process:
                text += piece.data
                if b"ready" in text:
                    break
            process.resize(90, 30)
            process.signal(signal.SIGUSR1)
            for piece in process:
                text += piece.data
            assert b"40 100" in text
            assert b"30 90" in text
            assert (process.wait()).code == 7


def test_background() -> None:
    with box() as sandbox:
        with sandbox.exec("echo begin; read line; echo $line; sleep 600", stdin=True, background=True) as process:
            number = process.info.id
        with sandbox.attach(number) as process:
            assert (process.__next__()).data == b"begin\n"
            process.write(b"more\n")
            assert (process.__next__()).data == b"more\n"
        assert [p.running for p in sandbox.processes()] == [True]
        sandbox.signal(number, signal.SIGKILL)
        logs = [piece for piece in sandbox.logs(number, follow=True)]
        assert b"".join(p.data for p in logs) == b"begin\nmore\n"


def test_files() -> None:
    with box() as sandbox:
        files = sandbox.files
        root = (sandbox.run("pwd")).stdout.decode().strip() + "/d"
        data = os.urandom(300_000)
        info = files.write(f"{root}/sub/a", data, mode=0o600)
        assert (info.size, info.mode & 0o777) == (len(data), 0o600)
        assert files.read(f"{root}/sub/a") == data
        assert files.read(f"{root}/sub/a", 10, 20) == data[10:30]
        assert files.read(f"{root}/sub/a", 299_990) == data[-10:]
        with pytest.raises(errors.AlreadyExistsError):
            files.write(f"{root}/sub/a", "x", replace=False)
        files.mkdir(f"{root}/e")
        files.move(f"{root}/sub/a", f"{root}/e/b")
        assert sorted([f.path for f in files.list(root, depth=-1)]) == ["e", "e/b", "sub"]
        tar = b"".join([chunk for chunk in files.export(f"{root}/e")])
        assert any(name.endswith("b") for name in tarfile.open(fileobj=BytesIO(tar)).getnames())
        files.extract(f"{root}/copy", tar)
        assert len([f for f in files.list(f"{root}/copy", depth=-1)]) >= 1
        assert not files.exists(f"{root}/sub/a")
        files.remove(root, recursive=True)
        with pytest.raises(errors.NotFoundError):
            files.read(f"{root}/e/b")


def test_source_code() -> None:
    with box() as sandbox:
        root = (sandbox.run("pwd")).stdout.decode().strip() + "/project"
        assert not (sandbox.git().status()).is_repo
        setup = f"mkdir {root} && cd {root} && git init -q -b main && git config user.name Ada && git config user.email ada@example.com"
        assert (sandbox.run(f"{setup} && echo one >a.txt && git add . && git commit -qm first")).ok
        files, git = sandbox.files, sandbox.git(root)
        with pytest.raises(errors.ConflictError):
            files.write(f"{root}/a.txt", "two\n", expect=sha256(b"other").hexdigest())
        files.write(f"{root}/a.txt", "two\n", expect=sha256(b"one\n").hexdigest())
        done = files.patch(root, "*** Begin Patch\n*** Add File: b.py\n+print(1)\n*** End Patch")
        assert [(f.path, f.status) for f in done.files or []] == [("b.py", "added")]
        found = (files.search(root, r"print\(\d\)", name="*.py")).matches or []
        assert [(f.path, f.line) for f in found] == [("b.py", 1)]
        status = git.status()
        assert (status.head, [f.path for f in status.files or []]) == ("main", ["a.txt", "b.py"])
        diff = git.diff(["a.txt"])
        assert [(f.additions, f.deletions) for f in diff.files or []] == [(1, 1)]
        assert [c.subject for c in (git.log()).commits or []] == ["first"]
        for state in git.watch():
            assert (state.is_repo, state.head, state.commit, state.reason) == (True, "main", status.commit, "start")
            assert state.dirty
            assert state.changed_file_count == len(status.files or [])
            assert state.revision > 0
            break
        assert (git.show()).commit.author.name == "Ada"
        assert git.read("a.txt") == b"one\n"
        assert [line.text for line in (git.blame("a.txt")).lines or []] == ["two"]


def test_recordings() -> None:
    with atoll.connect() as client, client.create(HOST) as sandbox:
        recording = sandbox.record()
        with sandbox.terminal() as terminal:
            terminal.write(b"echo a$((40+2))b\n")
            sees(terminal, b"a42b")
        assert (client.recordings.stop(recording.id)).state == "available"
        assert b"a42b" in client.recordings.read(recording.id)
        assert [r.id for r in client.recordings.list(sandbox.id)] == [recording.id]
        client.recordings.remove(recording.id)
        with pytest.raises(errors.NotFoundError):
            client.recordings.get(recording.id)


def test_ports(daemon: Daemon) -> None:
    with Client(daemon.host, daemon.key) as client, client.create() as sandbox:
        server = "import http.server as h; s = h.HTTPServer(('127.0.0.1', 8000), h.SimpleHTTPRequestHandler); print('up', flush=True); s.serve_forever()"
        with sandbox.exec(["python3", "-c", server], cwd="/etc") as process:
            process.__next__()
            with sandbox.dial(8000) as tunnel:
                tunnel.send(b"GET /hostname HTTP/1.0\r\n\r\n")
                tunnel.send_eof()
                answer = b""
                while piece := tunnel.receive():
                    answer += piece
                assert b"200 OK" in answer
            token = (sandbox.port_token(8000, expires=60)).token
            url = httpx.URL(sandbox.port_url(8000))
            assert url.host == f"8000-{sandbox.id}.localhost"
            where = url.copy_with(host="127.0.0.1", path="/hostname")
            assert httpx.get(where, headers={"Host": url.netloc.decode(), "Atoll-Token": token}).status_code == 200
            with pytest.raises(errors.DeniedError):  # of a key, even of an admin
                sandbox.publish(8000)
        with pytest.raises(errors.UnavailableError):
            sandbox.dial(8001)
    with box() as sandbox:
        with pytest.raises(errors.UnsupportedError):
            sandbox.port_url(8000)


def test_published_ports() -> None:
    with atoll.connect() as client, client.create(HOST) as sandbox:
        server = "cd /etc && exec python3 -u -m http.server 8000"
        with sandbox.exec(server, background=True) as process:
            process.__next__()
        published = sandbox.publish(8000)
        assert published.host_port
        url = f"http://127.0.0.1:{published.host_port}/hostname"
        assert httpx.get(url).status_code == 200
        listed = [p for p in client.published_ports() if p.sandbox == sandbox.id]
        assert [(p.port, p.host_port) for p in listed] == [(8000, published.host_port)]
        with pytest.raises(errors.ConflictError):
            sandbox.publish(8001, published.host_port)
        sandbox.unpublish(published.host_port)
        assert all(p.sandbox != sandbox.id for p in client.published_ports())
        with pytest.raises(httpx.ConnectError):
            httpx.get(url)
        with pytest.raises(errors.UnsupportedError):
            sandbox.preview(8000)
        with pytest.raises(errors.UnsupportedError):
            sandbox.previews()


def test_main_flow() -> None:
    """Snapshots, forks and pauses, with real kernels."""
    with (
        atoll.connect() as client,
        client.create(Spec(name="flow", labels={"team": "a"}, lifetime=Lifetime(timeout_ms=600_000))) as sandbox,
    ):
        assert sandbox.info.expires is not None
        with sandbox.exec("echo 0 > /tmp/n; echo started; while :; do echo x >> /tmp/n; sleep 0.02; done", background=True) as process:
            process.__next__()
        copies = sandbox.fork(2, labels={"copy": "yes"})
        for copy in copies:
            with copy:
                grows = "a=$(wc -l < /tmp/n); while [ $(wc -l < /tmp/n) -le $a ]; do sleep 0.02; done"
                assert (copy.run(grows, timeout=60)).ok, "its processes run on"
        sandbox.files.write("/root/kept", "before")
        snapshot = sandbox.snapshot(models.SnapshotRequest(name="flow-1", memory=False))
        assert [s.name for s in client.snapshots.list()] == ["flow-1"]
        with client.create(Spec(snapshot="flow-1")) as restored:
            assert restored.files.read("/root/kept") == b"before"
        client.snapshots.remove(snapshot.id)
        assert (sandbox.pause()).state == "paused"
        assert (sandbox.resume()).state == "running"
        assert (sandbox.update(models.Change(labels={"team": "b"}))).labels == {"team": "b"}
        assert [s.name for s in client.list({"team": "b"})] == ["flow"]
        assert (sandbox.usage()).memory > 0
        assert (sandbox.stop(grace=1)).state == "stopped"
        assert (sandbox.start()).state == "running"
        assert ((client.get("flow")).run(["cat", "/root/kept"])).stdout == b"before"
    with pytest.raises(errors.AtollError):
        (atoll.connect()).get("flow-1")


def test_sessions() -> None:
    with atoll.connect() as client:
        with client.sessions.create(HOST, name="notes", labels={"k": "v"}, turn=True) as session:
            assert session.receipt is not None
            assert (session.receipt.outcome, session.id, session.name) == ("created", session.session.id, "notes")
            assert (session.run(["echo", "x"])).stdout == b"x\n"
            envelope = session.envelope()
            with pytest.raises(errors.AlreadyExistsError):
                client.sessions.create(name="notes")
            again = client.sessions.resume(models.Envelope.model_validate_json(envelope.model_dump_json(by_alias=True)))
            assert again.receipt is not None
            assert (again.receipt.outcome, again.receipt.sandbox) == ("attached", session.receipt.sandbox)
            again.release()
            client.remove(session.receipt.sandbox)  # behind its back
            old = session.receipt.sandbox
            with pytest.raises(errors.StaleError):
                session.run(["true"])
            assert (session.acquire()).sandbox != old
            assert (session.run(["echo", "y"])).ok
            assert (session.refresh()).state == "running"
            assert [s.name for s in client.sessions.list({"k": "v"})] == ["notes"]
        assert (client.sessions.attach("notes")).receipt is not None
        client.sessions.remove("notes")
        with pytest.raises(errors.NotFoundError):
            client.sessions.get("notes")


def test_owner_acts_in_a_tenant(daemon: Daemon) -> None:
    acme = f"acme-{time.monotonic_ns()}"
    daemon.cli("tenant", "create", acme)
    with atoll.connect(tenant=acme) as theirs, theirs.create(HOST) as sandbox:
        assert [s.name for s in theirs.list()] == [sandbox.name]
        with atoll.connect() as own:
            assert sandbox.name not in [s.name for s in own.list()]
    with atoll.connect(tenant="nobody") as none:
        with pytest.raises(errors.NotFoundError):
            none.get("any")
    with atoll.connect(daemon.host, daemon.key, tenant=acme) as refused:
        with pytest.raises(errors.DeniedError):
            refused.get("any")


def test_workspaces() -> None:
    with atoll.connect() as client:
        mount = WorkspaceMount(name="months", create=True)
        with client.create(Spec(workspaces=[mount])) as sandbox:
            sandbox.files.write("/workspace/a", "1")
            assert (client.workspaces.persist("months", "first")).number >= 1
        with client.create(Spec(workspaces=[mount])) as sandbox:
            assert sandbox.files.read("/workspace/a") == b"1"
        assert [w.name for w in client.workspaces.list()] == ["months"]
        assert len(client.workspaces.versions("months")) >= 1
        client.workspaces.remove("months")


def test_profiles_and_secrets() -> None:
    with atoll.connect() as client:
        rule = models.Rule(hosts=["example.com"], action="allow")
        stored = client.profiles.create(models.Profile(name="web", rules=[rule]))
        assert (client.profiles.test("web", "https://example.com/x")).allow
        assert not (client.profiles.test("web", "https://example.org/x")).allow
        assert (client.profiles.get("web")).version == stored.version
        secret = client.secrets.create(models.NewSecret(name="TOKEN", value="hunter2-value", hosts=["example.com"]))
        assert "hunter2" not in secret.model_dump_json()
        assert (client.secrets.rotate("TOKEN", "other")).version == secret.version + 1
        with client.create(Spec(network=Network(profile="web"), secrets=[atoll.SecretRef(name="TOKEN")])) as sandbox:
            env = (sandbox.run(["env"])).stdout
            assert b"TOKEN=" in env
            assert b"hunter2" not in env
        assert [s.name for s in client.secrets.list()] == ["TOKEN"]
        client.secrets.remove("TOKEN")
        client.profiles.remove("web")


def test_events() -> None:
    with atoll.connect() as client:
        with client.create(HOST) as sandbox:
            past = [e for e in client.events(sandbox=sandbox.id)]
            assert "sandbox.create" in [e.op for e in past]
            sandbox.run(["echo", "seen"])
            for event in client.events(after=past[-1].seq, sandbox=sandbox.id, follow=True):
                if event.program == "echo":
                    break


def test_watch() -> None:
    with box(Spec()) as sandbox:
        with sandbox.exec("while :; do date > /tmp/changing; sleep 0.05; done"):
            for event in sandbox.files.watch("/tmp"):
                assert event.path == "changing"
                assert event.revision > 0
                break


def test_errors(daemon: Daemon, tmp_path: Path) -> None:
    with atoll.connect() as client:
        with pytest.raises(errors.NotFoundError) as caught:
            client.get("nobody")
        assert (caught.value.code, caught.value.subject) == ("not_found", "nobody")
        with pytest.raises(errors.InvalidError):
            client.create(Spec(name="Not A Name"))
        with client.create(Spec(provider="host", name="taken")) as sandbox:
            with pytest.raises(errors.AlreadyExistsError):
                client.create(Spec(provider="host", name="taken"))
            assert (sandbox.run(["no-such-program"])).code == 127
        with pytest.raises(errors.UnsupportedError):
            client.create(Spec(provider="host", network=Network(egress=["example.com"])))
    with pytest.raises(errors.UnauthorizedError):
        Client(daemon.host, "wrong").get("x")
    with pytest.raises(errors.UnavailableError, match="atoll up"):
        Client(f"unix://{tmp_path}/none.sock").ping()
    with pytest.raises(errors.UnavailableError):
        (Client(f"unix://{tmp_path}/none.sock").sessions.get("x")).exec(["true"])
    with pytest.raises(errors.InvalidError):
        Client("example.com")


def test_idempotent_create() -> None:
    with atoll.connect() as client:
        key = os.urandom(8).hex()
        with client.create(HOST, idempotency_key=key) as sandbox:
            assert (client.create(HOST, idempotency_key=key)).id == sandbox.id
        with pytest.raises(errors.GoneError):
            client.create(HOST, idempotency_key=key)


def test_connect_starts_a_daemon(program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = tmp_path / "state"
    monkeypatch.setenv("ATOLL_STATE_DIR", str(state))
    monkeypatch.setenv("ATOLL_NO_DAEMON", "1")
    with pytest.raises(errors.UnavailableError, match="no daemon runs"):
        atoll.connect()
    monkeypatch.delenv("ATOLL_NO_DAEMON")
    try:
        with atoll.connect() as client:
            client.ping()
        with atoll.connect() as client:  # the same one
            assert [s for s in client.list()] == []
    finally:
        subprocess.run([program, "down", "--state-dir", str(state)], check=True)


def test_connect_names(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATOLL_HOST", daemon.host)
    monkeypatch.setenv("ATOLL_KEY", daemon.key)
    with atoll.connect() as client:
        client.providers()
        assert daemon.key not in repr(client.address)
    with atoll.connect(daemon.socket) as client:
        client.providers()


def context(dockerfile: str) -> bytes:
    out = BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        member = tarfile.TarInfo("Dockerfile")
        member.size = len(dockerfile)
        tar.addfile(member, BytesIO(dockerfile.encode()))
    return out.getvalue()


def test_build() -> None:
    with atoll.connect() as client:
        built = client.build("built", context("FROM host\nARG A\nRUN echo $A > /made\n"), args={"A": "here"})
        assert (built.name, built.tag) == ("built", "latest")
        with client.create(Spec(image="template:built")) as sandbox:
            assert (sandbox.run(["cat", "/made"])).stdout == b"here\n"
        with pytest.raises(errors.InvalidError):
            client.build("built", context("FROM host\nNOSUCH step\n"))
        with pytest.raises(errors.AtollError, match="exit"):
            client.build("built", context("FROM host\nRUN exit 3\n"))


def test_code() -> None:
    with box(Spec()) as sandbox:
        first = sandbox.run_code("import sys\nx = 6 * 7\nprint('out')\nprint('err', file=sys.stderr)\nx", env={"A": "b"})
        assert (first.ok, first.text, first.stdout, first.stderr, first.count) == (True, "42", "out\n", "err\n", 1)
        events: list[models.CodeEvent] = []
        assert (sandbox.run_code("x + 1", on_event=events.append)).text == "43"
        assert [e.type for e in events] == ["started", "result", "end"]
        failed = sandbox.run_code("1 / 0")
        assert failed.error is not None
        assert (failed.error.name, failed.ok) == ("ZeroDivisionError", False)
        late = sandbox.run_code("while True: print(1)", timeout=0.5)
        assert late.error is not None
        assert (late.error.name, late.timed_out) == ("KeyboardInterrupt", True)
        picture = "class P:\n    def _repr_png_(self): return b'png'\nP()"
        assert (sandbox.run_code(picture)).png == [b"png"]
        other = sandbox.create_code_context("bash", "/tmp")
        assert (sandbox.run_code("pwd", context=other.id)).stdout == "/tmp\n"
        assert {c.language for c in sandbox.code_contexts()} >= {"python", "bash"}
        sandbox.restart_code_context(other.id)
        sandbox.interrupt_code_context(other.id)
        sandbox.remove_code_context(other.id)
        with pytest.raises(errors.NotFoundError):
            sandbox.run_code("pwd", context=other.id)
        with pytest.raises(errors.InvalidError, match="klingon"):
            sandbox.run_code("1", language="klingon")
