"""Texts of handlers and callers that the master can store."""

from __future__ import annotations


def stored_text(text: str, chars_max: int) -> str:
    """The text as the master can store it, cut to a length: without NUL, and with ``?`` for lone surrogates."""
    shown = text.encode("utf-8", "replace").decode().replace("\0", "")
    return shown if len(shown) <= chars_max else f"{shown[: chars_max - 1]}…"
