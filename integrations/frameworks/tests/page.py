"""The page of a framework shows parts of its example, and what the example prints."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def check(name: str) -> None:
    page = (ROOT / f"docs/guide/frameworks/{name}.md").read_text()
    assert len(page.splitlines()) <= 40
    example = f"integrations/frameworks/examples/{name.replace('-', '_')}_agent.py"
    assert f"python {example}\n" in page
    program = (ROOT / example).read_text()
    for shown in blocks(page, "python"):
        assert shown in program
    (expected,) = blocks(page, "text")
    ran = subprocess.run([sys.executable, example], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert (ran.returncode, ran.stdout) == (0, expected), ran.stderr


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
