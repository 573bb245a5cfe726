"""An agent of LangChain whose tool runs Python in a sandbox.

    pip install langchain e2b-code-interpreter
    eval "$(atoll e2b env)"
    python main.py

The model is LangChain's own fake, which says what it was told to: put a real one
in its place. Everything else is as it would be then.
"""

from e2b_code_interpreter import Sandbox
from langchain.agents import create_agent
from langchain_core.language_models.fake_chat_models import FakeMessagesListChatModel
from langchain_core.messages import AIMessage
from langchain_core.tools import tool

sandbox = Sandbox.create(timeout=60)


@tool
def python(code: str) -> str:
    """Runs Python code in a sandbox. Variables stay from one call to the next."""
    execution = sandbox.run_code(code)
    if execution.error:
        return f"{execution.error.name}: {execution.error.value}"
    return "".join(execution.logs.stdout) + (execution.text or "")


class ScriptedModel(FakeMessagesListChatModel):
    def bind_tools(self, tools, **_):
        return self


def call(number, code):
    return AIMessage(content="", tool_calls=[{"name": "python", "args": {"code": code}, "id": str(number)}])


model = ScriptedModel(responses=[
    call(1, "primes = [n for n in range(2, 30) if all(n % d for d in range(2, n))]\nlen(primes)"),
    call(2, "sum(primes) / 0"),
    call(3, "sum(primes)"),
    AIMessage(content="There are 10 primes below 30; they add up to 129."),
])

try:
    agent = create_agent(model, [python])
    state = agent.invoke({"messages": [{"role": "user", "content": "What do the primes below 30 add up to?"}]})
    for message in state["messages"][1:]:
        if message.type == "tool":
            print("tool:", message.content)
        elif message.content:
            print("answer:", message.content)
finally:
    sandbox.kill()
