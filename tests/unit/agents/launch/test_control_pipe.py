"""The child's end of the control pipe, and the order that comes through it first."""

from __future__ import annotations

import asyncio
import os
import threading

import pytest

from jobmaster.clock import new_id
from jobmaster.model.errors import CodeError
from jobmaster.settings.model import ClusterSettings, MasterSettings
from jobmaster_agents.event_log import EventLog
from jobmaster_agents.launch.control_pipe import ControlPipe
from jobmaster_agents.launch.launch_order import ControlMessage, LaunchOrder, read_order, write_order
from tests.support.patience import PATIENCE_SECONDS
from tests.support.waiting import wait_until


def an_order() -> LaunchOrder:
    settings = ClusterSettings(master=MasterSettings(dsn="postgresql://user:secret@host/db"), handlers=["my.jobs"])
    return LaunchOrder(settings=settings, agent="default", name="w-1", agent_id=new_id(), index=1, sys_path=("/a",))


def test_an_order_arrives_as_it_was_sent_however_the_pipe_cuts_it() -> None:
    read_end, write_end = os.pipe()
    order = an_order()
    sender = threading.Thread(target=write_order, args=(write_end, order))
    sender.start()
    assert read_order(read_end) == order
    sender.join()
    os.close(read_end)
    os.close(write_end)


@pytest.mark.parametrize("sent", [b"", b"0000", b"00000100{", b"99999999"])
def test_half_an_order_is_no_order(sent: bytes) -> None:
    read_end, write_end = os.pipe()
    os.write(write_end, sent)
    os.close(write_end)
    with pytest.raises(CodeError):
        read_order(read_end)
    os.close(read_end)


async def test_words_before_and_after_the_attachment_arrive_in_order() -> None:
    read_end, write_end = os.pipe()
    left = threading.Event()
    line = ControlPipe(read_end, EventLog(), orphan_seconds=0.0, leave=left.set)
    line.start()
    os.write(write_end, b"rescue\nword of a newer superv")
    wait_until(lambda: line.waiting == 1, 5.0, "the early word is kept")
    received: asyncio.Queue[str] = asyncio.Queue()
    line.attach(asyncio.get_running_loop(), received.put_nowait, lambda: received.put_nowait("orphaned"))
    assert await asyncio.wait_for(received.get(), PATIENCE_SECONDS) == ControlMessage.RESCUE
    os.write(write_end, b"isor\nrescue\n")
    assert await asyncio.wait_for(received.get(), PATIENCE_SECONDS) == ControlMessage.RESCUE
    assert not left.is_set()
    os.close(write_end)
    assert await asyncio.wait_for(received.get(), PATIENCE_SECONDS) == "orphaned"
    assert await asyncio.to_thread(left.wait, 5.0)
    os.close(read_end)


async def test_attaching_after_the_supervisors_death_reports_it_at_once() -> None:
    read_end, write_end = os.pipe()
    os.close(write_end)
    left = threading.Event()
    line = ControlPipe(read_end, EventLog(), orphan_seconds=0.0, leave=left.set)
    line.start()
    assert await asyncio.to_thread(left.wait, 5.0)
    orphaned = asyncio.Event()
    line.attach(asyncio.get_running_loop(), lambda word: None, orphaned.set)
    await asyncio.wait_for(orphaned.wait(), PATIENCE_SECONDS)
    os.close(read_end)
