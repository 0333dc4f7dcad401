"""JobMaster: a background-job cluster that is as fast as its stores allow and keeps each job as safe as was asked for.

This module holds public names only, each loaded when it is first used: importing it loads no driver, and ``jobmaster --help``
stays quick.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING

if sys.version_info < (3, 11):  # noqa: UP036  # a copy of the tree: pip itself refuses the wheel
    raise ImportError(
        f"JobMaster needs Python 3.11 or newer, and this is {sys.version_info[0]}.{sys.version_info[1]}:"
        " make an environment with a newer one, `python3.12 -m venv .venv`"
    )

if TYPE_CHECKING:
    from jobmaster.client.batches.batch import Batch
    from jobmaster.client.batches.batches import Batches
    from jobmaster.client.batches.options import BatchOptions
    from jobmaster.client.batches.sync import SyncBatch, SyncBatches
    from jobmaster.client.breakers.breakers import Breakers
    from jobmaster.client.breakers.sync import SyncBreakers
    from jobmaster.client.bulk import BulkFailed, BulkSummary
    from jobmaster.client.bulk_operations.operations import BulkOperations
    from jobmaster.client.bulk_operations.sync import SyncBulkOperations
    from jobmaster.client.cluster import Cluster
    from jobmaster.client.events.event_readers import EventReaders
    from jobmaster.client.events.filters import EventFilters
    from jobmaster.client.events.listener import Listener
    from jobmaster.client.events.stream import EventStream
    from jobmaster.client.events.sync import SyncEventReaders, SyncEventStream, SyncListener
    from jobmaster.client.jobs.changes import ChangeOptions
    from jobmaster.client.jobs.job_filters import JobFilters
    from jobmaster.client.jobs.job_logs import JobLogReader
    from jobmaster.client.jobs.listing import JobCount, JobList
    from jobmaster.client.limits.limits import Limits
    from jobmaster.client.limits.sync import SyncLimits
    from jobmaster.client.locks.lock import Lock
    from jobmaster.client.locks.sync_lock import SyncLock
    from jobmaster.client.operate.operating import Frozen, Operating
    from jobmaster.client.operate.sync import SyncOperating
    from jobmaster.client.options import BulkOptions, SubmitOptions
    from jobmaster.client.receipts import JobReceipt
    from jobmaster.client.schedules.new_schedule import NewSchedule
    from jobmaster.client.schedules.schedules import Schedules
    from jobmaster.client.schedules.sync import SyncSchedules
    from jobmaster.client.signals.signals import Signals
    from jobmaster.client.signals.sync import SyncSignals
    from jobmaster.client.signals.wait import WaitFor, signal
    from jobmaster.client.sync import SyncCluster, SyncReceipt
    from jobmaster.client.transactions import ClusterTransaction
    from jobmaster.client.workflows.definition import (
        Flow,
        Step,
        StepOptions,
        branch,
        chain,
        group,
        previous,
        result_of,
        step,
    )
    from jobmaster.client.workflows.sync import SyncWorkflows
    from jobmaster.client.workflows.workflows import Workflows
    from jobmaster.clock import new_job_id
    from jobmaster.collector import tune_collector
    from jobmaster.handlers import (
        Call,
        Cancel,
        Fail,
        Handlers,
        JobContext,
        JobOptions,
        Limit,
        Retry,
        Snooze,
        Unique,
        call,
        current_job,
    )
    from jobmaster.handlers.flow.breaker import Breaker
    from jobmaster.handlers.received_signal import ReceivedSignal
    from jobmaster.handlers.schedules import ScheduleOptions
    from jobmaster.model.errors import (
        AccessRefused,
        BucketsFull,
        ClockSkew,
        CodeError,
        ConfigError,
        Conflict,
        DurabilityRefused,
        InputError,
        InvalidArguments,
        InvalidDueTime,
        JobFailed,
        JobMasterError,
        LockHeld,
        LockLost,
        NotFound,
        NotUnique,
        OutcomeUnknown,
        Refused,
        SchemaMismatch,
        StoreRefused,
        Unavailable,
        UnknownHandler,
        UnknownLane,
        Unserved,
        ValueRefused,
        WaitTimeout,
    )
    from jobmaster.model.event import (
        BucketEvent,
        ClusterEvent,
        EventKind,
        JobEvent,
        MissedEvents,
        OperatorEvent,
        ScheduleEvent,
    )
    from jobmaster.model.flow.batch import BatchState, BatchView
    from jobmaster.model.flow.breaker import BreakerState, BreakerView
    from jobmaster.model.flow.bulk_operation import BulkKind, BulkPreview, BulkState, BulkView, SkipCause
    from jobmaster.model.flow.limit import LimitView
    from jobmaster.model.flow.lock import LockView, OnceState, OnceView
    from jobmaster.model.flow.signal import KeptSignal, OnTimeout, Recipients, SignalSent, WaitingJobs
    from jobmaster.model.flow.uniqueness import SubmitAnswer
    from jobmaster.model.flow.workflow import RunsOn, StepState, StepView, WorkflowState, WorkflowView
    from jobmaster.model.inspection.schedule_view import FireView, ScheduleState, ScheduleView
    from jobmaster.model.job import Durability, ErrorInfo, JobState, OnFull, Priority
    from jobmaster.model.job_change import ChangeEffect, JobChange
    from jobmaster.model.job_log import LogLevel, LogLine
    from jobmaster.model.job_view import Attempt, JobView
    from jobmaster.model.pause import Pause, PauseChange, PauseKind
    from jobmaster.model.schedule import FireOutcome, Misfire, Overlap
    from jobmaster.passwords import PasswordFunctions
    from jobmaster.settings.model import ClusterSettings
    from jobmaster.settings.problems import InvalidSettings
    from jobmaster.wiring import Opening, connect, connect_sync

__version__ = "0.2.0"

__all__ = [
    "AccessRefused",
    "Attempt",
    "Batch",
    "BatchOptions",
    "BatchState",
    "BatchView",
    "Batches",
    "Breaker",
    "BreakerState",
    "BreakerView",
    "Breakers",
    "BucketEvent",
    "BucketsFull",
    "BulkFailed",
    "BulkKind",
    "BulkOperations",
    "BulkOptions",
    "BulkPreview",
    "BulkState",
    "BulkSummary",
    "BulkView",
    "Call",
    "Cancel",
    "ChangeEffect",
    "ChangeOptions",
    "ClockSkew",
    "Cluster",
    "ClusterEvent",
    "ClusterSettings",
    "ClusterTransaction",
    "CodeError",
    "ConfigError",
    "Conflict",
    "Durability",
    "DurabilityRefused",
    "ErrorInfo",
    "EventFilters",
    "EventKind",
    "EventReaders",
    "EventStream",
    "Fail",
    "FireOutcome",
    "FireView",
    "Flow",
    "Frozen",
    "Handlers",
    "InputError",
    "InvalidArguments",
    "InvalidDueTime",
    "InvalidSettings",
    "JobChange",
    "JobContext",
    "JobCount",
    "JobEvent",
    "JobFailed",
    "JobFilters",
    "JobList",
    "JobLogReader",
    "JobMasterError",
    "JobOptions",
    "JobReceipt",
    "JobState",
    "JobView",
    "KeptSignal",
    "Limit",
    "LimitView",
    "Limits",
    "Listener",
    "Lock",
    "LockHeld",
    "LockLost",
    "LockView",
    "LogLevel",
    "LogLine",
    "Misfire",
    "MissedEvents",
    "NewSchedule",
    "NotFound",
    "NotUnique",
    "OnFull",
    "OnTimeout",
    "OnceState",
    "OnceView",
    "Opening",
    "Operating",
    "OperatorEvent",
    "OutcomeUnknown",
    "Overlap",
    "PasswordFunctions",
    "Pause",
    "PauseChange",
    "PauseKind",
    "Priority",
    "ReceivedSignal",
    "Recipients",
    "Refused",
    "Retry",
    "RunsOn",
    "ScheduleEvent",
    "ScheduleOptions",
    "ScheduleState",
    "ScheduleView",
    "Schedules",
    "SchemaMismatch",
    "SignalSent",
    "Signals",
    "SkipCause",
    "Snooze",
    "Step",
    "StepOptions",
    "StepState",
    "StepView",
    "StoreRefused",
    "SubmitAnswer",
    "SubmitOptions",
    "SyncBatch",
    "SyncBatches",
    "SyncBreakers",
    "SyncBulkOperations",
    "SyncCluster",
    "SyncEventReaders",
    "SyncEventStream",
    "SyncLimits",
    "SyncListener",
    "SyncLock",
    "SyncOperating",
    "SyncReceipt",
    "SyncSchedules",
    "SyncSignals",
    "SyncWorkflows",
    "Unavailable",
    "Unique",
    "UnknownHandler",
    "UnknownLane",
    "Unserved",
    "ValueRefused",
    "WaitFor",
    "WaitTimeout",
    "WaitingJobs",
    "WorkflowState",
    "WorkflowView",
    "Workflows",
    "__version__",
    "branch",
    "call",
    "chain",
    "connect",
    "connect_sync",
    "current_job",
    "group",
    "new_job_id",
    "previous",
    "result_of",
    "signal",
    "step",
    "tune_collector",
]

_MODULE_OF = {
    "AccessRefused": "jobmaster.model.errors",
    "Attempt": "jobmaster.model.job_view",
    "BucketsFull": "jobmaster.model.errors",
    "BulkFailed": "jobmaster.client.bulk",
    "BulkOptions": "jobmaster.client.options",
    "BulkSummary": "jobmaster.client.bulk",
    "Batch": "jobmaster.client.batches.batch",
    "BatchOptions": "jobmaster.client.batches.options",
    "BatchState": "jobmaster.model.flow.batch",
    "BatchView": "jobmaster.model.flow.batch",
    "BulkOperations": "jobmaster.client.bulk_operations.operations",
    "BulkKind": "jobmaster.model.flow.bulk_operation",
    "BulkPreview": "jobmaster.model.flow.bulk_operation",
    "BulkState": "jobmaster.model.flow.bulk_operation",
    "BulkView": "jobmaster.model.flow.bulk_operation",
    "Batches": "jobmaster.client.batches.batches",
    "Call": "jobmaster.handlers",
    "Cancel": "jobmaster.handlers",
    "ChangeEffect": "jobmaster.model.job_change",
    "ChangeOptions": "jobmaster.client.jobs.changes",
    "ClockSkew": "jobmaster.model.errors",
    "Cluster": "jobmaster.client.cluster",
    "ClusterSettings": "jobmaster.settings.model",
    "ClusterTransaction": "jobmaster.client.transactions",
    "CodeError": "jobmaster.model.errors",
    "ConfigError": "jobmaster.model.errors",
    "Conflict": "jobmaster.model.errors",
    "Durability": "jobmaster.model.job",
    "DurabilityRefused": "jobmaster.model.errors",
    "ErrorInfo": "jobmaster.model.job",
    "Fail": "jobmaster.handlers",
    "FireOutcome": "jobmaster.model.schedule",
    "FireView": "jobmaster.model.inspection.schedule_view",
    "Frozen": "jobmaster.client.operate.operating",
    "Operating": "jobmaster.client.operate.operating",
    "SyncOperating": "jobmaster.client.operate.sync",
    "Flow": "jobmaster.client.workflows.definition",
    "Handlers": "jobmaster.handlers",
    "InputError": "jobmaster.model.errors",
    "InvalidArguments": "jobmaster.model.errors",
    "InvalidDueTime": "jobmaster.model.errors",
    "InvalidSettings": "jobmaster.settings.problems",
    "JobChange": "jobmaster.model.job_change",
    "JobContext": "jobmaster.handlers",
    "JobCount": "jobmaster.client.jobs.listing",
    "JobList": "jobmaster.client.jobs.listing",
    "JobFailed": "jobmaster.model.errors",
    "JobFilters": "jobmaster.client.jobs.job_filters",
    "JobMasterError": "jobmaster.model.errors",
    "JobOptions": "jobmaster.handlers",
    "JobReceipt": "jobmaster.client.receipts",
    "JobState": "jobmaster.model.job",
    "JobView": "jobmaster.model.job_view",
    "KeptSignal": "jobmaster.model.flow.signal",
    "Limit": "jobmaster.handlers",
    "LimitView": "jobmaster.model.flow.limit",
    "Limits": "jobmaster.client.limits.limits",
    "Lock": "jobmaster.client.locks.lock",
    "LockHeld": "jobmaster.model.errors",
    "LockLost": "jobmaster.model.errors",
    "LockView": "jobmaster.model.flow.lock",
    "Misfire": "jobmaster.model.schedule",
    "NewSchedule": "jobmaster.client.schedules.new_schedule",
    "NotFound": "jobmaster.model.errors",
    "NotUnique": "jobmaster.model.errors",
    "OnFull": "jobmaster.model.job",
    "OnTimeout": "jobmaster.model.flow.signal",
    "OnceState": "jobmaster.model.flow.lock",
    "OnceView": "jobmaster.model.flow.lock",
    "Opening": "jobmaster.wiring",
    "OutcomeUnknown": "jobmaster.model.errors",
    "Overlap": "jobmaster.model.schedule",
    "PasswordFunctions": "jobmaster.passwords",
    "Pause": "jobmaster.model.pause",
    "PauseChange": "jobmaster.model.pause",
    "PauseKind": "jobmaster.model.pause",
    "Priority": "jobmaster.model.job",
    "ReceivedSignal": "jobmaster.handlers.received_signal",
    "Recipients": "jobmaster.model.flow.signal",
    "Refused": "jobmaster.model.errors",
    "Retry": "jobmaster.handlers",
    "RunsOn": "jobmaster.model.flow.workflow",
    "ScheduleOptions": "jobmaster.handlers.schedules",
    "ScheduleState": "jobmaster.model.inspection.schedule_view",
    "ScheduleView": "jobmaster.model.inspection.schedule_view",
    "Schedules": "jobmaster.client.schedules.schedules",
    "SchemaMismatch": "jobmaster.model.errors",
    "SignalSent": "jobmaster.model.flow.signal",
    "Breaker": "jobmaster.handlers.flow.breaker",
    "EventFilters": "jobmaster.client.events.filters",
    "EventReaders": "jobmaster.client.events.event_readers",
    "SyncEventReaders": "jobmaster.client.events.sync",
    "JobLogReader": "jobmaster.client.jobs.job_logs",
    "Listener": "jobmaster.client.events.listener",
    "EventStream": "jobmaster.client.events.stream",
    "SyncEventStream": "jobmaster.client.events.sync",
    "SyncListener": "jobmaster.client.events.sync",
    "BucketEvent": "jobmaster.model.event",
    "ClusterEvent": "jobmaster.model.event",
    "EventKind": "jobmaster.model.event",
    "JobEvent": "jobmaster.model.event",
    "MissedEvents": "jobmaster.model.event",
    "OperatorEvent": "jobmaster.model.event",
    "ScheduleEvent": "jobmaster.model.event",
    "LogLine": "jobmaster.model.job_log",
    "LogLevel": "jobmaster.model.job_log",
    "Breakers": "jobmaster.client.breakers.breakers",
    "SyncBreakers": "jobmaster.client.breakers.sync",
    "BreakerState": "jobmaster.model.flow.breaker",
    "BreakerView": "jobmaster.model.flow.breaker",
    "Signals": "jobmaster.client.signals.signals",
    "Snooze": "jobmaster.handlers",
    "Step": "jobmaster.client.workflows.definition",
    "StepOptions": "jobmaster.client.workflows.definition",
    "StepState": "jobmaster.model.flow.workflow",
    "StepView": "jobmaster.model.flow.workflow",
    "StoreRefused": "jobmaster.model.errors",
    "SubmitAnswer": "jobmaster.model.flow.uniqueness",
    "SubmitOptions": "jobmaster.client.options",
    "SkipCause": "jobmaster.model.flow.bulk_operation",
    "SyncBatch": "jobmaster.client.batches.sync",
    "SyncBatches": "jobmaster.client.batches.sync",
    "SyncBulkOperations": "jobmaster.client.bulk_operations.sync",
    "SyncCluster": "jobmaster.client.sync",
    "SyncLimits": "jobmaster.client.limits.sync",
    "SyncLock": "jobmaster.client.locks.sync_lock",
    "SyncReceipt": "jobmaster.client.sync",
    "SyncSchedules": "jobmaster.client.schedules.sync",
    "SyncSignals": "jobmaster.client.signals.sync",
    "SyncWorkflows": "jobmaster.client.workflows.sync",
    "Unavailable": "jobmaster.model.errors",
    "Unique": "jobmaster.handlers",
    "UnknownHandler": "jobmaster.model.errors",
    "UnknownLane": "jobmaster.model.errors",
    "Unserved": "jobmaster.model.errors",
    "ValueRefused": "jobmaster.model.errors",
    "WaitFor": "jobmaster.client.signals.wait",
    "WaitTimeout": "jobmaster.model.errors",
    "WaitingJobs": "jobmaster.model.flow.signal",
    "WorkflowState": "jobmaster.model.flow.workflow",
    "WorkflowView": "jobmaster.model.flow.workflow",
    "Workflows": "jobmaster.client.workflows.workflows",
    "branch": "jobmaster.client.workflows.definition",
    "call": "jobmaster.handlers",
    "chain": "jobmaster.client.workflows.definition",
    "connect": "jobmaster.wiring",
    "connect_sync": "jobmaster.wiring",
    "current_job": "jobmaster.handlers",
    "group": "jobmaster.client.workflows.definition",
    "new_job_id": "jobmaster.clock",
    "previous": "jobmaster.client.workflows.definition",
    "result_of": "jobmaster.client.workflows.definition",
    "signal": "jobmaster.client.signals.wait",
    "step": "jobmaster.client.workflows.definition",
    "tune_collector": "jobmaster.collector",
}


def __getattr__(name: str) -> object:
    """A public name, from its module."""
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'jobmaster' has no attribute {name!r}")
    value: object = getattr(import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
