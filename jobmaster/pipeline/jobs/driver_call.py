"""Runs ``driver_program`` for a handler, and turns what comes back into the handler's result or error."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import msgspec

from jobmaster.handlers import Fail, JobContext
from jobmaster.model.errors import Refused
from jobmaster.pipeline.jobs.driver_errors import known_error
from jobmaster.pipeline.jobs.driver_process import Reports, SparkFailed, run_driver, scratch_directory
from jobmaster.pipeline.jobs.orders import DriverResult, FunctionOrder, Order, StepOrder
from jobmaster.pipeline.spark.java import find_java
from jobmaster.pipeline.spark.session import require_extra

PROGRESS = {"spark.ui.showConsoleProgress": "true"}
"""What the progress of stages is read from."""
_PROGRAM = "jobmaster.pipeline.jobs.driver_program"


async def call_driver(ctx: JobContext[Any], order: FunctionOrder | StepOrder) -> Any:
    """Run an order in a driver of its own; its value.

    Raises:
        Fail: another attempt would end in the same way.
        SparkFailed: the driver ended with an error, or without a result.
        Unavailable: a server is away.
    """
    with scratch_directory() as scratch:
        return await drive(ctx, order, scratch)


async def drive(reports: Reports, order: Order, scratch: Path) -> Any:
    """The same, in a directory for the files of the application."""
    environment = await java_environment(order.master)
    run = await run_driver(
        reports,
        [sys.executable, "-m", _PROGRAM],
        scratch,
        environment={**environment, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        given=msgspec.json.encode(order).decode(),
    )
    if run.result is None:
        raise SparkFailed(order.name, run.exit_code, run.tail)
    result = msgspec.convert(run.result, DriverResult)
    if (error := result.error) is not None:
        raise known_error(order.name, error) or SparkFailed(
            f"{order.name} ({error.kind}: {error.message})", run.exit_code, ()
        )
    return result.value


async def java_environment(master: str) -> dict[str, str]:
    """Variables of a driver: Java, and the Python of the agent.

    Raises:
        Fail: PySpark or Java is missing.
    """
    try:
        require_extra()
        found = {"PYSPARK_DRIVER_PYTHON": sys.executable}
        if not master.startswith("sc://"):
            found["JAVA_HOME"] = str((await asyncio.to_thread(find_java, os.environ)).home)
    except Refused as error:
        raise Fail(str(error)) from error
    if master.startswith("local"):
        found |= {"SPARK_LOCAL_IP": os.environ.get("SPARK_LOCAL_IP", "127.0.0.1")}
        found |= {"PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable)}
    return found
