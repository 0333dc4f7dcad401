"""One agent from start to exit: opens the servers, registers, works, and shuts down in order.

Start: probes -> master -> schema check -> stores -> start-up actions -> lifespans -> lease -> periodic tasks -> buckets
(master, then store). The start waits for a server that does not answer: a process that ended instead would only be started
again. Graceful exit (SIGTERM, drain request): the readiness probe fails, the buckets complete while the heartbeat goes on,
then the agent retires. Fenced or orphaned: nothing is written any more; the process ends and its supervisor starts a new
agent.
"""

from __future__ import annotations

import asyncio
import signal
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from jobmaster.clock import SystemClock
from jobmaster.collector import tune_collector
from jobmaster.handlers import Handlers, load_handlers
from jobmaster.handlers.current import LoopExecutor, task_factory
from jobmaster.handlers.lifespan import OpenLifespans
from jobmaster.master.master import Master
from jobmaster.model.errors import ConfigError, Unavailable
from jobmaster.model.ids import text
from jobmaster.monitoring.probe_address import port_of
from jobmaster.settings.current import set_current_settings
from jobmaster.settings.model import AgentSettings
from jobmaster.telemetry import Telemetry
from jobmaster.tracing import open_tracing
from jobmaster.wiring import open_master, open_stores, open_transactions
from jobmaster_agents.agent import WORKING_MODES, AgentRuntime
from jobmaster_agents.call_retry import Backoff
from jobmaster_agents.event_log import Event, EventLog
from jobmaster_agents.http_server import HttpServer
from jobmaster_agents.launch.launch_order import ChildConfig, ControlMessage
from jobmaster_agents.launch.shared_deadline import ChildCounters, Deadline
from jobmaster_agents.lease.process_statistics import ProcessStatistics
from jobmaster_agents.lifespan_start import leave_lifespans, open_lifespans
from jobmaster_agents.loop_watchdog import LoopWatchdog
from jobmaster_agents.once_start import run_once_actions
from jobmaster_agents.periodic_task import run_periodically
from jobmaster_agents.probes import LIFESPAN_ENDED, THREADS_STUCK, AgentLifecycle
from jobmaster_agents.state.ownership import FENCED_EXIT_CODE
from jobmaster_agents.store_connector import StoreConnector

if TYPE_CHECKING:
    from jobmaster.tracing.tracing import Tracing

ORPHANED_EXIT_CODE = 76
"""Exit code of a process whose supervisor died."""
RECYCLED_EXIT_CODE = 71
"""Exit code of a graceful exit that makes room for a fresh process: all threads are stuck, or a lifespan has ended."""
LEFT_BEHIND_EXIT_CODE = 1
"""Exit code of a graceful exit that left buckets to the rescue."""
_LAST_TICKS_SECONDS = 1.0
_BLOCKED_SHARE = 0.2
"""Share of the lease after which the log names a loop that does not turn."""


def show_child_counters(telemetry: Telemetry, page: Deadline) -> None:
    """Metrics of the supervisor, which writes them into the page that it shares with this process."""
    for name in ChildCounters._fields:
        telemetry.read_from(f"place_{name}", lambda name=name: getattr(page.counters, name))  # type: ignore[misc]


async def run_agent(config: ChildConfig) -> int:
    """Run one agent to its end; the exit code.

    Raises:
        JobMasterError: it could not start (configuration, schema, stores); nothing was left behind.
    """
    agent = _agent_settings(config)
    log = EventLog({"agent": config.agent_id, "name": config.name})
    clock, telemetry = SystemClock(), Telemetry()
    lifecycle = AgentLifecycle(clock)
    loop = asyncio.get_running_loop()
    if config.deadline is not None:  # the process, and so its loop, is ours
        show_child_counters(telemetry, config.deadline)
        loop.set_task_factory(task_factory)
        loop.set_default_executor(LoopExecutor())
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, lifecycle.on_signal, signum)
    handlers = _load_handlers(config)
    async with AsyncExitStack() as stack:
        if (port := port_of(config.settings, config.agent, config.index)) is not None:
            serving = HttpServer(telemetry, lifecycle, log)
            stack.push_async_callback(serving.close)
            await serving.start(config.settings.observability.metrics_host, port)
        servers = await _open_servers(config, agent, lifecycle, stack, log)
        if servers is None:
            return 0  # a signal came before the start was complete
        master, store_connector = servers
        transactions = open_transactions(config.settings, application_name=text(config.agent_id))
        stack.push_async_callback(transactions.close)
        if not await run_once_actions(handlers, agent, master.locks, lifecycle, log):
            return 0
        lifespans = _lifespans(handlers, agent)
        if not await open_lifespans(lifespans, config, lifecycle, log):
            return 0
        code = None
        try:
            # Every job gets a copy of the context variables that are captured here.
            runtime = lifespans.context.run(
                AgentRuntime,
                config,
                agent,
                master,
                store_connector,
                handlers,
                clock,
                telemetry,
                log,
                transactions,
                master.due_notices,
                _open_tracing(config, stack),
            )
            runtime.use_lifespans(lifespans)
            code = await _run_with_watchdog(config, runtime, lifecycle, log)
        finally:
            await leave_lifespans(
                lifespans, config, lifecycle, log, exit_code=code if code in (0, RECYCLED_EXIT_CODE) else None
            )
        return code


