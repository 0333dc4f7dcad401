"""Handlers with secret arguments."""

from __future__ import annotations

import logging

from jobmaster.handlers import Handlers, JobContext

handlers = Handlers()


@handlers.job(name="charge", secret=("token", "card"), max_attempts=1, keep_logs=10)
async def charge(ctx: JobContext, order: int, token: str, card: dict[str, str]) -> int:
    ctx.log(f"charging with {token}")
    logging.getLogger("charge").warning("the card is %s", card, extra={"sent": token})
    try:
        raise KeyError(token)
    except KeyError:
        logging.getLogger("charge").exception("caught")
    ctx.progress(1, 2, f"sent {token}")
    if order < 0:
        raise ValueError(f"refused: {token!r} of {card}")
    return len(token)


@handlers.job(name="charge_isolated", secret="token", mode="process", max_attempts=1)
def charge_isolated(ctx: JobContext, token: str) -> None:
    ctx.log(f"charging with {token}")
    logging.getLogger("charge").warning("isolated with %s", token)
    raise ValueError(f"refused: {token}")
