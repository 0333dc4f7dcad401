"""Tenants: for whom jobs are run. The jobs of a lane are started in fair turns between them."""

from __future__ import annotations

import re
from typing import NamedTuple

from jobmaster.model.errors import InputError

NO_TENANT = ""
"""The tenant of jobs without one."""
NAME_CHARS_MAX = 100
WEIGHT_MAX = 1000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,99}")
_MARK = b'"tenant":["'
"""Before the name in the JSON of headers. Quotes in texts are escaped there, and no other field is a list under this name, so
nothing else has these bytes. (The master searches for the same: ``tenant_of``.)"""


class TenantView(NamedTuple):
    """What waits and runs for a tenant in one lane, by the rows of the master."""

    name: str
    lane: str
    held: int
    """Jobs that are due and wait in the master."""
    in_flight: int
    """Jobs with a row that wait in a bucket or an agent, or run."""
    oldest_due_us: int | None
    """Due time of the first that waits in the master, microseconds since 1970."""
    weight: int = 1
    """Its starts for each start of a tenant of weight 1."""


def checked_tenant(value: object) -> str:
    """The name of a tenant; ``InputError`` when it is none."""
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise InputError(
            f"{value!r:.200} is not the name of a tenant",
            hint=f"1 to {NAME_CHARS_MAX} letters, digits and . _ : / @ + -, the first a letter or digit",
        )
    return value


def tenant_of(headers: bytes) -> str:
    """The tenant in encoded headers; ``NO_TENANT`` when there is none."""
    at = headers.find(_MARK)
    if at < 0:
        return NO_TENANT
    first = at + len(_MARK)
    return headers[first : headers.index(b'"', first)].decode()