def _load_handlers(config: ChildConfig) -> Handlers:
    """The handlers; from here on the context has the settings, for those that start programs of the same cluster."""
    set_current_settings(config.settings)
    return load_handlers(config.settings.handlers)


def _open_tracing(config: ChildConfig, stack: AsyncExitStack) -> Tracing | None:
    traces = config.settings.observability.traces
    tracing = open_tracing(traces, service="jobmaster-agent", instance=text(config.agent_id))
    if tracing is not None:
        if config.deadline is not None:  # the process is ours
            tracing.share()
        stack.push_async_callback(tracing.close)  # after the agent has retired: nothing waits for a collector
    return tracing


def _lifespans(handlers: Handlers, agent: AgentSettings) -> OpenLifespans:
    served = handlers.served_by(agent.provides) if agent.mode in WORKING_MODES else ()
    return OpenLifespans(served, agent.lifespan_timeout_seconds)


async def _open_servers(
    config: ChildConfig, agent: AgentSettings, lifecycle: AgentLifecycle, stack: AsyncExitStack, log: EventLog
) -> tuple[Master, StoreConnector] | None:
    """The master and the stores, open and ready; the stack closes them. Waits for a server that does not answer.
    ``None``: a signal came meanwhile.

    Raises:
        JobMasterError: a server refused.
    """
    backoff = Backoff("start", log)
    while not lifecycle.leave.is_set():
        async with AsyncExitStack() as opened:
            try:
                servers = await _connect(config, agent, opened, log)
            except Unavailable as error:
                lifecycle.waits_for = str(error)
                pause = backoff.seconds(error)
            else:
                lifecycle.waits_for = ""
                stack.push_async_callback(opened.pop_all().aclose)
                return servers
        try:
            async with asyncio.timeout(pause):
                await lifecycle.leave.wait()
        except TimeoutError:
            continue
    return None


async def _connect(
    config: ChildConfig, agent: AgentSettings, opened: AsyncExitStack, log: EventLog
) -> tuple[Master, StoreConnector]:
    master = await open_master(config.settings, application_name=text(config.agent_id), agent=True)
    opened.push_async_callback(master.close)
    stores = await open_stores(config.settings, needed=(agent.store,))
    for store in stores.values():
        opened.push_async_callback(store.close)
    partitions = config.settings.partitions
    await master.maintenance.ensure_partitions(partitions.span, partitions.ahead_days)
    # Another store than the agent's own may be down: agents that can reach it evacuate its buckets.
    store_connector = StoreConnector(master, stores, log)
    await store_connector.connect(needed=agent.store)
    return master, store_connector


def _agent_settings(config: ChildConfig) -> AgentSettings:
    try:
        return config.settings.agents[config.agent]
    except KeyError:
        known = ", ".join(sorted(config.settings.agents))
        raise ConfigError(f"no agent is named {config.agent!r} in the configuration", hint=f"known: {known}") from None


async def _run_with_watchdog(
    config: ChildConfig, runtime: AgentRuntime, lifecycle: AgentLifecycle, log: EventLog
) -> int:
    """``run_until_exit`` with the garbage collector tuned for jobs, and a thread that logs a stuck event loop."""
    tune_collector()
    lease = config.settings.leases.lease_seconds
    watchdog = LoopWatchdog(asyncio.get_running_loop(), log, max(lease * _BLOCKED_SHARE, 0.2))
    watchdog.start()
    try:
        return await run_until_exit(config, runtime, lifecycle, log)
    finally:
        watchdog.stop()


