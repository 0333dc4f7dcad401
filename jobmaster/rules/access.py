"""Rights over HTTP: scopes, and roles that are sets of scopes."""

from __future__ import annotations

from enum import StrEnum


class Scope(StrEnum):
    """What a caller of the web server may do. Each route needs one."""

    VIEW = "view"
    """Read lists, states and counts."""
    PAYLOAD = "payload"
    """Read arguments, results, error messages and logs of jobs."""
    TRACEBACK = "traceback"
    """Read tracebacks of errors."""
    SUBMIT = "submit"
    """Submit jobs, and send signals."""
    JOBS = "jobs"
    """Retry, cancel and change jobs, batches and workflows."""
    SCHEDULES = "schedules"
    """Pause, resume, run and remove schedules."""
    CONTROL = "control"
    """Pauses, limits and circuit breakers."""
    SERVERS = "servers"
    """Drain agents, freeze buckets, take locks from their holders, delete the contents of jobs."""


READING = frozenset({Scope.VIEW, Scope.PAYLOAD, Scope.TRACEBACK})
"""Scopes that change nothing."""


class Role(StrEnum):
    """A set of scopes; each role has those of the one before it."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"

    @property
    def scopes(self) -> frozenset[Scope]:
        """The scopes of this role."""
        return _SCOPES[self]


_SCOPES = {
    Role.VIEWER: frozenset({Scope.VIEW}),
    Role.OPERATOR: frozenset(Scope) - {Scope.TRACEBACK, Scope.SERVERS},
    Role.ADMIN: frozenset(Scope),
}
