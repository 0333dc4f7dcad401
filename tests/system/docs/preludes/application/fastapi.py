"""What the page about FastAPI takes for granted: nothing. Its first snippet is an application, which gets a request."""

from __future__ import annotations

import asyncio
from importlib import import_module
from typing import Any

from fastapi.testclient import TestClient

from jobmaster import Cluster

the_page: Any = import_module("the_page")
handlers, make_bill = the_page.handlers, the_page.make_bill


async def before(cluster: Cluster, names: dict[str, Any]) -> None:
    pass


def order(app: Any) -> str:
    """Submit a job by HTTP, and wait until the application answers that an agent has run it."""
    with TestClient(app) as client:
        answer = client.post("/bills", json={"customer": "Ada", "pieces": 2})
        assert answer.status_code == 202, answer.text
        job = answer.json()["id"]
        while (state := client.get(f"/bills/{job}").json()["state"]) not in ("SUCCEEDED", "FAILED"):
            pass
    return str(state)


async def after(names: dict[str, Any]) -> None:
    assert await asyncio.to_thread(order, the_page.app) == "SUCCEEDED"
