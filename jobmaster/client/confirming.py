"""Runs confirmed from outside: by whoever was given ``ctx.confirmation``."""

from __future__ import annotations

from jobmaster.codec import encode_value
from jobmaster.model import ids
from jobmaster.model.errors import Conflict, InputError, InvalidArguments, NotFound
from jobmaster.model.ids import Identity
from jobmaster.ports import Queries
from jobmaster.settings.model import Limits


async def confirm_run(master: Queries, limits: Limits, confirmation: str, result: object, *, actor: str) -> None:
    """See ``Cluster.confirm_run``."""
    job_id, identity = _parse(confirmation)
    data = None if result is None else encode_value(result, "the result")
    if data is not None and len(data) > limits.result_bytes:
        raise InvalidArguments(f"the result has {len(data)} bytes, the limit is {limits.result_bytes}")
    confirmed, state = await master.confirm(job_id, identity, data, actor)
    if confirmed:
        return
    if state is None:
        raise NotFound(f"the master has no job {ids.text(job_id)}")
    raise Conflict(
        f"job {ids.text(job_id)} cannot be confirmed for that run: it is {state.value}",
        hint="the run was given up, superseded or not confirmed in time; `jobmaster job timeline` tells",
    )


def _parse(confirmation: object) -> tuple[bytes, Identity]:
    try:
        if not isinstance(confirmation, str):
            raise TypeError
        job, token, bucket, epoch = confirmation.split(":")
        return ids.parse(job), Identity(int(token), ids.parse(bucket), int(epoch))
    except (TypeError, ValueError):
        raise InputError(
            f"{confirmation!r} is no confirmation", hint="it is what ctx.confirmation says inside the handler"
        ) from None
