"""Code that was written for the original interface of ctx.sandbox. It need not run: mypy checks it."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Sequence

import pytest

from atoll import Client, Resources, Spec
from atoll.ctxsandbox import ExecResult, SandboxClient, SandboxHandle, SandboxSpec, SandboxUnavailable
from scripts.daemon import Daemon


class Recorded(SandboxClient):
    """A client of an agent's tests."""

    async def create(self, spec: SandboxSpec) -> SandboxHandle:
        return await super().create(dataclasses.replace(spec, labels={**spec.labels, "recorded": ""}))


class Counted(SandboxHandle):
    count = 0

    async def exec(self, cmd: str, args: Sequence[str] | None = None, *, timeout: float | None = None) -> ExecResult:
        self.count += 1
        return await super().exec(cmd, args, timeout=timeout)


async def agent(client: SandboxClient) -> str:
    handle = await client.create(SandboxSpec(name="agent", memory_mib=256, cpus=2, workspace="notes", egress=("api.example.com",)))
    try:
        first: ExecResult = await handle.exec("ls", ["-l"], timeout=10)
        await handle.shell("true", timeout=None)
        names: list[str] = await client.list()
        text: str = await handle.logs(tail=10)
        await (await client.get(handle.name)).stop()
        await client.run_python("print(1)", image="python:3.11-slim", memory_mib=128)
        await client.run_shell("true", image="debian", labels={"a": "b"})
        return first.output + text + names[0]
    except SandboxUnavailable:
        return ""
    finally:
        await handle.kill()
        await client.remove("agent")


def test_defaults() -> None:
    spec = SandboxSpec("a")
    assert (spec.image, spec.memory_mib, spec.cpus, spec.workspace) == ("python:3.11-slim", 512, 1, None)
    assert (spec.secrets, spec.egress, spec.labels) == ((), (), {})
    with pytest.raises(dataclasses.FrozenInstanceError):
        spec.name = "b"  # type: ignore[misc]
    assert [f.name for f in dataclasses.fields(ExecResult)][:4] == ["stdout", "stderr", "exit_code", "truncated"]
    done = ExecResult("out")
    assert (done.ok, done.output, done.stderr, done.exit_code, done.truncated) == (True, "out", "", 0, False)
    assert issubclass(SandboxUnavailable, RuntimeError)
    for method in (
        SandboxClient.create,
        SandboxClient.get,
        SandboxClient.list,
        SandboxClient.remove,
        SandboxHandle.exec,
        SandboxHandle.kill,
    ):
        assert inspect.iscoroutinefunction(method)


def test_unknown_keywords_are_refused() -> None:
    with pytest.raises(ValueError, match="timout"):
        Spec(image="base", timout=3)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="cpu"):
        Resources(cpu=1)  # type: ignore[call-arg]
    assert Spec.model_validate({"image": "base", "added": 1}).image == "base", "an answer of a newer daemon"
    assert Resources(memory="256m").memory == 256 << 20  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="size"):
        Resources(memory="many")  # type: ignore[arg-type]


def test_keywords_of_create(daemon: Daemon) -> None:
    with Client() as client:
        box = client.create(image="host", name="by-name", labels={"by": "keyword"}, resources=Resources(memory="256m"))  # type: ignore[arg-type]
        try:
            with box.exec("echo one") as process:
                assert process.id == process.info.id
                process.wait()
            assert box.run("echo out; echo err >&2").text == "out\n"
            (found,) = client.list({"by": "keyword"})
            assert (found.name, found.state, found.labels) == ("by-name", "running", {"by": "keyword"})
            assert found.run("echo err >&2").error_text == "err\n"
            with pytest.raises(ValueError, match="timout"):
                client.create(timout=3)
            assert box.snapshot(name="kept").name == "kept"
            client.snapshots.remove("kept")
        finally:
            box.destroy()
