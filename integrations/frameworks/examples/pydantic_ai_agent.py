"""An agent of Pydantic AI works in a sandbox of Atoll. The model is a script, so no model key is needed."""

import asyncio
from typing import Any

from pydantic_ai import Agent, ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai_harness.e2b_sandbox import E2BSandbox, E2BSandboxBackend
from pydantic_ai_harness.filesystem import FileSystem
from pydantic_ai_harness.shell import Shell


def call(tool: str, **args: Any) -> ToolCallPart:
    return ToolCallPart(tool, args)


turns: list[TextPart | ToolCallPart] = [
    call("write_file", path="numbers.txt", content="6\n"),
    call("run_command", command="read a < numbers.txt; echo $((a * 7)) > product.txt"),
    call("read_file", path="product.txt"),
    call("run_command", command="uname -s; cat missing.txt"),
    TextPart("The product is 42."),
]


def scripted(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    return ModelResponse([turns.pop(0)])


async def main() -> None:
    sandbox = E2BSandboxBackend(sandbox_timeout=600)
    agent = Agent(FunctionModel(scripted), capabilities=[Shell(), FileSystem()])
    try:
        result = await agent.run("What is six times seven?", workspace=sandbox)
    finally:
        if sandbox.ref:
            await E2BSandbox[None]().destroy(sandbox.ref)
    for message in result.all_messages():
        for part in message.parts:
            if isinstance(part, ToolReturnPart):
                print(part.tool_name, *str(part.content).split())
    print(result.output)


asyncio.run(main())
