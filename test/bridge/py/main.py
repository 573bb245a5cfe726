"""Uses the CloudflareSandboxClient of openai-agents with Atoll, and reports each case as a line of JSON."""

import asyncio
import base64
import importlib.metadata
import io
import json
import os
import statistics
import sys
import tempfile
import time
import traceback
import urllib.parse
import urllib.request
from pathlib import Path

import aiohttp
from agents import RunConfig, Runner, RunState, function_tool
from agents.extensions.sandbox.cloudflare import CloudflareSandboxClient, CloudflareSandboxClientOptions
from agents.extensions.sandbox.cloudflare.mounts import CloudflareBucketMountStrategy
from agents.run_config import SandboxRunConfig
from agents.sandbox import Manifest, SandboxAgent
from agents.sandbox.entries import File, S3Mount
from agents.sandbox.errors import ExecTimeoutError, MountConfigError, SandboxError, WorkspaceArchiveReadError, WorkspaceReadNotFoundError
from agents.sandbox.snapshot import LocalSnapshotSpec
from agents.testing import ModelStep, ScriptedModel, assistant_message, function_call
from openai.types.responses import ResponseCustomToolCall

URL = os.environ["BRIDGE_URL"]
client = CloudflareSandboxClient()
options = CloudflareSandboxClientOptions(worker_url=URL)
cases = []


def case(f):
    cases.append(f)
    return f


def equal(got, want):
    assert got == want, f"got {got!r}, want {want!r}"


def manifest(**more):
    return Manifest(entries={"app/main.py": File(content=b"print('hello')\n"), "notes.txt": File(content="grüße\n".encode())}, **more)


class Session:
    """A started session, deleted at the end."""

    def __init__(self, **more):
        self.more = more

    async def __aenter__(self):
        self.session = await client.create(options=options, **self.more)
        await self.session.start()
        return self.session

    async def __aexit__(self, *_):
        await self.session.shutdown()
        await client.delete(self.session)


@case
async def commands():
    async with Session(manifest=manifest(environment={"value": {"FOO": "b a'r\nz"}})) as s:
        equal(await s.running(), True)
        r = await s.exec("pwd; cat app/main.py notes.txt; echo err >&2; exit 3")
        equal((r.stdout, r.stderr, r.exit_code), ("/workspace\nprint('hello')\ngrüße\n".encode(), b"err\n", 3))
        equal((await s.exec("printenv FOO")).stdout, b"b a'r\nz\n")
        equal((await s.exec("printf", "%s|", "a\nb", "", "it's \"$HOME\"", shell=False)).stdout, b"a\nb||it's \"$HOME\"|")
        equal((await s.exec("printf '\\000\\377\\303'")).stdout, b"\x00\xff\xc3")
        big = (await s.exec("head -c 3000000 /dev/zero | tr '\\0' x; printf '€%.0s' $(seq 20000)")).stdout
        equal((len(big), big[3000000:].decode()), (3000000 + 60000, "€" * 20000))
        equal((await s.exec("no-such-program", shell=False)).exit_code, 127)
        both = await asyncio.gather(*(s.exec(f"sleep 0.2; echo {i}") for i in range(8)))
        equal([r.stdout for r in both], [f"{i}\n".encode() for i in range(8)])


@case
async def timeouts():
    async with Session() as s:
        began = time.monotonic()
        try:
            await s.exec("sleep 300 & sleep 300", timeout=1)
            raise AssertionError("no timeout")
        except ExecTimeoutError:
            pass
        assert time.monotonic() - began < 20
        equal((await s.exec("pgrep -c sleep || true")).stdout.strip(), b"0")


