"""Handlers with pydantic models, one for each way of running."""

from __future__ import annotations

from pydantic import BaseModel, Field

from jobmaster.handlers import Handlers, JobContext

handlers = Handlers()


class Item(BaseModel):
    sku: str
    quantity: int = Field(gt=0)


class Order(BaseModel):
    customer: str
    items: list[Item]


class Bill(BaseModel):
    customer: str
    pieces: int


def bill(order: Order) -> Bill:
    return Bill(customer=order.customer, pieces=sum(item.quantity for item in order.items))


@handlers.job(name="bill_on_loop")
async def bill_on_loop(order: Order) -> Bill:
    return bill(order)


@handlers.job(name="bill_in_thread")
def bill_in_thread(ctx: JobContext, order: Order | None = None, others: list[Order] = []) -> list[Bill]:  # noqa: B006
    return [bill(one) for one in ([order] if order else []) + others]


@handlers.job(name="bill_in_process", mode="process")
def bill_in_process(orders: dict[str, Order]) -> dict[str, Bill]:
    return {name: bill(order) for name, order in orders.items()}


@handlers.job(name="bill_confirmed", confirm="explicit")
async def bill_confirmed(ctx: JobContext, order: Order) -> Bill:
    await ctx.confirm(bill(order))
    return Bill(customer="nobody", pieces=0)


@handlers.job(name="bill_wrongly", max_attempts=1)
async def bill_wrongly(order: Order) -> Bill:
    return {"customer": order.customer}  # type: ignore[return-value]  # what the test is about
