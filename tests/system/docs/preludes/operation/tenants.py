"""What the page about tenants takes for granted: a handler and its arguments."""

from __future__ import annotations

from typing import Any

from jobmaster import Cluster, Handlers

handlers = Handlers()
arguments = [{"order": number} for number in range(20)]


@handlers.job(name="send_mail")
async def send_mail(order: int) -> None: ...


async def before(cluster: Cluster, names: dict[str, Any]) -> None:
    """Nothing: the first job with its name makes a tenant."""


async def after(names: dict[str, Any]) -> None:
    """The jobs are those of the tenant."""
    jobs = await names["cluster"].jobs(handler="send_mail")
    assert len(jobs) <= 21
    assert {view.headers.tenant for view in jobs} <= {("acme",)}
