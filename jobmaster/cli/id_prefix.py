"""Find a row by the beginning of its id, as operators give it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar
from uuid import UUID

from jobmaster.model.errors import InputError, NotFound

_ID_DIGITS = 32
_PREFIX_DIGITS_MIN = 4


def id_range(text: str, what: str) -> tuple[bytes, bytes]:
    """Lowest and highest id that begin with ``text`` (with or without dashes).

    Raises:
        InputError: it is not the beginning of an id.
    """
    digits = text.replace("-", "").lower()
    if not digits or len(digits) > _ID_DIGITS or any(char not in "0123456789abcdef" for char in digits):
        raise InputError(f"{text!r} is not the id of {what}", hint="an id is a UUID; its beginning will do")
    if len(digits) < _PREFIX_DIGITS_MIN:
        raise InputError(f"{text!r} is too short to name {what}", hint=f"give at least {_PREFIX_DIGITS_MIN} digits")
    return bytes.fromhex(digits.ljust(_ID_DIGITS, "0")), bytes.fromhex(digits.ljust(_ID_DIGITS, "f"))


class Identified(Protocol):
    """What has an id, and perhaps a name."""

    @property
    def id(self) -> UUID: ...


T = TypeVar("T", bound=Identified)


def pick(rows: Sequence[T], text: str, what: str) -> T:
    """The single row whose id begins with ``text``, or whose ``name`` equals it.

    Raises:
        NotFound: no row fits. InputError: several rows fit.
    """
    named = [row for row in rows if getattr(row, "name", None) == text]
    if not named:
        try:
            low, high = id_range(text, what)
        except InputError:
            raise NotFound(f"there is no {what} {text!r}", hint=f"jobmaster {what} list shows them") from None
        named = [row for row in rows if low <= row.id.bytes <= high]
    if not named:
        raise NotFound(f"there is no {what} {text}", hint=f"jobmaster {what} list --all shows them")
    if len(named) > 1:
        ids = ", ".join(str(row.id) for row in named[:3])
        raise InputError(f"{text!r} names {len(named)} of them: {ids}", hint="give more of the id")
    return named[0]
