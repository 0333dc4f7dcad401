"""Twins of the statements about named locks and actions that run once."""

from __future__ import annotations

from tests.simulation.master.statements_base import StatementsBase
from tests.simulation.master.tables import LockRow, OnceAttempt, Record, Snapshot


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
        lock = self.tables.locks.get(f"once/{name}/{version}")
        if "second look" in self.without and lock is not None and self._is_held(lock):
            return []
        return [Record(done_at=self.moment(self.now_us()))] if (name, version) in self.tables.once else []

    def once_record(self, old: Snapshot, name: str, version: str, lock_name: str, fence: int) -> list[Record]:
        row = self.tables.locks.get(lock_name)
        if row is None or row.holder is None or row.fence != fence:
            return []
        done = self.tables.once.setdefault((name, version), (fence, row.label))
        if done[0] != fence:
            return []
        begun = self.tables.once_attempts.get((name, version))
        if begun is not None and begun.fence > fence:
            self.audit.broken("once", f"{name} {version}: run {fence} is recorded after run {begun.fence} has begun")
        self.tables.once_attempts.pop((name, version), None)
        return [Record(fence=fence)]

    def once_begin(self, old: Snapshot, name: str, version: str, lock_name: str, fence: int) -> list[Record]:
        row, before = self.tables.locks.get(lock_name), self.tables.once_attempts.get((name, version))
        if row is None or row.holder is None or row.fence != fence:
            return []
        failures = 0 if before is None else before.failures
        self.tables.once_attempts[name, version] = OnceAttempt(lock_name, fence, row.label, failures, None)
        return [Record(fence=fence)]

    def once_fail(self, old: Snapshot, name: str, version: str, fence: int, error: str) -> list[Record]:
        row = self.tables.once_attempts.get((name, version))
        if row is not None and row.fence == fence and row.error is None:
            self.tables.once_attempts[name, version] = row._replace(failures=row.failures + 1, error=error)
        return []

    def once_list(self, old: Snapshot, limit: int) -> list[Record]:
        found: list[Record] = []
        for (name, version), row in self.tables.once_attempts.items():
            lock = self.tables.locks.get(row.lock_name)
            runs = row.error is None and lock is not None and lock.fence == row.fence and self._is_held(lock)
            if (name, version) not in self.tables.once:
                found.append(self._once_record(name, version, row, "running" if runs else "failed"))
        for (name, version), (fence, label) in self.tables.once.items():
            found.append(self._once_record(name, version, OnceAttempt("", fence, label, 0, None), "done"))
        order = ("running", "failed", "done")
        return sorted(found, key=lambda each: (order.index(each["state"]), each["name"], each["version"]))[:limit]

    def _once_record(self, name: str, version: str, row: OnceAttempt, state: str) -> Record:
        return Record(
            name=name, version=version, label=row.label, state=state, failures=row.failures, error=row.error,
            changed_at=self.moment(self.now_us()),
        )  # fmt: skip

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
