"""What the page about traces takes for granted: a handler."""

from __future__ import annotations

from typing import Any

from jobmaster import Cluster, Handlers

handlers = Handlers()


@handlers.job(name="send_mail")
async def send_mail(order: int) -> None: ...


async def before(cluster: Cluster, names: dict[str, Any]) -> None:
    """Nothing: spans without a provider are none."""


async def after(names: dict[str, Any]) -> None:
    """The job that names its trace has it."""
    job = await names["cluster"].get(names["receipt"])  # also while a bucket alone has it
    assert job.trace_id == names["parent"][3:35]