@case
async def files():
    async with Session(manifest=manifest()) as s:
        data = bytes(range(256)) * 4096
        await s.write(Path("deep/er/ü b.bin"), io.BytesIO(data))
        equal((await s.read(Path("deep/er/ü b.bin"))).read(), data)
        equal(await s.read_bounded(Path("deep/er/ü b.bin"), max_bytes=1000), data[:1000])
        try:
            await s.read(Path("missing"))
            raise AssertionError("it is there")
        except WorkspaceReadNotFoundError:
            pass
        await s.mkdir(Path("made/by/us"), parents=True)
        equal(sorted(Path(e.path).name for e in await s.ls(Path("."))), ["app", "deep", "made", "notes.txt"])
        await s.mv(Path("notes.txt"), Path("made/notes.txt"))
        equal((await s.read(Path("made/notes.txt"))).read().decode(), "grüße\n")
        await s.rm(Path("made"), recursive=True)
        equal(sorted(Path(e.path).name for e in await s.ls(Path("."))), ["app", "deep"])
        await s.exec("ln -s /etc/passwd outside")
        try:
            await s.read(Path("outside"))
            raise AssertionError("a link led out")
        except (ValueError, WorkspaceArchiveReadError):
            pass
        except Exception as e:
            assert "escape" in str(e).lower() or "workspace" in str(e).lower(), e


@case
async def terminals():
    async with Session() as s:
        began = time.monotonic()
        u = await s.pty_exec_start("stty size; tty >/dev/null && echo yes; pwd; exit 4")
        equal((u.output, u.exit_code, u.process_id), (b"24 80\r\nyes\r\n/workspace\r\n", 4, None))
        assert time.monotonic() - began < 5, "the end of a command is not reported"
        u = await s.pty_exec_start("cd /tmp ||\nexit\nread x; echo got $x; exit 5", tty=True, yield_time_s=0.3)
        assert u.process_id is not None, u
        u = await s.pty_write_stdin(session_id=u.process_id, chars="it's\n", yield_time_s=5)
        equal((u.output, u.exit_code), (b"it's\r\ngot it's\r\n", 5))
        u = await s.pty_exec_start("sleep 300", yield_time_s=0.3)
        await s.pty_terminate_all()
        for _ in range(50):
            if (await s.exec("pgrep sleep")).exit_code == 1:
                break
        else:
            raise AssertionError("a command outlives its terminal")


class Raw:
    """Calls the routes that the client does not use."""

    def __init__(self, session):
        self.http = aiohttp.ClientSession(headers={"Authorization": "Bearer " + os.environ["CLOUDFLARE_SANDBOX_API_KEY"]})
        self.box = f"{URL}/v1/sandbox/{session.state.sandbox_id}"

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        await self.http.close()

    async def call(self, method, path, status, body=None, **headers):
        async with self.http.request(method, self.box + path, json=body, headers={k.replace("_", "-"): v for k, v in headers.items()}) as r:
            text = await r.text()
            equal((r.status, text if r.status != status else ""), (status, ""))
            return json.loads(text) if text else None

    async def run(self, sid, *argv):
        """Run a command in a session and return its output and exit code."""
        async with self.http.post(self.box + "/exec", json={"argv": argv}, headers={"Session-Id": sid}) as r:
            equal(r.status, 200)
            out, code = b"", None
            for event in (await r.text()).strip().split("\n\n"):
                kind, _, data = event.removeprefix("event: ").partition("\ndata: ")
                if kind == "exit":
                    code = json.loads(data)["exit_code"]
                else:
                    out += base64.b64decode(data)
            return out.decode(), code

    async def terminal(self, sid, *, sends, until):
        """Open the terminal of a session, send bytes, and read until there is output."""
        async with self.http.ws_connect(f"{self.box}/pty?session={sid}") as ws:
            equal(json.loads((await ws.receive(30)).data), {"type": "ready"})
            if sends:
                await ws.send_bytes(sends)
            seen, end = b"", None
            while until not in seen and end is None:
                m = await ws.receive(30)
                if m.type == aiohttp.WSMsgType.BINARY:
                    seen += m.data
                else:
                    end = json.loads(m.data)
            return seen, end


