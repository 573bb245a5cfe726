"""The environment "atoll_frameworks.harbor:AtollEnvironment" of Harbor: each trial runs in its own sandbox."""

from __future__ import annotations

import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harbor.environments.base import BaseEnvironment, ExecResult, transfer_tar_filter
from harbor.environments.capabilities import EnvironmentCapabilities, EnvironmentResourceCapabilities
from harbor.environments.definition import require_agent_environment_definition, should_use_prebuilt_docker_image
from harbor.models.task.config import NetworkMode
from harbor.models.trial.config import ResourceMode
from typing_extensions import override

import atoll
from atoll import errors
from atoll.models import Network, Profile, Resources, Spec

OUTPUT_LIMIT = 16 << 20
"""What Atoll keeps of a stream at most, in bytes."""


class AtollEnvironment(BaseEnvironment):
    """A sandbox of the task's image, or of a template that is built from its Dockerfile.

    build_egress names the hosts that the steps of a Dockerfile may reach, such as those of a package mirror, with commas between them.
    """

    def __init__(self, *args: Any, build_egress: str | Sequence[str] = (), **kwargs: Any) -> None:
        self._build_egress = build_egress.split(",") if isinstance(build_egress, str) else [*build_egress]
        self._client: atoll.AsyncClient | None = None
        self._sandbox: atoll.AsyncSandbox | None = None
        super().__init__(*args, **kwargs)

    @staticmethod
    @override
    def type() -> str:
        return "atoll"

    @classmethod
    @override
    def preflight(cls) -> None:
        try:
            with atoll.connect() as client:
                client.providers()
        except errors.AtollError as error:
            raise SystemExit(f"Atoll: {error}") from error

    @property
    @override
    def capabilities(self) -> EnvironmentCapabilities:
        return EnvironmentCapabilities(
            disable_internet=True,
            network_allowlist=True,
            network_allowlist_hostnames=True,
            network_allowlist_wildcard_hostnames=True,
        )

    @classmethod
    @override
    def resource_capabilities(cls) -> EnvironmentResourceCapabilities:
        return EnvironmentResourceCapabilities(cpu_limit=True, memory_limit=True)

    @override
    def _validate_definition(self) -> None:
        require_agent_environment_definition(self.environment_dir, docker_image=self.task_env_config.docker_image)
        if (self.environment_dir / "docker-compose.yaml").exists():
            raise ValueError("Atoll runs tasks with one container: docker-compose.yaml is not supported")

    @property
    def sandbox(self) -> atoll.AsyncSandbox:
        if self._sandbox is None:
            raise RuntimeError("the environment was not started")
        return self._sandbox

    @override
    async def start(self, force_build: bool) -> None:
        self._client = await atoll.connect_async()
        try:
            self._sandbox = await self._client.create(await self._spec(self._client, force_build))
            await self.ensure_dirs(self._mount_targets(writable_only=True))
            await self._upload_environment_dir_after_start()
        except BaseException:
            await self.stop(delete=True)
            raise

    async def _spec(self, client: atoll.AsyncClient, force_build: bool) -> Spec:
        config = self.task_env_config
        memory = self._resource_limit_value("memory", auto_mode=ResourceMode.LIMIT)
        return Spec(
            image=await self._image(client, force_build),
            env=self._startup_env(),
            workdir=config.workdir,
            network=self._network(),
            resources=Resources(
                cpus=self._resource_limit_value("cpu", auto_mode=ResourceMode.LIMIT),
                memory=memory << 20 if memory else None,
                disk=config.storage_mb << 20 if config.storage_mb else None,
            ),
            labels={"harbor.environment": self.environment_name, "harbor.session": self.session_id},
        )

    async def _image(self, client: atoll.AsyncClient, force_build: bool) -> str:
        image = self.task_env_config.docker_image
        if image and should_use_prebuilt_docker_image(self.environment_dir, docker_image=image, force_build=force_build):
            return image
        name, tag = "harbor", self.environment_id[:12]
        if force_build or not any((it.name, it.tag) == (name, tag) for it in await client.templates()):
            with tempfile.TemporaryFile() as file:
                _pack(file, self.environment_dir)
                await client.build(f"{name}:{tag}", file.read(), egress=self._build_egress, no_cache=force_build)
        return f"template:{name}:{tag}"

    def _network(self) -> Network | None:
        policy = self.network_policy
        if policy.network_mode == NetworkMode.ALLOWLIST:
            return Network(egress=policy.allowed_hosts)
        return Network(inline=Profile(default="allow")) if policy.network_mode == NetworkMode.PUBLIC else None

    @override
    async def stop(self, delete: bool) -> None:
        """Remove the sandbox, or keep its files: `atoll start NAME` starts it again."""
        client, sandbox = self._client, self._sandbox
        self._client = self._sandbox = None
        try:
            if sandbox and delete:
                await sandbox.destroy()
            elif sandbox:
                await sandbox.stop()
                self.logger.info("the sandbox %s is stopped", sandbox.name)
        finally:
            if client:
                await client.aclose()

    @override
    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        who = self._resolve_user(user)
        done = await self.sandbox.run(
            ["bash", "-c", command],
            cwd=cwd,
            env=self._merge_env(env),
            timeout=timeout_sec,
            user=None if who is None else str(who),
            output_limit=OUTPUT_LIMIT,
        )
        if done.timed_out:
            raise RuntimeError(f"Command timed out after {timeout_sec} seconds")
        stderr = done.stderr.decode(errors="replace")
        if done.truncated:
            stderr += f"\n[there was more output than {OUTPUT_LIMIT} bytes]"
        return ExecResult(stdout=done.stdout.decode(errors="replace"), stderr=stderr, return_code=done.code)

    @override
    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        source = Path(source_path)
        await self.sandbox.files.write(target_path, source.read_bytes(), mode=source.stat().st_mode & 0o777)

    @override
    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        with tempfile.TemporaryFile() as file:
            _pack(file, Path(source_dir))
            await self.sandbox.files.mkdir(target_dir)
            await self.sandbox.files.extract(target_dir, file.read(), owner="root")

    @override
    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        target = Path(target_path)
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb") as file:
            async for chunk in self.sandbox.files.stream(source_path):
                file.write(chunk)

    @override
    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        with tempfile.TemporaryFile() as file:
            async for chunk in self.sandbox.files.export(source_dir):
                file.write(chunk)
            file.seek(0)
            with tarfile.open(fileobj=file) as tar:
                tar.extractall(target_dir, [*_below(tar)], filter=transfer_tar_filter)


def _pack(file: Any, directory: Path) -> None:
    """Write a tar of the content of a directory."""
    with tarfile.open(fileobj=file, mode="w") as tar:
        for entry in sorted(directory.iterdir()):
            tar.add(entry, entry.name)
    file.seek(0)


def _below(tar: tarfile.TarFile) -> Any:
    """The members of an archive, without the directory that they are in."""
    for member in tar.getmembers():
        member.name = member.name.partition("/")[2]
        if member.islnk():
            member.linkname = member.linkname.partition("/")[2]
        if member.name:
            yield member
