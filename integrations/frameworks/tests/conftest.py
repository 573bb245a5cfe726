from collections.abc import Iterator

import pytest

from scripts.daemon import Daemon, _alone, anyio_backend, daemon, program

__all__ = ["_alone", "anyio_backend", "daemon", "program"]


@pytest.fixture(autouse=True)
def _e2b(daemon: Daemon, monkeypatch: pytest.MonkeyPatch, _alone: None) -> Iterator[None]:
    """What eval "$(atoll e2b env)" sets; and every test leaves no sandbox."""
    for line in daemon.cli("e2b", "env", "--format", "dotenv").splitlines():
        name, _, value = line.partition("=")
        monkeypatch.setenv(name, value.strip("'\""))
    yield
    assert daemon.cli("ls", "-q") == ""
