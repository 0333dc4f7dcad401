"""Groups of failed jobs, counted step by step from the newest job backwards."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from jobmaster.client.jobs.listing import READS, READS_GROWTH, id_ranges
from jobmaster.client.submitter import SubmitChecks
from jobmaster.encryption import CannotOpen, PayloadCipher, is_sealed, opened_view
from jobmaster.model.errors import InputError
from jobmaster.model.inspection.failures import FailureGroup, Failures
from jobmaster.model.job import JobState
from jobmaster.model.job_view import JobFilter, JobView, id_before
from jobmaster.model.redaction import MASK
from jobmaster.ports import Queries
from jobmaster.ports.inspection import InspectionQueries
from jobmaster.rules.failure_group import SEALED_LINE, error_line

GROUPS, GROUPS_MAX = 50, 1000
"""Groups that are listed: the default, and the most."""
WINDOW_SECONDS = 86_400.0
"""How long ago the oldest jobs were created, unless the caller says otherwise."""
STEP_ROWS_MAX = 16_000
"""Rows of one step: the errors of many jobs are decoded."""
ROWS_MAX, JOBS_MAX = 1_000_000, 100_000
"""Rows that are read at most, and jobs after which no further step is read."""


async def group_failures(queries: Queries, reads: InspectionQueries, chosen: JobFilter, *, limit: int) -> Failures:
    """See ``Inspection.failures``."""
    given: object = limit
    if isinstance(given, bool) or not isinstance(given, int) or not 1 <= given <= GROUPS_MAX:
        raise InputError(f"'limit' must be a whole number from 1 to {GROUPS_MAX}, not {limit!r:.200}")
    if not chosen.states:
        chosen = msgspec.structs.replace(chosen, states=(JobState.FAILED,))
    groups: dict[str, FailureGroup] = {}
    rows, jobs, step_rows = 0, 0, READS
    complete = True
    for lowest, top in await id_ranges(queries, chosen, chosen.highest):
        while lowest <= top and rows < ROWS_MAX and jobs < JOBS_MAX:
            step = await reads.failures(chosen, lowest, top, reads=step_rows)
            for group in step.groups:
                groups[group.fingerprint] = _together(groups.get(group.fingerprint), group)
            rows += step_rows
            jobs += sum(group.jobs for group in step.groups)
            top = id_before(step.read_to)
            step_rows = min(step_rows * READS_GROWTH, STEP_ROWS_MAX)
        complete = lowest > top
        if not complete:
            break
    ordered = sorted(groups.values(), key=lambda group: (-group.jobs, group.fingerprint))
    return Failures(groups=tuple(ordered[:limit]), jobs=jobs, complete=complete)


async def without_secrets(found: Failures, queries: Queries, checks: SubmitChecks) -> Failures:
    """The groups with the values of secret arguments cut out of their lines.

    Agents cut them out of an error before it is recorded. What is left is of errors from before the handler declared them.
    All jobs of a group have the same line, so the values that stand in it are those of its sample.
    """
    lookup = checks.handler_lookup
    secret = {name: await lookup.secret_arguments(name) for name in {group.handler for group in found.groups}}
    groups = [group for group in found.groups if secret[group.handler] and group.line != SEALED_LINE]
    if not groups:
        return found
    samples = await queries.jobs_of(JobFilter(), [group.sample.bytes for group in groups], payload=True)
    views = {view.id: view for view in samples}
    lines = {
        group.fingerprint: _shown_line(group, views.get(group.sample), secret[group.handler], checks.cipher)
        for group in groups
    }
    return msgspec.structs.replace(
        found,
        groups=tuple(
            msgspec.structs.replace(group, line=lines.get(group.fingerprint, group.line)) for group in found.groups
        ),
    )


def _shown_line(
    group: FailureGroup, sample: JobView | None, secret: Sequence[str], cipher: PayloadCipher | None
) -> str:
    if sample is None or sample.error is None or error_line(sample.error.message.replace("\0", "")) != group.line:
        return MASK  # it has changed since it was counted
    try:
        sample = opened_view(cipher, sample)
    except CannotOpen:
        pass
    if is_sealed(sample.arguments_json):
        return MASK  # the values are not known here
    shown = sample.redacted(secret).error
    return group.line if shown is None else error_line(shown.message)


def _together(newer: FailureGroup | None, older: FailureGroup) -> FailureGroup:
    """The group of two steps; the sample is that of the newer jobs."""
    if newer is None:
        return older
    times = [at for at in (newer.first_at, newer.last_at, older.first_at, older.last_at) if at is not None]
    return msgspec.structs.replace(
        newer, jobs=newer.jobs + older.jobs, first_at=min(times, default=None), last_at=max(times, default=None)
    )
