"""What the page about workflows takes for granted: the handlers of an order."""

from __future__ import annotations

from typing import Any, TypedDict

from jobmaster import Cluster, Handlers, WorkflowState, branch, call, chain, group, previous, result_of, step

__all__ = ["Handlers", "WorkflowState", "branch", "call", "chain", "group", "previous", "result_of", "step"]

handlers = Handlers()


class Payment(TypedDict):
    number: str
    cents: int


@handlers.job
def charge(order: str, cents: int) -> Payment:
    return {"number": f"P-{order}", "cents": cents}


@handlers.job
def refund(payment: Payment) -> None: ...


@handlers.job
def reserve(order: str, item: str) -> str:
    return f"R-{order}-{item}"


@handlers.job
def release(reservation: str) -> None: ...


@handlers.job
def is_large(cents: int) -> bool:
    return cents >= 10_000


@handlers.job
def insure(payment: Payment) -> None: ...


@handlers.job
def ship(order: str, reservation: str) -> None: ...


@handlers.job
def apologise(order: str) -> None: ...


async def before(cluster: Cluster, names: dict[str, Any]) -> None:
    """Nothing more is needed."""


async def after(names: dict[str, Any]) -> None:
    """The order was shipped, and insured on the way."""
    ended = names["ended"]
    assert ended.state is WorkflowState.SUCCEEDED
    assert {one.name: one.state.value for one in ended.steps} == {
        "charge": "SUCCEEDED", "reserve": "SUCCEEDED", "is_large": "SUCCEEDED", "insure": "SUCCEEDED", "ship": "SUCCEEDED",
        "apologise": "SKIPPED", "undo charge": "SKIPPED", "undo reserve": "SKIPPED",
    }  # fmt: skip
