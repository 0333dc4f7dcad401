"""Lines of ``logging`` that are kept with the running job."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from jobmaster.handlers.current import current_job
from jobmaster.handlers.handler import Handler
from jobmaster.model.job_log import RELAYED


class JobLogRecords(logging.Handler):
    """Handler of the root logger of a process: keeps the lines of a running job whose handler has ``keep_logs``."""

    def emit(self, record: logging.LogRecord) -> None:
        """See ``logging.Handler``."""
        if hasattr(record, RELAYED):  # the context here is that of any job
            return
        context = current_job()
        if context is None or not context.keep_logs:
            return
        try:
            context.log(self.format(record), record.levelno)  # the message and the traceback
        except Exception:  # as every handler of logging: a bad format of one line fails no job
            self.handleError(record)


def keep_logs(handlers: Iterable[Handler]) -> bool:
    """True when one of the handlers has ``keep_logs``."""
    return any(handler.options.keep_logs for handler in handlers)


def keep_records() -> None:
    """Have the lines of the root logger kept with the jobs that want it; once for a process."""
    root = logging.getLogger()
    if any(isinstance(one, JobLogRecords) for one in root.handlers):
        return
    if not root.handlers and logging.lastResort is not None:
        root.addHandler(logging.lastResort)  # which shows warnings only while the root logger has no handler
    root.addHandler(JobLogRecords())
