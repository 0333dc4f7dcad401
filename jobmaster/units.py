"""Durations (``1h30m``, ``250ms``, plain seconds) and sizes (``128KiB``, ``1MB``, plain bytes): parse and format.

``parse_x(format_x(value)) == value`` for every value either side accepts. Sums are made in ``Decimal``: in floats
``0.1s`` and ``100ms`` would differ in the last bit. ``rounded_duration`` is for tables and reports.
"""

from __future__ import annotations

import re
from decimal import Decimal

_N = r"[0-9]+(?:\.[0-9]+)?"
DURATION_PATTERN = rf"^(?:{_N}|(?=[0-9])(?:{_N}d)?(?:{_N}h)?(?:{_N}m)?(?:{_N}s)?(?:{_N}ms)?(?:{_N}us)?)$"
"""What a duration looks like, for the JSON Schema."""
SIZE_PATTERN = rf"^{_N}(?:B|kB|MB|GB|TB|KiB|MiB|GiB|TiB)?$"
"""What a size looks like, for the JSON Schema."""

TEXT_CHARS_MAX = 400
DURATION_SECONDS_MAX = 100 * 365 * 86_400
SIZE_BYTES_MAX = 2**63 - 1

_SECONDS = {
    "d": Decimal(86_400),
    "h": Decimal(3600),
    "m": Decimal(60),
    "s": Decimal(1),
    "ms": Decimal("0.001"),
    "us": Decimal("0.000001"),
}
_BYTES = {
    "": 1,
    "B": 1,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?")
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)([A-Za-zµ]*)")
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)")

_LIKELY_DURATION_UNITS = {
    "sec": "s", "secs": "s", "second": "s", "seconds": "s",
    "min": "m", "mins": "m", "minute": "m", "minutes": "m",
    "hr": "h", "hrs": "h", "hour": "h", "hours": "h",
    "day": "d", "days": "d",
    "msec": "ms", "millis": "ms", "milliseconds": "ms", "usec": "us", "µs": "us",
}  # fmt: skip
_LIKELY_SIZE_UNITS = {
    "b": "B", "k": "KiB", "kb": "kB", "kib": "KiB", "m": "MiB", "mb": "MB", "mib": "MiB",
    "g": "GiB", "gb": "GB", "gib": "GiB", "t": "TiB", "tb": "TB", "tib": "TiB",
}  # fmt: skip


class UnitError(ValueError):
    """A text that is no duration or size; ``suggestion`` is what was probably meant, if known."""

    def __init__(self, message: str, suggestion: str | None = None) -> None:
        super().__init__(message)
        self.suggestion = suggestion


def parse_duration(text: str) -> float:
    """Seconds of a duration: a plain number, or numbers with units from large to small, each unit once."""
    expected = "expected a duration such as 30s, 5m, 250ms, 1h30m or a number of seconds"
    if len(text) > TEXT_CHARS_MAX:
        raise UnitError(f"{expected}; this one has {len(text)} characters")
    if text.startswith("-"):
        raise UnitError(f"{expected}; it cannot be negative")
    if _NUMBER.fullmatch(text):
        return _bounded_seconds(Decimal(text))
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise UnitError(expected, _suggest_duration(text))
    total, order = Decimal(0), list(_SECONDS)
    for number, unit in parts:
        if unit not in order:
            if unit in _SECONDS:
                raise UnitError(f"{expected}; units go from large to small and each at most once")
            raise UnitError(expected, _suggest_duration(text))
        order = order[order.index(unit) + 1 :]
        total += Decimal(number) * _SECONDS[unit]
    return _bounded_seconds(total)


def _bounded_seconds(seconds: Decimal) -> float:
    if seconds > DURATION_SECONDS_MAX:
        raise UnitError("expected a duration of at most 100 years")
    return float(seconds)


