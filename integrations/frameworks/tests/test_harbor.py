import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from harbor.models.task.config import EnvironmentConfig, NetworkMode, NetworkPolicy
from harbor.models.trial.paths import TrialPaths

import atoll
from atoll_frameworks.harbor import AtollEnvironment
from scripts.daemon import Daemon
from tests import page

pytestmark = pytest.mark.anyio
Make = Callable[..., AtollEnvironment]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def make(dockerfile: str = "", policy: NetworkPolicy | None = None, **config: object) -> AtollEnvironment:
        directory = tmp_path / "environment"
        directory.mkdir(exist_ok=True)
        if dockerfile:
            (directory / "Dockerfile").write_text(dockerfile)
        return AtollEnvironment(
            directory,
            "tests/one",
            "one__abc__env",
            TrialPaths(tmp_path / "trial"),
            EnvironmentConfig.model_validate(config),
            network_policy=policy or NetworkPolicy(network_mode=NetworkMode.NO_NETWORK),
            persistent_env={"GREETING": "hello"},
        )

    return make


@pytest.fixture
async def environment(make: Make) -> AsyncIterator[AtollEnvironment]:
    it = make(docker_image="host", workdir="/tmp", memory_mb=512, cpus=1)
    await it.start(force_build=False)
    try:
        yield it
    finally:
        await it.stop(delete=True)


def test_page() -> None:
    page.check("harbor")


def test_command_of_the_page(tmp_path: Path) -> None:
    (line,) = (line for line in page.section("harbor").splitlines() if line.startswith("harbor run"))
    program, *args = line.split()
    harbor = Path(sys.executable).parent / program
    ran = subprocess.run([harbor, *args, "-o", tmp_path], cwd=page.ROOT, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    (result,) = tmp_path.glob("*/*/result.json")
    assert json.loads(result.read_text())["verifier_result"]["rewards"] == {"reward": 1.0}


async def test_exec(environment: AtollEnvironment) -> None:
    done = await environment.exec("echo $GREETING $MORE; pwd; echo oops >&2; exit 3", env={"MORE": "there"})
    assert (done.return_code, done.stdout, done.stderr) == (3, "hello there\n/tmp\n", "oops\n")
    assert (await environment.exec("whoami; pwd", cwd="/usr", user="nobody")).stdout == "nobody\n/usr\n"
    assert (await environment.exec("id -u", user=65534)).stdout == "65534\n"
    info = await environment.sandbox.refresh()
    assert info.labels == {"harbor.environment": "tests/one", "harbor.session": "one__abc__env"}
    assert info.resources
    assert (info.resources.memory, info.resources.cpus) == (512 << 20, 1)


async def test_timeout(environment: AtollEnvironment) -> None:
    with pytest.raises(RuntimeError, match="timed out after 1 seconds"):
        await environment.exec("echo $$ > pid; sleep 600", timeout_sec=1)
    assert (await environment.exec("kill -0 $(cat pid)")).return_code == 1


async def test_files(environment: AtollEnvironment, tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "sub").mkdir(parents=True)
    (source / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (source / "run.sh").chmod(0o755)
    (source / "sub/data").write_bytes(bytes(range(256)))
    await environment.upload_dir(source, "/tmp/in")
    await environment.upload_file(source / "run.sh", "/tmp/one/run.sh")
    assert (await environment.exec("/tmp/in/run.sh; /tmp/one/run.sh")).stdout == "ran\nran\n"
    await environment.exec("cp -r /tmp/in /tmp/out; ln /tmp/out/run.sh /tmp/out/hard; mkfifo /tmp/out/pipe; ln -s run.sh /tmp/out/soft")
    await environment.download_dir("/tmp/out", target)
    assert sorted(os.listdir(target)) == ["hard", "run.sh", "soft", "sub"]
    assert (target / "sub/data").read_bytes() == bytes(range(256))
    assert (target / "hard").read_text() == (target / "soft").read_text() == "#!/bin/sh\necho ran\n"
    await environment.download_file("/tmp/out/sub/data", tmp_path / "new/data")
    assert (tmp_path / "new/data").read_bytes() == bytes(range(256))
    await environment.download_dir_with_exclusions(source_dir="/tmp/in", target_dir=tmp_path / "some", exclude=["sub"])
    assert os.listdir(tmp_path / "some") == ["run.sh"]


async def test_a_template_is_built_once(make: Make, daemon: Daemon) -> None:
    dockerfile = "FROM host\nWORKDIR /work\nRUN head -c 8 /dev/urandom | od -An -tx1 > made\n"
    made = []
    for force in False, False, True:
        it = make(dockerfile)
        await it.start(force_build=force)
        try:
            made.append((await it.exec("cat made")).stdout)
        finally:
            await it.stop(delete=True)
    assert made[0] == made[1] != made[2]


async def test_a_build_that_fails_leaves_nothing(make: Make) -> None:
    with pytest.raises(atoll.errors.AtollError):
        await make("FROM host\nRUN exit 3\n").start(force_build=False)


async def test_network(make: Make) -> None:
    listed = NetworkPolicy(network_mode=NetworkMode.ALLOWLIST, allowed_hosts=["a.example"])
    for policy, names in (
        (NetworkPolicy(network_mode=NetworkMode.NO_NETWORK), []),
        (NetworkPolicy(network_mode=NetworkMode.PUBLIC), ["a.example", "b.example"]),
        (listed, ["a.example"]),
    ):
        it = make(docker_image="host", policy=policy)
        await it.start(force_build=False)
        try:
            # A sandbox sees the names that it may reach, and no others: exit code 6 is that of a name without an address.
            seen = [name for name in ("a.example", "b.example") if (await it.exec(f"curl -sm 5 {name}")).return_code != 6]
        finally:
            await it.stop(delete=True)
        assert seen == names


async def test_what_is_kept_can_be_started(make: Make) -> None:
    it = make(docker_image="host")
    await it.start(force_build=False)
    await it.exec("echo kept > /kept")
    name = it.sandbox.id
    await it.stop(delete=False)
    async with await atoll.connect_async() as client, await client.get(name) as sandbox:
        assert sandbox.info.state == "stopped"
        await sandbox.start()
        assert (await sandbox.run(["cat", "/kept"])).stdout == b"kept\n"


def test_refusals(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FileNotFoundError):
        make()
    (tmp_path / "environment/docker-compose.yaml").touch()
    with pytest.raises(ValueError, match="docker-compose"):
        make()
    with monkeypatch.context() as there, pytest.raises(SystemExit, match="Atoll"):
        there.setenv("ATOLL_HOST", f"unix://{tmp_path}/none.sock")
        AtollEnvironment.preflight()
    AtollEnvironment.preflight()
