"""The parts of the master, for fakes and for what stands between a consumer and the master."""

from __future__ import annotations

from typing import Self

PARTS = (
    *("intake", "requests", "queries", "outcomes", "onboarding", "members"),
    *("leadership", "buckets", "rescue", "unserved", "maintenance", "stores", "pauses", "locks", "changes"),
    *("schedules", "signals"),
    *("limits", "workflows", "batches", "bulk", "breakers", "uniqueness", "job_logs", "events"),
    "inspection",
)
"""Attributes of the master whose methods are calls of the master."""


class MasterParts:
    """Answers each part of the master itself: ``fake.outcomes is fake``."""

    @property
    def events(self) -> Self:
        return self

    @property
    def inspection(self) -> Self:
        return self

    @property
    def bulk(self) -> Self:
        return self

    @property
    def job_logs(self) -> Self:
        return self

    @property
    def signals(self) -> Self:
        return self

    @property
    def intake(self) -> Self:
        return self

    @property
    def outcomes(self) -> Self:
        return self

    @property
    def onboarding(self) -> Self:
        return self

    @property
    def queries(self) -> Self:
        return self

    @property
    def rescue(self) -> Self:
        return self

    @property
    def buckets(self) -> Self:
        return self

    @property
    def unserved(self) -> Self:
        return self

    @property
    def maintenance(self) -> Self:
        return self

    @property
    def stores(self) -> Self:
        return self