@case
async def shell_sessions():
    async with Session(manifest=manifest()) as s, Raw(s) as raw:
        made = await raw.call("POST", "/session", 200, {"id": "one", "cwd": "app", "env": {"COLOR": "red"}})
        equal(made, {"id": "one"})
        equal(await raw.run("one", "sh", "-c", "pwd; echo $COLOR"), ("/workspace/app\nred\n", 0))
        equal(await raw.run("one", "cd", ".."), ("", 0))
        equal(await raw.run("one", "export", "COLOR=blue"), ("", 0))
        equal(await raw.run("one", "sh", "-c", "pwd; echo $COLOR"), ("/workspace\nblue\n", 0))
        equal(await raw.run("two", "sh", "-c", "pwd; echo $COLOR"), ("/workspace\n\n", 0))
        # The terminal of a session stays after its client has disconnected.
        seen, end = await raw.terminal("one", sends=b"sh -c 'echo $COLOR; trap \"\" HUP; read x; echo got $x; exit 3'\n", until=b"blue")
        equal(end, None)
        seen, end = await raw.terminal("one", sends=b"", until=b"blue")
        equal(end, None)
        seen, end = await raw.terminal("one", sends=b"this\n", until=b"never")
        assert b"blue" in seen and b"got this" in seen, seen
        equal(end, {"type": "exit", "code": 3})
        # A terminal that has ended is not found, and deleting the session ends its terminal.
        seen, end = await raw.terminal("one", sends=b"sh -c 'echo new; sleep 4321'\n", until=b"new")
        equal((seen, end), (b"new\r\n", None))
        equal((await s.exec("pgrep -f '^sleep 4321'")).exit_code, 0)
        equal((await raw.call("DELETE", "/session/one", 200))["sessionId"], "one")
        for _ in range(50):
            if (await s.exec("pgrep -f '^sleep 4321'")).exit_code == 1:
                break
        else:
            raise AssertionError("a terminal outlives its session")
        await raw.call("DELETE", "/session/one", 502)
        await raw.call("DELETE", "/session/default", 502)


@case
async def tunnels():
    async with Session(manifest=manifest()) as s, Raw(s) as raw:
        await s.exec("python3 -m http.server 8080 --directory /workspace >/dev/null 2>&1 &")
        t = await raw.call("POST", "/tunnel/8080", 200)
        equal((t["port"], t["url"].startswith("http://" + t["hostname"])), (8080, True))
        here = urllib.parse.urlsplit(URL).netloc

        async def get(path="/notes.txt"):
            async with aiohttp.request("GET", f"http://{here}{path}", headers={"Host": urllib.parse.urlsplit(t["url"]).netloc}) as r:
                return r.status, await r.read()

        for _ in range(100):
            if (await get())[0] != 502:
                break
            await asyncio.sleep(0.05)
        equal(await get(), (200, "grüße\n".encode()))
        await raw.call("DELETE", "/tunnel/8080", 204)
        equal((await get())[0], 404)
        await raw.call("DELETE", "/tunnel/8080", 204)


@case
async def persist_and_hydrate():
    async with Session(manifest=manifest()) as s:
        await s.exec("mkdir -p a/b; echo x > a/b/f; chmod 751 a/b/f; ln -s ../../notes.txt a/b/rel; ln -s /workspace/a/b/f abs; ln a/b/f hard; ln -s /usr/bin/env out; mkfifo pipe")
        kept = (await s.persist_workspace()).read()
        before = (await s.exec("find . ! -type p ! -name out -printf '%p %y %m %l\\n' | sort")).stdout
    async with Session() as s:
        await s.hydrate_workspace(io.BytesIO(kept))
        after = (await s.exec("find . -printf '%p %y %m %l\\n' | sort")).stdout
        equal(after, before.replace(b"abs l 777 /workspace/", b"abs l 777 "))
        equal((await s.exec("cat a/b/rel abs hard")).stdout.decode(), "grüße\nx\nx\n")


async def state_of(session):
    return client.deserialize_session_state(json.loads(json.dumps(client.serialize_session_state(session.state))))


