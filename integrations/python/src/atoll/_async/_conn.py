"""Requests to a daemon."""

from __future__ import annotations

import json
from collections.abc import AsyncIterable, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import httpx
from websockets.exceptions import InvalidHandshake, InvalidStatus

from atoll import errors
from atoll._address import Address
from atoll._io_async import WebSocket, open_websocket
from atoll._model import Model

M = TypeVar("M", bound=Model)
Query = Mapping[str, Any]

CONNECT_SECONDS = 10.0


class AsyncConn:
    """A connection to a daemon, with separate headers for each request."""

    def __init__(self, address: Address, http: httpx.AsyncClient | None = None, headers: dict[str, str] | None = None):
        self.address = address
        self.headers = headers or {}
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64, keepalive_expiry=60)
        self.http = http or httpx.AsyncClient(
            base_url=address.base,
            headers={**address.headers(), "Accept-Encoding": "identity"},
            timeout=httpx.Timeout(None, connect=CONNECT_SECONDS),
            limits=limits,
            transport=httpx.AsyncHTTPTransport(uds=address.socket, limits=limits) if address.socket else None,
        )

    def with_headers(self) -> AsyncConn:
        """The same connection for requests that carry other headers."""
        return AsyncConn(self.address, self.http)

    def _headers(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        return {**self.headers, **(more or {})}

    @asynccontextmanager
    async def stream(
        self,
        method: str,
        path: str,
        query: Query | None = None,
        content: bytes | AsyncIterable[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> AsyncIterator[httpx.Response]:
        """Send a request and let the caller read the body of the response. An error status is raised as an AtollError."""
        try:
            async with self.http.stream(method, path, params=query, content=content, headers=self._headers(headers)) as answer:
                if not answer.is_success:
                    raise errors.from_answer(answer.status_code, await answer.aread(), answer.headers)
                yield answer
        except httpx.HTTPError as e:
            raise errors.unreachable(e) from e

    async def send(
        self,
        method: str,
        path: str,
        query: Query | None = None,
        content: bytes | AsyncIterable[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        """Send a request and read the response. An error status is raised as an AtollError."""
        try:
            answer = await self.http.request(method, path, params=query, content=content, headers=self._headers(headers))
        except httpx.HTTPError as e:
            raise errors.unreachable(e) from e
        if not answer.is_success:
            raise errors.from_answer(answer.status_code, answer.content, answer.headers)
        return answer

    async def call(
        self,
        method: str,
        path: str,
        body: Model | Mapping[str, Any] | None = None,
        query: Query | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """Make a request with JSON bodies."""
        content = None
        if body is not None:
            content = json.dumps(body.to_json() if isinstance(body, Model) else body).encode()
            headers = {"Content-Type": "application/json", **(headers or {})}
        answer = await self.send(method, path, query, content, headers)
        try:
            return json.loads(answer.content) if answer.content else None
        except ValueError as e:
            raise errors.unreachable(e) from e

    async def get(
        self,
        kind: type[M],
        method: str,
        path: str,
        body: Model | Mapping[str, Any] | None = None,
        query: Query | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> M:
        """Make a request and return the response as a value of the API."""
        data = await self.call(method, path, body, query, headers)
        try:
            return kind.model_validate(data)
        except ValueError as e:
            raise errors.UnavailableError(f"unexpected answer from the daemon: {e}", op="client.request") from e

    async def events(self, path: str, query: Query | None = None) -> AsyncIterator[Any]:
        """The data of server-sent events."""
        kind = ""
        async with self.stream("GET", path, query) as answer:
            async for line in answer.aiter_lines():
                if line.startswith("event: "):
                    kind = line[7:]
                elif line.startswith("data: "):
                    data = json.loads(line[6:])
                    if kind == "error":
                        raise errors.from_problem(data) or errors.unreachable()
                    if kind == "end":
                        return
                    yield data

    async def lines(self, path: str, query: Query | None = None, body: Model | None = None) -> AsyncIterator[Any]:
        """JSON lines, the answer to GET, or to POST with a body."""
        content = None if body is None else json.dumps(body.to_json()).encode()
        headers = None if body is None else {"Content-Type": "application/json"}
        async with self.stream("GET" if body is None else "POST", path, query, content, headers) as answer:
            async for line in answer.aiter_lines():
                data = json.loads(line)
                if "error" in data and (error := errors.from_problem(data["error"])):
                    raise error
                yield data

    async def websocket(self, path: str) -> WebSocket:
        uri = "ws" + self.address.base.removeprefix("http") + path
        headers = {**self.address.headers(), **self.headers}
        try:
            return await open_websocket(
                uri, self.address.socket, additional_headers=headers, compression=None, max_size=None, max_queue=None,
                open_timeout=CONNECT_SECONDS, ping_interval=30, ping_timeout=30, close_timeout=2,
            )  # fmt: skip
        except InvalidStatus as e:
            raise errors.from_answer(e.response.status_code, bytes(e.response.body or b""), e.response.headers) from e
        except (InvalidHandshake, OSError, TimeoutError) as e:
            raise errors.unreachable(e) from e

    async def aclose(self) -> None:
        await self.http.aclose()


def clean(**query: Any) -> dict[str, Any]:
    """A query without empty parameters."""
    return {k: "true" if v is True else v for k, v in query.items() if v is not None and v is not False and v != []}


def labels_query(labels: Mapping[str, str] | None) -> list[str]:
    return [f"{k}={v}" for k, v in (labels or {}).items()]
