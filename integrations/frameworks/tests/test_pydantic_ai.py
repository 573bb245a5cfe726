from collections.abc import AsyncIterator

import pytest
from pydantic_ai.workspaces import Workspace, WorkspaceTimeoutError
from pydantic_ai_harness.e2b_sandbox import E2BSandbox, E2BSandboxBackend

from tests import page

pytestmark = pytest.mark.anyio


@pytest.fixture
async def workspace() -> AsyncIterator[Workspace]:
    backend = E2BSandboxBackend(sandbox_timeout=600, env={"GREETING": "hello"})
    try:
        yield Workspace(backend)
    finally:
        if backend.ref:
            await E2BSandbox[None]().destroy(backend.ref)


def test_page() -> None:
    page.check("pydantic-ai")


async def test_workspace(workspace: Workspace) -> None:
    done = await workspace.run(["sh", "-c", "echo $GREETING; pwd; echo oops >&2; exit 3"])
    assert (done.exit_code, done.stdout, done.stderr) == (3, "hello\n/home/user\n", "oops\n")
    data = bytes(range(256))
    await workspace.write_bytes("a/b.bin", data)
    assert await workspace.read_bytes("a/b.bin") == data
    with pytest.raises(FileNotFoundError):
        await workspace.read_bytes("missing")


async def test_timeout(workspace: Workspace) -> None:
    with pytest.raises(WorkspaceTimeoutError):
        await workspace.run(["sh", "-c", "echo $$ > pid; sleep 600"], timeout=2)
    assert (await workspace.run(["sh", "-c", "kill -0 $(cat pid)"])).exit_code == 1