async def run_until_exit(config: ChildConfig, runtime: AgentRuntime, lifecycle: AgentLifecycle, log: EventLog) -> int:
    """From the registration to the exit; the exit code. Needs an event loop and the ports, no process of its own."""
    stop = asyncio.Event()
    telemetry = runtime.telemetry
    executor = runtime.bucket_worker.executor
    runtime.heartbeat.statistics = ProcessStatistics(telemetry, lambda: executor.slots)
    await runtime.register()
    if config.control is not None:
        loop = asyncio.get_running_loop()
        config.control.attach(
            loop, lambda message: _on_control_message(runtime, message), lifecycle.orphaned.set, runtime.reload
        )
    try:
        async with asyncio.TaskGroup() as group:
            periodic_tasks = [
                group.create_task(run_periodically(task, stop, telemetry, log=log), name=f"jobmaster-{task.name}")
                for task in runtime.periodic_tasks()
            ]
            work = group.create_task(runtime.bucket_worker.run(), name="jobmaster-bucket-worker")
            opening = group.create_task(runtime.open_all(), name="jobmaster-open-buckets")
            await _first_of(runtime.ownership.fenced, lifecycle.orphaned, opening)
            if opening.done() and opening.exception() is None:
                lifecycle.serving = runtime
                runtime.set_serving()
                log.info(
                    Event.AGENT_STARTED,
                    {
                        "handlers": len(runtime.handler_names),
                        "buckets": len(runtime.ownership.buckets),
                        **({"left_out": "; ".join(runtime.left_out)} if runtime.left_out else {}),
                    },
                )
            code = await _wait_and_shut_down(config, runtime, lifecycle, log)
            opening.cancel()
            stop.set()
            work.cancel()
            if code == 0:  # graceful exit: a running tick may end, unless it waits for a silent server
                await asyncio.wait(periodic_tasks, timeout=_LAST_TICKS_SECONDS)
            for task in periodic_tasks:  # (otherwise nothing may be written any more)
                task.cancel()
        return code
    finally:
        await runtime.bucket_worker.aclose()


def _on_control_message(runtime: AgentRuntime, message: ControlMessage) -> None:
    if message is ControlMessage.RESCUE:
        runtime.on_death_certificate()


async def _wait_and_shut_down(
    config: ChildConfig, runtime: AgentRuntime, lifecycle: AgentLifecycle, log: EventLog
) -> int:
    """Wait for a reason to end, and shut down."""
    fenced, orphaned = runtime.ownership.fenced, lifecycle.orphaned
    stuck = runtime.bucket_worker.threads_exhausted
    ended = lifecycle.lifespans.ended if lifecycle.lifespans is not None else asyncio.Event()
    await _first_of(fenced, orphaned, lifecycle.leave, runtime.stop_requested, stuck, ended)
    if not (fenced.is_set() or orphaned.is_set()):
        recycled = not (lifecycle.leave.is_set() or runtime.stop_requested.is_set())
        if recycled and stuck.is_set():
            log.error(Event.THREADS_EXHAUSTED, {"threads": config.settings.agents[config.agent].threads})
        why_recycled = THREADS_STUCK if stuck.is_set() else LIFESPAN_ENDED
        reason = why_recycled if recycled else lifecycle.reason or "drain requested"
        log.info(Event.AGENT_STOPPING, {"reason": reason, "grace_seconds": runtime.grace_seconds})
        lifecycle.begin_exit(runtime.grace_seconds)
        leaving = asyncio.ensure_future(runtime.leave(runtime.grace_seconds, reason))
        hurrying = asyncio.ensure_future(_stop_now(runtime, lifecycle))
        try:
            await _first_of(fenced, orphaned, leaving)
            if leaving.done():
                in_order = leaving.result()
                log.info(Event.AGENT_STOPPED, {"left_behind": not in_order})
                # A recycled process must be replaced; the supervisor replaces no process that ends with 0.
                return LEFT_BEHIND_EXIT_CODE if not in_order else RECYCLED_EXIT_CODE if recycled else 0
        finally:
            hurrying.cancel()
            leaving.cancel()
    if fenced.is_set():
        return FENCED_EXIT_CODE
    runtime.ownership.fence("its supervisor died")  # first: from here on nothing is started or committed
    await runtime.write_own_certificate("its supervisor died")
    return ORPHANED_EXIT_CODE


async def _stop_now(runtime: AgentRuntime, lifecycle: AgentLifecycle) -> None:
    await lifecycle.hurry.wait()
    runtime.bucket_worker.graceful_shutdown.hurry.set()


async def _first_of(*things: asyncio.Event | asyncio.Future[Any]) -> None:
    waits = [
        asyncio.ensure_future(thing.wait() if isinstance(thing, asyncio.Event) else _ended(thing)) for thing in things
    ]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


async def _ended(future: asyncio.Future[Any]) -> None:
    await asyncio.wait([future])
