"""Agents of a test: in the process of the test, or as real processes that can be killed."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec

from jobmaster.clock import SystemClock, new_id
from jobmaster.handlers import Handler, Handlers, load_handlers
from jobmaster.handlers.lifespan import OpenLifespans
from jobmaster.model.errors import ConfigError, JobMasterError
from jobmaster.model.ids import text
from jobmaster.model.job import RunMode
from jobmaster.settings.model import ClusterSettings
from jobmaster.settings.rendering import settings_tree
from jobmaster.telemetry import Telemetry
from jobmaster.wiring import open_master, open_stores, open_transactions
from jobmaster_agents.agent import AgentRuntime
from jobmaster_agents.event_log import EventLog
from jobmaster_agents.launch.launch_order import ChildConfig
from jobmaster_agents.probes import AgentLifecycle
from jobmaster_agents.run_agent import run_until_exit
from jobmaster_agents.state.ownership import FENCED_EXIT_CODE
from jobmaster_agents.store_connector import StoreConnector

START_SECONDS = 30.0
STOP_SECONDS = 20.0
_POLL_SECONDS = 0.005
_TAIL_CHARS = 3000


async def until(condition: Callable[[], bool], seconds: float, what: Callable[[], str]) -> None:
    """Wait for a condition; ``JobMasterError`` when it does not hold in time."""
    for _ in range(round(seconds / _POLL_SECONDS)):
        if condition():
            return
        await asyncio.sleep(_POLL_SECONDS)
    raise JobMasterError(f"{what()} (after {seconds:g} s)")


class AgentTask:
    """An agent on the event loop of the test: handlers can be debugged and patched. It ends with ``stop``.

    A test that holds the loop for longer than the lease, for instance at a breakpoint, costs the agent its lease. Another
    agent then takes its place, as a supervisor would start one, and rescues its jobs.
    """

    def __init__(self, settings: ClusterSettings, kind: str, handlers: Handlers) -> None:
        self._settings = settings
        self._kind = kind
        self._handlers = handlers
        self._stack = AsyncExitStack()
        self._task: asyncio.Task[int] | None = None
        self._replacing: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start it and wait until its buckets are open.

        Raises:
            ConfigError: a handler of mode ``process`` is in no module that can be imported.
            JobMasterError: it does not start.
        """
        running = await self._start_one()
        self._replacing = asyncio.create_task(self._replace_fenced(running), name="jobmaster-testing-agent")

    async def _replace_fenced(self, running: asyncio.Task[int]) -> None:
        """Start another agent whenever one has lost its lease."""
        while True:
            await asyncio.wait([running])
            if running.cancelled() or running.result() != FENCED_EXIT_CODE:
                return
            await self._stack.aclose()
            running = await self._start_one()

    def raise_failure(self) -> None:
        """Raise what has ended the agent, if something has."""
        replacing = self._replacing
        if replacing is not None and replacing.done() and not replacing.cancelled():
            replacing.result()

    async def _start_one(self) -> asyncio.Task[int]:
        settings, clock = self._settings, SystemClock()
        modules = _modules_of(self._handlers, settings.handlers)
        settings = msgspec.structs.replace(settings, handlers=modules)
        # The agent of a test provides all that its handlers need.
        needed = sorted({name for handler in self._handlers for name in handler.options.needs})
        agent = msgspec.structs.replace(settings.agents[self._kind], provides=needed)
        config = ChildConfig(settings, self._kind, "testing", new_id())
        async with AsyncExitStack() as stack:
            master = await open_master(settings, application_name=text(config.agent_id))
            stack.push_async_callback(master.close)
            stores = await open_stores(settings, needed=(agent.store,))
            for store in stores.values():
                stack.push_async_callback(store.close)
            await master.maintenance.ensure_partitions(settings.partitions.span, settings.partitions.ahead_days)
            log = EventLog({"agent": config.agent_id, "name": config.name})
            connector = StoreConnector(master, stores, log)
            await connector.connect(needed=agent.store)
            transactions = open_transactions(settings, application_name=text(config.agent_id))
            stack.push_async_callback(transactions.close)
            lifespans = OpenLifespans(self._handlers, agent.lifespan_timeout_seconds)
            await lifespans.open()
            stack.push_async_callback(lifespans.close, STOP_SECONDS)
            # What a lifespan has set in context variables reaches the handlers.
            runtime = lifespans.context.run(
                AgentRuntime, config, agent, master, connector, self._handlers, clock, Telemetry(), log, transactions
            )  # fmt: skip
            runtime.use_lifespans(lifespans)
            lifecycle = AgentLifecycle(clock)
            self._task = task = asyncio.create_task(run_until_exit(config, runtime, lifecycle, log))
            self._stack = stack.pop_all()
        await until(
            lambda: lifecycle.serving is not None or task.done(), START_SECONDS, lambda: "the agent does not start"
        )
        if task.done():
            await self._stack.aclose()
            task.result()
            raise JobMasterError("the agent has ended at once")
        return task

    async def stop(self) -> None:
        """End it at once, as a process that dies: running handlers are cancelled without an outcome."""
        if self._replacing is not None:
            self._replacing.cancel()
            await asyncio.wait([self._replacing], timeout=STOP_SECONDS)
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task], timeout=STOP_SECONDS)
        await self._stack.aclose()


