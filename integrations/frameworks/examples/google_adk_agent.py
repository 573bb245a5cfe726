"""An agent of Google's ADK works in a sandbox of Atoll. The model is a script, so no model key is needed."""

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.integrations.e2b import E2BEnvironment
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import InMemoryRunner
from google.adk.tools.environment import EnvironmentToolset
from google.genai.types import Content, Part
from pydantic import PrivateAttr


def call(tool: str, **args: Any) -> Part:
    return Part.from_function_call(name=tool, args=args)


class Scripted(BaseLlm):
    """Says one thing after the other."""

    model: str = "scripted"
    _turns: list[Part] = PrivateAttr(
        default_factory=lambda: [
            call("WriteFile", path="numbers.txt", content="6\n"),
            call("Execute", command="read a < numbers.txt; echo $((a * 7)) > product.txt"),
            call("ReadFile", path="product.txt"),
            call("Execute", command="uname -s; cat missing.txt"),
            Part.from_text(text="The product is 42."),
        ]
    )

    async def generate_content_async(self, llm_request: LlmRequest, stream: bool = False) -> AsyncGenerator[LlmResponse, None]:
        yield LlmResponse(content=Content(role="model", parts=[self._turns.pop(0)]))


async def main() -> None:
    agent = LlmAgent(name="worker", model=Scripted(), tools=[EnvironmentToolset(environment=E2BEnvironment(timeout=600))])
    runner = InMemoryRunner(agent=agent, app_name="demo")
    await runner.session_service.create_session(app_name="demo", user_id="me", session_id="1")
    question = Content(role="user", parts=[Part.from_text(text="What is six times seven?")])
    try:
        async for event in runner.run_async(user_id="me", session_id="1", new_message=question):
            for part in (event.content and event.content.parts) or []:
                if part.function_response:
                    print(part.function_response.name, json.dumps(part.function_response.response))
                if part.text:
                    print(part.text)
    finally:
        await runner.close()  # removes the sandbox


asyncio.run(main())
