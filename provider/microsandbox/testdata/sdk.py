"""The main flow of microsandbox's official SDK, and of its program msb, against
the fake. The last line says that all of it was done."""

import asyncio
import json
import os
import pathlib
import subprocess
import sys

import microsandbox as sdk
from microsandbox import Destination, Network, NetworkPolicy, Rule, Sandbox, Snapshot


def equal(what, got, want):
    if got != want:
        sys.exit(f"{what}: {got!r}, want {want!r}")


async def raises(what, kind, call):
    try:
        await call
    except kind:
        return
    sys.exit(f"{what}: no {kind.__name__}")


def msb(*args):
    program = pathlib.Path(sdk.__file__).parent / "_bundled" / "bin" / "msb"
    return subprocess.run([program, *args], capture_output=True, text=True, timeout=60)


async def main():
    sdk.set_default_backend(sdk.BackendKind.CLOUD, url=os.environ["MSB_API_URL"], api_key=os.environ["MSB_API_KEY"])
    rules = (*Rule.allow_dns(), Rule.allow(destination=Destination.domain("api.example.com")))
    box = await Sandbox.create(
        "sdk", image="python:3.12", cpus=1, memory=512, env={"A": "hello"}, labels={"run": "7"}, max_duration=600, network=Network(policy=NetworkPolicy(rules=rules))
    )
    await raises("a name that is taken", sdk.SandboxAlreadyExistsError, Sandbox.create("sdk", image="python:3.12"))
    await raises("unknown", sdk.SandboxNotFoundError, Sandbox.get("unknown"))
    one = await Sandbox.get("sdk")
    equal("status", (one.name, str(one.status)), ("sdk", "running"))

    run = await box.exec("/bin/sh", ["-c", "echo $A; echo err >&2; exit 3"])
    equal("exec", (run.exit_code, run.stdout_text, run.stderr_text), (3, "hello\n", "err\n"))
    data = bytes(range(256)) * 1000
    run = await box.exec("/bin/sh", ["-c", "cat"], stdin=data)
    equal("input", (run.exit_code, run.stdout_bytes), (0, data))
    await box.fs.write("/tmp/data", data)
    equal("file", bytes(await box.fs.read("/tmp/data")), data)

    listed = msb("list", "--format", "json")
    equal("msb list", [b["name"] for b in json.loads(listed.stdout)], ["sdk"])
    missing = msb("inspect", "unknown")
    equal("msb inspect", (missing.returncode, "not found" in missing.stderr), (1, True))

    await box.stop()
    equal("stopped", str((await Sandbox.get("sdk")).status), "stopped")
    saved = await Snapshot.create("ready", from_sandbox="sdk", labels={"run": "7"})
    await raises("a snapshot whose name is taken", sdk.MicrosandboxError, Snapshot.create("ready", from_sandbox="sdk"))
    await raises("unknown snapshot", FileNotFoundError, Snapshot.get("unknown"))
    equal("snapshot", (saved.reference_kind, saved.labels, saved.source_sandbox, saved.size_bytes > 0), ("id", {"run": "7"}, "sdk", True))
    equal("snapshots", [(s.name, s.reference) for s in await Snapshot.list()], [("ready", saved.reference)])
    copy = await Sandbox.restore(saved, name="copy", disable_network=True)
    run = await copy.exec("/bin/sh", ["-c", "wc -c </tmp/data"])
    equal("restored", run.stdout_text.strip(), str(len(data)))
    await Sandbox.remove("copy")
    await Snapshot.remove("ready")
    equal("no snapshots", await Snapshot.list(), [])
    box = await Sandbox.start("sdk")
    run = await box.exec("/bin/sh", ["-c", "wc -c </tmp/data"])
    equal("kept", run.stdout_text.strip(), str(len(data)))
    others = [f"sdk-{n}" for n in range(4)]
    for other in others:
        await Sandbox.create(other, image="python:3.12")
    equal("list", sorted(b.name for b in (await Sandbox.list()).sandboxes)[:1], ["sdk"])
    for name in ("sdk", *others):
        await Sandbox.remove(name)
    await raises("removed", sdk.SandboxNotFoundError, Sandbox.get("sdk"))


asyncio.run(main())
print("all of it was done")
sys.stdout.flush()
os._exit(0)  # the SDK's threads can panic while Python ends