@case
async def stop_and_resume():
    with tempfile.TemporaryDirectory() as dir:
        s = await client.create(options=options, manifest=manifest(), snapshot=LocalSnapshotSpec(base_path=Path(dir)))
        await s.start()
        await s.exec("echo changed > notes.txt; echo new > new.txt; echo system > /tmp/marker")
        await s.stop()
        state = await state_of(s)
        assert os.environ["CLOUDFLARE_SANDBOX_API_KEY"] not in state.model_dump_json()
        # The same sandbox continues.
        same = await client.resume(state)
        await same.start()
        equal((await same.exec("cat notes.txt new.txt app/main.py /tmp/marker")).stdout, b"changed\nnew\nprint('hello')\nsystem\n")
        await same.stop()
        await same.shutdown()
        await client.delete(same)
        equal(await same.running(), False)
        # A new one gets the files.
        again = await client.resume(await state_of(same))
        await again.start()
        equal((await again.exec("cat notes.txt new.txt app/main.py; test ! -e /tmp/marker")).stdout, b"changed\nnew\nprint('hello')\n")
        equal((await again.exec("test ! -e /tmp/marker")).exit_code, 0)
        await again.shutdown()
        await client.delete(again)
        # Without its id, only the manifest's files are restored.
    async with Session(manifest=manifest()) as s:
        state = await state_of(s)
    fresh = await client.resume(state)
    await fresh.start()
    equal((await fresh.exec("cat notes.txt")).stdout.decode(), "grüße\n")
    await fresh.shutdown()
    await client.delete(fresh)


@case
async def buckets_are_refused():
    mount = S3Mount(
        bucket="b", access_key_id="canary-id", secret_access_key="canary-secret", endpoint_url="https://s3.example", mount_strategy=CloudflareBucketMountStrategy()
    )
    s = await client.create(options=options, manifest=Manifest(entries={"data": mount}))
    try:
        await s.start()
        raise AssertionError("it was mounted")
    except MountConfigError as e:
        assert "canary" not in str(e) + repr(e.context)
    finally:
        await s.shutdown()


def patch(text, call_id):
    return ResponseCustomToolCall(type="custom_tool_call", id=call_id, call_id=call_id, name="apply_patch", input=text)


def outputs(model):
    """Returns the tools' output by the id of the call."""
    return {i["call_id"]: i["output"] for i in model.last_call.input if isinstance(i, dict) and str(i.get("type", "")).endswith("call_output")}


@case
async def an_agent_works():
    model = ScriptedModel(
        [
            [function_call("exec_command", {"cmd": "python3 app/main.py && ls"}, call_id="run")],
            [patch("*** Begin Patch\n*** Update File: app/main.py\n@@\n-print('hello')\n+print('patched')\n*** Add File: docs/new.md\n+# New\n*** End Patch\n", "patch")],
            [function_call("exec_command", {"cmd": "python3 main.py\nexit 7", "workdir": "app"}, call_id="again")],
            [function_call("exec_command", {"cmd": "read x; echo got $x", "tty": True, "yield_time_ms": 300}, call_id="ask")],
            ModelStep.respond(answer),
            [assistant_message("done")],
        ]
    )
    agent = SandboxAgent(name="agent", model=model, instructions="work", default_manifest=manifest())
    with tempfile.TemporaryDirectory() as dir:
        run = RunConfig(sandbox=SandboxRunConfig(client=client, options=options, snapshot=LocalSnapshotSpec(base_path=Path(dir))), tracing_disabled=True)
        began = time.monotonic()
        result = await Runner.run(agent, "go", run_config=run)
        took = time.monotonic() - began
    equal(result.final_output, "done")
    model.assert_complete()
    said = outputs(model)
    assert "hello" in said["run"] and "notes.txt" in said["run"] and "code 0" in said["run"], said
    assert "patched" in said["again"] and "code 7" in said["again"], said
    assert "got answer" in said["tell"], said
    return f"agent: {took:.2f} s"


def answer(call):
    text = next(i["output"] for i in reversed(call.input) if isinstance(i, dict) and i.get("call_id") == "ask" and "output" in i)
    session = int(text.split("session ID ")[1].split()[0])
    return [function_call("write_stdin", {"session_id": session, "chars": "answer\n", "yield_time_ms": 3000}, call_id="tell")]


@function_tool(needs_approval=True)
def deploy() -> str:
    """Deploys."""
    return "deployed"


