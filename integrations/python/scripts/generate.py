"""Generate models.py, _sync and its tests. With a directory as argument, write copies there."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import unasync

HERE = Path(__file__).resolve().parent.parent
SOURCE = HERE / "src" / "atoll"
OPENAPI = HERE.parent.parent / "docs" / "openapi.json"

# The daemon checks its input. Checks here would refuse answers of a newer daemon.
CHECKS = {"maxLength", "minLength", "maxItems", "minItems", "maximum", "minimum", "pattern", "additionalProperties"}
NOTES = {"examples", "contentEncoding"}

NAMES = {
    "AsyncIterable": "Iterable",
    "AsyncIterator": "Iterator",
    "AsyncGenerator": "Generator",
    "asynccontextmanager": "contextmanager",
    "aclosing": "closing",
    "aclose": "close",
    "aread": "read",
    "aiter_bytes": "iter_bytes",
    "aiter_lines": "iter_lines",
    "connect_async": "connect",
    "SandboxClient": "SyncSandboxClient",
    "SandboxHandle": "SyncSandboxHandle",
    "run_shell": "run_shell_sync",
    "run_python": "run_python_sync",
    "_io_async": "_io_sync",
    "_async": "_sync",
}


def relaxed(schema: Any) -> Any:
    if isinstance(schema, list):
        return [relaxed(s) for s in schema]
    if not isinstance(schema, dict):
        return schema
    keep = {k: relaxed(v) for k, v in schema.items() if k not in CHECKS | NOTES or isinstance(v, dict)}
    keep.get("properties", {}).pop("$schema", None)
    return keep


def models(out: Path) -> None:
    document = relaxed(json.loads(OPENAPI.read_text()))
    with tempfile.TemporaryDirectory() as tmp:
        source, made = Path(tmp, "openapi.json"), Path(tmp, "models.py")
        source.write_text(json.dumps(document))
        options = """
            --input-file-type=openapi --openapi-scopes=schemas --output-model-type=pydantic_v2.BaseModel --base-class=atoll._model.Model
            --use-annotated --snake-case-field --no-alias --target-python-version=3.10 --use-standard-collections --use-union-operator
            --enum-field-as-literal=all --disable-timestamp --use-schema-description --use-field-description
            --formatters ruff-format ruff-check --custom-file-header
        """.split()  # noqa: SIM905
        header = '"""Values of the API. Generated from docs/openapi.json by scripts/generate.py; do not edit."""'
        command = [str(Path(sys.executable).parent / "datamodel-codegen"), "--input", str(source), "--output", str(made), *options, header]
        subprocess.run(command, check=True, cwd=tmp)
        text = made.read_text().replace("class CapabilityDocument(Model)", "class CapabilityDocument(Cells)")
        out.write_text(re.sub(r"(from \S*_model import) Model", r"\1 Cells, Model", text))


def twin(source: Path, out: Path) -> None:
    sources = sorted(source.glob("*.py"))
    names = dict(NAMES)
    for path in sources:
        for name in re.findall(r"\bAsync[A-Z]\w+", path.read_text()):
            names.setdefault(name, name.removeprefix("Async"))
    shutil.rmtree(out, ignore_errors=True)
    rule = unasync.Rule(fromdir=f"{source}/", todir=f"{out}/", additional_replacements=names)
    unasync.unasync_files([str(s) for s in sources], [rule])
    for path in out.glob("*.py"):
        path.write_text("# Generated from _async by scripts/generate.py; do not edit.\n" + path.read_text())


def main() -> None:
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else SOURCE
    models(out / "models.py")
    twin(SOURCE / "_async", out / "_sync")
    tests = HERE / "tests" if out == SOURCE else out / "tests"
    twin(HERE / "tests" / "_async", tests / "_sync")
    for command in (["check", "-q", "--fix", "--select", "I"], ["format", "-q"]):
        ruff = [str(Path(sys.executable).parent / "ruff"), *command, "--config", str(HERE / "pyproject.toml")]
        subprocess.run([*ruff, str(out / "models.py"), str(out / "_sync"), str(tests / "_sync")], check=True)


if __name__ == "__main__":
    main()
