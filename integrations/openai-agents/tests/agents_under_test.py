"""The agent of the tests, which two processes share. Run as a program, it continues where the other one stopped."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from agents import RunConfig, Runner, RunState
from agents.run_config import SandboxRunConfig
from agents.sandbox import Manifest, SandboxAgent
from agents.sandbox.capabilities import Filesystem, Shell
from agents.sandbox.capabilities.shell import ShellToolSet
from agents.sandbox.entries import File
from agents.testing import ScriptedModel, assistant_message, function_call
from openai.types.responses import ResponseCustomToolCall

from openai_agents_atoll import AtollSandboxClient, AtollSandboxClientOptions

PATCH = """*** Begin Patch
*** Update File: notes.txt
@@
-hello
+patched
*** Add File: made/new.txt
+new
*** End Patch"""


def shell(number: int, cmd: str, **more: Any) -> list[Any]:
    return [function_call("exec_command", {"cmd": cmd, **more}, call_id=f"call-{number}")]


BEFORE = [
    shell(1, "cat notes.txt\npwd"),
    [ResponseCustomToolCall(type="custom_tool_call", name="apply_patch", input=PATCH, call_id="call-2")],
    shell(3, "cat notes.txt made/new.txt; (sleep 600 &)"),
    shell(4, "python3 -c 'print(input())'", tty=True, yield_time_ms=300),
    shell(5, "rm made/new.txt # dangerous"),
]
AFTER = [
    shell(6, "cat notes.txt; ls made; echo $((40 + 2)) > answer", yield_time_ms=5000),
    [assistant_message("done")],
]


def agent(model: ScriptedModel) -> SandboxAgent[Any]:
    async def dangerous(_context: Any, arguments: dict[str, Any], _id: str) -> bool:
        return "dangerous" in str(arguments.get("cmd"))

    def configure(tools: ShellToolSet) -> None:
        tools.exec_command.needs_approval = dangerous

    return SandboxAgent(
        name="worker", model=model, instructions="Work.", capabilities=[Filesystem(), Shell(configure_tools=configure)],
        default_manifest=Manifest(entries={"notes.txt": File(content=b"hello\n")}),
    )  # fmt: skip


def config(client: AtollSandboxClient, options: AtollSandboxClientOptions | None = None) -> RunConfig:
    return RunConfig(sandbox=SandboxRunConfig(client=client, options=options))


def outputs(items: list[Any]) -> list[str]:
    return [str(item.output) for item in items if item.type == "tool_call_output_item"]


async def go_on(file: Path) -> None:
    model = ScriptedModel(AFTER)
    worker = agent(model)
    state: RunState[Any, Any] = await RunState.from_json(worker, json.loads(file.read_text()))
    for interruption in state.get_interruptions():
        state.approve(interruption)
    async with AtollSandboxClient() as client:
        result = await Runner.run(worker, state, run_config=config(client))
    print(json.dumps({"output": result.final_output, "tools": outputs(result.new_items), "state": result.to_state().to_json()}))


if __name__ == "__main__":
    asyncio.run(go_on(Path(sys.argv[1])))
