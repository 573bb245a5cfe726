import asyncio
from collections.abc import AsyncIterator

import pytest
from inspect_ai.util import OutputLimitExceededError, SandboxEnvironmentLimits, SandboxUnavailableError
from inspect_ai.util._sandbox.self_check import *  # noqa: F403

import atoll
from atoll_frameworks.inspect import LABEL, AtollSandboxEnvironment, AtollSpec
from scripts.daemon import Daemon
from tests import page

AS_ROOT = "files are read and written as root"
KNOWN = {
    "test_read_file_not_allowed": AS_ROOT,
    "test_write_text_file_without_permissions": AS_ROOT,
    "test_write_binary_file_without_permissions": AS_ROOT,
    "test_exec_large_command": "Atoll takes 1 MiB of arguments, a few bytes less than the check has",
    "test_exec_as_user": "adduser of the image host wants PAM; test_user has other users",
}
"""Checks of Inspect's own suite that do not apply, and why."""

pytestmark = pytest.mark.anyio


@pytest.fixture
async def sandbox_env(request: pytest.FixtureRequest) -> AsyncIterator[AtollSandboxEnvironment]:
    if reason := KNOWN.get(request.node.originalname):
        request.applymarker(pytest.mark.xfail(strict=True, reason=reason))
    config = AtollSpec(workdir="/tmp")
    environments = await AtollSandboxEnvironment.sample_init("checks", config, {})
    try:
        yield environments["default"].as_type(AtollSandboxEnvironment)
    finally:
        await AtollSandboxEnvironment.sample_cleanup("checks", config, environments, False)


def test_page() -> None:
    page.check("inspect")


async def test_output_limit(sandbox_env: AtollSandboxEnvironment) -> None:
    with pytest.raises(OutputLimitExceededError) as caught:
        await sandbox_env.exec(["head", "-c", "12000000", "/dev/zero"])
    assert len(caught.value.truncated_output or "") == SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE


async def test_a_sandbox_that_is_gone(sandbox_env: AtollSandboxEnvironment) -> None:
    await sandbox_env.sandbox.destroy()
    with pytest.raises(SandboxUnavailableError):
        await sandbox_env.exec(["true"])


async def test_connection(sandbox_env: AtollSandboxEnvironment, daemon: Daemon) -> None:
    assert daemon.cli("ls", "-q").strip() in (sandbox_env.sandbox.id, sandbox_env.sandbox.name)
    command = (await sandbox_env.connection()).command.split()
    assert command[:3] == ["atoll", "exec", "-it"]
    assert sandbox_env.sandbox.id in daemon.cli("inspect", command[3])


async def test_user(sandbox_env: AtollSandboxEnvironment) -> None:
    assert (await sandbox_env.exec(["whoami"])).stdout == "root\n"
    assert (await sandbox_env.exec(["whoami"], user="nobody")).stdout == "nobody\n"
    many = await sandbox_env.exec(["sh", "-c", "whoami; wc -c; ls /tmp"], user="nobody", input="x" * (1 << 20))
    assert many.stdout == "nobody\n1048576\n"


async def test_nothing_is_left_where_a_sample_is_cancelled(daemon: Daemon) -> None:
    created = asyncio.create_task(AtollSandboxEnvironment.sample_init("cancelled", None, {}))
    while not daemon.cli("ls", "-q"):
        await asyncio.sleep(0)
    created.cancel()
    done = (await asyncio.gather(created, return_exceptions=True))[0]
    if isinstance(done, dict):
        await AtollSandboxEnvironment.sample_cleanup("cancelled", None, done, True)


async def test_cleanup_of_the_command_line(daemon: Daemon) -> None:
    with atoll.connect() as client, client.create() as other:
        await AtollSandboxEnvironment.sample_init("killed", "host", {})
        (left,) = client.list(labels={LABEL: "killed"})
        await AtollSandboxEnvironment.cli_cleanup("another")
        assert client.get(left.id).info.state == "running"
        await AtollSandboxEnvironment.cli_cleanup(None)
        assert [sandbox.id for sandbox in client.list()] == [other.id]
