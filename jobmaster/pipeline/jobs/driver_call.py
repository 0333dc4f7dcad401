"""Runs ``driver_program`` for a handler, and turns what comes back into the handler's result or error."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any, NoReturn

import msgspec

from jobmaster.handlers import Cancel, Fail, JobContext, Retry, Snooze
from jobmaster.model import errors
from jobmaster.model.errors import JobMasterError, Refused
from jobmaster.pipeline.jobs.driver_process import SparkFailed, run_driver, scratch_directory
from jobmaster.pipeline.jobs.orders import DriverError, DriverResult, FunctionOrder, StepOrder
from jobmaster.pipeline.spark.java import find_java
from jobmaster.pipeline.spark.session import require_extra

PROGRESS = {"spark.ui.showConsoleProgress": "true"}
"""What the progress of stages is read from."""
_PROGRAM = "jobmaster.pipeline.jobs.driver_program"
_TRIED_AGAIN = (errors.Unavailable, errors.OutcomeUnknown, errors.Conflict)
"""Errors that another attempt may not meet."""


async def call_driver(ctx: JobContext[Any], order: FunctionOrder | StepOrder) -> Any:
    """Run an order in a driver of its own; its value.

    Raises:
        Fail: another attempt would end in the same way.
        SparkFailed: the driver ended with an error, or without a result.
        Unavailable: a server is away.
    """
    environment = await java_environment(order.master)
    with scratch_directory() as scratch:
        run = await run_driver(
            ctx,
            [sys.executable, "-m", _PROGRAM],
            scratch,
            environment={**environment, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            given=msgspec.json.encode(order).decode(),
        )
    if run.result is None:
        raise SparkFailed(order.name, run.exit_code, run.tail)
    result = msgspec.convert(run.result, DriverResult)
    if result.error is not None:
        _raise(order.name, result.error, run.exit_code)
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


def _raise(name: str, error: DriverError, exit_code: int) -> NoReturn:
    match error.kind:
        case "Fail":
            raise Fail(error.message)
        case "Cancel":
            raise Cancel(error.message)
        case "Retry":
            raise Retry(error.after, error.message)
        case "Snooze":
            raise Snooze(error.after or 0.0, error.message)
        case "ViolationsFound":
            raise Fail(f"{name} found violations: {error.message}")
    kind = getattr(errors, error.kind, None)
    if isinstance(kind, type) and issubclass(kind, JobMasterError):
        if issubclass(kind, _TRIED_AGAIN):
            raise errors.Unavailable(f"{name}: {error.message}", hint=error.hint)
        raise Fail(f"{name}: {error.message}" + (f" ({error.hint})" if error.hint else ""))
    raise SparkFailed(f"{name} ({error.kind}: {error.message})", exit_code, ())
