"""pydantic models through real servers and real processes, in every way of running a handler."""

from __future__ import annotations

import pytest

from jobmaster import InvalidArguments, JobFailed, call
from jobmaster.wiring import open_cluster
from tests.support.deployment import Deployment
from tests.support.patience import PATIENCE_SECONDS
from tests.system.handlers.model_jobs import (
    Bill,
    Item,
    Order,
    bill_confirmed,
    bill_in_process,
    bill_in_thread,
    bill_on_loop,
    bill_wrongly,
    handlers,
)

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

ORDER = Order(customer="Ada", items=[Item(sku="a", quantity=2), Item(sku="b", quantity=3)])
BILL = Bill(customer="Ada", pieces=5)


async def test_models_travel_in_every_way_of_running(deployment: Deployment) -> None:
    deployment.document["handlers"] = ["tests.system.handlers.model_jobs"]
    deployment.document["agents"]["default"] |= {"processes": 1}
    await deployment.start_agent()
    async with await open_cluster(deployment.settings, handlers) as cluster:
        loop = await cluster.submit(call(bill_on_loop, ORDER))
        thread = await cluster.submit(call(bill_in_thread, others=[ORDER, ORDER]))
        process = await cluster.submit(call(bill_in_process, {"a": ORDER}), durability="master")
        confirmed = await cluster.submit(call(bill_confirmed, ORDER))
        wrong = await cluster.submit(call(bill_wrongly, ORDER))
        assert await loop.result(timeout=PATIENCE_SECONDS) == BILL
        assert await thread.result(timeout=PATIENCE_SECONDS) == [BILL, BILL]
        assert await process.result(timeout=PATIENCE_SECONDS) == {"a": BILL}
        assert await confirmed.result(timeout=PATIENCE_SECONDS) == BILL
        with pytest.raises(
            JobFailed, match=r"the result does not fit the return annotation: the result\.pieces: field"
        ):
            await wrong.result(timeout=PATIENCE_SECONDS)


async def test_a_producer_without_the_models_is_checked_against_their_schema(deployment: Deployment) -> None:
    deployment.document["handlers"] = ["tests.system.handlers.model_jobs"]
    await deployment.start_agent()
    good = {"customer": "Ada", "items": [{"sku": "a", "quantity": 5}]}
    bad = {"customer": "Ada", "items": [{"sku": "a", "quantity": 0}]}
    async with await open_cluster(deployment.settings) as cluster:
        receipt = await cluster.submit("bill_on_loop", {"order": good})
        assert await receipt.result(timeout=PATIENCE_SECONDS) == {"customer": "Ada", "pieces": 5}
        again = await cluster.submit("bill_on_loop", {"order": ORDER})
        assert await again.result(timeout=PATIENCE_SECONDS) == {"customer": "Ada", "pieces": 5}
        with pytest.raises(InvalidArguments, match=r"argument 'order'\.items\[0\]\.quantity: 0 is not more than 0"):
            await cluster.submit("bill_on_loop", {"order": bad})
    async with await open_cluster(deployment.settings, handlers) as cluster:
        with pytest.raises(InvalidArguments, match=r"argument 'order'\.items\[0\]\.quantity: input should be greater"):
            await cluster.submit(bill_on_loop, {"order": bad}, durability="master")
    assert await deployment.states() == {"SUCCEEDED": 2}
