"""Twins of the statements about named locks and actions that run once."""

from __future__ import annotations

from tests.simulation.master.statements_base import StatementsBase
from tests.simulation.master.tables import LockRow, Record, Snapshot


class LockStatements(StatementsBase):
    """Twins of ``locks`` and ``once``."""

    def locks_acquire(self, old: Snapshot, name: str, acquisition: bytes, label: str, ttl: float) -> list[Record]:
        now, row = self.now_us(), self.tables.locks.get(name)
        stranger = row is not None and row.holder not in (None, acquisition)
        if row is not None and stranger and row.expires_us >= now and "lock expiry" not in self.without:
            return [self._lock_record(row, taken=False)]
        if row is None or row.holder != acquisition:
            self.tables.lock_fence += 1
            row = LockRow(name, acquisition, self.tables.lock_fence, label, now, now)
        row = self.tables.locks[name] = row._replace(label=label, expires_us=now + int(ttl * 1e6))
        return [self._lock_record(row, taken=True)]

    def locks_renew(self, old: Snapshot, name: str, fence: int, ttl: float) -> list[Record]:
        row = self.tables.locks.get(name)
        if row is None or row.holder is None or (row.fence != fence and "lock fence" not in self.without):
            return []
        self.tables.locks[name] = row._replace(expires_us=self.now_us() + int(ttl * 1e6))
        return [Record(fence=row.fence)]

    def locks_release(self, old: Snapshot, name: str, acquisition: bytes) -> list[Record]:
        row = self.tables.locks.get(name)
        if row is not None and row.holder == acquisition:
            self.tables.locks[name] = row._replace(holder=None, expires_us=self.now_us())
        return []

    def locks_revoke(self, old: Snapshot, name: str, actor: str) -> list[Record]:
        row = self.tables.locks.get(name)
        if row is None or not self._is_held(row):
            return []
        self.tables.locks[name] = row._replace(holder=None, expires_us=self.now_us())
        return [self._lock_record(row)]

    def locks_held(self, old: Snapshot, limit: int, name: str | None) -> list[Record]:
        held = [row for row in self.tables.locks.values() if self._is_held(row) and name in (None, row.name)]
        return [self._lock_record(row) for row in sorted(held)[:limit]]

    def once_done(self, old: Snapshot, name: str, version: str) -> list[Record]:
        return [Record(done_at=self.moment(self.now_us()))] if (name, version) in self.tables.once else []

    def once_record(self, old: Snapshot, name: str, version: str, lock_name: str, fence: int) -> list[Record]:
        row = self.tables.locks.get(lock_name)
        if row is None or row.holder is None or row.fence != fence:
            return []
        done = self.tables.once.setdefault((name, version), (fence, row.label))
        return [Record(fence=fence)] if done[0] == fence else []

    def _is_held(self, row: LockRow) -> bool:
        return row.holder is not None and row.expires_us >= self.now_us()

    def _lock_record(self, row: LockRow, **more: bool) -> Record:
        return Record(
            **more,
            name=row.name,
            label=row.label,
            fence=row.fence,
            acquired_at=self.moment(row.acquired_us),
            expires_at=self.moment(row.expires_us),
        )
