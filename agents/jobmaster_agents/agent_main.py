"""The main program of a supervised agent: ``python -m jobmaster_agents.agent_main <control fd> <deadline fd>``.

It reads the control pipe before heavy imports, and ends by ``os._exit``: a stuck handler thread must not keep a process
alive that has given everything back.
"""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine

from jobmaster.model.errors import CodeError, JobMasterError
from jobmaster_agents.event_log import Event, EventLog, configure
from jobmaster_agents.launch.control_pipe import ControlPipe
from jobmaster_agents.launch.launch_order import ChildConfig, read_order
from jobmaster_agents.launch.shared_deadline import Deadline, disarm_kernel_timer

RunAgent = Callable[[ChildConfig], Coroutine[object, object, int]]
STACKS_SIGNAL = signal.SIGUSR2
"""Writes the stacks of all threads to standard error, also while the event loop is blocked."""
_GC_THRESHOLDS = (100_000, 20, 20)
"""Of the start. It makes objects that live as long as the process, and each collection would look at all of them again: a
quarter of the processor time of a start. ``run_agent`` sets the thresholds for jobs."""


def run_child(arguments: list[str], run_agent: Callable[[], RunAgent]) -> int:
    """Receive the launch order, run the agent, return its exit code.

    Args:
        arguments: the numbers of the control descriptor and the deadline descriptor.
        run_agent: imports and returns the agent's main coroutine function.
    """
    control_fd, deadline_fd = (int(argument) for argument in arguments)
    for fd in (control_fd, deadline_fd):
        os.set_inheritable(fd, False)  # a worker process that held the pipe would hide the supervisor's death
    gc.set_threshold(*_GC_THRESHOLDS)
    faulthandler.register(STACKS_SIGNAL, all_threads=True)
    order = read_order(control_fd)
    sys.path[:0] = [path for path in order.sys_path if path not in sys.path]
    observability = order.settings.observability
    configure(observability.log_level, observability.log_format, root=observability.root_logging)
    control = ControlPipe(control_fd, EventLog({"agent": order.agent_id, "name": order.name}))
    control.start()
    config = ChildConfig(
        settings=order.settings,
        agent=order.agent,
        name=order.name,
        agent_id=order.agent_id,
        index=order.index,
        deadline=Deadline(deadline_fd),
        control=control,
    )
    try:
        # Never closed: closing waits for the default executor's threads, and one of them may be stuck.
        loop = asyncio.Runner(loop_factory=_loop_factory()).get_loop()
        return run_main_coroutine(loop, run_agent()(config), EventLog({"agent": order.agent_id, "name": order.name}))
    except (JobMasterError, BaseExceptionGroup) as error:
        if (cause := single_cause(error)) is None:
            raise
        sys.stderr.write(f"error: {cause}\n")
        return cause.exit_code
    finally:
        disarm_kernel_timer()


def single_cause(error: BaseException) -> JobMasterError | None:
    """The one error that a person can mend, also out of a group of tasks. ``None``: several errors, or a defect of the
    program, for which the traceback is more useful."""
    if isinstance(error, JobMasterError):
        return error
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error if isinstance(error, JobMasterError) and not isinstance(error, CodeError) else None


def run_main_coroutine(loop: asyncio.AbstractEventLoop, work: Coroutine[object, object, int], log: EventLog) -> int:
    """Run the agent's main coroutine to its end. A ``SystemExit`` of a task that a handler started would stop the loop and
    abandon every job of the process. It is logged here, and the handler receives it when it awaits that task."""
    main = loop.create_task(work, name="jobmaster-main")
    while True:
        try:
            return loop.run_until_complete(main)
        except (SystemExit, KeyboardInterrupt) as error:
            if main.done():
                raise
            log.error(Event.EXIT_REFUSED, {"error": type(error).__name__, "reason": str(error)}, trace=True)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop  # only where the platform has it
    except ImportError:
        return None
    return uvloop.new_event_loop


def _import_agent() -> RunAgent:
    # Imported late: during a second of imports the supervisor's death would go unnoticed.
    from jobmaster_agents.run_agent import run_agent

    return run_agent


def leave(code: int) -> None:
    """Print the current exception, flush the output streams, and end the process."""
    if (error := sys.exc_info()[1]) is not None:
        sys.excepthook(type(error), error, error.__traceback__)
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            pass
    os._exit(code)


if __name__ == "__main__":
    exit_code = 1
    try:
        exit_code = run_child(sys.argv[1:], _import_agent)
    finally:
        leave(exit_code)
