"""Commands about several jobs: which of them are done, what is printed, and the exit code."""

from __future__ import annotations

import json

import pytest

from jobmaster.cli.commands.job_inputs import ActedOn, act_on_each, emit_each
from jobmaster.cli.tables import Column, Output
from jobmaster.clock import new_id
from jobmaster.model.errors import Conflict, InputError, JobMasterError, NotFound, Unavailable
from jobmaster.model.ids import text
from jobmaster.settings.model import ClusterSettings

JOBS = [new_id() for _ in range(3)]
COLUMNS = (Column("ID", "id"), Column("STATE", "state"))


async def acted(*errors: JobMasterError | None) -> tuple[list[ActedOn], list[bytes]]:
    """Act on three jobs, each with one of the errors; also the jobs that were tried."""
    tried: list[bytes] = []

    async def act(job_id: bytes) -> ActedOn:
        tried.append(job_id)
        error = errors[JOBS.index(job_id)]
        if error is not None:
            raise error
        return ActedOn({"id": text(job_id), "state": "CANCELLED"})

    done = await act_on_each(ClusterSettings(), [text(job) for job in JOBS], act)
    return done, tried


@pytest.mark.parametrize("error", [NotFound("no such job"), Conflict("it has ended")])
async def test_a_job_that_cannot_be_changed_does_not_keep_the_others_from_it(error: JobMasterError) -> None:
    done, tried = await acted(None, error, None)
    assert tried == JOBS
    assert [each.error for each in done] == [None, error, None]


async def test_after_a_server_is_lost_no_further_job_is_tried() -> None:
    lost = Unavailable("the master does not answer")
    done, tried = await acted(None, lost, None)
    assert tried == JOBS[:2]
    assert [each.record["id"] for each in done] == [text(job) for job in JOBS]
    assert "not tried" in str(done[2].error)
    with pytest.raises(Unavailable):
        emit_each(done, COLUMNS, Output.JSON)


async def test_input_that_is_refused_before_any_action_is_the_only_answer() -> None:
    with pytest.raises(InputError, match="sets nothing"):
        await acted(InputError("the change sets nothing"), None, None)


async def test_every_job_has_a_row_also_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    done, _ = await acted(NotFound("no such job"), None, Conflict("it has ended"))
    with pytest.raises(Conflict) as caught:
        emit_each(done, COLUMNS, Output.JSON)
    assert caught.value.message == "2 of 3 jobs: no such job; it has ended"
    rows = json.loads(capsys.readouterr().out)
    assert [row["error"] and row["error"]["code"] for row in rows] == ["not_found", None, "conflict"]
    assert [row["state"] for row in rows] == [None, "CANCELLED", None]
