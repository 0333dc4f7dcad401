"""The pytest plugin of JobMaster; pytest loads it by itself. Nothing more is imported until a test asks for a fixture.

Fixtures:
    jobs: submits of the tested code are recorded in memory, looked for, and run on request.
    inline_jobs: the same, and jobs run in their submits.
    jobmaster_handlers, jobmaster_settings: what these clusters are made of; a project may have its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from jobmaster.handlers import Handlers
    from jobmaster.settings.model import ClusterSettings
    from jobmaster.testing.jobs import Jobs

_HANDLERS = "jobmaster_handlers"


@pytest.hookimpl
def pytest_addoption(parser: pytest.Parser) -> None:
    """The option ``jobmaster_handlers``."""
    parser.addini(
        _HANDLERS,
        "Modules that declare handlers, as `jobmaster agent run --handlers` takes them: package.module or "
        "package.module:attribute.",
        type="args",
        default=[],
    )


@pytest.fixture
def jobmaster_handlers(request: pytest.FixtureRequest) -> Handlers:
    """Handlers of the modules that the option ``jobmaster_handlers`` names."""
    from jobmaster.handlers import load_handlers
    from jobmaster.testing.registries import FoundHandlers

    handlers = FoundHandlers()
    handlers.merge(load_handlers(request.config.getini(_HANDLERS)))
    return handlers


@pytest.fixture
def jobmaster_settings() -> ClusterSettings:
    """Settings as ``jobmaster.connect()`` finds them: lanes, limits and defaults of jobs."""
    from jobmaster.settings.loader import load_settings

    return load_settings().settings


@pytest.fixture
def jobs(jobmaster_settings: ClusterSettings, jobmaster_handlers: Handlers) -> Iterator[Jobs]:
    """Submitted jobs, recorded in memory; see ``jobmaster.testing.Jobs``."""
    from jobmaster.testing.jobs import Jobs

    kit = Jobs(jobmaster_settings, jobmaster_handlers)
    with kit.connected():
        yield kit


@pytest.fixture
def inline_jobs(jobs: Jobs) -> Iterator[Jobs]:
    """``jobs`` in inline mode: a job that is due runs before its submit returns."""
    with jobs.inline():
        yield jobs
