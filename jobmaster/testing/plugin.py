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
_ON_LOOP = "jobmaster_cluster_on_loop"


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
    """Submitted jobs, recorded in memory, looked for, and run on request; see ``jobmaster.testing.Jobs``. Needs no server."""
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


@pytest.fixture
def jobmaster_cluster(request: pytest.FixtureRequest) -> RealCluster:
    """A real cluster for one test, empty, with an agent on the event loop of the test. PostgreSQL and Valkey come from the
    extra ``embedded`` and start once in a run; the event loop comes from pytest-asyncio or anyio."""
    plugins, by_anyio = request.config.pluginmanager, "anyio_backend" in request.fixturenames
    if not (plugins.hasplugin("asyncio") or (by_anyio and plugins.hasplugin("anyio"))):
        pytest.fail(
            "the fixture jobmaster_cluster needs a plugin that runs async tests: pip install pytest-asyncio, or anyio and "
            "its marker (pytest.mark.anyio)",
            pytrace=False,
        )
    if by_anyio and _is_auto(request.config):
        pytest.fail(
            "pytest-asyncio in auto mode and anyio would run the fixture jobmaster_cluster and its test on two event loops: "
            "set asyncio_mode = strict, or remove the marker anyio from the test",
            pytrace=False,
        )
    cluster: RealCluster = request.getfixturevalue(_ON_LOOP)
    return cluster


def _is_auto(config: pytest.Config) -> bool:
    """True when pytest-asyncio takes every async fixture."""
    if not config.pluginmanager.hasplugin("asyncio"):
        return False
    mode: object = config.getoption("asyncio_mode", None) or config.getini("asyncio_mode")
    return mode == "auto"


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """The fixture that needs an event loop is made by the plugin that runs async tests here; anyio takes those of both."""
    fixture: Callable[..., Callable[..., Any]] = pytest.fixture
    if config.pluginmanager.hasplugin("asyncio"):
        import pytest_asyncio

        fixture = pytest_asyncio.fixture
    config.pluginmanager.register(_on_loop(fixture), _ON_LOOP)


def _on_loop(fixture: Callable[..., Callable[..., Any]]) -> object:
    """A plugin with the real cluster on the event loop of the test.

    Args:
        fixture: the decorator for async fixtures.
    """

    class OnLoop:
        @fixture(name=_ON_LOOP)
        async def cluster(
            self,
            jobmaster_servers: TestServers,
            jobmaster_settings: ClusterSettings,
            jobmaster_handlers: Handlers,
            request: pytest.FixtureRequest,
        ) -> AsyncIterator[RealCluster]:
            """A cluster with an id of its own."""
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

    return OnLoop()