def _modules_of(handlers: Handlers, named: Sequence[str]) -> list[str]:
    """The modules that worker processes import: those that are named, and those of the handlers that run there.

    Raises:
        ConfigError: a handler of mode ``process`` is in no module that can be imported.
    """
    modules = list(named)
    isolated = [handler for handler in handlers if handler.options.mode is RunMode.PROCESS]
    if not isolated:
        return modules
    known = load_handlers(modules)
    missing: list[str] = []
    for handler in isolated:
        if known.of(handler.function) is not None:
            continue
        module = handler.function.__module__
        if _declares(module, handler):
            modules.append(module)
            known = load_handlers(modules)
        else:
            missing.append(handler.name)
    if missing:
        raise ConfigError(
            f"{', '.join(map(repr, sorted(missing)))}: a handler of mode 'process' runs in a worker process, which imports "
            f"its module, and no module holds the registry that declares it",
            hint="declare it at the top of a module, in a registry that the module names; or use mode='thread' in this test",
        )
    return modules


def _declares(module: str, handler: Handler) -> bool:
    """True when another process finds the handler by importing the module."""
    if module == "__main__":
        return False
    try:
        return load_handlers([module]).of(handler.function) is not None
    except ConfigError:
        return False


class AgentProcess:
    """``jobmaster agent run`` as a process: a supervisor and its agent. It ends with this process at the latest."""

    def __init__(self, settings: ClusterSettings, kind: str, directory: Path) -> None:
        self.log = directory / f"agent-{secrets.token_hex(4)}.log"
        config = self.log.with_suffix(".yaml")
        config.write_text(_document(settings), encoding="utf-8")
        command = [sys.executable, "-m", "jobmaster.cli.main", "agent", "run", "--leave-with-stdin"]
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [*command, f"--config={config}", f"--name={kind}"],
                # This process holds the other end, so the agent exits when this process ends in any way.
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=_environment(),
                start_new_session=True,
            )

    @property
    def ended(self) -> bool:
        """True when its supervisor has ended."""
        return self._process.poll() is not None

    async def stop(self) -> None:
        """End it at once: its agents end with their supervisor."""
        if not self.ended:
            self._process.kill()
            await until(lambda: self.ended, STOP_SECONDS, lambda: "the agent does not end")
        if self._process.stdin is not None:
            self._process.stdin.close()

    def tail(self) -> str:
        """The end of its log."""
        return self.log.read_text(encoding="utf-8", errors="replace")[-_TAIL_CHARS:]


def _document(settings: ClusterSettings) -> str:
    """The configuration as a file; JSON is YAML."""
    tree: Any = settings_tree(settings)
    # The tree is for people and hides passwords.
    tree["master"]["dsn"] = settings.master.dsn
    for name, store in settings.stores.items():
        tree["stores"][name]["url"] = store.url
    return json.dumps(tree)


def _environment() -> dict[str, str]:
    """Without JobMaster settings, which are in the file, and with the import path of this process."""
    kept = ("JOBMASTER_POSTGRES_BIN", "JOBMASTER_VALKEY_SERVER")
    ours = {name: value for name, value in os.environ.items() if not name.startswith("JOBMASTER_") or name in kept}
    return {**ours, "PYTHONPATH": os.pathsep.join(os.path.abspath(path) for path in sys.path)}
