"""Workspaces as the SDK stores them."""

from __future__ import annotations

import copy
import io
import json
import tarfile
import tempfile
from collections.abc import AsyncIterator
from typing import IO

from agents.sandbox.util.tar_utils import validate_tarfile

MAGIC = b"ATOLL_SANDBOX_SNAPSHOT_V1\n"
CHUNK = 1 << 20


def native(snapshot: str) -> io.BytesIO:
    """The reference to a snapshot of Atoll."""
    return io.BytesIO(MAGIC + json.dumps({"snapshot": snapshot}).encode())


def native_snapshot(file: IO[bytes]) -> str | None:
    """The snapshot that a file refers to, if it does."""
    head = file.read(len(MAGIC))
    if head == MAGIC:
        return str(json.loads(file.read(CHUNK))["snapshot"])
    file.seek(0)
    return None


def new() -> IO[bytes]:
    """A file without a name."""
    return tempfile.TemporaryFile()


def spool(data: io.IOBase) -> IO[bytes]:
    """A copy of a stream that can be read more than once."""
    out = new()
    while chunk := data.read(CHUNK):
        out.write(chunk.encode() if isinstance(chunk, str) else chunk)
    out.seek(0)
    return out


def portable(raw: IO[bytes]) -> IO[bytes]:
    """An archive with names below its root, and only directories, files and symbolic links, which every provider accepts."""
    out = new()
    with tarfile.open(fileobj=raw) as source, tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as to:
        for found in source:
            member, content = copy.copy(found), None
            if member.islnk():
                target = source.getmember(member.linkname)
                content, member.type, member.size, member.linkname = source.extractfile(target), tarfile.REGTYPE, target.size, ""
            elif member.isfile():
                content = source.extractfile(found)
            elif not (member.isdir() or member.issym()):
                continue
            member.name = member.name.partition("/")[2] or "."
            member.pax_headers = {k: v for k, v in member.pax_headers.items() if k not in ("path", "linkpath", "size")}
            to.addfile(member, content)
    raw.close()
    out.seek(0)
    return out


def validate(file: IO[bytes]) -> None:
    with tarfile.open(fileobj=file, mode="r:*") as tar:
        validate_tarfile(tar)  # it is unpacked in the sandbox, so links may have any target
    file.seek(0)


async def chunks(file: IO[bytes]) -> AsyncIterator[bytes]:
    while chunk := file.read(CHUNK):
        yield chunk
