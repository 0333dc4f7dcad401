"""``complete_time`` and ``cancel_slow`` of a submit are checked against what the handler declares."""

from __future__ import annotations

from typing import Any

import pytest

from jobmaster import BulkFailed, Handlers, InputError, UnknownHandler
from jobmaster.settings.model import ClusterSettings
from jobmaster.testing.memory.cluster import MemoryCluster, MemoryJobs

handlers = Handlers()


@handlers.job(name="bounded", timeout=10)
async def bounded() -> None:
    """Not called here."""


@handlers.job(name="reassigned", timeout=10, complete_time=5)
async def reassigned() -> None:
    """Not called here."""


@pytest.fixture
async def cluster() -> MemoryCluster:
    return MemoryJobs(ClusterSettings(), handlers).open(handlers=handlers)


@pytest.mark.parametrize(
    ("handler", "options", "words"),
    [
        ("bounded", {"complete_time": 10}, "must be less than the handler's timeout (10)"),
        ("bounded", {"complete_time": 20, "timeout": 15}, "must be less than 'timeout' (15)"),
        ("bounded", {"cancel_slow": True}, "'cancel_slow' goes with 'complete_time'"),
        ("reassigned", {"cancel_slow": True, "complete_time": 0}, "'cancel_slow' goes with 'complete_time'"),
    ],
)
async def test_what_the_declaration_refuses_is_refused_at_submit(
    cluster: MemoryCluster, handler: str, options: Any, words: str
) -> None:
    with pytest.raises(InputError) as caught:
        await cluster.submit(handler, {}, **options)
    assert words in str(caught.value)
    with pytest.raises((InputError, BulkFailed)) as bulk:
        await cluster.submit_many([{}], handler=handler, **options)
    assert words in str(bulk.value)
    assert await cluster.jobs() == []


@pytest.mark.parametrize(
    ("handler", "options"),
    [
        ("bounded", {"complete_time": 9.9, "cancel_slow": True}),
        ("bounded", {"complete_time": 20, "timeout": 30}),
        ("reassigned", {"cancel_slow": True}),
        ("reassigned", {"timeout": 3}),
        ("bounded", {"cancel_slow": False}),
    ],
)
async def test_what_fits_the_handler_is_accepted(cluster: MemoryCluster, handler: str, options: Any) -> None:
    assert not (await cluster.submit(handler, {}, **options)).duplicate


async def test_what_is_not_known_of_a_handler_is_not_refused(cluster: MemoryCluster) -> None:
    assert not (await cluster.submit("elsewhere", {}, cancel_slow=True, allow_unregistered=True)).duplicate


async def test_a_schedule_of_an_unknown_handler_has_no_hint_that_it_refuses(cluster: MemoryCluster) -> None:
    with pytest.raises(UnknownHandler) as caught:
        await cluster.schedules.put("nightly", "0 3 * * *", "no.such")
    assert "allow_unregistered" not in str(caught.value)
    assert "start an agent that has it" in str(caught.value)
