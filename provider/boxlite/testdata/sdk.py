"""The main flow of BoxLite's official SDK, in REST mode, against the fake. The
last line says that all of it was done."""

import asyncio
import os
import sys
import tempfile
import urllib.request

from boxlite import (
    AlreadyExistsError,
    ApiKeyCredential,
    Boxlite,
    BoxliteRestOptions,
    BoxOptions,
    InvalidStateError,
    NetworkSpec,
    OutboundNetworkSpec,
    SimpleBox,
)
from boxlite.boxlite import InboundNetworkSpec


def equal(what, got, want):
    if got != want:
        sys.exit(f"{what}: {got!r}, want {want!r}")


async def raises(what, kind, call):
    try:
        await call
    except kind:
        return
    sys.exit(f"{what}: no {kind.__name__}")


async def run(box, *argv, env=None, **more):
    """Runs a command and returns its output and its exit code."""
    execution = await box.exec(argv[0], list(argv[1:]), list((env or {}).items()), **more)

    async def drain(stream):
        return "".join([chunk if isinstance(chunk, str) else chunk.decode() async for chunk in stream])

    out, err = await asyncio.gather(drain(execution.stdout()), drain(execution.stderr()))
    return out, err, (await execution.wait()).exit_code


async def main():
    url, key = os.environ["BOXLITE_REST_URL"], os.environ["BOXLITE_API_KEY"]
    runtime = Boxlite.rest(BoxliteRestOptions(url=url, credential=ApiKeyCredential(key), path_prefix="acme"))
    options = BoxOptions(
        image="python:3.11-slim",
        cpus=2,
        memory_mib=512,
        env=[("FROM", "box")],
        network=NetworkSpec(outbound=OutboundNetworkSpec(mode="enabled", allow_net=["example.com"])),
        auto_stop=3600,
        auto_delete=7200,
    )
    box = await runtime.create(options, name="sdk")
    await raises("a taken name", AlreadyExistsError, runtime.create(options, name="sdk"))
    info = await runtime.get_info("sdk")
    equal("info", (info.id, info.name, info.cpus, info.memory_mib, info.state.status), (box.id, "sdk", 2, 512, "configured"))
    await box.start()
    equal("listed", [(i.id, i.state.status) for i in await runtime.list_info()], [(box.id, "running")])
    equal("no such box", await runtime.get("none"), None)

    # Commands.
    equal("run", await run(box, "sh", "-c", "echo $WORD; echo oops >&2; exit 3", env={"WORD": "hi"}), ("hi\n", "oops\n", 3))
    execution = await box.exec("sh", ["-c", "cat; exit 5"])
    stdin = execution.stdin()
    await stdin.send_input(b"x" * 100_000 + b"\n")
    await stdin.close()
    text = "".join([chunk async for chunk in execution.stdout()])
    equal("input", (len(text), (await execution.wait()).exit_code), (100_001, 5))
    execution = await box.exec("sh", ["-c", "trap 'exit 7' TERM; echo ready; while :; do sleep 0.05; done"])
    async for _ in execution.stdout():
        await execution.signal(15)
        break
    equal("signal", (await execution.wait()).exit_code, 7)
    execution = await box.exec("sleep", ["1000"])
    await execution.kill()
    if (await execution.wait()).exit_code == 0:
        sys.exit("a command that was killed succeeded")

    # Files, to the byte.
    with tempfile.TemporaryDirectory() as work:
        data = bytes(range(256)) * 300
        os.makedirs(f"{work}/tree/deep")
        with open(f"{work}/tree/deep/file", "wb") as f:
            f.write(data)
        await box.copy_in(f"{work}/tree/deep/file", "/root/one")
        equal("a file", (await run(box, "sh", "-c", "wc -c </root/one"))[0].strip(), str(len(data)))
        await box.copy_in(f"{work}/tree", "/root/copy/")
        await box.copy_out("/root/one", f"{work}/back")
        with open(f"{work}/back", "rb") as f:
            equal("the file again", f.read() == data, True)
        equal("a tree", (await run(box, "sh", "-c", "find /root/copy -name file | wc -l"))[0].strip(), "1")

    # The network.
    await box.network.update_outbound(OutboundNetworkSpec(mode="disabled"))
    await box.network.update_inbound(InboundNetworkSpec(mode="disabled"))
    await raises("a tunnel into a closed box", InvalidStateError, box.network.tunnel(8080))
    await box.network.update_inbound(InboundNetworkSpec(mode="enabled"))
    await box.exec("sh", ["-c", "cd /root && exec python3 -m http.server 8080 >/dev/null 2>&1"])
    tunnel = await box.network.tunnel(8080)
    for _ in range(100):
        try:
            page = await asyncio.to_thread(lambda: urllib.request.urlopen(tunnel.uri(), timeout=10).read())
            break
        except OSError:
            await asyncio.sleep(0.1)
    else:
        sys.exit("the tunnel does not answer")
    equal("tunnel", b"one" in page, True)
    connection = await (await box.network.tunnel(8080)).connect()
    await connection.write(b"GET /one HTTP/1.0\r\n\r\n")
    answer = b""
    while chunk := await connection.read(65536):
        answer += chunk
    equal("a tunnel of bytes", answer.endswith(bytes(range(256))), True)
    await connection.close()
    await box.network.revoke_tunnel(8080)

    # A stop keeps files; snapshots and clones are of what is stopped.
    await run(box, "sh", "-c", "echo before >/root/state")
    await raises("a snapshot of what runs", InvalidStateError, box.snapshot.create(name="first"))
    await box.stop()
    snapshot = await box.snapshot.create(name="first")
    equal("snapshots", [s.name for s in await box.snapshot.list()], ["first"])
    equal("snapshot", (snapshot.name, snapshot.size_bytes > 0), ("first", True))
    clone = await box.clone_box(name="twin")
    await clone.start()
    await run(clone, "sh", "-c", "echo clone >/root/state")
    box = await runtime.get("sdk")
    await box.start()
    equal("the clone is its own", (await run(box, "cat", "/root/state"))[0], "before\n")
    await run(box, "sh", "-c", "echo after >/root/state")
    await box.stop()
    box = await runtime.get("sdk")
    await box.snapshot.restore("first")
    await box.start()
    equal("restored", (await run(box, "cat", "/root/state"))[0], "before\n")
    await box.stop()
    await box.snapshot.remove("first")
    equal("no snapshots", await box.snapshot.list(), [])

    # Volumes.
    volume = await runtime.volumes.create("data")
    equal("volumes", [v.name for v in await runtime.volumes.list()], ["data"])
    await runtime.volumes.remove(volume.id)

    # What the examples use.
    async with SimpleBox(image="alpine:latest", runtime=runtime, name="simple", auto_remove=False) as simple:
        done = await simple.exec("echo", "hello")
        equal("simple", (done.stdout, done.exit_code), ("hello\n", 0))
    for name in ("sdk", "twin", "simple"):
        await runtime.remove(name, force=True)
    equal("left", await runtime.list_info(), [])
    print("all of it was done")


asyncio.run(main())
