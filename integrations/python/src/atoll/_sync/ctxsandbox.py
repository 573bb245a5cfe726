# Generated from _async by scripts/generate.py; do not edit.
"""ctx.sandbox, the interface of agent platforms."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from atoll import errors
from atoll._ctx import DEFAULT_IMAGE, DEFAULT_TIMEOUT, MAX_OUTPUT, ExecResult, SandboxSpec, SandboxUnavailable, last_lines
from atoll._sync.client import Client, connect
from atoll._sync.sandbox import Sandbox

STOP_GRACE = 10.0


@contextlib.contextmanager
def attached() -> Any:
    """Reports a daemon that does not answer as SandboxUnavailable."""
    try:
        yield
    except errors.UnavailableError as e:
        raise SandboxUnavailable(str(e)) from e


class SyncSandboxHandle:
    """A handle on a sandbox. Dropping it does not end the sandbox."""

    def __init__(self, sandbox: Sandbox):
        self.sandbox = sandbox
        """Atoll's own handle, for what is not part of ctx.sandbox."""
        self.name: str = sandbox.name
        self._shell = ""

    @property
    def id(self) -> str:
        """Never reused."""
        return self.sandbox.id

    @property
    def labels(self) -> dict[str, str]:
        return dict(self.sandbox.info.labels or {})

    def exec(self, cmd: str, args: Sequence[str] | None = None, *, timeout: float | None = None) -> ExecResult:
        """Run a program without a shell and wait for it. A nonzero exit code is no error. It ends after timeout seconds (None: ten minutes),
        and when the call is canceled."""
        with attached():
            # In the background, because the sandbox keeps the logs of background commands.
            with self.sandbox.exec([cmd, *(args or ())], timeout=timeout or DEFAULT_TIMEOUT, background=True) as process:
                kept, cut = {"stdout": bytearray(), "stderr": bytearray()}, False
                try:
                    for piece in process:
                        into = kept[piece.stream]
                        room = MAX_OUTPUT - len(into)
                        into += piece.data[:room]
                        cut = cut or len(piece.data) > room
                    end = process.wait()
                except BaseException as e:
                    if not isinstance(e, errors.AtollError):
                        with contextlib.suppress(errors.AtollError):  # it may just have ended
                            self.sandbox.signal(process.info.id, signal.SIGKILL)
                    raise
        out, err = (bytes(kept[name]).decode(errors="replace") for name in ("stdout", "stderr"))
        return ExecResult(out, err, end.code, truncated=cut, timed_out=end.reason == "timeout")

    def shell(self, script: str, *, timeout: float | None = None) -> ExecResult:
        """Run a script with bash if the image has it, else with /bin/sh."""
        if not self._shell:
            self._shell = "/bin/sh"
            for path in ("/bin/bash", "/usr/bin/bash", "/usr/local/bin/bash"):
                if self.sandbox.files.exists(path):
                    self._shell = path
                    break
        return self.exec(self._shell, ["-c", script], timeout=timeout)

    def logs(self, *, tail: int | None = None) -> str:
        """Output of the commands of the sandbox, oldest command first; with tail, only that many last lines. The logs are bounded."""
        out = b""
        with attached():
            for process in self.sandbox.processes():
                with contextlib.suppress(errors.ConflictError, errors.NotFoundError):  # a command without a log
                    for piece in self.sandbox.logs(process.id):
                        out += piece.data
        return last_lines(out.decode(errors="replace"), tail)

    def stop(self) -> None:
        """Stop the sandbox and keep its files. If they cannot be kept, this raises UnsupportedError and changes nothing."""
        with attached():
            self.sandbox.stop(STOP_GRACE)

    def kill(self) -> None:
        """End the sandbox at once and delete its files. Its workspace is kept. A sandbox that is already gone is success."""
        with attached():
            self.sandbox.destroy()


def made(sandbox: Sandbox) -> SyncSandboxHandle:
    """A handle on a new sandbox. Limits that its provider does not hold are not passed over in silence."""
    for name, limit in (sandbox.info.limits or {}).items():
        if not limit.enforced:
            warnings.warn(f"the provider {sandbox.info.provider} does not enforce {name}: {limit.why}", stacklevel=3)
    return SyncSandboxHandle(sandbox)


