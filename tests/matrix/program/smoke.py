"""A whole life of a cluster in about a minute, as a user has it: this program needs ``jobmaster`` and nothing of the tree.

``python smoke.py FOLDER``: servers, migration, agents, a submit at each durability level, a transaction, thousands of jobs, a
kill and its rescue, a schedule, cancels, ``jobmaster doctor``. The servers are those that ``JOBMASTER_POSTGRES_BIN`` and
``JOBMASTER_VALKEY_SERVER`` name, or the wheels. Everything is done by the command line and by public names. The last line is
JSON: what ran, and the seconds of each step. A step that fails ends the program with its reason.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import platform
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import asyncpg

import jobmaster
from jobmaster import Durability
from jobmaster.embedded import PostgresServer, ValkeyServer

LIMIT_SECONDS = 300.0
"""It ends a hang; a step takes a few seconds."""
JOBS = 1500
LEVELS = (Durability.STORE, Durability.STORE_FSYNC, Durability.MASTER)
"""From the weakest to the strongest; a submit may reach a stronger one than it asks for."""
PACKAGES = ("anyio", "asyncpg", "click", "hiredis", "msgspec", "redis", "uuid-utils", "uvloop")
CONFIG = """cluster: smoke
master: {{dsn: "{dsn}"}}
stores:
  default: {{url: "{store}"}}
  synced: {{url: "{synced}"}}
handlers: [smoke_jobs]
leases: {{lease: 3s, renew: 0.9s, store_beat: 0.5s, grace: 10s}}
observability: {{log_format: json}}
agents:
  default: {{store: default, isolated_warm: 0}}
  synced: {{store: synced, isolated_warm: 0}}
