"""What is known of one copy of a job with limits. It lies on the copy and goes with it, however the copy ends."""

from __future__ import annotations

from jobmaster.model.flow.limit import LimitKey, LimitUse


class LimitedJob:
    """State of one copy.

    Args:
        uses: what it takes of its limits.
    """

    __slots__ = ("admitted", "asked", "asking", "borrowed", "denied", "uses")

    def __init__(self, uses: tuple[LimitUse, ...]) -> None:
        self.uses = uses
        self.asking = False
        """It was woken and may ask although its limit is full."""
        self.asked = 0
        """Number of its last question, among the questions and ends of the process."""
        self.admitted = False
        """It has its permits."""
        self.borrowed = False
        """It runs with a permit that was lent to the agent."""
        self.denied: LimitKey | None = None
        """The limit that had no permit for it just now."""