class SyncSandboxClient:
    """Makes sandboxes and finds them again. Without a client, it finds or starts the local daemon when it is first used."""

    def __init__(self, client: Client | None = None):
        self._given = client

    @classmethod
    def connect(cls, host: str | None = None, key: str | None = None) -> SyncSandboxClient:
        """A client of the daemon that connect_async finds or starts."""
        with attached():
            return cls(connect(host, key))

    def _client(self) -> Client:
        if self._given is None:
            self._given = connect()
        return self._given

    def __enter__(self) -> SyncSandboxClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection. Sandboxes keep running."""
        if self._given is not None:
            self._given.close()

    def create(self, spec: SandboxSpec) -> SyncSandboxHandle:
        """Make a sandbox. A name that is in use is AlreadyExistsError."""
        with attached():
            client = self._client()
            image: str | None = spec.image
            if image == DEFAULT_IMAGE:
                image = os.environ.get("ATOLL_CTX_IMAGE") or image
            try:
                return made(client.create(spec.to_spec(image)))
            except errors.AtollError as e:
                if image != DEFAULT_IMAGE or e.op != "image.pull":
                    raise
            warnings.warn(
                f"the image {image} cannot be fetched, so the daemon's default image is used; set ATOLL_CTX_IMAGE, or get it with: atoll image pull {image}",
                stacklevel=2,
            )
            return made(client.create(spec.to_spec(None)))

    def get(self, name: str) -> SyncSandboxHandle:
        """The sandbox with that name. If there is none, this raises NotFoundError."""
        with attached():
            return SyncSandboxHandle((self._client()).get(name))

    def list(self, *, labels: Mapping[str, str] | None = None) -> list[str]:
        """The names of the sandboxes that have all of the labels, newest first."""
        with attached():
            return [info.name for info in (self._client()).list(labels)]

    def remove(self, name: str) -> None:
        """End the sandbox with that name. If there is none, that is success."""
        with attached(), contextlib.suppress(errors.NotFoundError):
            (self._client()).remove(name)

    def run_python_sync(self, code: str, *, image: str = DEFAULT_IMAGE, timeout: float | None = None, **kwargs: Any) -> ExecResult:
        """Run a Python 3 program in a new sandbox, which is removed before this returns. kwargs are fields of SandboxSpec. The image must
        have python3."""
        with self._once(image, timeout, kwargs) as handle:
            return handle.exec("python3", ["-c", code], timeout=timeout)

    def run_shell_sync(self, script: str, *, image: str = DEFAULT_IMAGE, timeout: float | None = None, **kwargs: Any) -> ExecResult:
        """Like run_python, but runs a script."""
        with self._once(image, timeout, kwargs) as handle:
            return handle.shell(script, timeout=timeout)

    @contextlib.contextmanager
    def _once(self, image: str, timeout: float | None, fields: Mapping[str, Any]) -> Iterator[SyncSandboxHandle]:
        spec = SandboxSpec(**{"name": "", **fields, "image": image})
        if "lifetime" not in fields:  # if this program crashes, the sandbox still ends
            spec = dataclasses.replace(spec, lifetime=(timeout or DEFAULT_TIMEOUT) + 60)
        handle = self.create(spec)
        try:
            yield handle
        finally:
            handle.kill()


def run_shell_sync(script: str, *, image: str = DEFAULT_IMAGE, timeout: float | None = None, **kwargs: Any) -> ExecResult:
    """SandboxClient.run_shell at the daemon that is found or started."""
    with SyncSandboxClient() as client:
        return client.run_shell_sync(script, image=image, timeout=timeout, **kwargs)


def run_python_sync(code: str, *, image: str = DEFAULT_IMAGE, timeout: float | None = None, **kwargs: Any) -> ExecResult:
    """SandboxClient.run_python at the daemon that is found or started."""
    with SyncSandboxClient() as client:
        return client.run_python_sync(code, image=image, timeout=timeout, **kwargs)
