"""The application over a real cluster, as callers of each kind meet it."""

from __future__ import annotations

from typing import Any

import httpx
import msgspec
import pytest
from starlette.applications import Starlette

from jobmaster.rules.access import Role
from jobmaster.settings.model import ClusterSettings
from jobmaster.web.app import create_app
from tests.integration.client.conftest import agent, client, master, open_cluster, opened
from tests.integration.client.fixture import ClientFixture, settings_for
from tests.support.patience import patient
from tests.support.web_callers import WEB, Caller, callers

__all__ = ["agent", "callers", "client", "master", "open_cluster", "opened"]


@pytest.fixture
def client_settings(cluster_name: str, store_url: str) -> ClusterSettings:
    """As those of the client's tests. No store is silent here, and none is taken for silent on a loaded machine."""
    settings = settings_for(cluster_name, {"default": store_url})
    store = msgspec.structs.replace(settings.stores["default"], call_timeout_seconds=patient(2))
    return msgspec.structs.replace(settings, stores={"default": store})


@pytest.fixture
def app(client: ClientFixture) -> Starlette:
    """With a token for each role."""
    return create_app(client.cluster, WEB)


@pytest.fixture
def caller(app: Starlette, callers: Any) -> Caller:
    """``caller()`` has no token, ``caller(Role.VIEWER)`` the one of a viewer."""
    made: Caller = callers(app)
    return made


@pytest.fixture
def viewer(caller: Caller) -> httpx.AsyncClient:
    return caller(Role.VIEWER)


@pytest.fixture
def operator(caller: Caller) -> httpx.AsyncClient:
    return caller(Role.OPERATOR)


@pytest.fixture
def admin(caller: Caller) -> httpx.AsyncClient:
    return caller(Role.ADMIN)
