"""``run_application``: ``spark-submit`` of an application's own program, as a part of a handler."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from jobmaster.clock import SystemClock
from jobmaster.handlers import JobContext
from jobmaster.model.errors import InputError
from jobmaster.pipeline.jobs.driver_call import PROGRESS, java_environment
from jobmaster.pipeline.jobs.driver_process import SparkFailed, run_driver, scratch_directory
from jobmaster.pipeline.spark.session import DEFAULT_MASTER

_DEPLOY_MODE = "spark.submit.deployMode"


@dataclass(frozen=True)
class SparkApplication:
    """A program for ``spark-submit``.

    Raises:
        InputError: it asks for deploy mode ``cluster``, in which nothing ends the driver with the job.
    """

    program: str
    """A Python file, or a jar."""
    arguments: Sequence[str] = ()
    master: str = DEFAULT_MASTER
    conf: Mapping[str, str] = field(default_factory=dict)
    options: Sequence[str] = ()
    """Further options of ``spark-submit``, such as ``("--class", "com.example.Totals")``."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables of the driver, added to those of the agent."""

    def __post_init__(self) -> None:
        if self.conf.get(_DEPLOY_MODE) == "cluster" or "cluster" in _values(self.options, "--deploy-mode"):
            raise InputError(
                f"{self.program}: the driver of a job runs beside its agent, which ends it with the job",
                hint="leave the deploy mode out: executors run on the cluster in any case",
            )

    @property
    def argv(self) -> list[str]:
        """The command."""
        settings = {**PROGRESS, **self.conf}
        pairs = [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]
        return [str(spark_submit()), "--master", self.master, *pairs, *self.options, self.program, *self.arguments]


class ApplicationEnd(msgspec.Struct, frozen=True):
    """How an application ended; a handler may return it, so that it is the job's result."""

    exit_code: int
    seconds: float
    stages: int
    """Stages that took longer than half a second."""
    result: Any = None
    """JSON that the application has written into the file that the variable ``JOB_RESULT_FILE`` names."""


async def run_application(ctx: JobContext[Any], application: SparkApplication) -> ApplicationEnd:
    """Run an application to its end, from an ``async def`` handler.

    Its lines become lines of the job, the progress of its stages ``ctx.progress``. When the job is cancelled or times out,
    and when its agent ends, the driver ends with all its processes.

    Raises:
        SparkFailed: its exit code is not 0.
        Fail: PySpark or Java is missing.
    """
    environment = await java_environment(application.master)
    began = SystemClock.boottime()
    with scratch_directory() as scratch:
        every = {**environment, **application.environment}
        run = await run_driver(ctx, application.argv, scratch, environment=every)
    if run.exit_code:
        raise SparkFailed(application.program, run.exit_code, run.tail)
    return ApplicationEnd(0, round(SystemClock.boottime() - began, 3), len(run.stages), run.result)


def spark_submit() -> Path:
    """``spark-submit`` of SPARK_HOME, else of the installed PySpark."""
    if home := os.environ.get("SPARK_HOME"):
        return Path(home) / "bin" / "spark-submit"
    spec = find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        raise InputError("spark-submit is not found", hint="install PySpark, or set SPARK_HOME")
    return Path(next(iter(spec.submodule_search_locations))) / "bin" / "spark-submit"


def _values(options: Sequence[str], name: str) -> list[str]:
    words = [word for option in options for word in option.split("=", 1)]
    return [value for word, value in pairwise(words) if word == name]
