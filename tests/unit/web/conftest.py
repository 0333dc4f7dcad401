"""The application before any route that calls the cluster: requests inside this process, with a token for each role."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from starlette.applications import Starlette

from jobmaster.client.cluster import Cluster
from jobmaster.settings.model import ClusterSettings
from jobmaster.web.app import create_app
from tests.support.web_callers import WEB, Caller, callers

__all__ = ["callers"]


def unused_cluster() -> Cluster:
    """Stands where no route of a test asks the cluster anything."""
    return cast("Cluster", SimpleNamespace(settings=ClusterSettings()))


@pytest.fixture
def app() -> Starlette:
    return create_app(unused_cluster(), WEB)


@pytest.fixture
def caller(app: Starlette, callers: Any) -> Caller:
    """``caller()`` has no token, ``caller(Role.VIEWER)`` the one of a viewer; ``application=`` is another one."""
    made: Caller = callers(app)
    return made
