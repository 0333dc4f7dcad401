"""Somebody who watches the demo: it goes on with Enter, with the end of the input, and where nothing can be waited for."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from jobmaster.demo.viewer import Viewer


async def test_a_step_waits_for_enter_and_says_what_comes() -> None:
    reading, writing = os.pipe()
    said: list[str] = []
    viewer = Viewer(reading, said.append)
    first = asyncio.ensure_future(viewer.ready_for("the kill"))
    await asyncio.sleep(0)
    assert not first.done()
    os.write(writing, b"\n")
    await first
    again = asyncio.ensure_future(viewer.ready_for("the end"))
    await asyncio.sleep(0)
    assert not again.done(), "one Enter is one step"
    os.close(writing)
    await again
    os.close(reading)
    assert said == ["press Enter: the kill", "press Enter: the end"]


async def test_input_that_cannot_be_waited_for_is_not_waited_for(tmp_path: Path) -> None:
    with (tmp_path / "input").open("w+b") as file:
        await Viewer(file.fileno(), lambda _: None).ready_for("the kill")


async def test_a_viewer_who_is_interrupted_leaves_no_reader() -> None:
    reading, writing = os.pipe()
    waiting = asyncio.ensure_future(Viewer(reading, lambda _: None).ready_for("the kill"))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert asyncio.get_running_loop().remove_reader(reading) is False
    os.close(reading)
    os.close(writing)
