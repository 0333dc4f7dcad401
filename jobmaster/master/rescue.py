"""What a rescuer writes, each page under its own epoch."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from jobmaster.codec import encode_error
from jobmaster.master import reread
from jobmaster.master.batches import Batch, Sent, columns, ids_of, tell_batch
from jobmaster.master.connection import Calls
from jobmaster.model.ids import Fence
from jobmaster.model.job import Entry, ErrorInfo
from jobmaster.ports import Swept, Unfit, Written

AGENT_LOST = encode_error(
    ErrorInfo(
        type="AgentLost",
        message="the agents that ran this job died too often while they had it",
        reason="agent_lost",
    )
)
ABANDONED = encode_error(
    ErrorInfo(
        type="Abandoned",
        message="its agent was lost after the job had been started, and a job delivered at most once is not started again",
        reason="abandoned",
    )
)
UNCONFIRMED = encode_error(
    ErrorInfo(type="Unconfirmed", message="nobody has confirmed it in time", reason="unconfirmed")
)
_COUNT_MAX = 2**31 - 1
_DIGEST_CHARS = 16
_WHY_CHARS = 400
_Copy = tuple[bytes, int, str, bytes, int, bytes, int, int]
"""An ``Entry`` as the columns of the statement."""


class Rescue:
    """``jobmaster.ports.Rescue`` on PostgreSQL."""

    _data: Calls

    async def rescue_page(
        self,
        fence: Fence,
        entries: Sequence[Entry],
        lane: str,
        priority: int,
        *,
        claimed: bool,
        max_rescues: int,
    ) -> Written:
        """Entries found in the store -> HELD with token + 1 (no row: token 2); rows that are final, HELD or of another
        bucket are left alone (*refused*)."""

        async def send(some: Sequence[_Copy]) -> Sent:
            ids = ids_of(some)
            limits = (claimed, count_of(max_rescues), AGENT_LOST, min(ids), max(ids))
            return await tell_batch(
                self._data, "jobs/rescue_page", *fence, priority, lane, *limits, *columns(some), ABANDONED, ids=ids
            )

        def judge(_: _Copy, found: reread.Found) -> reread.Verdict:
            mine = found.in_flight and found.bucket_id == fence.bucket_id
            return reread.Verdict.AGAIN if mine else reread.Verdict.REFUSED

        copies = [(e.id, e.token, e.handler, e.args, e.due_us, e.headers, e.attempt, e.rescues) for e in entries]
        return await Batch(self._data, "jobs/rescue_page", send, judge, bucket_id=fence.bucket_id).write(copies)

    async def sweep(self, fence: Fence, limit: int, *, max_rescues: int) -> Swept:
        """In-flight rows that still name the bucket -> HELD; none also when the bucket is another's."""
        rows = await self._data.tell("jobs/sweep", *fence, limit, count_of(max_rescues), AGENT_LOST, ABANDONED)
        return Swept(*rows[0])

    async def quarantine(self, bucket_id: bytes, entries: Sequence[Unfit]) -> None:
        """Keep what no table takes, byte for byte, for a person to look at; sent again, nothing more is kept."""
        ids = [each.id for each in entries]
        reasons = [_reason(each) for each in entries]
        await self._data.tell("jobs/quarantine", ids, bucket_id, reasons, [each.raw for each in entries], ids=ids)


def count_of(rescues_max: int) -> int:
    """A configured limit as the statements take it: one beyond their range would make every row look unfit."""
    return min(rescues_max, _COUNT_MAX)


def _reason(unfit: Unfit) -> str:
    """Why, and of which bytes: two entries of one id are two lines. ASCII, so that no database refuses the reason as well."""
    digest = hashlib.sha256(unfit.raw).hexdigest()[:_DIGEST_CHARS]
    why = unfit.why.encode("ascii", "backslashreplace").decode().replace("\0", "\\0")
    return f"{unfit.kind} entry {digest}: {why[:_WHY_CHARS]}"
