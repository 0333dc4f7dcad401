"""The progress bars of Spark, as its drivers print them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from jobmaster.pipeline.jobs.stages import DriverOutput, StageProgress

BARS = "\r[Stage 3:====>      (7 + 2) / 20]\r[Stage 3:====>  (9 + 2) / 20][Stage 12:>  (0 + 1) / 200]"


def test_the_last_bars_are_the_progress_and_the_rest_is_lines() -> None:
    output = DriverOutput()
    assert output.feed("26/01/01 WARN Something: odd\nsecond") == (None, ["26/01/01 WARN Something: odd"])
    progress, lines = output.feed(f" line\r\n{BARS}")
    assert (progress, lines) == (StageProgress((3, 12), 9, 220), ["second line"])
    assert progress is not None
    assert progress.text == "stages 3, 12"
    assert output.feed("\r        \rdone") == (None, [])
    assert output.end() == (None, ["done"])


def test_a_line_behind_a_bar_is_kept() -> None:
    assert DriverOutput().feed("[Stage 0:>    (0 + 1) / 1]total 5\n") == (StageProgress((0,), 0, 1), ["total 5"])


def test_a_line_without_an_end_does_not_grow_for_ever() -> None:
    output = DriverOutput()
    lines = [line for _ in range(100) for line in output.feed("x" * 1000)[1]]
    assert lines
    assert all(len(line) <= 2000 for line in lines)


@given(st.lists(st.integers(1, 40)))
def test_the_cuts_of_the_output_lose_no_line(cuts: list[int]) -> None:
    text = "".join(f"line {number}\n" for number in range(30))
    output, found, at = DriverOutput(), [], 0
    for cut in cuts:
        found += output.feed(text[at : at + cut])[1]
        at += cut
    found += output.feed(text[at:])[1] + output.end()[1]
    assert found == [f"line {number}" for number in range(30)]
