"""An agent whose shell and patches run in a sandbox of Atoll. The model is a script, so no model key is needed."""

import asyncio

from agents import RunConfig, Runner
from agents.run_config import SandboxRunConfig
from agents.sandbox import Manifest, SandboxAgent
from agents.sandbox.entries import File
from agents.testing import ScriptedModel, assistant_message, function_call

from openai_agents_atoll import AtollSandboxClient, AtollSandboxClientOptions


async def main() -> None:
    model = ScriptedModel(
        [
            [function_call("exec_command", {"cmd": "cat notes.txt\npython3 -c 'print(6 * 7)'"}, call_id="1")],
            [assistant_message("The answer is 42.")],
        ]
    )
    agent = SandboxAgent(
        name="worker",
        model=model,
        instructions="Work in the sandbox.",
        default_manifest=Manifest(entries={"notes.txt": File(content=b"hello\n")}),
    )
    async with AtollSandboxClient() as client:
        options = AtollSandboxClientOptions(memory=512 << 20, labels={"team": "docs"})
        result = await Runner.run(agent, "What is 6 * 7?", run_config=RunConfig(sandbox=SandboxRunConfig(client=client, options=options)))
    for item in result.new_items:
        if item.type == "tool_call_output_item":
            print(str(item.output).partition("Output:\n")[2].rstrip())
    print(result.final_output)


asyncio.run(main())
