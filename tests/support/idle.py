"""Whether the part of an agent that works on jobs has nothing left to do."""

from __future__ import annotations

from jobmaster_agents.bucket_worker import BucketWorker


def is_idle(bucket_worker: BucketWorker) -> bool:
    """True while no job is claimed or running and no outcome is on its way to the master."""
    return not len(bucket_worker.job_table) and not bucket_worker.outcome_writer.backlog
