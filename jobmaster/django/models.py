"""The master's views as models of Django, for the admin: read alone, and made by no migration of Django's.

The admin gives them their tables: the schema is that of the cluster's configuration.
"""

from __future__ import annotations

from typing import Any

from django.db import models

from jobmaster.model.job import FINAL_STATES, MASTER_STATES, AttemptOutcome, JobState, Priority

_STATES = [(one.value, one.value) for one in JobState if one in MASTER_STATES]
_OUTCOMES = [*(one.value for one in AttemptOutcome), *sorted(one.value.lower() for one in FINAL_STATES)]


class JsonColumn(models.JSONField):
    """A column of the type ``json``, whose values PostgreSQL's drivers decode."""

    def from_db_value(self, value: Any, *_: object) -> Any:
        """The value as the driver has decoded it."""
        return value


class Job(models.Model):
    """A line of the view ``jobs``."""

    id = models.UUIDField(primary_key=True)
    state = models.CharField(max_length=20, choices=_STATES)
    priority = models.CharField(max_length=20, choices=[(one.label, one.label) for one in reversed(Priority)])
    lane = models.CharField(max_length=48)
    handler = models.CharField(max_length=200)
    created_at = models.DateTimeField("created")
    due_at = models.DateTimeField("due")
    started_at = models.DateTimeField("started")
    ended_at = models.DateTimeField("ended")
    waited_us = models.BigIntegerField("waited (us)")
    ran_us = models.BigIntegerField("ran (us)")
    attempt = models.IntegerField("attempts that are over")
    rescues = models.IntegerField()
    cancel_requested = models.BooleanField()
    args = JsonColumn("arguments")
    headers = JsonColumn("options")
    result = JsonColumn()
    error: Any = JsonColumn()

    class Meta:
        managed = False
        db_table = "jobs"
        default_permissions = ("view",)
        ordering = ("-id",)

    def __str__(self) -> str:
        return f"{self.handler} {self.id}"


class LedgerLine(models.Model):
    """A line of the view ``ledger``: an attempt, and how it ended."""

    # The view has a key of four columns; each job is read by this one.
    job_id = models.UUIDField("job", primary_key=True)
    outcome = models.CharField(max_length=20, choices=[(one, one) for one in dict.fromkeys(_OUTCOMES)])
    concluding = models.BooleanField("ends the job")
    at = models.DateTimeField()
    ran_us = models.BigIntegerField("ran (us)")
    token = models.IntegerField()
    bucket_id = models.UUIDField("bucket")
    bucket_epoch = models.BigIntegerField("epoch")
    error: Any = JsonColumn()

    class Meta:
        managed = False
        db_table = "ledger"
        default_permissions = ("view",)
        ordering = ("-job_id",)
        verbose_name = "line of the ledger"
        verbose_name_plural = "ledger"

    def __str__(self) -> str:
        return f"{self.job_id} {self.outcome}"
