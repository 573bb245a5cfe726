"""The main flow of Superserve's official SDK, against the fake. The last line
says that all of it was done."""

import asyncio
import sys
import time
import urllib.request

from superserve import AsyncSandbox, NetworkConfig, Sandbox, Secret, Snapshot, Template
from superserve.errors import ConflictError, NotFoundError, ValidationError


def equal(what, got, want):
    if got != want:
        sys.exit(f"{what}: {got!r}, want {want!r}")


def raises(what, kind, call):
    try:
        call()
    except kind:
        return
    sys.exit(f"{what}: no {kind.__name__}")


template = Template.create(name="mine", from_="python:3.11", steps=[])
equal("template", template.wait_until_ready(poll_interval_s=0.05).status.value, "ready")
Secret.create(name="openai-prod", value="sk-real", provider="openai")

box = Sandbox.create(
    name="sdk",
    from_template=template,
    timeout_seconds=3600,
    metadata={"team": "blue"},
    env_vars={"FROM": "env"},
    secrets={"OPENAI_API_KEY": "openai-prod"},
    network=NetworkConfig(allow_out=["example.com"], deny_out=["0.0.0.0/0"]),
    preview_access="private",
)
info = box.get_info()
equal("status", info.status.value, "active")
equal("network", info.network.deny_out, ["0.0.0.0/0"])
equal("secrets", [s.env_key for s in info.secrets], ["OPENAI_API_KEY"])
equal("listed", [i.id for i in Sandbox.list(metadata={"team": "blue"}, status=["active", "paused"])], [box.id])
equal("not listed", Sandbox.list(metadata={"team": "red"}), [])
raises("unknown template", ValidationError, lambda: Sandbox.create(name="x", from_template="no-such"))

# Commands.
done = box.commands.run("echo $FROM; echo oops >&2; exit 3", cwd="/tmp")
equal("run", (done.stdout, done.stderr, done.exit_code), ("env\n", "oops\n", 3))
stand_in = box.commands.run("echo $OPENAI_API_KEY").stdout
if not stand_in.strip() or "sk-real" in stand_in:
    sys.exit(f"the sandbox sees {stand_in!r}")
equal("timeout", box.commands.run("sleep 60", timeout_seconds=1).exit_code, 124)
heard = []
done = box.commands.run("echo a; sleep 0.1; echo b", on_stdout=heard.append)
equal("stream", ("".join(heard), done.exit_code), ("a\nb\n", 0))

# Files, to the byte.
data = bytes(range(256)) * 300
box.files.write("/tmp/deep/er/file", data)
equal("file", bytes(box.files.read("/tmp/deep/er/file")), data)
raises("missing file", NotFoundError, lambda: box.files.read("/tmp/none"))

# A pause keeps what runs, and using the sandbox ends it.
box.commands.run("sleep 1000 >/dev/null 2>&1 &")
box.pause(wait=True)
equal("paused", box.get_info().status.value, "paused")
equal("resumed by use", box.commands.run("pgrep -f 'sleep 1000' >/dev/null && echo runs").stdout, "runs\n")
box.pause(wait=True)
box.resume()
equal("resumed", box.get_info().status.value, "active")
box.pause(wait=False)
again = Sandbox.connect(box.id)
equal("connected", again.commands.run("echo here").stdout, "here\n")

# A snapshot holds memory, and forks are their own.
box.commands.run("echo before >/tmp/state")
snapshot = box.snapshot(name="first", poll_interval_s=0.05)
equal("snapshot", (snapshot.status.value, [s.id for s in Snapshot.list(box.id)]), ("ready", [snapshot.id]))
fork = Sandbox.create(name="fork", from_snapshot=snapshot)
fork.commands.run("echo fork >/tmp/state")
equal("fork", (fork.get_info().source_snapshot_id, box.commands.run("cat /tmp/state").stdout), (snapshot.id, "before\n"))
equal("fork runs on", fork.commands.run("pgrep -f 'sleep 1000' >/dev/null && echo runs").stdout, "runs\n")
fork.kill()
snapshot.delete()
raises("deleted snapshot", NotFoundError, lambda: Snapshot.get(snapshot.id) if hasattr(Snapshot, "get") else Snapshot.connect(snapshot.id))

# Previews.
box.commands.run("cd /tmp/deep && (python3 -m http.server 8080 >/dev/null 2>&1 &)")
port = box.publish_preview_port(8080)
equal("port", (port.access, [p.port for p in box.list_preview_ports().ports]), ("private", [8080]))
for _ in range(100):
    try:
        page = urllib.request.urlopen(box.get_signed_preview_url(8080), timeout=10).read()
        break
    except OSError:
        time.sleep(0.1)
else:
    sys.exit("the preview does not answer")
equal("preview", b"er/" in page, True)
raises("preview without a token", OSError, lambda: urllib.request.urlopen(box.get_preview_url(8080), timeout=10))
box.unpublish_preview_port(8080)

# Settings.
box.update(network=NetworkConfig(allow_out=[], deny_out=["0.0.0.0/0"]), timeout_seconds=None, metadata={"team": "red"})
info = box.get_info()
equal("updated", (info.network.allow_out, info.timeout_seconds, info.metadata), ([], None, {"team": "red"}))


async def spawn():
    """Commands with input, over a WebSocket."""
    sandbox = await AsyncSandbox.connect(box.id)
    session = await sandbox.commands.spawn("cat; echo done >&2; exit 5")
    text = "x" * 100_000 + "\n"
    await session.stdin.write(text)
    await session.stdin.close()
    result = await session.wait()
    equal("spawn", (result.stdout == text, result.stderr, result.exit_code), (True, "done\n", 5))
    session = await sandbox.commands.spawn("trap 'exit 7' TERM; echo ready; while :; do sleep 0.05; done", on_stdout=lambda _: ready.set())
    ready = asyncio.Event()
    await ready.wait()
    await session.kill("SIGTERM")
    equal("signal", (await session.wait()).exit_code, 7)


asyncio.run(spawn())

box.kill()
Sandbox.kill_by_id(box.id)
raises("killed", NotFoundError, lambda: Sandbox.connect(box.id))
template.delete()
equal("left", Sandbox.list(), [])
print("all of it was done")
