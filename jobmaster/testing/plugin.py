"""The pytest plugin of JobMaster; pytest loads it by itself. Nothing more is imported until a test asks for a fixture.

Fixtures:
    jobs: submits of the tested code are recorded in memory, looked for, and run on request.
    inline_jobs: the same, and jobs run in their submits.
    jobmaster_cluster: a real cluster on embedded servers, with an agent, and with an id of its own for each test.
    jobmaster_handlers, jobmaster_settings: what these clusters are made of; a project may have its own.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from jobmaster.handlers import Handlers
    from jobmaster.settings.model import ClusterSettings
    from jobmaster.testing.embedded.cluster import RealCluster
    from jobmaster.testing.embedded.servers import TestServers
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

    return FoundHandlers(load_handlers(request.config.getini(_HANDLERS)))


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


# ---------------------------------------------------------------- a real cluster


@pytest.fixture(scope="session")
def jobmaster_servers() -> Iterator[TestServers]:
    """PostgreSQL and Valkey of this run (of each process of pytest-xdist), from the wheels of the extra ``embedded``."""
    from jobmaster.testing.embedded.servers import TestServers

    servers = TestServers()
    try:
        servers.start()
        yield servers
    finally:
        servers.stop()


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """The fixture that needs an event loop is made by the plugin that runs async tests here."""
    if config.pluginmanager.hasplugin("asyncio"):
        import pytest_asyncio

        made = _with_loop(pytest_asyncio.fixture)
    elif config.pluginmanager.hasplugin("anyio"):
        made = _with_loop(pytest.fixture)
    else:
        made = _WithoutLoop()
    config.pluginmanager.register(made, "jobmaster-cluster")


class _WithoutLoop:
    """Fixtures where nothing runs async tests."""

    @pytest.fixture
    def jobmaster_cluster(self) -> None:
        """Explains what is missing."""
        pytest.fail(
            "the fixture jobmaster_cluster needs a plugin that runs async tests: pip install pytest-asyncio, or anyio",
            pytrace=False,
        )


def _with_loop(fixture: Callable[..., Any]) -> object:
    """Fixtures on the event loop of the test.

    Args:
        fixture: the decorator for async fixtures.
    """

    class WithLoop:
        @fixture
        async def jobmaster_cluster(
            self,
            jobmaster_servers: TestServers,
            jobmaster_settings: ClusterSettings,
            jobmaster_handlers: Handlers,
            request: pytest.FixtureRequest,
        ) -> AsyncIterator[RealCluster]:
            """A real cluster for one test, empty, with an agent on the event loop; see ``jobmaster.testing.RealCluster``."""
            import msgspec

            from jobmaster.testing.embedded.cluster import RealCluster

            paths = [*jobmaster_settings.handlers, *request.config.getini(_HANDLERS)]
            named = msgspec.structs.replace(jobmaster_settings, handlers=list(dict.fromkeys(paths)))
            settings = await jobmaster_servers.fresh_cluster(named)
            cluster = await RealCluster.open(settings, jobmaster_handlers, jobmaster_servers.directory)
            try:
                yield cluster
            finally:
                await cluster.shut_down()

    return WithLoop()
