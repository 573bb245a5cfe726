import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy
import PIL
import pytest
from e2b import TimeoutException
from smolagents import AgentError, AgentLogger, E2BExecutor

from scripts.daemon import Daemon
from tests import page


@pytest.fixture(scope="module", autouse=True)
def template(daemon: Daemon, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The template of the page, made of the packages of this environment."""
    directory = tmp_path_factory.mktemp("template")
    shutil.copy(page.ROOT / "integrations/frameworks/examples/smolagents.Dockerfile", directory / "Dockerfile")
    for package in (numpy, PIL):
        at = Path(package.__path__[0])
        libraries = {"numpy": "numpy.libs", "PIL": "pillow.libs"}[at.name]
        for name in (at.name, libraries):
            shutil.copytree(at.parent / name, directory / "packages" / name)
    daemon.cli("template", "build", "-t", "smolagents", str(directory))


@pytest.fixture
def executor() -> Iterator[E2BExecutor]:
    it = E2BExecutor([], AgentLogger(), template="smolagents:latest")
    try:
        yield it
    finally:
        it.cleanup()


def test_page() -> None:
    page.check("smolagents")


def test_executor(executor: E2BExecutor) -> None:
    executor.send_variables({"numbers": [6, 7]})
    assert executor("import math\nmath.prod(numbers)").output == "42"
    assert executor("print(open('/proc/version').read())").logs.startswith("Linux version")
    with pytest.raises(AgentError, match="ZeroDivisionError"):
        executor("1 / 0")
    shell = "import subprocess\nsubprocess.run(['sh', '-c', 'echo out; exit 7'], capture_output=True)"
    assert "returncode=7, stdout=b'out\\n'" in str(executor(shell).output)


def test_timeout(executor: E2BExecutor) -> None:
    executor("kept = 5")
    with pytest.raises(TimeoutException):
        executor.sandbox.run_code("while True: pass", timeout=1)
    assert executor("6 * 7").output == "42"