"""


class Smoke:
    """One run in a folder.

    Args:
        jobs: the module of handlers, which agents import by its name.
    """

    def __init__(self, folder: Path, jobs: Any) -> None:
        self.folder = folder
        self.jobs = jobs
        self.config = folder / "cluster.yaml"
        self.agents: dict[str, subprocess.Popen[bytes]] = {}
        self.steps: dict[str, float] = {}
        self.master = PostgresServer(folder / "master", durable=False)
        self.store = ValkeyServer(folder / "store")
        self.synced = ValkeyServer(folder / "synced", settings={"appendfsync": "always"})

    # ------------------------------------------------------------ tools

    def run(self, *arguments: str, code: int = 0) -> str:
        """Standard output of a ``jobmaster`` command that ends with this exit code."""
        command = [sys.executable, "-m", "jobmaster.cli.main", *arguments, "--config", str(self.config)]
        done = subprocess.run(
            command, cwd=self.folder, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False
        )
        if done.returncode != code:
            raise AssertionError(f"jobmaster {' '.join(arguments)} ended with {done.returncode}: {done.stderr[-800:]}")
        return done.stdout

    def until(self, what: str, condition: Callable[[], bool]) -> None:
        """Wait for a condition."""
        end = time.monotonic() + LIMIT_SECONDS
        while not condition():
            if time.monotonic() > end:
                raise AssertionError(f"waited {LIMIT_SECONDS:g} s for {what}")
            time.sleep(0.05)

    def agent(self, name: str, kind: str) -> None:
        """``jobmaster agent run``, until it serves."""
        log = self.folder / f"{name}.log"
        command = [sys.executable, "-m", "jobmaster.cli.main", "agent", "run", "--leave-with-stdin", "--name", kind]
        with log.open("wb") as out:
            self.agents[name] = subprocess.Popen(
                [*command, "--config", str(self.config)],
                cwd=self.folder,
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=subprocess.STDOUT,
            )

        def serves() -> bool:
            if self.agents[name].poll() is not None:
                raise AssertionError(f"agent {name} ended: {log.read_text()[-800:]}")
            return b'"agent_started"' in log.read_bytes()

        self.until(f"agent {name}", serves)

    def children(self, name: str) -> list[str]:
        """Pids of the processes below an agent's supervisor."""
        pid = self.agents[name].pid
        return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()

    def lines(self, name: str) -> list[str]:
        """What handlers have noted in a file."""
        path = self.folder / name
        return path.read_text().split() if path.exists() else []

    def count(self, state: str) -> int:
        return int(json.loads(self.run("job", "count", "--state", state, "-o", "json"))["jobs"])

    # ------------------------------------------------------------ steps, in their order

    def servers(self) -> None:
        """Two stores, because a level of durability is a property of a store."""
        for server in (self.master, self.store, self.synced):
            server.spawn()
        for server in (self.master, self.store, self.synced):
            server.wait_ready()
        self.config.write_text(CONFIG.format(dsn=self.master.dsn, store=self.store.url, synced=self.synced.url))

    def migrate(self) -> None:
        self.run("db", "migrate")
        self.run("db", "status")

    def start_agents(self) -> None:
        self.agent("first", "default")
        self.agent("synced", "synced")

    def levels(self) -> None:
        """A submit at each level reaches that level, and its job runs."""
        for number, level in enumerate(LEVELS):
            arguments = ("job", "submit", "smoke.add", "one=40", f"other={number}", "--durability", level)
            said = self.run(*arguments, "--within", "60s", "-o", "json")
            if json.loads(said)["state"] != "SUCCEEDED":
                raise AssertionError(f"level {level}: {said}")
        asyncio.run(self._levels())

    async def _levels(self) -> None:
        async with jobmaster.connect(self.config, handlers=self.jobs.handlers) as cluster:
            for level in LEVELS:
                receipt = await cluster.submit(jobmaster.call(self.jobs.add, 1, 2), durability=level)
                reached = LEVELS.index(receipt.level)
                if reached < LEVELS.index(level) or await receipt.result(timeout=LIMIT_SECONDS) != 3:
                    raise AssertionError(f"asked for {level}, got {receipt.level}")
            connection = await asyncpg.connect(self.master.dsn)
            try:
                async with connection.transaction():
                    joined = await cluster.submit(jobmaster.call(self.jobs.add, 2, 2), connection=connection)
                undone = connection.transaction()
                await undone.start()
                never = await cluster.submit(jobmaster.call(self.jobs.add, 3, 3), connection=connection)
                await undone.rollback()
            finally:
                await connection.close()
            if await joined.result(timeout=LIMIT_SECONDS) != 4:
                raise AssertionError("the job of the committed transaction has another result")
            try:
                await cluster.wait(never.id, timeout=LIMIT_SECONDS)
            except jobmaster.NotFound:
                return
            raise AssertionError("the job of the transaction that was rolled back exists")

    def kill(self) -> None:
        """The agent that runs a job is killed with all its processes beside many jobs; another one rescues them."""
        asyncio.run(self._kill())

    async def _kill(self) -> None:
        async with jobmaster.connect(self.config, handlers=self.jobs.handlers) as cluster:
            gated = await cluster.submit(jobmaster.call(self.jobs.gated, "gate"), durability="store")
            await asyncio.to_thread(self.until, "the gated job", lambda: len(self.lines("gated")) == 1)
            ids: list[Any] = []
            for level in LEVELS:
                calls = (jobmaster.call(self.jobs.short, number) for number in range(JOBS))
                ids += (await cluster.submit_many(calls, durability=level)).ids
            victim = next(name for name in self.agents if self.lines("gated")[0] in self.children(name))
            kind = "synced" if victim == "synced" else "default"
            await asyncio.to_thread(self.agent, "second", kind)
            for pid in (self.agents[victim].pid, *map(int, self.children(victim))):
                os.kill(pid, signal.SIGKILL)
            self.agents.pop(victim).wait()
            await asyncio.to_thread(self.until, "the rescue", lambda: len(self.lines("gated")) == 2)
            (self.folder / "gate").touch()
            pids = self.lines("gated")
            if pids[0] == pids[1] or await gated.result(timeout=LIMIT_SECONDS) != int(pids[1]):
                raise AssertionError(
                    f"the rescued job ran in processes {pids}, and its result is not of the second one"
                )
            states = await cluster.wait_all(ids, timeout=LIMIT_SECONDS)
            if len(states) != len(LEVELS) * JOBS or {str(state) for state in states.values()} != {"SUCCEEDED"}:
                raise AssertionError(f"{len(states)} jobs ended, as {set(states.values())}")

    def schedule(self) -> None:
        """The schedule that the handlers declare fires."""
        before = len(self.lines("ticks"))
        self.until("two fires", lambda: len(self.lines("ticks")) >= before + 2)
        if [each["name"] for each in json.loads(self.run("schedule", "list", "-o", "json"))] != ["smoke.ticks"]:
            raise AssertionError("the schedule is not listed")
        self.run("schedule", "pause", "smoke.ticks")

    def cancel(self) -> None:
        """A job that waits, and one that runs."""
        waiting = self.run("job", "submit", "smoke.add", "one=1", "other=1", "--after", "1h", "-o", "name").strip()
        self.run("job", "cancel", waiting)
        began = len(self.lines("gated"))
        running = self.run("job", "submit", "smoke.gated", "gate=never", "-o", "name").strip()
        self.until("the job that is cancelled", lambda: len(self.lines("gated")) > began)
        self.run("job", "cancel", running)
        for job in (waiting, running):
            self.run("job", "wait", job, "--within", "60s", code=1)
            if json.loads(self.run("job", "show", job, "-o", "json"))["state"] != "CANCELLED":
                raise AssertionError(f"job {job} was cancelled and is not CANCELLED")

    def doctor(self) -> None:
        """Every job has ended once, and every invariant holds."""
        for state in ("HELD", "ASSIGNED", "PROCESSING", "FAILED"):
            if count := self.count(state):
                raise AssertionError(f"{count} jobs are {state}")
        found = json.loads(self.run("doctor", "-o", "json"))
        if not found["ok"] or any(found["invariants"].values()):
            raise AssertionError(f"doctor: {json.dumps(found)[:800]}")

    def stop(self) -> None:
        """Agents leave in order."""
        for agent in self.agents.values():
            agent.send_signal(signal.SIGTERM)
        codes = {name: agent.wait(LIMIT_SECONDS) for name, agent in self.agents.items()}
        if any(codes.values()):
            raise AssertionError(f"exit codes of agents: {codes}")

    def play(self) -> None:
        """Every step; the servers and agents end in any case."""
        steps = (
            self.servers, self.migrate, self.start_agents, self.levels, self.kill, self.schedule, self.cancel,
            self.doctor, self.stop,
        )  # fmt: skip
        try:
            for step in steps:
                began = time.monotonic()
                try:
                    step()
                except Exception as error:
                    raise SystemExit(f"{step.__name__}: {type(error).__name__}: {error}") from error
                self.steps[step.__name__] = round(time.monotonic() - began, 1)
        finally:
            for agent in self.agents.values():
                if agent.poll() is None:
                    agent.kill()
                    agent.wait()
            for server in (self.synced, self.store, self.master):
                server.stop()

    def report(self) -> dict[str, Any]:
        """What ran."""
        gil = getattr(sys, "_is_gil_enabled", lambda: True)()
        threads = (
            "" if not sysconfig.get_config_var("Py_GIL_DISABLED") else f" free-threaded, GIL {'on' if gil else 'off'}"
        )
        programs = {name: server.program for name, server in (("master", self.master), ("store", self.store))}
        return {
            "python": f"{platform.python_version()}{threads}",
            **{name: f"{program.name} {program.version}" for name, program in programs.items()},
            "packages": {name: metadata.version(name) for name in PACKAGES},
            "seconds": self.steps,
        }


def main() -> None:
    """Run in the folder that is named."""
    folder = Path(sys.argv[1]).resolve()
    os.environ["SMOKE_FOLDER"] = str(folder)
    sys.path.insert(0, str(Path(__file__).parent))
    os.environ["PYTHONPATH"] = str(Path(__file__).resolve().parent)
    smoke = Smoke(folder, importlib.import_module("smoke_jobs"))
    smoke.play()
    sys.stdout.write(json.dumps(smoke.report()) + "\n")


if __name__ == "__main__":
    main()
