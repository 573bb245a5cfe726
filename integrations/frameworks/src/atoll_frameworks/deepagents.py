"""A backend of LangChain's deepagents: the agent's files and commands are in a sandbox of Atoll."""

from __future__ import annotations

from deepagents.backends.protocol import ExecuteResponse, FileDownloadResponse, FileUploadResponse
from deepagents.backends.sandbox import BaseSandbox

import atoll
from atoll import errors

OUTPUT_LIMIT = 16 << 20
TIMED_OUT = 124
"""The exit code of a command that took too long, as timeout(1) has it."""


class AtollBackend(BaseSandbox):
    """Works in a sandbox, which the caller removes. Commands take at most timeout seconds; 0 is no limit."""

    def __init__(self, sandbox: atoll.Sandbox, *, timeout: int = 1800):
        self.sandbox = sandbox
        self._timeout = timeout

    @property
    def id(self) -> str:
        return self.sandbox.id

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        seconds = self._timeout if timeout is None else timeout
        # Standard error is merged into standard output, in the order in which they were
        # written.
        done = self.sandbox.run(f"exec 2>&1\n{command}", timeout=seconds or None, output_limit=OUTPUT_LIMIT)
        output = done.stdout.decode(errors="replace")
        if done.timed_out:
            return ExecuteResponse(f"{output}\n[the command was killed after {seconds} seconds]", TIMED_OUT, done.truncated)
        return ExecuteResponse(output, done.code, done.truncated)

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        return [FileUploadResponse(path, self._upload(path, content)) for path, content in files]

    def _upload(self, path: str, content: bytes) -> str | None:
        try:
            self.sandbox.files.write(path, content)
        except errors.AtollError as error:
            return self._reason(path, error)
        return None

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        return [self._download(path) for path in paths]

    def _download(self, path: str) -> FileDownloadResponse:
        try:
            return FileDownloadResponse(path, self.sandbox.files.read(path))
        except errors.AtollError as error:
            return FileDownloadResponse(path, error=self._reason(path, error))

    def _reason(self, path: str, error: errors.AtollError) -> str:
        """The framework's error code for a file error. Other errors are raised."""
        if isinstance(error, errors.NotFoundError):
            return "file_not_found"
        if isinstance(error, errors.DeniedError):
            return "permission_denied"
        if not isinstance(error, (errors.InvalidError, errors.ConflictError)):
            raise error
        directory = path.startswith("/") and self.sandbox.files.exists(path) and self.sandbox.files.stat(path).type == "dir"
        return "is_directory" if directory else "invalid_path"
