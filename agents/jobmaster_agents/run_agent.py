"""One agent from start to end: opens the stores, registers, works, and takes everything down in order.

Start: probes -> master -> schema check -> stores -> lease -> duties -> buckets (master first, then store). A server that
does not answer is waited for: a process that ended for it would only be started again. End in order (SIGTERM, drain
request): the readiness probe says no, buckets complete while the heartbeat goes on, then the agent retires. Fenced or
orphaned: nothing is written any more; the process leaves and its supervisor starts a new agent in its place.
"""

from __future__ import annotations

import asyncio
import gc
import signal
from contextlib import AsyncExitStack
from typing import Any

from jobmaster.clock import Clock, SystemClock
from jobmaster.handlers import load_handlers
from jobmaster.master.master import Master
from jobmaster.model.errors import ConfigError, Unavailable
from jobmaster.model.ids import text
from jobmaster.rules.lease import Standing
from jobmaster.settings.model import AgentSettings
from jobmaster.telemetry import Telemetry
from jobmaster.wiring import open_master, open_stores, open_transactions
from jobmaster_agents.agent import Parts
from jobmaster_agents.background_task import run_periodically
from jobmaster_agents.event_log import Event, EventLog
from jobmaster_agents.http_server import HttpServer, port_of
from jobmaster_agents.launch.order import ChildConfig, ControlMessage
from jobmaster_agents.launch.shared_deadline import Deadline, PlaceFigures
from jobmaster_agents.loop_watchdog import LoopWatchdog
from jobmaster_agents.retrying import Backoff
from jobmaster_agents.state.ownership import FENCED_EXIT_CODE
from jobmaster_agents.store_connector import StoreConnector

ORPHANED_EXIT_CODE = 76
"""Exit code of a process whose supervisor died."""
RECYCLED_EXIT_CODE = 71
"""Exit code of a process that left in order to make room for a fresh one: its threads are all stuck."""
LEFT_BEHIND_EXIT_CODE = 1
"""Exit code of a graceful exit that had to leave buckets to the rescue."""
_LAST_TICKS_SECONDS = 1.0
_STUCK = "every thread is stuck in a handler that was given up"
_GC_THRESHOLDS = (20_000, 20, 50)
_BLOCKED_SHARE = 0.2
"""Share of the lease after which a loop that does not turn is named in the log."""


class Endings:
    """Why this process is to end, as told by signals, the supervisor's pipe, an operator, or the lease."""

    def __init__(self, clock: Clock) -> None:
        self._now = clock.boottime
        self.leave = asyncio.Event()
        self.hurry = asyncio.Event()
        self.orphaned = asyncio.Event()
        self.reason = ""
        self.waits_for = ""
        """What a server that is needed to start answers."""
        self.serving: Parts | None = None
        """Set once its buckets are open."""
        self.leaves_at: float | None = None
        """CLOCK_BOOTTIME seconds at which its grace is over, once it leaves."""

    def why_not_started(self) -> str | None:
        """What the startup probe says: nothing any more once its buckets have been open."""
        return self._before() if self.serving is None else None

    def _before(self) -> str:
        return f"it waits for a server: {self.waits_for}" if self.waits_for else "it is starting"

    def draining(self) -> dict[str, object]:
        """What is left to do, and how long it may take until running jobs are given back."""
        left = None if self.leaves_at is None else round(max(self.leaves_at - self._now(), 0.0), 1)
        bucket_worker = self.serving.bucket_worker if self.serving is not None else None
        return {
            "draining": self.leaves_at is not None or self.leave.is_set(),
            "in_flight": 0 if bucket_worker is None else len(bucket_worker.job_table),
            "running": 0 if bucket_worker is None else bucket_worker.executor.running,
            "outcomes_waiting": 0 if bucket_worker is None else bucket_worker.outcome_writer.backlog,
            "buckets": 0 if self.serving is None else len(self.serving.ownership.buckets),
            "seconds_left": left,
        }

    def why_not_ready(self) -> str | None:
        """What the readiness probe says. Read from the very flags that the end waits for: it says no before any bucket
        is told to take no more jobs."""
        if self.orphaned.is_set():
            return "its supervisor died"
        if self.leave.is_set():
            return f"it is leaving: {self.reason}"
        if self.serving is None:
            return self._before()
        if self.serving.stop_asked.is_set():
            return "it is leaving: drain requested"
        if self.serving.bucket_worker.threads_exhausted.is_set():
            return f"it is leaving: {_STUCK}"
        ownership = self.serving.ownership
        if ownership.fenced.is_set():
            return f"it is fenced: {ownership.fenced_why}"
        if ownership.standing(self._now()) not in (Standing.TRUSTED, Standing.SUSPENDED):
            return "its lease has not been renewed in time: it starts nothing"
        return None

    def leaves_from(self, grace_seconds: float) -> None:
        """It leaves from now on."""
        self.leaves_at = self._now() + grace_seconds

    def remark(self) -> str | None:
        """What the readiness probe adds: it takes work, but not as usual."""
        if self.serving is None or (seconds := self.serving.store_lease.suspended_seconds) is None:
            return None
        kept = sum(owned.kept for owned in self.serving.ownership.buckets.values())
        why = "the master does not answer, work goes on from the store"
        return f"suspended for {seconds:.0f} s: {why} ({kept} outcomes kept)"

    def on_signal(self, signum: int) -> None:
        """First: leave in order. Second: give everything back now."""
        if self.leave.is_set():
            self.hurry.set()
        self.reason = self.reason or signal.Signals(signum).name
        self.leave.set()


