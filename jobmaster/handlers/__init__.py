"""Handlers: what a cluster can run. A registry is an object that the user makes, never a global.

A handler is declared by decorator and stays the plain function it was, typed and callable; the registry keeps beside it
what the cluster needs to know: its name, its options, and a struct generated from its signature, against which arguments
are checked at submit and again at run.
"""

from jobmaster.handlers.call import Call, call
from jobmaster.handlers.context import JobContext
from jobmaster.handlers.current import current_job
from jobmaster.handlers.decisions import Cancel, Decision, Fail, Retry, Snooze
from jobmaster.handlers.flow.limits import Limit
from jobmaster.handlers.flow.unique import CheckedUnique, Unique, checked_unique
from jobmaster.handlers.handler import Handler
from jobmaster.handlers.loading import load_handlers
from jobmaster.handlers.names import check_lane, check_name, check_tags
from jobmaster.handlers.options import HandlerOptions, JobOptions
from jobmaster.handlers.registry import Handlers
from jobmaster.handlers.retry_rules import RetryDecision, RetryPolicy

__all__ = [
    "Call",
    "Cancel",
    "CheckedUnique",
    "Decision",
    "Fail",
    "Handler",
    "HandlerOptions",
    "Handlers",
    "JobContext",
    "JobOptions",
    "Limit",
    "Retry",
    "RetryDecision",
    "RetryPolicy",
    "Snooze",
    "Unique",
    "call",
    "check_lane",
    "check_name",
    "check_tags",
    "checked_unique",
    "current_job",
    "load_handlers",
]
