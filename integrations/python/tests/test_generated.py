"""The generated files match their sources."""

from __future__ import annotations

import filecmp
import json
import subprocess
import sys
from pathlib import Path

from atoll import models
from atoll._model import Model
from scripts.generate import HERE, OPENAPI, SOURCE


def test_generated(tmp_path: Path) -> None:
    subprocess.run([sys.executable, str(HERE / "scripts" / "generate.py"), str(tmp_path)], check=True)
    for made in tmp_path.rglob("*.py"):
        name = made.relative_to(tmp_path)
        kept = HERE / name if name.parts[0] == "tests" else SOURCE / name
        assert filecmp.cmp(made, kept, shallow=False), f"{kept} is old: run scripts/generate.py"


def test_names() -> None:
    """Each field of the document has its JSON name."""
    for name, schema in json.loads(OPENAPI.read_text())["components"]["schemas"].items():
        kind = getattr(models, name)
        if isinstance(kind, type) and issubclass(kind, Model):
            make = kind.model_config["alias_generator"]
            assert callable(make)
            assert {make(field) for field in kind.model_fields} == set(schema["properties"]) - {"$schema"}, name
