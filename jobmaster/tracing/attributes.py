"""Names of the attributes of spans, in this one place: the messaging conventions of OpenTelemetry are not stable yet.

Source: OpenTelemetry semantic conventions for messaging spans, 1.43 (status: development). What they do not name begins with
``jobmaster.``. No attribute holds arguments, results or the message of an error.
"""

from __future__ import annotations

from typing import Final

SYSTEM: Final = "messaging.system"
SYSTEM_VALUE: Final = "jobmaster"
OPERATION_NAME: Final = "messaging.operation.name"
OPERATION_TYPE: Final = "messaging.operation.type"
PUBLISH: Final = "publish"
SEND: Final = "send"
PROCESS: Final = "process"
DESTINATION: Final = "messaging.destination.name"
"""The lane."""
MESSAGE_ID: Final = "messaging.message.id"
"""The id of the job."""
MESSAGE_COUNT: Final = "messaging.batch.message_count"
CLIENT_ID: Final = "messaging.client.id"
"""The id of the agent."""
ERROR_TYPE: Final = "error.type"

HANDLER: Final = "jobmaster.handler"
PRIORITY: Final = "jobmaster.priority"
ATTEMPT: Final = "jobmaster.attempt"
RESCUES: Final = "jobmaster.rescues"
AGENT: Final = "jobmaster.agent"
BUCKET: Final = "jobmaster.bucket"
QUEUE_WAIT: Final = "jobmaster.queue_wait_seconds"
OUTCOME: Final = "jobmaster.outcome"
REASON: Final = "jobmaster.error.reason"
DURABILITY: Final = "jobmaster.durability"
SCHEDULE: Final = "jobmaster.schedule"
NOMINAL: Final = "jobmaster.schedule.nominal_us"
