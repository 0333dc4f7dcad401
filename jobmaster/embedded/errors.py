"""Errors of embedded servers; each message names the fault, its place, and the remedy."""

from __future__ import annotations

from jobmaster.model.errors import Unavailable


class EmbeddedError(Unavailable):
    """Base of this package's errors: an embedded server could not be found, started, reached or stopped."""


class BinariesMissing(EmbeddedError):
    """No server program of a sufficient version was found."""


class DirectoryInUse(EmbeddedError):
    """Another live process runs its servers on the directory. ``owner_pid`` is that process."""

    def __init__(self, message: str, *, owner_pid: int, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.owner_pid = owner_pid


class DirectoryUnusable(EmbeddedError):
    """The data directory cannot be created or written, or belongs to another user or another program."""


class AccountUnusable(EmbeddedError):
    """PostgreSQL refuses root, and no unprivileged account can be used in its place."""


class PortTaken(EmbeddedError):
    """The requested TCP port is in use."""


class ServerStartFailed(EmbeddedError):
    """The server ended, or did not answer in time; the message ends with the last lines of its log."""


class StopFailed(EmbeddedError):
    """The process that owns the servers did not end in time after SIGTERM."""