def show_place_figures(telemetry: Telemetry, page: Deadline) -> None:
    """Metrics of the supervisor, which writes them into the page that it shares with this process."""
    for name in PlaceFigures._fields:
        telemetry.read_from(f"place_{name}", lambda name=name: getattr(page.figures, name))  # type: ignore[misc]


async def run_agent(config: ChildConfig) -> int:
    """Run one agent to its end; the exit code.

    Raises:
        JobMasterError: it could not start (configuration, schema, stores); nothing was left behind.
    """
    agent = _agent_settings(config)
    log = EventLog({"agent": config.agent_id, "name": config.name})
    clock, telemetry = SystemClock(), Telemetry()
    if config.deadline is not None:
        show_place_figures(telemetry, config.deadline)
    endings = Endings(clock)
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, endings.on_signal, signum)
    handlers = load_handlers(config.settings.handlers)
    async with AsyncExitStack() as stack:
        if (port := port_of(config.settings, config.agent, config.index)) is not None:
            serving = HttpServer(telemetry, endings, log)
            stack.push_async_callback(serving.close)
            await serving.start(config.settings.observability.metrics_host, port)
        servers = await _servers(config, agent, endings, stack, log)
        if servers is None:
            return 0  # told to leave before it could begin
        master, store_connector = servers
        transactions = open_transactions(config.settings, application_name=text(config.agent_id))
        stack.push_async_callback(transactions.close)
        parts = Parts(config, agent, master, store_connector, handlers, clock, telemetry, log, transactions)
        return await _watched(config, parts, endings, log)


async def _servers(
    config: ChildConfig, agent: AgentSettings, endings: Endings, stack: AsyncExitStack, log: EventLog
) -> tuple[Master, StoreConnector] | None:
    """The master and the stores, open and ready; the stack closes them. What does not answer is waited for; ``None``: the
    process was told to leave meanwhile.

    Raises:
        JobMasterError: a server answered, and refused.
    """
    backoff = Backoff("start", log)
    while not endings.leave.is_set():
        async with AsyncExitStack() as opened:
            try:
                servers = await _open(config, agent, opened, log)
            except Unavailable as error:
                endings.waits_for = str(error)
                pause = backoff.seconds(error)
            else:
                endings.waits_for = ""
                stack.push_async_callback(opened.pop_all().aclose)
                return servers
        try:
            async with asyncio.timeout(pause):
                await endings.leave.wait()
        except TimeoutError:
            continue
    return None


async def _open(
    config: ChildConfig, agent: AgentSettings, opened: AsyncExitStack, log: EventLog
) -> tuple[Master, StoreConnector]:
    master = await open_master(config.settings, application_name=text(config.agent_id))
    opened.push_async_callback(master.close)
    stores = await open_stores(config.settings, needed=(agent.store,))
    for store in stores.values():
        opened.push_async_callback(store.close)
    partitions = config.settings.partitions
    await master.ensure_partitions(partitions.span, partitions.ahead_days)
    # A store this agent does not live on may be down: agents that can reach it rescue its buckets.
    store_connector = StoreConnector(master, stores, log)
    await store_connector.begin(needed=agent.store)
    return master, store_connector


def _agent_settings(config: ChildConfig) -> AgentSettings:
    try:
        return config.settings.agents[config.agent]
    except KeyError:
        known = ", ".join(sorted(config.settings.agents))
        raise ConfigError(f"no agent is named {config.agent!r} in the configuration", hint=f"known: {known}") from None


