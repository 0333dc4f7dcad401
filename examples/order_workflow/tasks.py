"""The steps of an order, and what undoes them. Each of them is an ordinary handler."""

from typing import TypedDict

from jobmaster import Fail, Flow, Handlers, branch, call, chain, group, previous, result_of, step

handlers = Handlers()


class Payment(TypedDict):
    number: str
    cents: int


@handlers.job(name="orders.charge")
def charge(order: str, cents: int) -> Payment:
    return {"number": f"P-{order}", "cents": cents}


@handlers.job(name="orders.refund")
def refund(payment: Payment) -> str:
    return f"refunded {payment['cents']} of {payment['number']}"


@handlers.job(name="orders.reserve")
def reserve(order: str, item: str) -> str:
    if item == "unicorn":
        raise Fail("unicorns are sold out")
    return f"R-{order}-{item}"


@handlers.job(name="orders.release")
def release(reservation: str) -> str:
    return f"released {reservation}"


@handlers.job(name="orders.is_large")
def is_large(cents: int) -> bool:
    return cents >= 10_000


@handlers.job(name="orders.insure")
def insure(payment: Payment) -> str:
    return f"insured {payment['number']}"


@handlers.job(name="orders.ship")
def ship(order: str, payment: str, reservation: str) -> str:
    return f"shipped {order} ({payment}, {reservation})"


@handlers.job(name="orders.apologise")
def apologise(order: str) -> str:
    return f"wrote about {order}"


def order_flow(order: str, item: str, cents: int) -> Flow:
    """Charge and reserve side by side, insure a large order, ship. When a step fails, what was done is undone."""
    paid = step(call(charge, order, cents), undo=call(refund, previous))
    reserved = step(call(reserve, order, item), undo=call(release, previous))
    insured = branch(call(is_large, result_of(paid)["cents"]), {True: call(insure, result_of(paid))})
    shipped = step(call(ship, order, payment=result_of(paid)["number"], reservation=result_of(reserved)))
    return chain(group(paid, reserved), insured, shipped).on_failure(call(apologise, order))
