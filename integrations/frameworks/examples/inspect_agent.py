"""An evaluation of Inspect whose sample has a sandbox of Atoll. The model is a script, so no model key is needed."""

import tempfile
from typing import Any

from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.model import ChatMessageAssistant, ChatMessageTool, ModelOutput, get_model
from inspect_ai.scorer import includes
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import bash, python
from inspect_ai.util import SandboxEnvironmentSpec

from atoll.models import Resources
from atoll_frameworks.inspect import AtollSpec


def call(tool: str, **args: Any) -> ModelOutput:
    return ModelOutput.for_tool_call("mockllm", tool, args)


model = get_model(
    "mockllm/model",
    custom_outputs=[
        call("bash", cmd="read a < numbers.txt; echo $((a * 7)) > product.txt"),
        call("python", code="print(open('product.txt').read())"),
        call("bash", cmd="uname -s; cat missing.txt; exit 3"),
        ModelOutput.from_content("mockllm", "The product is 42."),
    ],
)

task = Task(
    dataset=[Sample("What is six times seven?", target="42", files={"numbers.txt": "6\n"})],
    solver=[use_tools(bash(timeout=60), python(timeout=60)), generate()],
    scorer=includes(),
    sandbox=SandboxEnvironmentSpec("atoll", AtollSpec(workdir="/tmp", resources=Resources(memory=512 << 20))),
)

with tempfile.TemporaryDirectory() as logs:
    (log,) = eval(task, model=model, log_dir=logs, display="none")
    for message in (log.samples or [])[0].messages:
        if isinstance(message, ChatMessageTool):
            print(message.function, *message.text.split())
        elif isinstance(message, ChatMessageAssistant) and message.text:
            print(message.text)
for score in log.results.scores if log.results else []:
    print(log.status, "accuracy", score.metrics["accuracy"].value)
