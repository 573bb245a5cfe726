"""The files of a sandbox."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Sequence

from atoll import errors
from atoll import models as m
from atoll._async._conn import AsyncConn, clean
from atoll.types import FileEvent


class AsyncFiles:
    """The files of a sandbox. Paths are absolute."""

    def __init__(self, conn: AsyncConn, base: str):
        self._conn, self._base = conn, f"{base}/files"

    async def stat(self, path: str) -> m.FileInfo:
        """Describe a file. It does not follow a symbolic link."""
        return await self._conn.get(m.FileInfo, "GET", f"{self._base}/stat", query={"path": path})

    async def exists(self, path: str) -> bool:
        try:
            await self.stat(path)
        except errors.NotFoundError:
            return False
        return True

    async def list(self, path: str, depth: int | None = None) -> AsyncIterator[m.FileInfo]:
        """The files in a directory, down to depth levels (1; -1: all)."""
        async for line in self._conn.lines(f"{self._base}/list", clean(path=path, depth=depth)):
            yield m.FileInfo.model_validate(line)

    async def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        """The content of a file, or a part of it."""
        return b"".join([chunk async for chunk in self.stream(path, offset, length)])

    async def stream(self, path: str, offset: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        """The content of a file in chunks."""
        headers = {}
        if offset or length is not None:
            if length == 0:
                return
            headers["Range"] = f"bytes={offset}-" + (str(offset + length - 1) if length is not None else "")
        async with self._conn.stream("GET", self._base, {"path": path}, headers=headers) as answer:
            async for chunk in answer.aiter_bytes():
                yield chunk

    async def write(
        self,
        path: str,
        content: str | bytes | AsyncIterable[bytes],
        *,
        mode: int | None = None,
        owner: str | None = None,
        parents: bool = True,
        replace: bool = True,
        expect: str | None = None,
    ) -> m.FileInfo:
        """Make or replace a file atomically. With replace=False a file that exists is AlreadyExistsError.

        With expect, the SHA-256 of the present content in hexadecimal, a file with another content is ConflictError.
        """
        query = clean(
            path=path, mode=None if mode is None else f"{mode:o}", owner=owner, noParents=not parents, noReplace=not replace, expect=expect
        )
        data = content.encode() if isinstance(content, str) else content
        answer = await self._conn.send("PUT", self._base, query, data, {"Content-Type": "application/octet-stream"})
        return m.FileInfo.model_validate_json(answer.content)

    async def mkdir(self, path: str, *, mode: int | None = None, owner: str | None = None, parents: bool = True) -> None:
        """Make a directory. With parents, one that exists is success."""
        await self._conn.call("POST", f"{self._base}/mkdir", m.MkdirInputBody(path=path, mode=mode, owner=owner, parents=parents))

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        await self._conn.call("DELETE", self._base, query=clean(path=path, recursive=recursive))

    async def move(self, source: str, destination: str, *, overwrite: bool = False) -> None:
        await self._conn.call("POST", f"{self._base}/move", {"from": source, "to": destination, "overwrite": overwrite})

    async def export(self, path: str, *, exclude: Sequence[str] = (), zstd: bool = False) -> AsyncIterator[bytes]:
        """A file or tree as a tar stream."""
        query = clean(path=path, exclude=[*exclude], compress="zstd" if zstd else None)
        async with self._conn.stream("GET", f"{self._base}/archive", query) as answer:
            async for chunk in answer.aiter_bytes():
                yield chunk

    async def extract(self, path: str, archive: bytes | AsyncIterable[bytes], *, owner: str | None = None) -> None:
        """Unpack a tar stream, plain or compressed with zstd, into a directory. On an error nothing is unpacked."""
        await self._conn.send("PUT", f"{self._base}/archive", clean(path=path, owner=owner), archive, {"Content-Type": "application/x-tar"})

    async def search(
        self,
        path: str,
        content: str | None = None,
        *,
        name: str | None = None,
        literal: bool = False,
        ignore_case: bool = False,
        exclude: Sequence[str] | None = None,
        max: int | None = None,
    ) -> m.SearchResult:
        """Search files below a directory by content (a regular expression, RE2), by name (such as *.py or src/**/*.py), or by both."""
        names = None if exclude is None else [*exclude]
        body = m.SearchRequest(path=path, content=content, name=name, literal=literal, ignore_case=ignore_case, exclude=names, max=max)
        return await self._conn.get(m.SearchResult, "POST", f"{self._base}/search", body)

    async def patch(self, path: str, patch: str, *, dry_run: bool = False) -> m.PatchResult:
        """Apply a unified diff, or a patch of the apply_patch tool, in a directory. All of it is applied, or nothing."""
        return await self._conn.get(m.PatchResult, "POST", f"{self._base}/patch", {"path": path, "patch": patch, "dryRun": dry_run})

    async def watch(self, path: str, *, recursive: bool = False) -> AsyncIterator[FileEvent]:
        """Changes as they happen."""
        async for data in self._conn.events(f"{self._base}/watch", clean(path=path, recursive=recursive)):
            yield FileEvent(data["op"], data["path"], data.get("dir", False), data.get("revision", 0), data.get("leaseEpoch", 0))
