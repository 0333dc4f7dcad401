"""What transactional jobs have done: rows in a table of their own, in which a second one would be no error."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from jobmaster.model.job import JobState
from tests.support.deployment import Deployment

PAYS = "pays"
"""Their kind."""


async def create_table(deployment: Deployment) -> None:
    """Before the first of them."""
    await deployment.fetch("CREATE TABLE public.payment (job uuid)")


async def check(deployment: Deployment, expected: Mapping[bytes, tuple[str, JobState, int]]) -> None:
    """Each has had its effect once, however often it was started."""
    paid = Counter(row["job"].bytes for row in await deployment.fetch("SELECT job FROM public.payment"))
    times = {paid[job_id] for job_id, (kind, _, _) in expected.items() if kind == PAYS}
    assert times <= {1}, f"a transactional job has had its effect {times} times"
