"""What a state of the modelled cluster is: rows, one bucket in the master and in its store, who holds what in memory.

Everything is a tuple, so that states can be compared and hashed. Numbers stand for ids: job 0 and 1, bucket 1 (of agent A,
looked at closely) and bucket 2 (of the healthy agent C). States are plain strings here, because the hash of an enum's member
is a call into Python, and hashing is most of what an exploration does. What no agent or server could know, and is here only
so that wrong steps can be recognised, is called *ghost*.
"""

from __future__ import annotations

from typing import NamedTuple

# Row states. HELD = in no bucket; ASSIGNED, PROCESSING = in flight; FINAL = outcome recorded.
HELD, ASSIGNED, PROCESSING, FINAL = "H", "A", "P", "F"
IN_FLIGHT = (ASSIGNED, PROCESSING)

# Bucket states, in the master and (those an owner or rescuer writes there) in the store's meta.
ACTIVE, COMPLETING, LOST, DRAINING, READY, FROZEN, GONE = (
    "active",
    "completing",
    "lost",
    "draining",
    "ready",
    "frozen",
    "",
)
WORKING = (ACTIVE, COMPLETING)

# Ghost: which assignment an entry or a row stems from.
SAVE_PENDING, ONBOARDED, RETRIED, ELSEWHERE, SUBMITTED_2, BY_PRODUCER, BY_RESCUER = range(7)

UNFROZEN_LIST = 4
"""Name of the claimed list into which the store moves what had been onboarded before an emergency stop."""


class Row(NamedTuple):
    """A job's row in the master."""

    state: str
    token: int
    bucket: int
    """0: none."""
    epoch: int
    origin: int
    """Ghost."""
    flag: bool = False
    """A cancel request."""


class Job(NamedTuple):
    """A job, its row, and what its producer and the world have done about it."""

    row: Row | None = None
    outcomes: int = 0
    """Ghost: outcomes ever recorded; the row may have been archived and dropped since."""
    dropped: bool = False
    """Its row was archived and dropped; its id lies below the watermark."""
    sends: int = 0
    acked: bool = False
    at_2: bool = False
    """Ghost: bucket 2 acknowledged it."""
    exempt: bool = False
    """Ghost: lost by a fault that its durability level does not cover."""
    doomed: bool = False
    """Ghost: a failover has forgotten a commit for which its copy may have been erased."""
    cancelled: bool = False
    """A cancel request was acknowledged before any outcome."""
    failures: int = 0


class Entry(NamedTuple):
    """A copy of a job as it lies in a store."""

    job: int
    token: int
    origin: int


class KeptOutcome(NamedTuple):
    """An outcome kept in the store while the master was away."""

    what: str
    entry: Entry


class Claimed(NamedTuple):
    """A claimed list."""

    name: int
    entries: tuple[Entry, ...]


class Bucket(NamedTuple):
    """Bucket 1 as the master has it."""

    state: str = ACTIVE
    epoch: int = 1
    owner: str = "A"


class Store(NamedTuple):
    """Bucket 1 as its store has it. ``epoch`` 0: the keys are gone."""

    state: str = ACTIVE
    epoch: int = 1
    owner: str = "A"
    pending: tuple[Entry, ...] = ()
    assigned: tuple[Entry, ...] = ()
    claimed: tuple[Claimed, ...] = ()
    kept: tuple[KeptOutcome, ...] = ()
    granted: bool = False
    """It stands for the owner, or stood for the former one: a rescuer waits."""

    def copies(self) -> list[Entry]:
        """Every entry that lies here as a job to be run."""
        return [*self.pending, *self.assigned, *(entry for each in self.claimed for entry in each.entries)]

    def empty(self) -> bool:
        return not (self.pending or self.assigned or self.claimed or self.kept)


