"""Options and states are in users' programs and files: fields are appended, and never renamed, moved or removed."""

from __future__ import annotations

import uuid
from typing import Any

from agents.sandbox import Manifest
from agents.sandbox.session import SandboxSessionState
from agents.sandbox.session.sandbox_client import BaseSandboxClientOptions
from agents.sandbox.snapshot import NoopSnapshot

from openai_agents_atoll import AtollSandboxClient, AtollSandboxClientOptions, AtollSandboxSessionState

OPTIONS: dict[str, Any] = {
    "type": "atoll", "image": None, "template": None, "from_snapshot": None, "provider": None, "memory": None, "cpus": None, "disk": None,
    "pids": None, "profile": None, "egress": [], "secrets": [], "workspace": None, "labels": {}, "exposed_ports": [], "pause_on_exit": False,
    "lifetime_s": None, "workspace_persistence": "tar",
}  # fmt: skip
STATE = {"options", "atoll_session", "envelope", "native_snapshot"}


def test_options() -> None:
    dump = AtollSandboxClientOptions().model_dump(mode="json")
    assert dump == OPTIONS
    assert list(AtollSandboxClientOptions.model_fields) == list(OPTIONS)
    assert BaseSandboxClientOptions.parse({"type": "atoll", "cpus": 2}) == AtollSandboxClientOptions(cpus=2)
    positional: Any = AtollSandboxClientOptions
    assert positional("debian:12", None, "before").from_snapshot == "before"


def test_spec() -> None:
    options = AtollSandboxClientOptions(
        template="t",
        provider="p",
        memory=1,
        cpus=2,
        disk=3,
        pids=4,
        profile="w",
        egress=("h",),
        secrets=("S",),
        workspace="ws",
        labels={"a": "b"},
        lifetime_s=1.5,
    )
    assert options.to_spec({"c": "d"}).to_json() == {
        "image": "template:t", "provider": "p", "resources": {"memory": 1, "cpus": 2, "disk": 3, "pids": 4}, "network": {"profile": "w", "egress": ["h"]},
        "secrets": [{"name": "S"}], "workspaces": [{"name": "ws", "create": True}], "labels": {"a": "b", "c": "d"}, "lifetime": {"timeoutMs": 1500},
    }  # fmt: skip


def test_state() -> None:
    inherited = set(SandboxSessionState.model_fields)
    assert set(AtollSandboxSessionState.model_fields) - inherited == STATE
    id = uuid.uuid4()
    state = AtollSandboxSessionState(
        session_id=id,
        snapshot=NoopSnapshot(id="x"),
        manifest=Manifest(),
        options=AtollSandboxClientOptions(secrets=("S",)),
        atoll_session="se-1",
    )
    client = AtollSandboxClient("http://127.0.0.1:1", "the-key")
    payload = client.serialize_session_state(state)
    assert "the-key" not in str(payload)
    assert payload["options"] == {**OPTIONS, "secrets": ["S"]}
    assert client.deserialize_session_state(payload) == state
    assert client.backend_id == payload["type"] == "atoll"
