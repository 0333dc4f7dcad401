"""The signal of a job, for its handler."""

from __future__ import annotations

from datetime import datetime
from typing import Any, TypeVar

import msgspec

from jobmaster.model.job_view import moment

T = TypeVar("T")


class ReceivedSignal(msgspec.Struct, frozen=True, kw_only=True):
    """What a job has received: ``ctx.signal``."""

    key: str
    payload_json: str
    sent_us: int
    """Microseconds since 1970 by the master's clock."""

    @property
    def payload(self) -> Any:
        """The payload as plain JSON values."""
        return msgspec.json.decode(self.payload_json)

    def payload_as(self, type_: type[T]) -> T:
        """The payload as a value of a type that msgspec knows (a struct, a dataclass, ``list[int]``).

        Raises:
            msgspec.ValidationError: it does not fit.
        """
        return msgspec.json.decode(self.payload_json, type=type_)

    @property
    def sent_at(self) -> datetime | None:
        """When it was sent, aware, in UTC."""
        return moment(self.sent_us)
