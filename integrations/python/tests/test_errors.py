"""The classes of errors are the codes of the API."""

from __future__ import annotations

import pickle
import re

import pytest

from atoll import errors
from scripts.generate import OPENAPI


def test_codes() -> None:
    text = (OPENAPI.parent / "reference" / "errors.md").read_text()
    assert set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)) == set(errors.AtollError.classes)


def test_builtin_classes() -> None:
    assert issubclass(errors.TimedOutError, TimeoutError)
    assert issubclass(errors.UnavailableError, ConnectionError)


@pytest.mark.parametrize("code", [*errors.AtollError.classes, "newer"])
def test_from_problem(code: str) -> None:
    problem = {"code": code, "detail": "d", "op": "o", "subject": "s", "hint": "h", "rule": "r"}
    error = errors.from_problem(problem, {"retry-after": "7"})
    assert type(error) is errors.AtollError.classes.get(code, errors.AtollError)
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.code, str(copy), copy.op, copy.rule, copy.retry_after) == (code, "s: d (h)", "o", "r", 7)


def test_not_atoll() -> None:
    assert errors.from_answer(502, b"<html>").code == "unavailable"
