"""The section of a framework shows parts of its example, and what the example prints."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
TITLES = {"google-adk": "Google ADK", "harbor": "Harbor", "inspect": "Inspect", "pydantic-ai": "Pydantic AI"}


def section(name: str) -> str:
    """The part of the page of frameworks that is about one of them."""
    text = (ROOT / "docs/guide/frameworks.md").read_text()
    (found,) = re.findall(rf"^## {TITLES.get(name, name)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    return str(found)


def check(name: str) -> None:
    page = section(name)
    assert len(page.splitlines()) <= 40
    example = f"integrations/frameworks/examples/{name.replace('-', '_')}_agent.py"
    assert f"python {example}\n" in page
    program = (ROOT / example).read_text()
    for shown in blocks(page, "python"):
        assert shown in program
    expected = "".join(blocks(page, "text"))
    ran = subprocess.run([sys.executable, example], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert (ran.returncode, ran.stdout) == (0, expected), ran.stderr


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
