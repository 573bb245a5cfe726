"""A task of Harbor whose trial runs in a sandbox of Atoll. The agent is Harbor's oracle, so no model key is needed."""

import asyncio
import sys
import tempfile
from contextlib import redirect_stdout
from pathlib import Path

from harbor.job import Job
from harbor.models.job.config import JobConfig
from harbor.models.trial.config import AgentConfig, EnvironmentConfig, TaskConfig


async def main() -> None:
    with tempfile.TemporaryDirectory() as jobs:
        config = JobConfig(
            jobs_dir=Path(jobs),
            tasks=[TaskConfig(path=Path(__file__).parent / "harbor_task")],
            agents=[AgentConfig(name="oracle")],
            environment=EnvironmentConfig(import_path="atoll_frameworks.harbor:AtollEnvironment"),
        )
        with redirect_stdout(sys.stderr):  # a progress bar
            result = await (await Job.create(config)).run()
        for trial in result.trial_results:
            print("reward", trial.verifier_result and trial.verifier_result.rewards)
            if trial.exception_info:
                print(trial.exception_info.exception_message)
        for log in Path(jobs).rglob("oracle.txt"):
            print("log", *log.read_text().split())


asyncio.run(main())
