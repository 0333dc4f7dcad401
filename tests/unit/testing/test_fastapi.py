"""An application of FastAPI whose jobs stay in memory: its lifespan opens the cluster of the fixture ``jobs``."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any

import pytest
from fastapi import Depends, FastAPI
from fastapi.testclient import TestClient
from pydantic import BaseModel, Field

from jobmaster import Cluster, Handlers, InvalidArguments, JobReceipt, call
from jobmaster.fastapi import get_cluster, handle_errors, jobmaster_lifespan
from jobmaster.testing import Jobs, run_handler

handlers = Handlers()


class Order(BaseModel):
    pieces: int = Field(gt=0)
    photo: bytes = b""


class Bill(BaseModel):
    cents: int


@dataclasses.dataclass
class Parcel:
    order: Order
    label: bytes


@handlers.job(name="bills.make")
async def make_bill(order: Order) -> Bill:
    return Bill(cents=order.pieces * 250)


@handlers.job(name="parcels.send")
async def send(parcel: Parcel, again: Order | None = None) -> None: ...


app = FastAPI(lifespan=jobmaster_lifespan(handlers=handlers))
handle_errors(app)
Jobs_ = Annotated[Cluster, Depends(get_cluster)]


@app.post("/bills")
async def submit(order: Order, cluster: Jobs_) -> JobReceipt[Bill]:
    return await cluster.submit(call(make_bill, order))


@app.post("/bills/now")
async def now(args: dict[str, Any], cluster: Jobs_) -> Bill:
    receipt = await cluster.submit(make_bill, args)
    return await receipt.result(timeout=10)


def test_what_a_route_submits_is_recorded(jobs: Jobs) -> None:
    with TestClient(app) as web:
        answer = web.post("/bills", json={"pieces": 2})
    assert answer.status_code == 200
    job = jobs.assert_submitted(make_bill, order=Order(pieces=2))
    assert answer.json()["id"] == str(job.id)
    jobs.refute_submitted(make_bill, order=Order(pieces=3))


def test_a_route_waits_for_a_result_in_inline_mode(inline_jobs: Jobs) -> None:
    with TestClient(app) as web:
        assert web.post("/bills/now", json={"order": {"pieces": 2}}).json() == {"cents": 500}
        wrong = web.post("/bills/now", json={"order": {"pieces": 0}})
    assert wrong.status_code == 422
    assert wrong.json() == {
        "detail": "handler 'bills.make': argument 'order'.pieces: input should be greater than 0",
    }
    assert len(inline_jobs.all_submitted()) == 1


async def test_arguments_are_compared_as_pydantic_writes_them(jobs: Jobs) -> None:
    parcel = Parcel(Order(pieces=1, photo=b"jpeg"), b"label")
    await jobs.cluster.submit(call(send, parcel))
    jobs.assert_submitted(send, parcel=parcel, again=None)
    jobs.refute_submitted(send, parcel=Parcel(parcel.order, b"other"))


def test_a_handler_with_models_runs_alone() -> None:
    assert run_handler(call(make_bill, Order(pieces=3)), handlers=handlers) == Bill(cents=750)
    with pytest.raises(InvalidArguments, match=r"'order'\.pieces"):
        run_handler(call(make_bill, Order.model_construct(pieces=0)), handlers=handlers)
