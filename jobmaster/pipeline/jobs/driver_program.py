"""The program of a driver that a handler starts: one function over a Spark session, or one step of the pipeline.

The order comes on standard input, because it may have passwords; the result goes to the file of ``RESULT_VARIABLE``.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from jobmaster.model.errors import InputError
from jobmaster.pipeline.context import PipelineContext, PipelineOptions, StepResult
from jobmaster.pipeline.jobs.driver_errors import ViolationsFound, described
from jobmaster.pipeline.jobs.driver_process import RESULT_VARIABLE
from jobmaster.pipeline.jobs.functions import spark_function
from jobmaster.pipeline.jobs.map_chunks import answer_chunks
from jobmaster.pipeline.jobs.map_functions import declared_map
from jobmaster.pipeline.jobs.orders import DriverResult, FunctionOrder, MapOrder, Order, StepOrder
from jobmaster.pipeline.spark.session import SessionOptions, open_session
from jobmaster.settings.current import set_current_settings


def main() -> int:
    order: Any = msgspec.json.decode(sys.stdin.buffer.read(), type=Order)
    try:
        match order:
            case FunctionOrder():
                result = DriverResult(_call(order))
            case MapOrder():
                _map(order)
                result = DriverResult()
            case StepOrder():
                result = DriverResult(_run_step(order))
    except Exception as error:  # foreign code
        traceback.print_exc()
        result = DriverResult(error=described(error))
    Path(os.environ[RESULT_VARIABLE]).write_bytes(msgspec.json.encode(result))
    return 0 if result.error is None else 1


def _imported(order: FunctionOrder | MapOrder) -> Any:
    if order.settings is not None:
        set_current_settings(order.settings)
    sys.path[:0] = [path for path in order.sys_path if path not in sys.path]
    function: Any = importlib.import_module(order.module)
    for part in order.qualname.split("."):
        function = getattr(function, part)
    return function


def _map(order: MapOrder) -> None:
    function = _imported(order)
    declared = declared_map(function)
    session = open_session(SessionOptions(order.master, order.conf, order.name), os.environ)
    try:
        answer_chunks(session, function, declared, order.socket)
    finally:
        session.stop()


def _call(order: FunctionOrder) -> Any:
    function = _imported(order)
    declared = spark_function(function)
    arguments = {name: msgspec.convert(value, declared.hints.get(name, Any)) for name, value in order.arguments.items()}
    session = open_session(SessionOptions(order.master, order.conf, order.name), os.environ)
    try:
        return function(session, **arguments)
    finally:
        session.stop()


def _run_step(order: StepOrder) -> Any:
    if order.step not in STEPS:
        raise InputError(f"there is no step {order.step!r} for jobs", hint=f"steps are {', '.join(sorted(STEPS))}")
    session = SessionOptions(order.master, order.conf, order.name)
    context = PipelineContext(order.settings, PipelineOptions(session, order.lake), _say)
    try:
        result = STEPS[order.step](context, order.arguments)
    finally:
        context.close()
    found = dict(result.summary)
    if result.items is not None:
        found["items"] = list(result.items)
    if result.note:
        found["note"] = result.note
    if result.failed:
        raise ViolationsFound(msgspec.json.encode(found).decode())
    return {**found, "rows": result.rows}


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def _archive(context: PipelineContext, given: Mapping[str, Any]) -> StepResult:
    from jobmaster.pipeline.steps.archive import archive

    return archive(context, given["older_than"], keep=given["keep"], lost_stores=given["lost_stores"])


def _audit(context: PipelineContext, given: Mapping[str, Any]) -> StepResult:
    from jobmaster.pipeline.steps.audit import audit

    return audit(context, given["evidence"])


def _compact(context: PipelineContext, _: Mapping[str, Any]) -> StepResult:
    from jobmaster.pipeline.steps.forget_jobs import compact

    return compact(context)


def _rollup(context: PipelineContext, given: Mapping[str, Any]) -> StepResult:
    from jobmaster.pipeline.steps.rollup import rollup

    return rollup(context, rebuild=given["rebuild"])


def _vacuum(context: PipelineContext, given: Mapping[str, Any]) -> StepResult:
    from jobmaster.pipeline.steps.lake_admin import vacuum

    return vacuum(context, given["older_than"])


STEPS: Mapping[str, Callable[[PipelineContext, Mapping[str, Any]], StepResult]] = {
    "archive": _archive, "audit": _audit, "compact": _compact, "rollup": _rollup, "vacuum": _vacuum,
}  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
