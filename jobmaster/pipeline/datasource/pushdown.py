"""Spark's filters as options of the statement, where an option selects the same rows or more.

A filter only reduces what is read: it is also returned to Spark, which applies it again, so a difference between two engines'
notions of equality has no effect. A filter without an equivalent option reduces nothing, so no row is lost. This is a module
of its own, because it needs Spark, and ``selection`` does not.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, GreaterThanOrEqual, In, LessThan, LessThanOrEqual

from jobmaster.pipeline.datasource.selection import HIGHEST, Selection, floor_id
from jobmaster.pipeline.datasource.tables import FilterOption, Partitioning, table_of

_OPTION_OF_COLUMN = {
    "state": FilterOption.STATES,
    "handler": FilterOption.HANDLERS,
    "lane": FilterOption.LANES,
    "priority": FilterOption.PRIORITIES,
    "bucket_id": FilterOption.BUCKETS,
}
_BUCKET_IDS = {"buckets": "id"}
_JOB_IDS = {"jobs": "id", "ledger": "job_id", "attempts": "job_id"}


def push_down(selection: Selection, one: Filter) -> Selection:
    """The selection without rows that the filter excludes for certain."""
    attribute: tuple[str, ...] = getattr(one, "attribute", ())
    if len(attribute) != 1:
        return selection
    column = attribute[0]
    table = table_of(selection.table)
    if table.partitioning is Partitioning.JOB_ID and column == _JOB_IDS.get(table.name):
        return _by_id(selection, one)
    if column == "created_at" and table.name == "jobs":
        return _by_creation(selection, one)
    option = FilterOption.BUCKETS if column == _BUCKET_IDS.get(table.name) else _OPTION_OF_COLUMN.get(column)
    if option is None or option not in table.filters:
        return selection
    return _by_choice(selection, one, option)


def _by_choice(selection: Selection, one: Filter, option: FilterOption) -> Selection:
    if isinstance(one, EqualTo):
        words = (one.value,)
    elif isinstance(one, In):
        words = tuple(one.value)
    else:
        return selection
    if not all(isinstance(word, str) for word in words):
        return selection
    if option is FilterOption.BUCKETS:
        # Ids are written in lower case with dashes: any other text equals no id.
        words = tuple(word for word in words if _id(word) is not None and str(_id(word)) == word)
    return selection.narrowed(option, words)


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
    # Ids have milliseconds. The lower bound is rounded down and the upper one up; Spark filters exactly.
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
