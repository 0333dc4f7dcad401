"""Why no agent takes a job that waits in the master, and the remedy: one set of words for logs, commands and errors."""

from __future__ import annotations

from typing import NamedTuple

from jobmaster.model.job import Priority


class UnservedCause(NamedTuple):
    """Why jobs of a handler are unserved: no owner of an ACTIVE bucket of their lane and priority has the handler."""

    lane: str
    priority: int
    handler: str
    known: bool
    """A living agent has it, but owns no such bucket."""
    active: bool
    """The lane and priority have an ACTIVE bucket."""
    frozen: bool
    """They have a FROZEN one."""
    requires: tuple[str, ...] = ()
    """Owners of such buckets have the handler, and none of them has all these capabilities, which the jobs require."""

    @property
    def group(self) -> str:
        """``lane/priority``."""
        return f"{self.lane}/{Priority(self.priority).label}"

    @property
    def reason(self) -> str:
        """What is missing, as a clause."""
        if not self.active and self.frozen:
            return f"every bucket of {self.group} is frozen"
        if self.requires:
            words = ", ".join(self.requires)
            return f"no agent with a bucket of {self.group} and the handler {self.handler!r} has the capability {words}"
        if not self.known:
            return f"no living agent has the handler {self.handler!r}"
        if not self.active:
            return f"no bucket serves {self.group}"
        return f"no agent with a bucket of {self.group} has the handler {self.handler!r}"

    @property
    def remedy(self) -> str:
        """What an operator can do."""
        if not self.active and self.frozen:
            return "jobmaster bucket unfreeze --all (or BUCKET, or --lane)"
        if self.requires:
            return "update the agents: the program that has submitted these jobs is newer (jobmaster status shows versions)"
        if not self.known:
            return "start an agent with the module that declares it (handlers:), or restart agents that run older code"
        return "configure buckets of that lane and priority for an agent that has the handler"
