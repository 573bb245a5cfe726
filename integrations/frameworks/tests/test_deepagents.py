from collections.abc import Iterator

import pytest
from deepagents.backends.protocol import FileDownloadResponse, FileUploadResponse

import atoll
from atoll.models import Spec
from atoll_frameworks.deepagents import AtollBackend
from tests import page


@pytest.fixture
def backend() -> Iterator[AtollBackend]:
    with atoll.connect() as client, client.create(Spec(workdir="/tmp")) as sandbox:
        yield AtollBackend(sandbox)


def test_page() -> None:
    page.check("deepagents")


def test_execute(backend: AtollBackend) -> None:
    done = backend.execute("echo one; echo two >&2; echo three; exit 3")
    assert (done.output, done.exit_code, done.truncated) == ("one\ntwo\nthree\n", 3, False)
    assert "unexpected" in backend.execute("if (").output.lower()
    many = backend.execute("head -c 20000000 /dev/zero | tr '\\0' x")
    assert many.truncated
    assert len(many.output) == 16 << 20


def test_timeout(backend: AtollBackend) -> None:
    done = backend.execute("echo started; echo $$ > pid; sleep 600", timeout=1)
    assert done.exit_code == 124
    assert done.output.startswith("started\n")
    assert backend.execute("kill -0 $(cat pid)").exit_code == 1
    assert backend.execute("echo on", timeout=0).output == "on\n"


def test_files(backend: AtollBackend) -> None:
    data = bytes(range(256))
    assert backend.upload_files([("/tmp/a/b.bin", data), ("/usr/x", data), ("/tmp", data), ("relative", data)]) == [
        FileUploadResponse("/tmp/a/b.bin"),
        FileUploadResponse("/usr/x", "permission_denied"),
        FileUploadResponse("/tmp", "is_directory"),
        FileUploadResponse("relative", "invalid_path"),
    ]
    assert backend.download_files(["/tmp/a/b.bin", "/tmp/none", "/tmp/a"]) == [
        FileDownloadResponse("/tmp/a/b.bin", data),
        FileDownloadResponse("/tmp/none", error="file_not_found"),
        FileDownloadResponse("/tmp/a", error="is_directory"),
    ]


def test_tools_of_the_framework(backend: AtollBackend) -> None:
    assert backend.write("/tmp/t/a.py", "x = 1\ny = 1\n").error is None
    assert backend.edit("/tmp/t/a.py", "x = 1", "x = 2").occurrences == 1
    assert [match["line"] for match in backend.grep("x = 2", "/tmp/t").matches or []] == [1]
    assert [found["path"] for found in backend.glob("*.py", "/tmp/t").matches or []] == ["/tmp/t/a.py"]
    assert [entry["path"] for entry in backend.ls("/tmp/t").entries or []] == ["/tmp/t/a.py"]
    assert backend.delete("/tmp/t/a.py").error is None
    assert backend.read("/tmp/t/a.py").error


def test_a_sandbox_that_is_gone_is_no_failed_command(backend: AtollBackend) -> None:
    backend.sandbox.destroy()
    with pytest.raises(atoll.errors.AtollError):
        backend.execute("true")
    with pytest.raises(atoll.errors.AtollError):
        backend.upload_files([("/tmp/a", b"")])
