"""One scalar read as one leaf: by type, within bounds, with the sentence for everything that does not fit."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from jobmaster.model.suggestion import did_you_mean
from jobmaster.settings.masking import show_value
from jobmaster.settings.nodes import PlainKind, ScalarNode, Style, classify_plain
from jobmaster.settings.shape import Leaf, LeafKind
from jobmaster.settings.units import (
    DURATION_SECONDS_MAX,
    UnitError,
    format_duration,
    format_size,
    parse_duration,
    parse_size,
)

INTEGER_DIGITS_MAX = 18
_UNPRINTABLE = re.compile(r"[\x00\ud800-\udfff]")


class LeafError(ValueError):
    """A scalar that does not fit its leaf: what was expected and got, and how to mend it."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message, self.hint = message, hint


def suggest(word: str, known: Iterable[str]) -> str | None:
    """``did you mean "X"?`` for the nearest known word."""
    return did_you_mean(word, known, quote='"')


def read_leaf(leaf: Leaf, scalar: ScalarNode) -> object:
    """Value of the field; ``LeafError`` otherwise."""
    kind = classify_plain(scalar.text) if scalar.style is not Style.QUOTED else PlainKind.TEXT
    if kind is PlainKind.NULL:
        if leaf.optional:
            return None
        if scalar.style is Style.PLAIN or leaf.kind is not LeafKind.TEXT:
            raise _missing(leaf)
    if _UNPRINTABLE.search(scalar.text):
        raise LeafError("the value holds a character that is no text (NUL or a byte that is not UTF-8)")
    match leaf.kind:
        case LeafKind.TEXT:
            return _read_text(leaf, scalar, kind)
        case LeafKind.CHOICE:
            return _read_choice(leaf, scalar)
        case LeafKind.BOOLEAN:
            return _read_boolean(leaf, scalar, kind)
        case LeafKind.DURATION | LeafKind.SIZE:
            return _in_bounds(leaf, scalar, _read_measure(leaf, scalar, kind))
        case LeafKind.INTEGER | LeafKind.NUMBER:
            return _in_bounds(leaf, scalar, _read_number(leaf, scalar, kind))


def expected_of(leaf: Leaf) -> str:
    """What a leaf takes, in words."""
    match leaf.kind:
        case LeafKind.TEXT:
            return leaf.expected or "text"
        case LeafKind.CHOICE:
            return f"one of {', '.join(leaf.choices)}"
        case LeafKind.BOOLEAN:
            return "true or false"
        case LeafKind.DURATION:
            noun = "a duration such as 30s, 5m or 1h30m"
        case LeafKind.SIZE:
            noun = "a size such as 512, 128KiB or 1MB"
        case LeafKind.INTEGER:
            noun = "a whole number"
        case LeafKind.NUMBER:
            noun = "a number"
    bounds = describe_bounds(leaf)
    return f"{noun} {bounds}" if bounds else noun


def describe_bounds(leaf: Leaf) -> str:
    """``from 1 to 5000``, ``of at least 1``, ``above 0s``, or nothing."""
    low, high = leaf.ge, leaf.le
    if low is not None and high is not None:
        return f"from {format_leaf(leaf, low)} to {format_leaf(leaf, high)}"
    words = []
    for bound, word in ((low, "of at least"), (leaf.gt, "above"), (high, "of at most"), (leaf.lt, "below")):
        if bound is not None:
            words.append(f"{word} {format_leaf(leaf, bound)}")
    return " and ".join(words)