async def _watched(config: ChildConfig, parts: Parts, endings: Endings, log: EventLog) -> int:
    """``live`` in a process of its own: with the collector set for jobs, and a thread that names a loop that is stuck."""
    # What is loaded by now lives as long as the process, and jobs are many small objects that die young: at the usual
    # thresholds the collector took an eighth of the time of no-op jobs.
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)
    lease = config.settings.leases.lease_seconds
    watchdog = LoopWatchdog(asyncio.get_running_loop(), log, max(lease * _BLOCKED_SHARE, 0.2))
    watchdog.start()
    try:
        return await live(config, parts, endings, log)
    finally:
        watchdog.stop()


async def live(config: ChildConfig, parts: Parts, endings: Endings, log: EventLog) -> int:
    """From the registration to the end; the exit code. Needs a loop and the ports, no process of its own."""
    stop = asyncio.Event()
    telemetry = parts.telemetry
    await parts.register()
    if config.control is not None:
        loop = asyncio.get_running_loop()
        config.control.attach(loop, lambda word: _obey(parts, word), endings.orphaned.set, parts.reload)
    try:
        async with asyncio.TaskGroup() as group:
            duties = [
                group.create_task(run_periodically(duty, stop, telemetry, log=log), name=f"jobmaster-{duty.name}")
                for duty in parts.duties()
            ]
            work = group.create_task(parts.bucket_worker.run(), name="jobmaster-working")
            opening = group.create_task(parts.open_all(), name="jobmaster-opening")
            await _first_of(parts.ownership.fenced, endings.orphaned, opening)
            if opening.done() and opening.exception() is None:
                endings.serving = parts
                parts.serves()
                log.info(
                    Event.AGENT_STARTED, {"handlers": len(parts.handler_names), "buckets": len(parts.ownership.buckets)}
                )
            code = await _until_over(config, parts, endings, log)
            opening.cancel()
            stop.set()
            work.cancel()
            if code == 0:  # it has left in order: a tick under way may end, unless it waits for a server that is silent
                await asyncio.wait(duties, timeout=_LAST_TICKS_SECONDS)
            for duty in duties:  # (otherwise nothing may be written any more)
                duty.cancel()
        return code
    finally:
        await parts.bucket_worker.aclose()


def _obey(parts: Parts, word: ControlMessage) -> None:
    if word is ControlMessage.RESCUE:
        parts.somebody_died()


async def _until_over(config: ChildConfig, parts: Parts, endings: Endings, log: EventLog) -> int:
    """Wait for the end and bring it about."""
    fenced, orphaned = parts.ownership.fenced, endings.orphaned
    stuck = parts.bucket_worker.threads_exhausted
    await _first_of(fenced, orphaned, endings.leave, parts.stop_asked, stuck)
    if not (fenced.is_set() or orphaned.is_set()):
        recycled = stuck.is_set() and not (endings.leave.is_set() or parts.stop_asked.is_set())
        if recycled:
            log.error(Event.THREADS_EXHAUSTED, {"threads": config.settings.agents[config.agent].threads})
        reason = _STUCK if recycled else endings.reason or "drain requested"
        log.info(Event.AGENT_STOPPING, {"reason": reason, "grace_seconds": parts.grace_seconds})
        endings.leaves_from(parts.grace_seconds)
        leaving = asyncio.ensure_future(parts.leave(parts.grace_seconds, reason))
        hurrying = asyncio.ensure_future(_hurry(parts, endings))
        try:
            await _first_of(fenced, orphaned, leaving)
            if leaving.done():
                in_order = leaving.result()
                log.info(Event.AGENT_STOPPED, {"left_behind": not in_order})
                # In order, but it is to be replaced: 0 would mean that it is to stay away.
                return LEFT_BEHIND_EXIT_CODE if not in_order else RECYCLED_EXIT_CODE if recycled else 0
        finally:
            hurrying.cancel()
            leaving.cancel()
    if fenced.is_set():
        return FENCED_EXIT_CODE
    parts.ownership.fence("its supervisor died")  # first: from here on nothing is started or committed
    await parts.certify_self("its supervisor died")
    return ORPHANED_EXIT_CODE


async def _hurry(parts: Parts, endings: Endings) -> None:
    await endings.hurry.wait()
    parts.bucket_worker.graceful_shutdown.hurry.set()


async def _first_of(*things: asyncio.Event | asyncio.Future[Any]) -> None:
    waits = [
        asyncio.ensure_future(thing.wait() if isinstance(thing, asyncio.Event) else _quietly(thing)) for thing in things
    ]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


async def _quietly(future: asyncio.Future[Any]) -> None:
    await asyncio.wait([future])