def _suggest_duration(text: str) -> str | None:
    closed = text.replace(" ", "")
    parts = _PART.findall(closed)
    if len(text) > 40 or "".join(number + unit for number, unit in parts) != closed:
        return None
    fixed = ""
    for number, unit in parts:
        lower = unit.lower()
        fixed += number + (lower if lower in _SECONDS else _LIKELY_DURATION_UNITS.get(lower, "?"))
    return fixed if fixed != text and re.search(DURATION_PATTERN, fixed) else None


def format_duration(seconds: float) -> str:
    """Shortest exact text of a number of seconds: ``1h30m``, ``10s``, ``250ms``, ``1.5s``."""
    exact = Decimal(repr(float(seconds)))
    if exact == 0:
        return "0s"
    if exact == exact.to_integral_value():
        return _format_whole(int(exact))
    if exact < 1:
        for unit in ("ms", "us"):
            count = exact / _SECONDS[unit]
            if count == count.to_integral_value():
                return f"{int(count)}{unit}"
    return f"{exact:f}s"


def _format_whole(seconds: int) -> str:
    text = ""
    for unit in ("d", "h", "m", "s"):
        count, seconds = divmod(seconds, int(_SECONDS[unit]))
        if count:
            text += f"{count}{unit}"
    return text


def rounded_duration(seconds: float) -> str:
    """About two figures of a duration, for people: ``12µs``, ``340ms``, ``2.5s``, ``4m 12s``, ``3h 5m``, ``12d 4h``."""
    sign = "-" if seconds < 0 else ""
    seconds = abs(seconds)
    if 0 < seconds < 0.001:
        return f"{sign}{round(seconds * 1_000_000)}µs"
    if seconds < 0.01:
        return f"{sign}{seconds * 1000:.1f}".removesuffix(".0") + "ms"
    if seconds < 1:
        return f"{sign}{round(seconds * 1000)}ms"
    if seconds < 60:
        return f"{sign}{seconds:.1f}s"
    whole = round(seconds)
    for size, unit, small, small_unit in ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= size:
            rest = whole % size // small
            return f"{sign}{whole // size}{unit}" + (f" {rest}{small_unit}" if rest else "")
    return f"{sign}{whole}s"


def rounded_us(microseconds: float | None) -> str:
    """The same of a number of microseconds; ``-`` for ``None``."""
    return "-" if microseconds is None else rounded_duration(microseconds / 1_000_000)


def parse_size(text: str) -> int:
    """Bytes of a size: a whole number, or a number with ``B kB MB GB TB`` (powers of 1000) or ``KiB ... TiB``."""
    expected = "expected a size such as 512, 128KiB, 1MB or 1.5GiB"
    if len(text) > TEXT_CHARS_MAX:
        raise UnitError(f"{expected}; this one has {len(text)} characters")
    match = _SIZE.fullmatch(text)
    if match is None:
        raise UnitError(expected)
    number, unit = match.groups()
    if unit not in _BYTES or " " in text:
        known = unit if unit in _BYTES else _LIKELY_SIZE_UNITS.get(unit.lower())
        raise UnitError(expected, f"{number}{known}" if known and len(number) <= 30 else None)
    exact = Decimal(number) * _BYTES[unit]
    if exact > SIZE_BYTES_MAX:
        raise UnitError("expected a size below 8EiB")
    if exact != exact.to_integral_value():
        raise UnitError(f"{expected}; this is not a whole number of bytes")
    return int(exact)


def rounded_size(size_bytes: int) -> str:
    """A number of bytes for tables, with three digits: ``97.3MiB``."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if size_bytes >= _BYTES[unit]:
            return f"{size_bytes / _BYTES[unit]:.3g}{unit}"
    return f"{size_bytes}B"


def format_size(size_bytes: int) -> str:
    """Shortest exact text of a number of bytes: ``128KiB``, ``1MB``, ``513``."""
    if size_bytes >= 1000:
        for unit in ("TiB", "GiB", "MiB", "KiB", "TB", "GB", "MB", "kB"):
            if size_bytes % _BYTES[unit] == 0:
                return f"{size_bytes // _BYTES[unit]}{unit}"
    return str(size_bytes)
