"""ctx.sandbox against a real daemon."""

from __future__ import annotations

from pathlib import Path

import pytest

from atoll import ctxsandbox, errors, models
from atoll._ctx import last_lines
from atoll.ctxsandbox import AsyncSandboxClient, SandboxSpec, run_python_async, run_shell_async
from scripts.daemon import Daemon

pytestmark = pytest.mark.anyio


async def test_surface() -> None:
    async with await AsyncSandboxClient.connect() as client:
        handle = await client.create(SandboxSpec(name="agent", workspace="ctx", labels={"team": "a"}, env={"NAME": "v"}))
        try:
            assert (handle.name, handle.labels) == ("agent", {"team": "a"})
            with pytest.raises(errors.AlreadyExistsError):
                await client.create(SandboxSpec(name="agent"))
            done = await handle.exec("sh", ["-c", "echo $NAME; pwd >&2; exit 3"])
            assert (done.exit_code, done.stdout, done.stderr, done.ok, done.output) == (3, "v\n", "/workspace\n", False, "v\n/workspace\n")
            assert (await handle.shell("[[ -n $BASH_VERSION ]] && echo bash")).stdout == "bash\n"
            assert (await handle.exec("sleep", ["60"], timeout=0.3)).timed_out
            long = await handle.exec("head", ["-c", str((1 << 20) + 10), "/dev/zero"])
            assert (len(long.stdout), long.truncated, long.ok) == (1 << 20, True, True)
            assert (await handle.shell("kill -9 $$")).exit_code == 137
            assert (await handle.shell("curl -sS -m 5 https://example.com")).exit_code != 0, "nothing can be reached"
            await handle.shell("seq 3")
            assert await handle.logs(2) == "2\n3\n"
            assert [h.id async for h in client.list({"team": "a"})] == [handle.id]
            assert (await client.get("agent")).id == handle.id
            await handle.stop()
            assert (await handle.sandbox.refresh()).state == "stopped"
            await handle.kill()
            await handle.kill()
            await client.remove("agent")
            await client.remove("never-was")
            with pytest.raises(errors.InvalidError):
                await client.create(SandboxSpec(memory=-1))
        finally:
            await handle.kill()
            await client._client.workspaces.remove("ctx")


async def test_secrets_stay_outside() -> None:
    async with await AsyncSandboxClient.connect() as client:
        await client._client.secrets.create(models.NewSecret(name="CTX_TOKEN", value="hunter2-value", hosts=["example.com"]))
        try:
            done = await client.run_shell('echo "token=$CTX_TOKEN"', spec=SandboxSpec(secrets=["CTX_TOKEN"], egress=["example.com"]))
            assert done.stdout.startswith("token=")
            assert len(done.stdout) > len("token=\n")
            assert "hunter2" not in done.stdout
        finally:
            await client._client.secrets.remove("CTX_TOKEN")


async def test_one_shots() -> None:
    async with await AsyncSandboxClient.connect() as client:
        before = {h.id async for h in client.list()}
        assert (await run_python_async("print(6 * 7)")).output == "42\n"
        assert (await run_shell_async("exit 4")).exit_code == 4
        assert (await client.run_shell("sleep 60", timeout=0.3)).timed_out
        assert {h.id async for h in client.list()} == before


async def test_unavailable(daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATOLL_HOST", f"unix://{tmp_path}/none.sock")
    with pytest.raises(ctxsandbox.SandboxUnavailable):
        await run_shell_async("true")


def test_last_lines() -> None:
    assert [last_lines("a\nb\nc\n", n) for n in (0, 1, 2, 9)] == ["a\nb\nc\n", "c\n", "b\nc\n", "a\nb\nc\n"]
    assert last_lines("a\nb", 1) == "b"
