# Generated from _async by scripts/generate.py; do not edit.
"""Git repositories in a sandbox."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterator, Sequence

from atoll import models as m
from atoll._sync._conn import Conn, clean
from atoll.types import GitEvent


class Git:
    """Reads the git repository that a directory of a sandbox is in, with the sandbox's own git. It changes nothing."""

    def __init__(self, conn: Conn, base: str, path: str | None):
        self._conn, self._base, self._path = conn, f"{base}/git", path

    def status(self) -> m.GitStatus:
        """The branch and the files that differ from the last commit. Outside of a repository, is_repo is False."""
        return self._conn.get(m.GitStatus, "GET", f"{self._base}/status", query=clean(path=self._path))

    def watch(self) -> Iterator[GitEvent]:
        """The state of the repository, and then each state that differs from the one before."""
        for data in self._conn.events(f"{self._base}/watch", clean(path=self._path)):
            yield GitEvent.of(data)

    def diff(
        self,
        paths: Sequence[str] = (),
        *,
        staged: bool = False,
        start: str | None = None,
        end: str | None = None,
        context: int | None = None,
        max_bytes: int | None = None,
    ) -> m.GitDiff:
        """What changed, from the commit start to the commit end, or to the working tree.

        Without start, it is the working tree with its untracked files compared with the index or, with staged, the index compared with
        the last commit. A file whose changes have more than max_bytes (512 KiB) has no hunks.
        """
        query = clean(path=self._path, paths=[*paths], staged=staged, to=end, context=context, maxBytes=max_bytes, **{"from": start})
        return self._conn.get(m.GitDiff, "GET", f"{self._base}/diff", query=query)

    def log(self, paths: Sequence[str] = (), *, rev: str | None = None, max: int | None = None, skip: int | None = None) -> m.GitLog:
        """Commits, the latest first; 100 of them unless max is given."""
        query = clean(path=self._path, paths=[*paths], rev=rev, max=max, skip=skip)
        return self._conn.get(m.GitLog, "GET", f"{self._base}/log", query=query)

    def show(self, rev: str | None = None) -> m.GitShow:
        """A commit (HEAD) and its difference from its first parent."""
        return self._conn.get(m.GitShow, "GET", f"{self._base}/show", query=clean(path=self._path, rev=rev))

    def read(self, file: str, rev: str | None = None, *, max_bytes: int | None = None) -> bytes:
        """A file as it was in a commit (HEAD), and at most max_bytes (512 KiB) of it. Its name is relative to the directory."""
        query = clean(path=self._path, rev=rev, file=file, maxBytes=max_bytes)
        blob = (self._conn.get(m.GitShow, "GET", f"{self._base}/show", query=query)).blob
        return b64decode(blob.content or "") if blob else b""

    def blame(self, file: str, *, rev: str | None = None, first: int | None = None, last: int | None = None) -> m.GitBlame:
        """Which commits the lines of a file are from."""
        query = clean(path=self._path, rev=rev, file=file, first=first, last=last)
        return self._conn.get(m.GitBlame, "GET", f"{self._base}/blame", query=query)
