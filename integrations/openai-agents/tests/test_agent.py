"""Agents with a scripted model, through the SDK's own runner."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from agents import Runner
from agents.testing import ScriptedModel, assistant_message, function_call

from atoll import Client
from openai_agents_atoll import AtollSandboxClient, AtollSandboxClientOptions
from scripts.daemon import Daemon
from tests.agents_under_test import BEFORE, agent, config, outputs

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("pause", [False, True])
async def test_approval_and_restart(pause: bool, daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shell, patch and PTY; a pause for approval; another process continues, in the same sandbox or in a new one."""
    monkeypatch.setenv("HOME", str(tmp_path))  # where the SDK keeps its snapshots
    async with AtollSandboxClient(daemon.host, daemon.key) as client:
        options = AtollSandboxClientOptions(pause_on_exit=pause, labels={"test": "agent"})
        result = await Runner.run(agent(ScriptedModel(BEFORE)), "Go.", run_config=config(client, options))
    assert len(result.interruptions) == 1
    seen = outputs(result.new_items)
    assert "hello\n/workspace" in seen[0]
    assert "patched\nnew" in seen[2]
    assert "Process running with session ID" in seen[3]
    text = json.dumps(result.to_state().to_json())
    assert daemon.key not in text
    file = tmp_path / "state.json"
    file.write_text(text)
    with Client(daemon.socket) as own:
        states = [s.state for s in own.list({"test": "agent"})]
        assert states == (["paused"] if pause else [])

    here = Path(__file__).parent.parent
    path = ":".join(str(here / p) for p in (".", "src", "../python/src", "../python"))
    command = [sys.executable, "-m", "tests.agents_under_test", str(file)]
    env = {"PYTHONPATH": path, "ATOLL_HOST": daemon.host, "ATOLL_KEY": daemon.key, "HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    after = json.loads(done.stdout)
    assert after["output"] == "done"
    assert "patched" in after["tools"][-1]
    assert "new.txt" not in after["tools"][-1], "the command that was approved ran"

    with Client(daemon.socket) as own:
        if pause:
            async with AtollSandboxClient() as client:
                await client.discard(client.deserialize_session_state(after["state"]["sandbox"]["session_state"]))
        assert own.sessions.list() == []
        assert [*own.list({"test": "agent"})] == []


async def test_run_without_options_leaves_nothing(daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    model = ScriptedModel([[function_call("exec_command", {"cmd": "exit 7"}, call_id="1")], [assistant_message("ok")]])
    async with AtollSandboxClient() as client:
        result = await Runner.run(agent(model), "Go.", run_config=config(client))
    assert "exited with code 7" in outputs(result.new_items)[0]
    with Client(daemon.socket) as own:
        assert own.sessions.list() == []
