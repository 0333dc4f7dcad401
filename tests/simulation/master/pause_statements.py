"""Twins of the statements about pauses."""

from __future__ import annotations

from typing import Any

from jobmaster.model.flow.batch import RANGE_BYTES
from tests.simulation.master.statements_base import StatementsBase
from tests.simulation.master.tables import ALIVE, PauseRow, Record, Snapshot


class PauseStatements(StatementsBase):
    """Twins of ``pauses``."""

    def pauses_pause(
        self, old: Snapshot, kind: str, value: str, until_us: int | None, seconds: float | None, actor: str, reason: str
    ) -> list[Record]:
        now, pauses = self.now_us(), self.tables.pauses
        until = now + int(seconds * 1e6) if until_us is None and seconds is not None else until_us
        if until is not None and until <= now:
            return []
        for key in [key for key, row in pauses.items() if self._is_over(row) and key != (kind, value)]:
            del pauses[key]
        before = pauses.get((kind, value))
        since = now if before is None or self._is_over(before) else before.at_us
        pauses[kind, value] = PauseRow(until, actor, reason, since)
        version = self._next_version()
        self.audit.paused((kind, value), version, None if until is None else (until - now) / 1e6)
        return [Record(version=version, until_us=until, at_us=since)]

    def pauses_resume(self, old: Snapshot, kind: str, value: str, actor: str, reason: str) -> list[Record]:
        row = self.tables.pauses.pop((kind, value), None)
        self.audit.resumed((kind, value))
        return [] if row is None or self._is_over(row) else [Record(version=self._next_version())]

    def pauses_in_force(self, old: Snapshot) -> list[Record]:
        now, version = self.now_us(), self.tables.pause_version
        ranges = sorted(
            lowest[:RANGE_BYTES].hex()
            for lowest, batch_id in self.tables.batch_ranges.items()
            if (batch := self.tables.batches[batch_id]).cancel_requested and (batch.look_us is not None or batch.reason)
        )
        found = [
            Record(
                version=version, kind=kind, value=value, until_us=row.until_us,
                left_seconds=None if row.until_us is None else (row.until_us - now) / 1e6, actor=row.actor,
                reason=row.reason, at_us=row.at_us, handlers=None, trials=None, cancelled_ranges=ranges,
            )
            for (kind, value), row in sorted(self.tables.pauses.items())
            if not self._is_over(row)
        ]  # fmt: skip
        found += [Record(version=version, cancelled_ranges=ranges, **line) for line in self._breakers_in_force()]
        found.sort(key=lambda record: (record["kind"], record["value"]))
        names = ("kind", "value", "until_us", "left_seconds", "actor", "reason", "at_us", "handlers", "trials")
        return found or [Record(version=version, cancelled_ranges=ranges, **dict.fromkeys(names))]

    def pauses_obey(self, old: Snapshot, agent_id: bytes, version: int) -> list[Record]:
        row = self.tables.agents.get(agent_id)
        if row is None or row.state not in ALIVE:
            return []
        self.tables.agents[agent_id] = row._replace(pauses_obeyed=version)
        self.audit.obeys(agent_id, version)
        return [Record(version=version)]

    def pauses_followers(self, old: Snapshot, version: int) -> list[Record]:
        followers: list[Any] = [
            row for row in self.tables.agents.values() if row.state in ALIVE and row.mode in ("full", "execution")
        ]
        return [
            Record(
                id=row.id, name="", host="", pid=0, obeys=row.pauses_obeyed is not None and row.pauses_obeyed >= version
            )
            for row in sorted(followers, key=lambda row: (row.started_us, row.id))
        ]

    def _next_version(self) -> int:
        self.tables.pause_version = max(self.tables.pause_version + 1, self.now_us())
        return self.tables.pause_version

    def _is_over(self, row: PauseRow) -> bool:
        return row.until_us is not None and row.until_us <= self.now_us()

    def _breakers_in_force(self) -> list[dict[str, Any]]:
        raise NotImplementedError
