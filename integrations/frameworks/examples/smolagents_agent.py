"""An agent of smolagents writes Python, which runs in a sandbox of Atoll. The model is a script, so no model key is needed."""

from typing import Any

from smolagents import ActionStep, ChatMessage, CodeAgent, LogLevel, MessageRole, Model


class Scripted(Model):
    """Says one thing after the other."""

    def __init__(self, *programs: str) -> None:
        super().__init__()
        self.programs = iter(programs)

    def generate(self, messages: list[ChatMessage], *args: Any, **kwargs: Any) -> ChatMessage:
        return ChatMessage(role=MessageRole.ASSISTANT, content=f"<code>\n{next(self.programs)}\n</code>")


model = Scripted(
    "import subprocess\ndone = subprocess.run('echo 6 7 > numbers.txt; exit 3', shell=True)\nprint('exit', done.returncode)",
    "a, b = map(int, open('numbers.txt').read().split())\nprint('numbers', a, b)",
    "open('missing.txt')",
    "final_answer(a * b)",
)

sandbox = {"template": "smolagents:latest", "timeout": 600}
with CodeAgent(tools=[], model=model, executor_type="e2b", executor_kwargs=sandbox, verbosity_level=LogLevel.OFF) as agent:
    answer = agent.run("What is the product of the numbers?")

for step in agent.memory.steps:
    if isinstance(step, ActionStep) and step.error:
        print(step.error.message.rstrip().splitlines()[-1])
    elif isinstance(step, ActionStep) and not step.is_final_answer:
        print((step.observations or "").partition("Last output")[0].removeprefix("Execution logs:").strip())
print("answer", answer)
