from collections.abc import AsyncIterator

import pytest
from google.adk.integrations.e2b import E2BEnvironment

from tests import page

pytestmark = pytest.mark.anyio


@pytest.fixture
async def environment() -> AsyncIterator[E2BEnvironment]:
    it = E2BEnvironment(timeout=600, env_vars={"GREETING": "hello"})
    await it.initialize()
    try:
        yield it
    finally:
        await it.close()


def test_page() -> None:
    page.check("google-adk")


async def test_environment(environment: E2BEnvironment) -> None:
    done = await environment.execute("echo $GREETING; pwd; echo oops >&2; exit 3")
    assert (done.exit_code, done.stdout, done.stderr) == (3, "hello\n/home/user\n", "oops\n")
    data = bytes(range(256))
    await environment.write_file("a/b.bin", data)
    assert await environment.read_file("a/b.bin") == data
    assert (await environment.execute("wc -c < /home/user/a/b.bin")).stdout == "256\n"
    with pytest.raises(FileNotFoundError):
        await environment.read_file("missing")


async def test_timeout(environment: E2BEnvironment) -> None:
    done = await environment.execute("echo $$ > pid; exec sleep 600", timeout=1)
    assert done.timed_out
    assert (await environment.execute("kill -0 $(cat pid)")).exit_code == 1


async def test_a_sandbox_that_ended_is_replaced(environment: E2BEnvironment) -> None:
    assert environment._sandbox
    await environment._sandbox.kill()
    assert (await environment.execute("echo back")).stdout == "back\n"
