"""An agent of LangChain's deepagents works in a sandbox of Atoll. The model is a script, so no model key is needed."""

from collections.abc import Sequence
from typing import Any

from deepagents import create_deep_agent
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage

import atoll
from atoll_frameworks.deepagents import AtollBackend


class Scripted(GenericFakeChatModel):
    """Says one thing after the other."""

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> "Scripted":
        return self


def call(tool: str, **args: Any) -> AIMessage:
    return AIMessage("", tool_calls=[{"name": tool, "args": args, "id": tool}])


model = Scripted(
    messages=iter(
        [
            call("write_file", file_path="/srv/demo/numbers.txt", content="6\n"),
            call("execute", command="cd /srv/demo && read a < numbers.txt && echo $((a * 7)) > product.txt"),
            call("read_file", file_path="/srv/demo/product.txt"),
            call("execute", command="uname -s; cat missing.txt"),
            AIMessage("The product is 42."),
        ]
    )
)

with atoll.connect() as client, client.create() as sandbox:
    agent = create_deep_agent(model=model, backend=AtollBackend(sandbox))
    result = agent.invoke({"messages": [{"role": "user", "content": "What is six times seven?"}]})

for message in result["messages"]:
    if message.type == "tool":
        print(message.name, *message.text.split())
print(result["messages"][-1].text)