def deployer(script):
    model = ScriptedModel(script)
    return model, SandboxAgent(name="agent", model=model, instructions="work", default_manifest=manifest(), tools=[deploy])


def with_snapshots(dir):
    return RunConfig(sandbox=SandboxRunConfig(client=client, options=options, snapshot=LocalSnapshotSpec(base_path=Path(dir))), tracing_disabled=True)


@case
async def an_approval_interrupts_a_run():
    with tempfile.TemporaryDirectory() as dir:
        _, first = deployer([[function_call("exec_command", {"cmd": "echo before > kept.txt"}, call_id="w")], [function_call("deploy", {}, call_id="d")]])
        result = await Runner.run(first, "go", run_config=with_snapshots(dir))
        equal(len(result.interruptions), 1)
        text = json.dumps(result.to_state().to_json())
        assert os.environ["CLOUDFLARE_SANDBOX_API_KEY"] not in text
        file = Path(dir) / "state.json"
        file.write_text(text)
        other = await asyncio.create_subprocess_exec(sys.executable, __file__, "--go-on", str(file), stdout=asyncio.subprocess.PIPE)
        said = json.loads((await other.communicate())[0])
        assert said["d"] == "deployed" and "before" in said["r"], said


async def go_on(file):
    """Continue in another process and a new sandbox."""
    model, agent = deployer([[function_call("exec_command", {"cmd": "cat kept.txt"}, call_id="r")], [assistant_message("done")]])
    state = await RunState.from_json(agent, json.loads(file.read_text()))
    state.approve(state.get_interruptions()[0])
    result = await Runner.run(agent, state, run_config=with_snapshots(file.parent))
    equal(result.final_output, "done")
    print(json.dumps(outputs(model)))


def fault(at, mode=""):
    """Make a request fail, and return whether one failed since the last call."""
    with urllib.request.urlopen(urllib.request.Request(f"{URL}/fault?at={at}&mode={mode}", method="POST")) as answer:
        return answer.read() == b"true"


async def everything():
    with tempfile.TemporaryDirectory() as dir:
        s = await client.create(options=options, manifest=manifest(), snapshot=LocalSnapshotSpec(base_path=Path(dir)))
        try:
            async with s:
                await s.exec("echo 1 > a")
                await s.read(Path("a"))
                await s.write(Path("b"), io.BytesIO(b"2"))
                await s.ls(Path("."))
                await s.pty_exec_start("cat a")
                await s.hydrate_workspace(await s.persist_workspace())
                await s.running()
        finally:
            await client.delete(s)


@case
async def any_call_fails():
    """Whichever call fails, the SDK raises one of its errors; the test checks that nothing is left."""
    total, seen = 0, set()
    for mode in ("refused", "dropped", "lost"):
        at, failed = 0, True
        while failed:
            at += 1
            fault(at, mode)
            try:
                await everything()
            except SandboxError as e:
                seen.add(type(e).__name__)
            finally:
                failed = fault(0)
        assert at > 20, at
        total += at - 1
    assert len(seen) > 2, seen
    return f"{total} failures: {', '.join(sorted(seen))}"


@case
async def speed():
    async with Session() as s:
        await s.exec("true")
        times = []
        for _ in range(100):
            began = time.perf_counter()
            await s.exec("true", shell=False)
            times.append(time.perf_counter() - began)
        return f"exec: median {statistics.median(times) * 1000:.1f} ms, 95th percentile {sorted(times)[94] * 1000:.1f} ms"


async def main():
    chosen = sys.argv[1:]
    for f in cases:
        if chosen and f.__name__ not in chosen:
            continue
        began, note, error = time.monotonic(), None, ""
        try:
            note = await f()
        except BaseException:
            error = traceback.format_exc()
        print(json.dumps({"name": f.__name__, "ok": not error, "error": error, "note": note or "", "ms": round((time.monotonic() - began) * 1000)}), flush=True)
    print(json.dumps({"done": True, "version": importlib.metadata.version("openai-agents")}))


asyncio.run(go_on(Path(sys.argv[2])) if sys.argv[1:2] == ["--go-on"] else main())