class Copy(NamedTuple):
    """A claimed copy in an agent's memory, with the identity that it writes under."""

    job: int
    token: int
    bucket: int
    epoch: int
    origin: int
    phase: str
    """queued, allowed (a fenced start was accepted), running, done, failed, held (to be given back), waiting (behind another
    copy of its id), settled (only its list is still to be deleted)."""
    list: int
    """The claimed list that it came from; 0: deleted."""
    row: int
    """What its agent knows of the row: 0 nothing, 1 there is one, 2 it is in flight under this identity, payload and all."""

    @property
    def entry(self) -> Entry:
        return Entry(self.job, self.token, self.origin)

    @property
    def safe(self) -> bool:
        """Its list is not needed for it any more."""
        return self.phase == "settled" or self.row == 2


class Agent(NamedTuple):
    """Agent A and what it holds of its bucket."""

    mode: str = "up"
    """up; lost (it has learnt that the bucket is another's); out (it has nothing to do with it any more); dead."""
    copies: tuple[Copy, ...] = ()
    puts: tuple[Entry, ...] = ()
    """Marked as assigned in the master, not yet put into the store."""
    unanswered: tuple[Entry, ...] = ()
    """Those of them that were put without an answer."""
    leaving: int = 0
    """Graceful exit: 1 COMPLETING in the master, 2 also in the store, 3 closed there."""
    epoch: int = 1
    """Under which it holds the bucket; an emergency stop that is over has raised it."""
    term: bool = False
    """The store has granted it a term, by its own count: it may start jobs without the master."""


class Page(NamedTuple):
    """One entry that a rescuer is moving."""

    where: str
    name: int
    item: Entry | KeptOutcome
    committed: bool = False
    removed: bool = False


class Rescuer(NamedTuple):
    """An agent that drains the bucket."""

    name: str
    epoch: int
    at: str = "fence"
    """unaware (the reply to its claim was lost), fence, pages, sweep."""
    page: Page | None = None


class Lease(NamedTuple):
    """A's lease, and the certifier that has looked at it."""

    valid: bool = True
    seen_over: bool = False
    certified: bool = False


class Masterly(NamedTuple):
    """What a standby of the master knows: taken over by a failover."""

    rows: tuple[tuple[Row | None, int], ...]
    bucket: Bucket


class Change(NamedTuple):
    """A client that changes a job of bucket 1, under the identity that it has read."""

    job: int
    token: int
    epoch: int
    origin: int
    """Ghost."""
    at: str
    """Its next step: recall, hold, insert."""


class State(NamedTuple):
    """All of it."""

    jobs: tuple[Job, ...]
    bucket: Bucket = Bucket()
    store: Store = Store()
    agent: Agent = Agent()
    rescuer: Rescuer | None = None
    zombie: Rescuer | None = None
    """A rescuer that was certified dead and is not."""
    first_rescuer_gone: bool = False
    pending_2: tuple[int, ...] = ()
    claimed_2: tuple[Claimed, ...] = ()
    healthy: Copy | None = None
    """The one job that agent C is at."""
    rolled_back: bool = False
    """The store's change counter is below what A has seen."""
    dirty: bool = False
    """A has changed the store since the snapshot."""
    snapshot: Store | None = None
    standby: Masterly | None = None
    spent: frozenset[str] = frozenset()
    """Faults that happen once and have happened."""
    lease: Lease = Lease()
    change: Change | None = None

    def with_job(self, number: int, job: Job) -> State:
        return self._replace(jobs=(*self.jobs[:number], job, *self.jobs[number + 1 :]))

    def with_row(self, number: int, row: Row | None) -> State:
        return self.with_job(number, self.jobs[number]._replace(row=row))

    def with_agent(self, agent: Agent) -> State:
        return self._replace(agent=agent)

    def kept_elsewhere(self, number: int) -> bool:
        """Outside bucket 1's store: a copy that survives whatever happens to A and to that store."""
        in_lists = any(entry.job == number for each in self.claimed_2 for entry in each.entries)
        return number in self.pending_2 or in_lists or (self.healthy is not None and self.healthy.job == number)

    def kept(self, number: int) -> bool:
        """Somewhere there is a copy that does not die with A."""
        store = self.store
        return (
            any(entry.job == number for entry in store.copies())
            or any(each.entry.job == number for each in store.kept)
            or self.kept_elsewhere(number)
        )
