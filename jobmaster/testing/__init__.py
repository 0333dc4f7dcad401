"""For the tests of applications: handlers without servers, submits without a cluster, and a real cluster in a fixture.

The fixtures are in ``jobmaster.testing.plugin``, which pytest loads by itself. Names are loaded when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jobmaster.testing.context import job_context
    from jobmaster.testing.drained import Drained
    from jobmaster.testing.due_fires import DueFire
    from jobmaster.testing.embedded.cluster import RealCluster
    from jobmaster.testing.jobs import Jobs
    from jobmaster.testing.run_handler import run_handler, run_handler_async
    from jobmaster.testing.submitted_jobs import SubmittedJob

__all__ = [
    "Drained",
    "DueFire",
    "Jobs",
    "RealCluster",
    "SubmittedJob",
    "job_context",
    "run_handler",
    "run_handler_async",
]

_MODULE_OF = {
    "Drained": "jobmaster.testing.drained",
    "DueFire": "jobmaster.testing.due_fires",
    "Jobs": "jobmaster.testing.jobs",
    "RealCluster": "jobmaster.testing.embedded.cluster",
    "SubmittedJob": "jobmaster.testing.submitted_jobs",
    "job_context": "jobmaster.testing.context",
    "run_handler": "jobmaster.testing.run_handler",
    "run_handler_async": "jobmaster.testing.run_handler",
}


def __getattr__(name: str) -> object:
    """A public name, from its module."""
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'jobmaster.testing' has no attribute {name!r}")
    value: object = getattr(import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