def format_leaf(leaf: Leaf, value: object) -> str:
    """Text of a value as it is written in the file (without quotes)."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if leaf.kind is LeafKind.DURATION and isinstance(value, int | float):
        return format_duration(value)
    if leaf.kind is LeafKind.SIZE and isinstance(value, int | float):
        return format_size(int(value))
    if leaf.kind is LeafKind.CHOICE:
        return next((text for text, member in leaf.choices.items() if member == value), str(value))
    return f"{value:g}" if isinstance(value, float) and value == int(value) and abs(value) < 1e6 else str(value)


def _missing(leaf: Leaf) -> LeafError:
    hint = "write null for none" if leaf.optional else "leave the key out to get its default"
    return LeafError(f"a value is missing, expected {expected_of(leaf)}", hint)


def _unfit(leaf: Leaf, scalar: ScalarNode, hint: str | None = None) -> LeafError:
    return LeafError(f"expected {expected_of(leaf)}, got {show_value(scalar.shown)}", hint)


def _read_text(leaf: Leaf, scalar: ScalarNode, kind: PlainKind) -> str:
    if scalar.style is Style.PLAIN and kind is not PlainKind.TEXT:
        raise LeafError(f"expected text, got {scalar.text[:40]}, which is {kind}", "quote it if the text is meant")
    if not scalar.text:
        raise _missing(leaf)
    if leaf.pattern and not re.search(leaf.pattern, scalar.text):
        raise _unfit(leaf, scalar)
    return scalar.text


def _read_choice(leaf: Leaf, scalar: ScalarNode) -> object:
    if scalar.text not in leaf.choices:
        raise _unfit(leaf, scalar, suggest(scalar.text, leaf.choices) if scalar.shown == scalar.text else None)
    return leaf.choices[scalar.text]


def _read_boolean(leaf: Leaf, scalar: ScalarNode, kind: PlainKind) -> bool:
    if kind is not PlainKind.BOOLEAN:
        raise _unfit(leaf, scalar, _unquote_hint(scalar, PlainKind.BOOLEAN))
    return scalar.text.lower() == "true"


def _read_number(leaf: Leaf, scalar: ScalarNode, kind: PlainKind) -> float:
    if kind is PlainKind.INTEGER:
        if len(scalar.text) > INTEGER_DIGITS_MAX:
            raise _unfit(leaf, scalar)
        whole = int(scalar.text)
        return whole if leaf.kind is LeafKind.INTEGER else float(whole)
    if kind is PlainKind.NUMBER and leaf.kind is LeafKind.NUMBER and math.isfinite(number := float(scalar.text)):
        return number
    raise _unfit(leaf, scalar, _unquote_hint(scalar, PlainKind.INTEGER, PlainKind.NUMBER))


def _unquote_hint(scalar: ScalarNode, *kinds: PlainKind) -> str | None:
    if scalar.style is Style.QUOTED and classify_plain(scalar.text) in kinds:
        return f"write {scalar.text[:40]} without quotes"
    return None


def _read_measure(leaf: Leaf, scalar: ScalarNode, kind: PlainKind) -> float:
    text = scalar.text
    if kind is PlainKind.NUMBER and (leaf.kind is LeafKind.DURATION or float(text).is_integer()):
        # YAML writes numbers in ways the grammar of durations does not know: .5, 5., 1e3.
        seconds_or_bytes = float(text)
        if 0 <= seconds_or_bytes <= DURATION_SECONDS_MAX:
            return seconds_or_bytes if leaf.kind is LeafKind.DURATION else int(seconds_or_bytes)
    try:
        return parse_size(text) if leaf.kind is LeafKind.SIZE else parse_duration(text)
    except UnitError as error:
        suggestion = f'did you mean "{error.suggestion}"?' if error.suggestion and scalar.shown == text else None
        hint = suggestion or ("it cannot be negative" if text.startswith("-") else None)
        raise LeafError(f"{error}, got {show_value(scalar.shown)}", hint) from None


def _in_bounds(leaf: Leaf, scalar: ScalarNode, value: float) -> float:
    fits = (
        (leaf.ge is None or value >= leaf.ge)
        and (leaf.gt is None or value > leaf.gt)
        and (leaf.le is None or value <= leaf.le)
        and (leaf.lt is None or value < leaf.lt)
    )
    if not fits:
        raise _unfit(leaf, scalar)
    return value
