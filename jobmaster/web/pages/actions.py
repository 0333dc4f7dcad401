"""What a person changes: forms that send a POST. The guard has checked where the request comes from, the route its scope."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Any
from urllib.parse import parse_qs, quote

from starlette.responses import Response

from jobmaster.model.errors import InputError, WaitTimeout
from jobmaster.model.job_change import ChangeEffect
from jobmaster.model.job_view import moment
from jobmaster.web.pages.job_search import span_or_time
from jobmaster.web.pages.map_pages import id_of
from jobmaster.web.pages.site import View

FORM_BYTES_MAX = 16_384
FORM_SECONDS = 10.0
FIELDS_MAX = 20
PAUSE_SECONDS = 5.0
"""How long a page waits for the agents to obey a pause."""
_TOO_LATE = {
    ChangeEffect.ALREADY_CLAIMED: "An agent has the job already, and starts it when a slot is free.",
    ChangeEffect.ALREADY_STARTED: "The job runs already.",
    ChangeEffect.ALREADY_ENDED: "The job has ended.",
}
"""What a change of a waiting job has met; nothing was changed."""


async def form_of(view: View) -> dict[str, str]:
    """The fields of the form.

    Raises:
        InputError: it is no form, or too large.
    """
    chunks, size = [], 0
    try:
        async with asyncio.timeout(FORM_SECONDS):
            async for chunk in view.request.stream():
                size += len(chunk)
                if size > FORM_BYTES_MAX:
                    raise InputError(f"a form has at most {FORM_BYTES_MAX} bytes")
                chunks.append(chunk)
        fields = parse_qs(b"".join(chunks).decode(), max_num_fields=FIELDS_MAX)
    except (UnicodeDecodeError, ValueError, TimeoutError):
        raise InputError("the form cannot be read") from None
    return {name: values[-1] for name, values in fields.items()}


async def retry_job(view: View) -> Response:
    """``POST /jobs/{id}/retry``."""
    job_id = id_of(view)
    receipt = await view.cluster.retry(job_id, actor=view.principal.actor)
    word = "had been retried before" if receipt.duplicate else "was retried"
    return view.moved(f"jobs/{receipt.id}", f"Job {job_id} {word}: this is the new job.")


async def cancel_job(view: View) -> Response:
    """``POST /jobs/{id}/cancel``."""
    job_id = id_of(view)
    state = await view.cluster.cancel(job_id, actor=view.principal.actor)
    done = "The job is cancelled." if state == "CANCELLED" else f"The cancel is requested; the job is {state.lower()}."
    return view.moved(f"jobs/{job_id}", done)


async def run_job_now(view: View) -> Response:
    """``POST /jobs/{id}/run-now``."""
    job_id = id_of(view)
    change = await view.cluster.run_now(job_id, actor=view.principal.actor)
    return view.moved(f"jobs/{job_id}", _TOO_LATE.get(change.effect, "The job is due now."))


async def reschedule_job(view: View) -> Response:
    """``POST /jobs/{id}/reschedule``. The page that it leads to has a form with the due time of before."""
    job_id = id_of(view)
    text = (await form_of(view)).get("due", "").strip()
    due = span_or_time(text)
    if due is None:
        raise InputError(
            f"{text!r:.60} is neither a duration nor a time with its zone; nothing was changed",
            hint="give 30m, 2h or 2030-01-31T12:00:00Z",
        )
    before = (await view.cluster.get(job_id)).due_us
    at, after = (due, None) if isinstance(due, datetime) else (None, due)
    change = await view.cluster.reschedule(job_id, at=at, after=after, actor=view.principal.actor)
    if not change.changed:
        return view.moved(f"jobs/{job_id}", _TOO_LATE[change.effect])
    said = f"The job is due at {change.due_at:%Y-%m-%d %H:%M:%S} UTC." if change.due_at else "The job is due now."
    return view.moved(f"jobs/{job_id}", said, moment(before))


async def change_bucket(view: View) -> Response:
    """``POST /buckets/{id}/{action}``: ``freeze`` or ``unfreeze``."""
    bucket_id, action = id_of(view), view.request.path_params["action"]
    given: dict[str, Any] = {"reason": (await form_of(view)).get("reason", ""), "actor": view.principal.actor}
    operate = view.cluster.operate
    if action == "freeze":
        changed = await operate.freeze([bucket_id], **given)
        done, other = "The bucket is frozen: it takes no jobs and starts none.", "an ACTIVE bucket can be frozen"
    elif action == "unfreeze":
        changed = await operate.unfreeze([bucket_id], **given)
        done, other = "The bucket continues when its owner has read it.", "a FROZEN bucket can be unfrozen"
    else:
        raise InputError(f"a bucket has no action {action!r:.60}", hint="there are freeze and unfreeze")
    said = " ".join([done, *changed.warnings]) if changed.buckets else f"Nothing was changed: only {other}."
    return view.moved(f"buckets/{bucket_id}", said)


async def drain_agent(view: View) -> Response:
    """``POST /agents/{id}/drain``: with a box to be ticked, because a drain cannot be taken back."""
    agent_id = id_of(view)
    if (await form_of(view)).get("confirm") != "yes":
        raise InputError("the drain was not confirmed; nothing was changed", hint="go back and tick the box")
    await view.cluster.operate.drain(agent_id, actor=view.principal.actor)
    return view.moved(f"agents/{agent_id}", "The drain is requested: the agent completes its buckets and exits.")


async def change_schedule(view: View) -> Response:
    """``POST /schedules/{name}/{action}``: ``run``, ``pause`` or ``resume``."""
    name, action = view.request.path_params["name"], view.request.path_params["action"]
    schedules, actor = view.cluster.schedules, view.principal.actor
    if action == "run":
        receipt = await schedules.run(name, actor=actor)
        return view.moved(f"jobs/{receipt.id}", f"Schedule {name} was run: this is its job.")
    if action == "pause":
        await schedules.pause(name, reason=(await form_of(view)).get("reason", ""), actor=actor)
    elif action == "resume":
        await schedules.resume(name, actor=actor)
    else:
        raise InputError(f"a schedule has no action {action!r:.60}", hint="there are run, pause and resume")
    return view.moved(f"schedules/{quote(name)}", f"The schedule is {action}d.")


async def change_batch(view: View) -> Response:
    """``POST /batches/{id}/{action}``: ``cancel`` or ``retry``."""
    batch_id, action = id_of(view), view.request.path_params["action"]
    if action == "cancel":
        await view.cluster.batches.cancel(batch_id, actor=view.principal.actor)
        return view.moved(f"batches/{batch_id}", "The batch is cancelled; jobs that run are asked to stop.")
    if action == "retry":
        again = await view.cluster.batches.retry_failed(batch_id, actor=view.principal.actor)
        return view.moved(f"batches/{again.id}", f"This is the retry of batch {batch_id}.")
    raise InputError(f"a batch has no action {action!r:.60}", hint="there are cancel and retry")


async def change_workflow(view: View) -> Response:
    """``POST /workflows/{id}/{action}``: ``cancel`` or ``retry``."""
    workflow_id, action = id_of(view), view.request.path_params["action"]
    if action == "cancel":
        await view.cluster.workflows.cancel(workflow_id, actor=view.principal.actor)
        return view.moved(f"workflows/{workflow_id}", "The workflow is cancelled.")
    if action == "retry":
        await view.cluster.workflows.retry(workflow_id, actor=view.principal.actor)
        return view.moved(f"workflows/{workflow_id}", "The workflow goes on at the steps that failed.")
    raise InputError(f"a workflow has no action {action!r:.60}", hint="there are cancel and retry")


async def change_pause(view: View) -> Response:
    """``POST /pauses/{action}``: ``pause`` or ``resume``."""
    fields, action = await form_of(view), view.request.path_params["action"]
    kind, value = fields.get("kind", ""), fields.get("value", "")
    if kind not in ("handler", "lane", "priority", "tag") or not value:
        raise InputError("name what is meant: a handler, a lane, a priority or a tag")
    subject: dict[str, Any] = {kind: value}
    given: dict[str, Any] = {
        "actor": view.principal.actor,
        "reason": fields.get("reason", ""),
        "timeout": PAUSE_SECONDS,
    }
    try:
        if action == "pause":
            await view.cluster.pause(**given, **subject)
        elif action == "resume":
            await view.cluster.resume(**given, **subject)
        else:
            raise InputError(f"there is no action {action!r:.60}", hint="there are pause and resume")
    except WaitTimeout as error:  # it is stored; the sentence names the agents that have not confirmed it
        return view.moved("limits", str(error))
    return view.moved("limits", f"The {kind} {value} is {'paused' if action == 'pause' else 'resumed'}.")


async def change_breaker(view: View) -> Response:
    """``POST /breakers/{action}``: ``open`` or ``close``."""
    fields, action = await form_of(view), view.request.path_params["action"]
    name, actor, seen = fields.get("name", ""), view.principal.actor, fields.get("epoch", "")
    epoch = int(seen) if seen.isdecimal() else None
    if action == "open":
        await view.cluster.breakers.open(name, reason=fields.get("reason", ""), actor=actor, epoch=epoch)
    elif action == "close":
        await view.cluster.breakers.close(name, reason=fields.get("reason", ""), actor=actor, epoch=epoch)
    else:
        raise InputError(f"a breaker has no action {action!r:.60}", hint="there are open and close")
    return view.moved("limits", f"The breaker {name} is {'open' if action == 'open' else 'closed'}.")
