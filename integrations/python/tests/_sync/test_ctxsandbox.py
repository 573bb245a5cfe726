# Generated from _async by scripts/generate.py; do not edit.
"""ctx.sandbox against a real daemon."""

from __future__ import annotations

from pathlib import Path

import pytest

from atoll import ctxsandbox, errors, models
from atoll._ctx import last_lines
from atoll.ctxsandbox import SandboxSpec, SyncSandboxClient, run_python_sync, run_shell_sync
from scripts.daemon import Daemon

pytestmark = pytest.mark.anyio


def test_surface() -> None:
    with SyncSandboxClient.connect() as client:
        handle = client.create(SandboxSpec(name="agent", image="host", workspace="ctx", labels={"team": "a"}, env={"NAME": "v"}))
        try:
            assert (handle.name, handle.labels) == ("agent", {"team": "a"})
            with pytest.raises(errors.AlreadyExistsError):
                client.create(SandboxSpec(name="agent"))
            done = handle.exec("sh", ["-c", "echo $NAME; pwd >&2; exit 3"])
            assert (done.exit_code, done.stdout, done.stderr, done.ok, done.output) == (3, "v\n", "/workspace\n", False, "v\n/workspace\n")
            assert (handle.shell("[[ -n $BASH_VERSION ]] && echo bash")).stdout == "bash\n"
            assert (handle.exec("sleep", ["60"], timeout=0.3)).timed_out
            long = handle.exec("head", ["-c", str((1 << 20) + 10), "/dev/zero"])
            assert (len(long.stdout), long.truncated, long.ok) == (1 << 20, True, True)
            assert (handle.shell("kill -9 $$")).exit_code == 137
            assert (handle.shell("curl -sS -m 5 https://example.com")).exit_code != 0, "nothing can be reached"
            handle.shell("seq 3")
            assert handle.logs(tail=2) == "2\n3\n"
            assert client.list(labels={"team": "a"}) == ["agent"]
            assert (client.get("agent")).id == handle.id
            handle.stop()
            assert (handle.sandbox.refresh()).state == "stopped"
            handle.kill()
            handle.kill()
            client.remove("agent")
            client.remove("never-was")
            with pytest.raises(errors.InvalidError):
                client.create(SandboxSpec("", memory_mib=-1))
        finally:
            handle.kill()
            (client._client()).workspaces.remove("ctx")


def test_secrets_stay_outside() -> None:
    with SyncSandboxClient.connect() as client:
        (client._client()).secrets.create(models.NewSecret(name="CTX_TOKEN", value="hunter2-value", hosts=["example.com"]))
        try:
            done = client.run_shell_sync('echo "token=$CTX_TOKEN"', image="host", secrets=["CTX_TOKEN"], egress=["example.com"])
            assert done.stdout.startswith("token=")
            assert len(done.stdout) > len("token=\n")
            assert "hunter2" not in done.stdout
        finally:
            (client._client()).secrets.remove("CTX_TOKEN")


def test_one_shots() -> None:
    with SyncSandboxClient() as client:
        before = client.list()
        assert (run_python_sync("print(6 * 7)", image="host")).output == "42\n"
        assert (run_shell_sync("exit 4", image="host", memory_mib=256, labels={"team": "b"})).exit_code == 4
        assert (client.run_shell_sync("sleep 60", image="host", timeout=0.3)).timed_out
        with pytest.raises(TypeError):
            client.run_shell_sync("true", memory=1)
        assert client.list() == before


def test_the_default_image_needs_no_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    with SyncSandboxClient() as client:
        with pytest.warns(UserWarning, match="ATOLL_CTX_IMAGE"):
            assert (client.run_python_sync("print(6 * 7)")).output == "42\n"
        monkeypatch.setenv("ATOLL_CTX_IMAGE", "host")
        assert (client.run_python_sync("print(6 * 7)")).output == "42\n"
        with pytest.raises(ctxsandbox.SandboxUnavailable):
            client.run_python_sync("print(1)", image="elsewhere:1")


def test_unavailable(daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATOLL_HOST", f"unix://{tmp_path}/none.sock")
    with pytest.raises(ctxsandbox.SandboxUnavailable):
        run_shell_sync("true", image="host")


def test_last_lines() -> None:
    assert [last_lines("a\nb\nc\n", n) for n in (None, 0, 1, 2, 9)] == ["a\nb\nc\n", "", "c\n", "b\nc\n", "a\nb\nc\n"]
    assert last_lines("a\nb", 1) == "b"
