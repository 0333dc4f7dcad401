"""Run a job that has ended without success again, as a new job.

The idempotency key of the new job names the old one. So two retries of the same job, wherever they come from, are one new
job.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from jobmaster.client.options import SubmitOptions
from jobmaster.client.receipts import JobReceipt
from jobmaster.client.signals.wait import wait_of
from jobmaster.client.submitter import StoredArguments
from jobmaster.model.errors import Conflict, InputError, NotFound
from jobmaster.model.job import JobState
from jobmaster.model.job_view import JobView

RETRYABLE = frozenset({JobState.FAILED, JobState.CANCELLED, JobState.EXPIRED})
OWN_OPTIONS = ("idempotency_key", "job_id", "connection")
"""Options that a retry sets itself, or that would part the key from the job."""
RETRY_OF = "retry_of"
"""Metadata of the new job: the id of the old one."""

Get = Callable[[JobReceipt[Any]], Awaitable[JobView]]
Submit = Callable[..., Awaitable[JobReceipt[Any]]]


async def retry_job(
    view: JobView, get: Get, submit: Submit, args: Mapping[str, object] | None, options: SubmitOptions
) -> tuple[JobView, JobReceipt[Any]]:
    """A new job for the last one of the chain of retries that begins with ``view``, and that one; see ``Cluster.retry``."""
    own = [name for name in OWN_OPTIONS if name in options]
    if own:
        raise InputError(
            f"a retry takes no {', '.join(own)}: its key is made of the job that is retried",
            hint="submit a new job instead",
        )
    while (receipt := await _retry_once(view, submit, args, options)).duplicate:
        try:
            later = await get(receipt)
        except NotFound:  # dropped by retention meanwhile
            break
        if later.state not in RETRYABLE:
            break
        view = later
    return view, receipt


async def _retry_once(
    view: JobView, submit: Submit, args: Mapping[str, object] | None, options: SubmitOptions
) -> JobReceipt[Any]:
    if view.state not in RETRYABLE:
        raise Conflict(
            f"job {view.id} is {view.state.value}",
            hint="only what FAILED, was CANCELLED or EXPIRED can be retried",
        )
    if view.deleted:
        raise Conflict(
            f"the arguments of job {view.id} have been deleted, so it cannot be run again", hint="submit a new job"
        )
    try:
        arguments = StoredArguments(view.arguments_json) if args is None else args
        return await submit(view.handler, arguments, **keyed_options(view, options))
    except Conflict as error:
        raise Conflict(
            f"job {view.id} has been retried with other arguments: {error.message}",
            hint="retry that job, or submit a new one",
        ) from error


def keyed_options(view: JobView, given: SubmitOptions) -> SubmitOptions:
    """The options of the new job, with the key that two retries of the old one share."""
    options: Any = {**stored_options(view, given), "idempotency_key": f"retry of {view.id}"}
    retried: SubmitOptions = options
    return retried


def stored_options(view: JobView, given: SubmitOptions) -> dict[str, Any]:
    """Those of the old job, then those that are given. Its due time and its expiry are over."""
    headers = view.headers
    options: dict[str, Any] = {"priority": view.priority, "lane": view.lane}
    if headers.tags:
        options["tags"] = headers.tags
    if headers.timeout_seconds is not None:
        options["timeout"] = headers.timeout_seconds
    if headers.accept_seconds is not None:
        options["accept_time"] = headers.accept_seconds
    if headers.complete_seconds is not None:
        options["complete_time"] = headers.complete_seconds
    if headers.cancel_slow is not None:
        options["cancel_slow"] = headers.cancel_slow
    if headers.max_attempts is not None:
        options["max_attempts"] = headers.max_attempts
    if headers.ordering_key is not None:
        options["ordering_key"] = headers.ordering_key
    if headers.tenant is not None:
        options["tenant"] = headers.tenant[0]
    if headers.at_most_once:
        options["delivery"] = "at_most_once"
    if (wait_for := wait_of(headers)) is not None:
        options["wait_for"] = wait_for
    options["metadata"] = headers.metadata
    options.update(given)
    if isinstance(metadata := options["metadata"], Mapping):  # anything else is refused by the submit
        options["metadata"] = {**metadata, RETRY_OF: str(view.id)}
    return options
