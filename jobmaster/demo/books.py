"""The demo's books: what the master says against what a plain loop over the same files says."""

from __future__ import annotations

import json
from collections.abc import Mapping
from uuid import UUID

import msgspec

from jobmaster.demo.handlers import INDEX_FILE
from jobmaster.demo.history import PipelineSummary
from jobmaster.demo.indexing import FileIndex, Totals, add_up, index_source
from jobmaster.master.reports import Reader

_PAGE = 2000


class Books(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the master knows about the demo's jobs."""

    states: dict[bytes, str]
    """Job id -> state."""
    results: list[tuple[str, FileIndex]]
    """(path, index) of every job that succeeded."""
    rescued: int
    """Jobs that were found in the hands of a dead agent at least once."""
    duplicate_ids: int
    """Rows beyond the first of an id."""

    @property
    def totals(self) -> Totals:
        return add_up(self.results)

    @property
    def duplicate_outcomes(self) -> int:
        """Outcomes beyond the first, of a job or of a file."""
        return self.duplicate_ids + len(self.results) - len({path for path, _ in self.results})


async def read_books(reader: Reader) -> Books:
    """Read every job of the demo's handler from the master."""
    decode = msgspec.json.Decoder(FileIndex).decode
    states: dict[bytes, str] = {}
    results: list[tuple[str, FileIndex]] = []
    rescued = rows_read = 0
    after = UUID(int=0)
    while rows := await reader.report("results", INDEX_FILE, after, _PAGE):
        for row in rows:
            states[row["id"].bytes] = row["state"]
            rescued += row["rescues"] > 0
            rows_read += 1
            if row["state"] == "SUCCEEDED":
                results.append((json.loads(row["args"])["path"], decode(row["result"])))
        after = rows[-1]["id"]
    return Books(states=states, results=results, rescued=rescued, duplicate_ids=rows_read - len(states))


def plain_loop(files: list[str]) -> Totals:
    """The same work without a cluster."""
    return add_up((path, index_source(path)) for path in files)


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """What the demo found; the JSON object of ``--json``."""

    files: int
    submitted: int
    succeeded: int
    failed: int
    lost: int
    """Acknowledged jobs that did not come to an end."""
    duplicate_outcomes: int
    results_match: bool
    rescued: int
    graceful_exits: int
    """Agents that left in order."""
    invariants: dict[str, int]
    seconds: float
    totals: Totals
    pipeline: PipelineSummary | msgspec.UnsetType = msgspec.UNSET
    """Of ``--pipeline``."""

    @property
    def ok(self) -> bool:
        """True when the books balance and both kinds of exit have really happened."""
        balanced = self.results_match and self.submitted == self.succeeded == self.files
        clean = not (self.failed or self.lost or self.duplicate_outcomes or any(self.invariants.values()))
        looked_back = self.pipeline is msgspec.UNSET or self.pipeline.balances(self.files)
        return balanced and clean and looked_back and self.rescued > 0 and self.graceful_exits > 0


def summarise(
    files: list[str],
    acknowledged: Mapping[bytes, str],
    books: Books,
    expected: Totals,
    invariants: dict[str, int],
    graceful_exits: int,
    seconds: float,
) -> Summary:
    """Add everything up."""
    final = {
        job_id for job_id, state in books.states.items() if state in ("SUCCEEDED", "FAILED", "CANCELLED", "EXPIRED")
    }
    return Summary(
        files=len(files),
        submitted=len(acknowledged),
        succeeded=len(books.results),
        failed=sum(1 for state in books.states.values() if state in ("FAILED", "CANCELLED", "EXPIRED")),
        lost=len(acknowledged.keys() - final),
        duplicate_outcomes=books.duplicate_outcomes,
        results_match=books.totals == expected,
        rescued=books.rescued,
        graceful_exits=graceful_exits,
        invariants=invariants,
        seconds=round(seconds, 1),
        totals=books.totals,
    )
