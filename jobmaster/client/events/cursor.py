"""Places in the stream of recorded events as opaque texts."""

from __future__ import annotations

import base64
import binascii

import msgspec

from jobmaster.model.errors import InputError
from jobmaster.ports import EventPlace

START = "start"
"""The beginning of what the master still has."""
_VERSION = 1
_CURSOR = msgspec.json.Decoder(tuple[int, str, str, int, int, str])


def cursor_of(place: EventPlace) -> str:
    """The text of a place."""
    return base64.urlsafe_b64encode(msgspec.json.encode((_VERSION, *place))).decode().rstrip("=")


def place_of(cursor: object) -> EventPlace:
    """The place of a text.

    Raises:
        InputError: it is no cursor.
    """
    wrong = InputError(
        f"{cursor!r:.60} is no cursor of the events of a cluster",
        hint=f"give event.cursor or stream.cursor of an earlier stream, {START!r}, or nothing for what comes from now on",
    )
    if not isinstance(cursor, str):
        raise wrong
    try:
        decoded = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars="-_", validate=True)
        version, *place = _CURSOR.decode(decoded)
    except (binascii.Error, ValueError, msgspec.DecodeError):
        raise wrong from None
    if version != _VERSION:
        raise InputError(f"the cursor is of version {version}, and this program knows version {_VERSION}")
    found = EventPlace(*place)  # type: ignore[arg-type]
    if min(found.began, found.xid) < 0:
        raise wrong
    return found
