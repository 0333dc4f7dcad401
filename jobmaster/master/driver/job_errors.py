"""Errors of jobs that the master ends by itself, encoded as the rows hold them."""

from __future__ import annotations

from jobmaster.codec import encode_error
from jobmaster.model.job import ErrorInfo

AGENT_LOST = encode_error(
    ErrorInfo(
        type="AgentLost",
        message="the agents that ran this job died too often while they had it",
        reason="agent_lost",
    )
)
ABANDONED = encode_error(
    ErrorInfo(
        type="Abandoned",
        message="its agent was lost after the job had been started, and a job delivered at most once is not started again",
        reason="abandoned",
    )
)
UNCONFIRMED = encode_error(ErrorInfo(type="Unconfirmed", message="no confirmation came in time", reason="unconfirmed"))
TOO_SLOW = encode_error(
    ErrorInfo(
        type="TooSlow",
        message="each of its runs took longer than its complete_time, and it was reassigned jobs.max_reassigns times",
        reason="too_slow",
    )
)
EXPIRED = encode_error(ErrorInfo(type="Expired", message="the job was not started before its expiry", reason="expired"))
NO_SIGNAL = encode_error(
    ErrorInfo(type="NoSignal", message="the signal that the job waited for has not come in time", reason="no_signal")
)
