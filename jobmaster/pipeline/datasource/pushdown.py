"""Spark's filters as choices of the statement, where one of ours says the same or more.

The rule is never to lose a row: what is not understood narrows nothing, and Spark applies every filter itself afterwards.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, GreaterThanOrEqual, In, LessThan, LessThanOrEqual

from jobmaster.pipeline.datasource.selection import HIGHEST, Selection, floor_id
from jobmaster.pipeline.datasource.tables import Choice, Cut, table_of

_CHOICES = {
    "state": Choice.STATES,
    "handler": Choice.HANDLERS,
    "lane": Choice.LANES,
    "priority": Choice.PRIORITIES,
    "bucket_id": Choice.BUCKETS,
}
_BUCKET_IDS = {"buckets": "id"}
_JOB_IDS = {"jobs": "id", "ledger": "job_id", "attempts": "job_id"}


def narrow(selection: Selection, one: Filter) -> Selection:
    """The selection, made smaller by what the filter surely excludes."""
    attribute: tuple[str, ...] = getattr(one, "attribute", ())
    if len(attribute) != 1:
        return selection
    column = attribute[0]
    table = table_of(selection.table)
    if table.cut is Cut.JOB_ID and column == _JOB_IDS.get(table.name):
        return _by_id(selection, one)
    if column == "created_at" and table.name == "jobs":
        return _by_creation(selection, one)
    choice = Choice.BUCKETS if column == _BUCKET_IDS.get(table.name) else _CHOICES.get(column)
    if choice is None or choice not in table.choices:
        return selection
    return _by_choice(selection, one, choice)


def _by_choice(selection: Selection, one: Filter, choice: Choice) -> Selection:
    if isinstance(one, EqualTo):
        words = (one.value,)
    elif isinstance(one, In):
        words = tuple(one.value)
    else:
        return selection
    if not all(isinstance(word, str) for word in words):
        return selection
    if choice is Choice.BUCKETS:
        # Text that is no id equals no id. Ids are written in lower case with dashes; another spelling equals none either.
        words = tuple(word for word in words if _id(word) is not None and str(_id(word)) == word)
    return selection.narrowed(choice, words)


def _by_id(selection: Selection, one: Filter) -> Selection:
    found = _id(getattr(one, "value", None))
    if found is None or str(found) != one.value:
        return selection
    after = UUID(int=found.int + 1) if found < HIGHEST else HIGHEST
    if isinstance(one, EqualTo):
        return selection.within(found, after)
    if isinstance(one, GreaterThan | GreaterThanOrEqual):
        return selection.within(low=found)
    if isinstance(one, LessThan | LessThanOrEqual):
        return selection.within(high=after)
    return selection


def _by_creation(selection: Selection, one: Filter) -> Selection:
    moment = getattr(one, "value", None)
    if not isinstance(moment, datetime):
        return selection
    moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
    next_one = floor_id(moment + timedelta(milliseconds=1))
    # Ids know milliseconds. The lower bound is rounded down and the upper one up; Spark cuts exactly.
    low = floor_id(moment - timedelta(milliseconds=1))
    if isinstance(one, EqualTo):
        return selection.within(low, next_one)
    if isinstance(one, GreaterThan | GreaterThanOrEqual):
        return selection.within(low=low)
    if isinstance(one, LessThan | LessThanOrEqual):
        return selection.within(high=next_one)
    return selection


def _id(value: object) -> UUID | None:
    try:
        return UUID(value) if isinstance(value, str) else None
    except ValueError:
        return None
