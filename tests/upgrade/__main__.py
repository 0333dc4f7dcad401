"""An upgrade from an earlier commit under load: ``python -m tests.upgrade [--from COMMIT]``, or ``make upgrade-test``.

Both versions are wheels in environments of their own. A fleet of the old version works under load while the new program
migrates. Then agents are replaced one after the other; one of the old ones is killed and rescued by the mixed fleet. At the
end every acknowledged job must have ended once, jobs that old agents do not know must have run on new ones alone, ``doctor``
must find nothing, and the old program must be refused in one message that says what to do.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import asyncpg
import yaml

from jobmaster.embedded import PostgresServer, ValkeyServer
from tests.upgrade.fleet import Fleet, until
from tests.upgrade.versions import UpgradeFailed, Version, earlier_commit, installed

REFUSED_EXIT_CODE = 77
KINDS = {"a": "default", "b": "synced", "c": "default"}
"""Member of the fleet -> kind of agent, by the store that it serves."""
JOBS = 1500
"""Acknowledged jobs in each part of the upgrade, at least."""
LATER_JOBS = 20


def document(dsn: str, store: str, synced: str, modules: list[str]) -> dict[str, Any]:
    """The configuration of both versions, except for the modules of handlers."""
    return {
        "cluster": "upgrade",
        "master": {"dsn": dsn},
        "stores": {"default": {"url": store}, "synced": {"url": synced}},
        "handlers": modules,
        "leases": {"lease": "3s", "renew": "0.9s", "store_beat": "0.5s", "grace": "10s"},
        "observability": {"log_format": "json"},
        "agents": {name: {"store": name, "isolated_warm": 0} for name in ("default", "synced")},
    }


class Upgrade:
    """One upgrade; ``report`` grows with its parts."""

    def __init__(self, fleet: Fleet, old: Version, new: Version, dsn: str) -> None:
        self._fleet = fleet
        self._old = old
        self._new = new
        self._dsn = dsn
        self.report: dict[str, Any] = {}

    def play(self) -> None:
        """Every part, in its order.

        Raises:
            UpgradeFailed: a promise of the page about upgrades does not hold.
        """
        parts: tuple[Callable[[], None], ...] = (
            self.old_fleet, self.migrate, self.mixed_fleet, self.new_fleet, self.drained, self.outcomes, self.audit,
            self.downgrade, self.new_agents_leave,
        )  # fmt: skip
        for part in parts:
            began = time.monotonic()
            part()
            sys.stderr.write(f"{part.__name__.replace('_', ' '):<18}{time.monotonic() - began:>6.1f} s\n")

    def _more_jobs(self, count: int = JOBS) -> None:
        before = len(self._fleet.acknowledged())
        until(f"{count} more receipts", lambda: len(self._fleet.acknowledged()) >= before + count)

    # ------------------------------------------------------------ parts

    def old_fleet(self) -> None:
        """The earlier version at work."""
        self._fleet.succeeds(self._old, "db", "migrate")
        for name, kind in KINDS.items():
            self._fleet.agent(f"old-{name}", self._old, kind)
        self._fleet.producer("old-producer", self._old)
        self._more_jobs()

    def migrate(self) -> None:
        """By the new program, while everything runs. The old agents and the old producer go on."""
        applied = json.loads(self._fleet.succeeds(self._new, "db", "migrate", "-o", "json"))["applied"]
        if not applied:
            raise UpgradeFailed(
                f"commit {self._old.commit} has every migration of this tree: name an earlier one with --from"
            )
        self.report["migrations"] = f"{self._old.last_migration:04d} to {self._new.last_migration:04d}"
        before = self._fleet.runs_by()
        self._more_jobs()
        if not self._fleet.runs_by() - before:
            raise UpgradeFailed("the old agents ran no job after the migration")

    def mixed_fleet(self) -> None:
        """A new agent joins for each old one that leaves; the last old one of a store is killed in the middle."""
        self._fleet.agent("new-a", self._new, KINDS["a"])
        self._fleet.leave("old-a")
        self._fleet.agent("new-b", self._new, KINDS["b"])
        self._fleet.producer("new-producer", self._new, "later")
        self._more_jobs()
        until("jobs of the new handler", lambda: self._fleet.runs_by()["new", "later"] >= LATER_JOBS)
        self._fleet.kill("old-b")
        self._more_jobs()

    def new_fleet(self) -> None:
        """The last old agent leaves under load, then the old producer."""
        self._fleet.agent("new-c", self._new, KINDS["c"])
        self._fleet.leave("old-c")
        self._more_jobs()
        self._fleet.leave("old-producer")
        self._fleet.leave("new-producer")

    def drained(self) -> None:
        """No job waits any more."""
        ended = len(self._fleet.acknowledged())
        until("the end of every job", lambda: self._states(final=True) >= ended and not self._states(final=False))

    def outcomes(self) -> None:
        """Every acknowledged job has ended once, and with its result; new jobs have run on new agents alone."""
        acknowledged = self._fleet.acknowledged()
        rows = self._rows("SELECT id::text, state::text FROM job")
        states = dict(rows)
        lost = [job for job in acknowledged if job not in states]
        wrong = [f"{job} is {states[job]}" for job in acknowledged if states.get(job, "SUCCEEDED") != "SUCCEEDED"]
        twice = len(rows) - len(states)
        silent = acknowledged.keys() - {run.job for run in self._fleet.runs()}
        for what, found in (("lost", lost), ("without success", wrong), ("without a run", sorted(silent))):
            if found:
                raise UpgradeFailed(f"{len(found)} of {len(acknowledged)} acknowledged jobs are {what}: {found[:3]}")
        if twice:
            raise UpgradeFailed(f"{twice} jobs have two rows")
        if strays := self._fleet.runs_by()["old", "later"]:
            raise UpgradeFailed(f"old agents ran {strays} jobs that they do not know")
        levels = {level: sum(each == level for each in acknowledged.values()) for level in set(acknowledged.values())}
        runs = len(self._fleet.runs())
        self.report |= {"acknowledged": len(acknowledged), "levels": levels, "lost": 0, "runs": runs}

    def audit(self) -> None:
        """``jobmaster doctor`` of the new program finds nothing, and no invariant is violated."""
        found = json.loads(self._fleet.succeeds(self._new, "doctor", "-o", "json"))
        if not found["ok"] or any(found["invariants"].values()):
            raise UpgradeFailed(f"doctor: {json.dumps(found)[:800]}")

    def downgrade(self) -> None:
        """The old program may run where every new migration says so; otherwise each start of it is refused."""
        newer = json.loads(self._fleet.succeeds(self._new, "db", "status", "-o", "json"))
        needed = max(int(each["programs"].removeprefix(">= ")) for each in newer)
        allowed = needed <= self._old.last_migration
        self.report["old program"] = "may start" if allowed else "is refused"
        commands = (
            ("agent", "run", "--name", "default"),
            ("job", "submit", "fleet.quick", "number=1"),
            ("db", "migrate"),
        )
        for command in commands[:0] if allowed else commands:
            done = self._fleet.command(self._old, *command)
            text = done.stderr.strip()
            if done.returncode != REFUSED_EXIT_CODE:
                raise UpgradeFailed(
                    f"the old jobmaster {' '.join(command)} ended with {done.returncode}: {text[-500:]}"
                )
            if text.count("newer program") != 1 or "upgrade this program" not in text:
                raise UpgradeFailed(f"the old jobmaster {' '.join(command)} does not say what to do: {text[-500:]}")
            self.report["message"] = text.splitlines()[-1]

    def new_agents_leave(self) -> None:
        for name in KINDS:
            self._fleet.leave(f"new-{name}")

    # ------------------------------------------------------------ the master

    def _states(self, *, final: bool) -> int:
        ended = "('SUCCEEDED', 'FAILED', 'CANCELLED', 'EXPIRED')"
        return int(self._rows(f"SELECT count(*) FROM job WHERE {'' if final else 'NOT '}state::text IN {ended}")[0][0])

    def _rows(self, query: str) -> list[Any]:
        async def fetch() -> list[Any]:
            connection = await asyncpg.connect(self._dsn, server_settings={"search_path": "jobmaster_upgrade"})
            try:
                return list(await connection.fetch(query))
            finally:
                await connection.close()

        return asyncio.run(fetch())


def run(named: str | None, folder: Path) -> dict[str, Any]:
    """The report of an upgrade.

    Raises:
        UpgradeFailed: it cannot be tried, or a promise does not hold.
    """
    old = installed("old", earlier_commit(named), folder)
    new = installed("new", None, folder)
    servers = (
        PostgresServer(folder / "master", durable=False),
        ValkeyServer(folder / "store"),
        ValkeyServer(folder / "synced", settings={"appendfsync": "always"}),
    )
    master, store, synced = servers
    try:
        for server in servers:
            server.spawn()
        for server in servers:
            server.wait_ready()
        config = {}
        for version, modules in ((old, ["fleet_jobs"]), (new, ["later_jobs"])):
            config[version.name] = folder / f"{version.name}.yaml"
            config[version.name].write_text(yaml.safe_dump(document(master.dsn, store.url, synced.url, modules)))
        fleet = Fleet(folder, config)
        upgrade = Upgrade(fleet, old, new, master.dsn)
        try:
            upgrade.play()
        finally:
            fleet.close()
    finally:
        for server in reversed(servers):
            server.stop()
    return {"from": old.commit, "to": new.commit, **upgrade.report}


def main(arguments: list[str]) -> int:
    """One upgrade; 1 when a promise does not hold."""
    parser = argparse.ArgumentParser(prog="python -m tests.upgrade", description=__doc__)
    parser.add_argument(
        "--from", dest="earlier", help="tag or commit; default: the newest tag, else a commit that is named here"
    )
    parser.add_argument("--json", action="store_true", help="the report as one JSON object")
    chosen = parser.parse_args(arguments)
    # Sockets of servers need a short path.
    with tempfile.TemporaryDirectory(prefix="jm-") as scratch:
        try:
            report = run(chosen.earlier, Path(scratch))
        except UpgradeFailed as error:
            sys.stderr.write(f"FAILED: {error}\n")
            return 1
    if chosen.json:
        sys.stdout.write(json.dumps(report) + "\n")
    else:
        sys.stdout.write("".join(f"{name:<14}{value}\n" for name, value in report.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
