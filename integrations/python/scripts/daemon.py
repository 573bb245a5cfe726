"""A real daemon for the tests: the program $ATOLL_BIN, with a state directory of its own."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass
class Daemon:
    program: str
    state: Path
    host: str
    """Its address of TCP."""
    key: str

    @property
    def socket(self) -> str:
        return f"unix://{self.state}/atoll.sock"

    def cli(self, *args: str) -> str:
        return subprocess.run([self.program, *args, "--state-dir", str(self.state)], check=True, capture_output=True, text=True).stdout


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def program() -> str:
    if not (path := os.environ.get("ATOLL_BIN")):
        pytest.exit("set ATOLL_BIN to the program under test", 2)
    return path


@pytest.fixture(scope="session")
def daemon(program: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    state = tmp_path_factory.mktemp("state")
    state.chmod(0o755)  # kernels run as nobody
    command = [program, "up", "--state-dir", str(state), "--listen", "127.0.0.1:0", "--plain", "--session-grace", "1s", "--e2b=127.0.0.1:0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        host = ""
        for line in process.stderr:
            if "listening on 127." in line:
                host = "http://" + line.split()[-1]
                break
        assert host, "the daemon did not start"
        it = Daemon(program, state, host, "")
        it.key = it.cli("key", "create", "tests").strip()
        try:
            yield it
            left = it.cli("ls", "-q").split()
        finally:
            it.cli("rm", "--all", "-f")
            process.send_signal(signal.SIGTERM)
            process.communicate()
    assert not left, f"the tests left sandboxes: {left}"


@pytest.fixture(autouse=True)
def _alone(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemon of the tests is the local one."""
    monkeypatch.setenv("ATOLL_STATE_DIR", str(daemon.state))
    for name in ("ATOLL_HOST", "ATOLL_KEY", "ATOLL_NO_DAEMON"):
        monkeypatch.delenv(name, raising=False)
