# Generated from _async by scripts/generate.py; do not edit.
"""ctx.sandbox against a real daemon."""

from __future__ import annotations

from pathlib import Path

import pytest

from atoll import ctxsandbox, errors, models
from atoll._ctx import last_lines
from atoll.ctxsandbox import SandboxClient, SandboxSpec, run_python, run_shell
from scripts.daemon import Daemon

pytestmark = pytest.mark.anyio


def test_surface() -> None:
    with SandboxClient.connect() as client:
        handle = client.create(SandboxSpec(name="agent", workspace="ctx", labels={"team": "a"}, env={"NAME": "v"}))
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
            assert handle.logs(2) == "2\n3\n"
            assert [h.id for h in client.list({"team": "a"})] == [handle.id]
            assert (client.get("agent")).id == handle.id
            handle.stop()
            assert (handle.sandbox.refresh()).state == "stopped"
            handle.kill()
            handle.kill()
            client.remove("agent")
            client.remove("never-was")
            with pytest.raises(errors.InvalidError):
                client.create(SandboxSpec(memory=-1))
        finally:
            handle.kill()
            client._client.workspaces.remove("ctx")


def test_secrets_stay_outside() -> None:
    with SandboxClient.connect() as client:
        client._client.secrets.create(models.NewSecret(name="CTX_TOKEN", value="hunter2-value", hosts=["example.com"]))
        try:
            done = client.run_shell('echo "token=$CTX_TOKEN"', spec=SandboxSpec(secrets=["CTX_TOKEN"], egress=["example.com"]))
            assert done.stdout.startswith("token=")
            assert len(done.stdout) > len("token=\n")
            assert "hunter2" not in done.stdout
        finally:
            client._client.secrets.remove("CTX_TOKEN")


def test_one_shots() -> None:
    with SandboxClient.connect() as client:
        before = {h.id for h in client.list()}
        assert (run_python("print(6 * 7)")).output == "42\n"
        assert (run_shell("exit 4")).exit_code == 4
        assert (client.run_shell("sleep 60", timeout=0.3)).timed_out
        assert {h.id for h in client.list()} == before


def test_unavailable(daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATOLL_HOST", f"unix://{tmp_path}/none.sock")
    with pytest.raises(ctxsandbox.SandboxUnavailable):
        run_shell("true")


def test_last_lines() -> None:
    assert [last_lines("a\nb\nc\n", n) for n in (0, 1, 2, 9)] == ["a\nb\nc\n", "c\n", "b\nc\n", "a\nb\nc\n"]
    assert last_lines("a\nb", 1) == "b"
