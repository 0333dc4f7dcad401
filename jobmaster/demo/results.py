"""The demo's results: those in the master, compared with those of a plain loop over the same files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from uuid import UUID

import msgspec

from jobmaster.demo.handlers import INDEX_FILE
from jobmaster.demo.indexing import FileIndex, Totals, add_up, index_source
from jobmaster.demo.pipeline_steps import PipelineSummary
from jobmaster.master.reports import Reader

_PAGE = 2000


class MasterResults(msgspec.Struct, frozen=True, kw_only=True):
    """What the master holds about the demo's jobs."""

    states: dict[bytes, str]
    """Job id -> state."""
    results: list[tuple[str, FileIndex]]
    """(path, index) of every job that succeeded."""
    rescued: int
    """Jobs that were rescued from a dead agent at least once."""
    duplicate_ids: int
    """Rows beyond the first of an id."""

    @property
    def totals(self) -> Totals:
        return add_up(self.results)

    @property
    def duplicate_outcomes(self) -> int:
        """Outcomes beyond the first, of a job or of a file."""
        return self.duplicate_ids + len(self.results) - len({path for path, _ in self.results})


async def read_results(reader: Reader) -> MasterResults:
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
    return MasterResults(states=states, results=results, rescued=rescued, duplicate_ids=rows_read - len(states))


def plain_loop(files: list[str]) -> Totals:
    """The same work without a cluster."""
    return add_up((path, index_source(path)) for path in files)


class DemoSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Result of the demo; the JSON object of ``--json``."""

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
        """True when all results agree and both kinds of exit have happened."""
        balanced = self.results_match and self.submitted == self.succeeded == self.files
        clean = not (self.failed or self.lost or self.duplicate_outcomes or any(self.invariants.values()))
        pipeline_ok = self.pipeline is msgspec.UNSET or self.pipeline.balances(self.files)
        return balanced and clean and pipeline_ok and self.rescued > 0 and self.graceful_exits > 0


def summarise(
    files: list[str],
    acknowledged: Mapping[bytes, str],
    recorded: MasterResults,
    expected: Totals,
    invariants: dict[str, int],
    graceful_exits: int,
    seconds: float,
) -> DemoSummary:
    """Build the summary."""
    final = {
        job_id for job_id, state in recorded.states.items() if state in ("SUCCEEDED", "FAILED", "CANCELLED", "EXPIRED")
    }
    return DemoSummary(
        files=len(files),
        submitted=len(acknowledged),
        succeeded=len(recorded.results),
        failed=sum(1 for state in recorded.states.values() if state in ("FAILED", "CANCELLED", "EXPIRED")),
        lost=len(acknowledged.keys() - final),
        duplicate_outcomes=recorded.duplicate_outcomes,
        results_match=recorded.totals == expected,
        rescued=recorded.rescued,
        graceful_exits=graceful_exits,
        invariants=invariants,
        seconds=round(seconds, 1),
        totals=recorded.totals,
    )
