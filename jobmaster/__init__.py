"""JobMaster: a background-job cluster that is as fast as its stores allow and never loses a job.

This module holds public names only and imports no driver; ``jobmaster.wiring`` opens clusters.
"""

from jobmaster.handlers import Cancel, Handlers, JobContext, Retry
from jobmaster.model.job import Durability, JobState, JobView, Level, OnFull, Priority

__version__ = "0.1.0"

__all__ = [
    "Cancel",
    "Durability",
    "Handlers",
    "JobContext",
    "JobState",
    "JobView",
    "Level",
    "OnFull",
    "Priority",
    "Retry",
    "__version__",
]
