"""ctx.sandbox against a real daemon."""

from __future__ import annotations

from pathlib import Path

import pytest

from atoll import ctxsandbox, errors, models
from atoll._ctx import last_lines
from atoll.ctxsandbox import SandboxClient, SandboxSpec, run_python, run_shell
from scripts.daemon import Daemon

pytestmark = pytest.mark.anyio


async def test_surface() -> None:
    async with await SandboxClient.connect() as client:
        handle = await client.create(SandboxSpec(name="agent", image="host", workspace="ctx", labels={"team": "a"}, env={"NAME": "v"}))
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
            assert await handle.logs(tail=2) == "2\n3\n"
            assert await client.list(labels={"team": "a"}) == ["agent"]
            assert (await client.get("agent")).id == handle.id
            await handle.stop()
            assert (await handle.sandbox.refresh()).state == "stopped"
            await handle.kill()
            await handle.kill()
            await client.remove("agent")
            await client.remove("never-was")
            with pytest.raises(errors.InvalidError):
                await client.create(SandboxSpec("", memory_mib=-1))
        finally:
            await handle.kill()
            await (await client._client()).workspaces.remove("ctx")


async def test_secrets_stay_outside() -> None:
    async with await SandboxClient.connect() as client:
        await (await client._client()).secrets.create(models.NewSecret(name="CTX_TOKEN", value="hunter2-value", hosts=["example.com"]))
        try:
            done = await client.run_shell('echo "token=$CTX_TOKEN"', image="host", secrets=["CTX_TOKEN"], egress=["example.com"])
            assert done.stdout.startswith("token=")
            assert len(done.stdout) > len("token=\n")
            assert "hunter2" not in done.stdout
        finally:
            await (await client._client()).secrets.remove("CTX_TOKEN")


async def test_one_shots() -> None:
    async with SandboxClient() as client:
        before = await client.list()
        assert (await run_python("print(6 * 7)", image="host")).output == "42\n"
        assert (await run_shell("exit 4", image="host", memory_mib=256, labels={"team": "b"})).exit_code == 4
        assert (await client.run_shell("sleep 60", image="host", timeout=0.3)).timed_out
        with pytest.raises(TypeError):
            await client.run_shell("true", memory=1)
        assert await client.list() == before


async def test_the_default_image_needs_no_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    async with SandboxClient() as client:
        with pytest.warns(UserWarning, match="ATOLL_CTX_IMAGE"):
            assert (await client.run_python("print(6 * 7)")).output == "42\n"
        monkeypatch.setenv("ATOLL_CTX_IMAGE", "host")
        assert (await client.run_python("print(6 * 7)")).output == "42\n"
        with pytest.raises(ctxsandbox.SandboxUnavailable):
            await client.run_python("print(1)", image="elsewhere:1")


async def test_unavailable(daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATOLL_HOST", f"unix://{tmp_path}/none.sock")
    with pytest.raises(ctxsandbox.SandboxUnavailable):
        await run_shell("true", image="host")


def test_last_lines() -> None:
    assert [last_lines("a\nb\nc\n", n) for n in (None, 0, 1, 2, 9)] == ["a\nb\nc\n", "", "c\n", "b\nc\n", "a\nb\nc\n"]
    assert last_lines("a\nb", 1) == "b"
