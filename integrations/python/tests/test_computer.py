"""The tools of the models that use computers, as scripted models call them."""

import json
from pathlib import Path
from typing import Any

import pytest

from atoll import computer
from atoll.models import ComputerResult, Point, Screenshot

CASES = json.loads((Path(__file__).parents[2] / "testdata/computer.json").read_text())
TOOLS = {"openai": computer.from_openai, "anthropic": computer.from_anthropic}


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c['tool']}: {json.dumps(c['given'])}")
def test_actions(case: dict[str, Any]) -> None:
    ask = TOOLS[case["tool"]]
    if case["actions"] is None:
        with pytest.raises(ValueError, match="fly"):
            ask(case["given"])
        return
    got = [a.model_dump(mode="json", by_alias=True, exclude_none=True) for a in ask(case["given"])]
    for a in got:  # zero is what is left out
        for name in ("scrollX", "scrollY"):
            if a["action"] == "scroll":
                a.setdefault(name, 0)
    assert got == case["actions"]


def test_answers() -> None:
    answer = ComputerResult(screenshot=Screenshot(png="QUJD", width=2, height=1), cursor=Point(x=3, y=4))
    assert computer.openai_output("c1", answer)["output"]["image_url"] == "data:image/png;base64,QUJD"
    said = computer.anthropic_result("t1", answer)
    assert said["tool_use_id"] == "t1"
    assert [c["type"] for c in said["content"]] == ["text", "image"]
    assert said["content"][0]["text"] == "X=3,Y=4"
    assert said["content"][1]["source"]["data"] == "QUJD"
