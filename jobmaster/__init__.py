"""JobMaster: a background-job cluster that is as fast as its stores allow and keeps each job as safe as was asked for.

This module holds public names only, each loaded when it is first asked for: importing it loads no driver, and
``jobmaster --help`` stays quick.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jobmaster.client.cluster import Cluster
    from jobmaster.client.receipts import JobReceipt
    from jobmaster.client.sync import SyncCluster
    from jobmaster.clock import new_id
    from jobmaster.handlers import Cancel, Handlers, JobContext, Retry
    from jobmaster.model.job import Durability, JobState, JobView, OnFull, Priority

__version__ = "0.1.0"

__all__ = [
    "Cancel",
    "Cluster",
    "Durability",
    "Handlers",
    "JobContext",
    "JobReceipt",
    "JobState",
    "JobView",
    "OnFull",
    "Priority",
    "Retry",
    "SyncCluster",
    "__version__",
    "new_id",
]

_HOMES = {
    "Cancel": "jobmaster.handlers",
    "Cluster": "jobmaster.client.cluster",
    "Durability": "jobmaster.model.job",
    "Handlers": "jobmaster.handlers",
    "JobContext": "jobmaster.handlers",
    "JobReceipt": "jobmaster.client.receipts",
    "JobState": "jobmaster.model.job",
    "JobView": "jobmaster.model.job",
    "OnFull": "jobmaster.model.job",
    "Priority": "jobmaster.model.job",
    "Retry": "jobmaster.handlers",
    "SyncCluster": "jobmaster.client.sync",
    "new_id": "jobmaster.clock",
}


def __getattr__(name: str) -> object:
    """A public name, from the room it lives in."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'jobmaster' has no attribute {name!r}")
    value: object = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
