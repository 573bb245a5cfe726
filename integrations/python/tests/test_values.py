"""Values do not print secrets, and canceled calls leave nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import datetime, timezone

import pytest

import atoll
from atoll import Spec, models


def test_secrets_are_not_shown() -> None:
    later = datetime(2030, 1, 1, tzinfo=timezone.utc)
    for value in (
        models.NewSecret(name="n", value="hunter2"),
        models.SecretValue(value_base64="hunter2"),
        models.PortToken(token="hunter2", expires=later),
    ):
        assert "hunter2" not in repr(value) + str(value)
    with pytest.raises(ValueError, match="value") as caught:
        models.NewSecret.model_validate({"name": "n", "value": ["hunter2"]})
    assert "hunter2" not in str(caught.value)


@pytest.mark.anyio
@pytest.mark.parametrize("seconds", [0.001, 0.02, 0.1])
async def test_canceled_create(seconds: float) -> None:
    async with await atoll.connect_async() as client:
        task = asyncio.create_task(client.create(Spec(labels={"test": "canceled"})))
        await asyncio.sleep(seconds)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await (await task).destroy()  # it was faster
        assert [s async for s in client.list({"test": "canceled"})] == []


@pytest.mark.anyio
async def test_canceled_pull() -> None:
    """A registry that does not answer holds up nobody who has given up."""
    asked = asyncio.Event()

    async def hang(_r: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        writer.close()

    registry = await asyncio.start_server(hang, "127.0.0.1", 0)
    port = registry.sockets[0].getsockname()[1]
    async with await atoll.connect_async() as client:
        task = asyncio.create_task(client.create(Spec(name="given-up", image=f"127.0.0.1:{port}/none")))
        await asked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with await client.create(Spec(name="given-up")):  # the name is free
            pass
    registry.close()
