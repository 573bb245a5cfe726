"""Computer use: what OpenAI's and Anthropic's models ask for, as actions of Sandbox.computer.

    answer = sandbox.computer(*computer.from_openai(call["action"]), computer.LOOK)
    reply = computer.openai_output(call["call_id"], answer)

Both models get a screenshot after each call, which LOOK takes. Requests that are not known raise ValueError.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from atoll.models import ComputerAction, ComputerResult

__all__ = ["LOOK", "anthropic_result", "from_anthropic", "from_openai", "openai_output"]

LOOK = ComputerAction(action="screenshot")

NOTCH = 100  # pixels per notch of the wheel
PAUSE_MS = 2000  # OpenAI's wait has no duration
CLICKS = {
    "left_click": ("left", 1), "right_click": ("right", 1), "middle_click": ("middle", 1),
    "double_click": ("left", 2), "triple_click": ("left", 3),
}  # fmt: skip
DIRECTIONS = {"up": (0, -1), "down": (0, 1), "left": (-1, 0), "right": (1, 0)}


def from_openai(action: Mapping[str, Any]) -> list[ComputerAction]:
    """The actions of an action of OpenAI's computer tool (computer_call), or of each of its list of actions."""
    kind = action.get("type")
    at = {k: action[k] for k in ("x", "y", "keys") if action.get(k) is not None}
    match kind:
        case "screenshot":
            return [LOOK]
        case "click" | "double_click":
            button = {"wheel": "middle"}.get(action.get("button", "left"), action.get("button", "left"))
            return [_action(action="click", button=button, count=2 if kind == "double_click" else 1, **at)]
        case "move":
            return [_action(action="move", **at)]
        case "drag":
            return [_action(action="drag", path=action["path"], **at)]
        case "scroll":
            return [_action(action="scroll", scroll_x=action.get("scroll_x", 0), scroll_y=action.get("scroll_y", 0), **at)]
        case "keypress":
            return [_action(action="key", keys=action["keys"])]
        case "type":
            return [_action(action="type", text=action["text"])]
        case "wait":
            return [_action(action="wait", duration_ms=PAUSE_MS)]
    raise ValueError(f"OpenAI's computer tool has no action {kind!r}")


def openai_output(call_id: str, answer: ComputerResult) -> dict[str, Any]:
    """The answer to a computer_call: the screenshot."""
    url = f"data:image/png;base64,{answer.screenshot.png if answer.screenshot else ''}"
    return {"type": "computer_call_output", "call_id": call_id, "output": {"type": "computer_screenshot", "image_url": url}}


def from_anthropic(given: Mapping[str, Any]) -> list[ComputerAction]:
    """The actions of the input of Anthropic's computer-use tool (computer_20250124 and later)."""
    kind, text = str(given.get("action")), given.get("text")
    at: dict[str, Any] = {}
    if given.get("coordinate") is not None:
        at["x"], at["y"] = given["coordinate"]
    held = {**at, "keys": text.split("+")} if text else at
    if kind in CLICKS:
        button, count = CLICKS[kind]
        return [_action(action="click", button=button, count=count, **held)]
    match kind:
        case "screenshot" | "zoom":
            x0, y0, x1, y1 = given.get("region") or (0, 0, 0, 0)
            region = {"x": x0, "y": y0, "width": x1 - x0, "height": y1 - y0} if kind == "zoom" else None
            return [_action(action="screenshot", region=region)]
        case "cursor_position":
            return [_action(action="cursor")]
        case "mouse_move":
            return [_action(action="move", **at)]
        case "left_mouse_down" | "left_mouse_up":
            return [_action(action=kind.removeprefix("left_mouse_"), **at)]
        case "left_click_drag":
            points = [dict(zip("xy", given[name], strict=True)) for name in ("start_coordinate", "coordinate")]
            return [_action(action="drag", path=points, keys=held.get("keys"))]
        case "scroll":
            right, down = DIRECTIONS[given["scroll_direction"]]
            amount = NOTCH * int(given["scroll_amount"])
            return [_action(action="scroll", scroll_x=right * amount, scroll_y=down * amount, **held)]
        case "type":
            return [_action(action="type", text=text)]
        case "key" | "hold_key":
            held_ms = int(1000 * given["duration"]) if kind == "hold_key" else None
            return [_action(action="key", keys=(text or "").split("+"), duration_ms=held_ms, count=given.get("repeat"))]
        case "wait":
            return [_action(action="wait", duration_ms=int(1000 * given["duration"]))]
    raise ValueError(f"Anthropic's computer-use tool has no action {kind!r}")


def anthropic_result(tool_use_id: str, answer: ComputerResult) -> dict[str, Any]:
    """The tool_result of a tool_use: the screenshot, or where the pointer is."""
    content: list[dict[str, Any]] = []
    if answer.cursor:
        content.append({"type": "text", "text": f"X={answer.cursor.x},Y={answer.cursor.y}"})
    if answer.screenshot:
        content.append({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": answer.screenshot.png}})
    return {"type": "tool_result", "tool_use_id": tool_use_id, "content": content}


def _action(**fields: Any) -> ComputerAction:
    return ComputerAction(**{k: v for k, v in fields.items() if v is not None})
