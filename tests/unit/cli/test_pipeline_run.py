"""``jobmaster pipeline run``: the options of a session are those of the run, never those of one step."""

from __future__ import annotations

import pytest
from click.testing import CliRunner, Result

from jobmaster.cli.commands.pipeline.pipeline import pipeline_group
from jobmaster.cli.invocation import attach_common_options


def run(*steps: str) -> Result:
    return CliRunner().invoke(attach_common_options(pipeline_group), ["run", *steps])


@pytest.mark.parametrize(
    ("option", "value"),
    [("--dry-run", ""), ("--lake", " /other"), ("--master", " local[1]"), ("--conf", " spark.ui.enabled=false")],
)
def test_an_option_of_the_session_inside_a_step_is_refused_before_the_first_step_starts(
    option: str, value: str
) -> None:
    result = run(f"vacuum {option}{value}", "no step: nothing may start, also without the check")
    assert result.exit_code == 2
    assert f"step 'vacuum {option}{value}': {option} is for all steps of a run" in result.stderr
    assert f"jobmaster pipeline run {option}" in result.stderr


def test_an_unknown_step_and_one_that_cannot_be_read_are_refused() -> None:
    assert "'vacuun' is no step; the steps are " in run("vacuun").stderr
    assert "cannot be read: No closing quotation" in run('vacuum "').stderr
