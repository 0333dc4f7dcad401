"""Twins of the statements about limits. The lock of a key makes its admissions follow one another, so each counts what is
there now. Left out, each counts what was there when it began."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jobmaster.codec import decode_headers
from jobmaster.model.flow.limit import LimitKey
from tests.simulation.checks.limits import is_valid
from tests.simulation.master.job_statements import Ids, JobStatements, is_at_most_once
from tests.simulation.master.tables import (
    FINAL,
    JobRow,
    LimitRow,
    LimitState,
    LoanRow,
    PermitRow,
    Record,
    Snapshot,
)


def ordering_key(headers: bytes) -> str | None:
    return decode_headers(headers).ordering_key if b'"ordering_key":' in headers else None


class LimitStatements(JobStatements):
    """Twins of ``limits``."""

    # ------------------------------------------------------------ definitions

    def limits_declare(self, old: Snapshot, agent_id: bytes, *columns: Any) -> list[Record]:
        agent = self.tables.agents.get(agent_id)
        set_names = [name for name in columns[0] if name in self.tables.limits and self.tables.limits[name].set_us]
        for name, running, rate, burst in zip(*columns, strict=True):
            row = self.tables.limits.get(name, LimitRow())
            if agent is None:
                continue
            if row.declared_us is None or row.declared_us <= agent.started_us:
                self.tables.limits[name] = row._replace(
                    running=running, rate=rate, burst=burst, declared_us=agent.started_us
                )
        return [Record(name=name) for name in sorted(set_names)]

    def limits_set(
        self, old: Snapshot, name: str, running: int | None, rate: float | None, burst: float | None, *_: str
    ) -> list[Record]:
        row = self.tables.limits.get(name, LimitRow())
        self.tables.limits[name] = row._replace(
            set_running=running, set_rate=rate, set_burst=burst, set_us=self.now_us()
        )
        return [Record(name=name)]

    def limits_reset(self, old: Snapshot, name: str, actor: str) -> list[Record]:
        row = self.tables.limits.get(name)
        if row is None or row.set_us is None:
            return []
        if row.declared_us is None:
            del self.tables.limits[name]
        else:
            self.tables.limits[name] = row._replace(set_running=None, set_rate=None, set_burst=None, set_us=None)
        return [Record(name=name, removed=row.declared_us is None)]

    def limits_list(self, old: Snapshot, name: str | None, limit: int) -> list[Record]:
        found = []
        for each, row in sorted(self.tables.limits.items()):
            if name in (None, each):
                running, rate, burst = row.values
                found.append(Record(
                    name=each, running=running, rate=rate, burst=burst, declared_running=row.running,
                    declared_rate=row.rate, declared_burst=row.burst, declared=row.declared_us is not None,
                    set_at=self.moment(row.set_us), set_by="", set_reason="", taken=0, keys=0, fullest_key="", fullest=0,
                ))  # fmt: skip
        return found[:limit]

    # ------------------------------------------------------------ admissions

    def taken_permits(self) -> dict[LimitKey, int]:
        """What a statement that locks nothing would count from now on."""
        taken: dict[LimitKey, int] = {}
        for (name, key, job_id), permit in self.tables.permits.items():
            row = self.tables.limits.get(name)
            maximum = row.values[0] if row is not None else None
            if maximum is not None and is_valid(permit, self.tables.jobs.get(job_id)):
                taken[name, key] = taken.get((name, key), 0) + self._counts(permit.weight, maximum)
        if "lent permits" not in self.without:
            for limit in {(name, key) for name, key, _ in self.tables.permit_loans}:
                taken[limit] = taken.get(limit, 0) + self._lent(limit)
        return taken

    def _living(self, agent_id: bytes) -> bool:
        agent = self.tables.agents.get(agent_id)
        return agent is not None and agent.state in ("ACTIVE", "STOPPING")

    def _in_force(self, agent_id: bytes) -> bool:
        """Loans of a dead agent count until the last of its buckets is rescued, unless its process was seen to end."""
        agent = self.tables.agents.get(agent_id)
        if agent is None or agent.state != "DEAD" or agent.process_ended or "loans of the dead" in self.without:
            return self._living(agent_id)
        return any(
            (bucket.owner == agent_id and bucket.state != "READY_TO_DELETE")
            or (bucket.former_owner == agent_id and bucket.state in ("LOST", "DRAINING"))
            for bucket in self.tables.buckets.values()
        )

    def _lent(self, limit: LimitKey, besides: bytes | None = None, *, only_dead: bool = False) -> int:
        return sum(
            loan.permits
            for (*key, agent_id), loan in self.tables.permit_loans.items()
            if (*key,) == limit and agent_id != besides and self._in_force(agent_id)
            if not (only_dead and self._living(agent_id))
        )

    def _counts(self, weight: int, maximum: int) -> int:
        return 1 if "permit weight" in self.without else min(weight, maximum)

    def limits_admit(
        self, old: Snapshot, bucket_id: bytes, epoch: int, owner: bytes, ids: Ids, *columns: Any
    ) -> list[Record]:
        (_, priorities, lanes, handlers, tokens, attempts, rescues, dues, args, headers, _, use_jobs, names, keys,
         weights) = columns  # fmt: skip
        if not self._lock(old, bucket_id, epoch, owner, ("ACTIVE", "COMPLETING")):
            return [Record(bucket_ok=False, accepted=[], denied=[], limits=[], keys=[], waits=[])]
        uses: dict[int, list[tuple[str, str, int]]] = {}
        for place, *use in zip(use_jobs, names, keys, weights, strict=True):
            uses.setdefault(place - 1, []).append((use[0], use[1], use[2]))
        states_of = self._locked_keys({(name, key) for mine in uses.values() for name, key, _ in mine})
        counts = old.permits if "permit lock" in self.without else self.taken_permits()
        used = dict(counts)
        admitted: list[int] = []
        taken: set[LimitKey] = set()
        denied: list[tuple[bytes, str, str, float]] = []
        heaviest: dict[LimitKey, int] = {}
        for place, job_id in enumerate(ids):
            row = self.tables.jobs.get(job_id)
            begun = row is not None and row.state == "PROCESSING" and row.token == tokens[place]
            begun = begun and "begun" not in self.without
            full = None if begun else self._full(job_id, uses[place], used, states_of)
            if full is not None:
                denied.append((job_id, *full[:3]))
                if full[3]:
                    heaviest[full[:2]] = max(heaviest.get(full[:2], 0), full[3])
                continue
            admitted.append(place)
            if not begun:
                self._take(job_id, tokens[place], uses[place], used, states_of)
                taken.update((name, key) for name, key, _ in uses[place])
        for limit, weight in heaviest.items():
            states_of[limit] = self._waits(states_of[limit], bucket_id, weight)
        self.tables.limit_states.update(states_of)
        accepted: Ids = []
        for place in admitted:
            job_id, token = ids[place], tokens[place]
            row = self.tables.jobs.get(job_id)
            if row is None:
                if self._vanishes(job_id):
                    continue
                self._insert(job_id, "PROCESSING", priorities[place], lanes[place], handlers[place], token, bucket_id, epoch,
                             dues[place] or None, args[place], headers[place], attempts[place], rescues[place])  # fmt: skip
            elif self._is_mine(row, token, bucket_id, epoch) and not row.cancel_requested:
                self.audit.accepted("admit", row, token, bucket_id, epoch)
                kept = row.headers if is_at_most_once(row.headers) else headers[place]
                self._put(row._replace(state="PROCESSING", headers=kept, changed_us=self.now_us()))
            else:
                continue
            accepted.append(job_id)
            self.audit.bound(self.tables, "admit", bucket_id, epoch, owner)
            self.audit.authorised(job_id, token, bucket_id, epoch)
        self._check(taken)  # (one that is sent again takes nothing: the limit may be lower by now)
        self.hits["limit: no permit"] += len(denied)
        self.hits["limit: permit"] += len(accepted)
        limits, limit_keys, waits = ([each[n] for each in denied] for n in (1, 2, 3))
        return [Record(bucket_ok=True, accepted=accepted, denied=[each[0] for each in denied], limits=limits,
                       keys=limit_keys, waits=waits)]  # fmt: skip

    def _waits(self, state: LimitState, bucket_id: bytes, weight: int) -> LimitState:
        """A job was denied a permit; a lighter one does not take the place of a heavier one that asks again soon."""
        now = self.now_us()
        state = state._replace(waiting_bucket=bucket_id, waiting_us=now)
        if weight >= state.waiting_weight or (state.weighed_us is not None and state.weighed_us < now - 2_000_000):
            state = state._replace(waiting_weight=weight, weighed_us=now)
        return state

    # ------------------------------------------------------------ loans

    def limits_lend(
        self, old: Snapshot, agent_id: bytes, names: Sequence[str], keys: Sequence[str], keeps: Sequence[int],
        wants: Sequence[int], sequences: Sequence[int], recent_seconds: float,
    ) -> list[Record]:  # fmt: skip
        now, lives, answers = self.now_us(), self._living(agent_id), []
        recent_us = now - int(recent_seconds * 1e6)
        for name, key, keep, wanted, sequence in zip(names, keys, keeps, wants, sequences, strict=True):
            state = self.tables.limit_states.setdefault((name, key), LimitState())
            before = self.tables.permit_loans.get((name, key, agent_id))
            if before is not None and before.sequence >= sequence and "sequence of a loan" not in self.without:
                self.hits["limit: late question"] += 1
                continue
            row = self.tables.limits.get(name)
            maximum, rate, _ = row.values if row is not None else (None, None, None)
            admitted = sum(
                min(permit.weight, maximum or 0)
                for (*of, job_id), permit in self.tables.permits.items()
                if (*of,) == (name, key) and is_valid(permit, self.tables.jobs.get(job_id))
            )
            denied = (state.waiting_us or 0) > recent_us
            reserved = min(state.waiting_weight, maximum or 0) if (state.weighed_us or 0) > recent_us else 0
            share = 0
            if maximum is not None and rate is None:
                of_dead = self._lent((name, key), besides=agent_id, only_dead=True)
                others = maximum if denied else admitted
                share, of_others = self._share((name, key), agent_id, wanted, maximum - of_dead, others, recent_us)
                if denied and of_others is not None and of_others < reserved:
                    rest = maximum - of_dead - reserved
                    share, _ = self._share((name, key), agent_id, wanted, rest, 0, recent_us)
                    self.hits["limit: permits for a heavy job"] += 1
            lent = 0 if "lent permits" in self.without else self._lent((name, key), besides=agent_id)
            permits = max(keep, min(share, max((maximum or 0) - admitted - lent, 0)))
            if "what a loan keeps" in self.without:
                permits = min(share, max((maximum or 0) - admitted - lent, 0))
            if lives:
                self.tables.permit_loans[name, key, agent_id] = LoanRow(permits, wanted, sequence, now)
                grows = permits > (0 if before is None else before.permits)
                # An agent goes on with what it was lent before a failover. The rows forget that, and others may have it, too.
                was_forgotten = permits == keep <= self.audit.loans_forgotten.get((name, key, agent_id), 0)
                if grows and not was_forgotten and maximum is not None:
                    self.audit.limits.admitted(
                        (name, key), maximum, self.tables.permits, self.tables.jobs, self._lent((name, key))
                    )
            self.hits["limit: loan"] += lives and permits > 0
            self.hits["limit: no share of a loan"] += lives and share == 0
            answers.append(Record(name=name, key=key, permits=permits if lives else 0, share=share if lives else 0))
            for of in [of for of in self.tables.permit_loans if of[:2] == (name, key)]:
                agent = self.tables.agents.get(of[2])
                if agent is not None and agent.state in ("DEAD", "RETIRED") and not self._in_force(of[2]):
                    del self.tables.permit_loans[of]
        for of, loan in list(self.tables.permit_loans.items()):
            if of[2] == agent_id and not loan.permits and loan.asked_us < now - 3_600_000_000:
                del self.tables.permit_loans[of]
        return answers

    def _share(
        self, limit: LimitKey, agent_id: bytes, wanted: int, rest: int, others: int, recent_us: int
    ) -> tuple[int, int | None]:
        """Max-min fairness between the agents that have asked and the jobs that are admitted one by one: the part of this
        agent, and that of these jobs."""
        by_admission = b"\xff" * 17
        asking: list[tuple[int, bytes]] = [(wanted, agent_id)]
        for (*key, other), loan in self.tables.permit_loans.items():
            if (*key,) != limit or other == agent_id or not self._living(other):
                continue
            if loan.permits > 0 or (loan.wanted > 0 and loan.asked_us > recent_us):
                asking.append((loan.wanted if loan.asked_us > recent_us else loan.permits, other))
        if others:
            asking.append((others, by_admission))
        if rest < len(asking):
            return 0, None
        mine, of_others = 0, None
        for place, (could_use, who) in enumerate(sorted(asking)):
            granted = min(could_use, rest // (len(asking) - place))
            rest -= granted
            if who == agent_id:
                mine = granted
            elif who == by_admission:
                of_others = granted
        return mine, of_others

    # ------------------------------------------------------------ what is locked

    def _locked_keys(self, keys: set[LimitKey]) -> dict[LimitKey, LimitState]:
        """Their states, with the rates refilled."""
        found = {}
        now = self.now_us()
        for key in keys:
            state = self.tables.limit_states.get(key, LimitState())
            row = self.tables.limits.get(key[0])
            _, rate, burst = row.values if row is not None else (None, None, None)
            if rate is not None and burst is not None:
                since = max(now - (state.refilled_us or now), 0) / 1e6
                filled = burst if state.tokens is None else min(burst, state.tokens + rate * since)
                state = state._replace(tokens=filled, refilled_us=now)
            found[key] = state
        return found

    def _full(
        self,
        job_id: bytes,
        uses: Sequence[tuple[str, str, int]],
        used: dict[LimitKey, int],
        states: dict[LimitKey, LimitState],
    ) -> tuple[str, str, float, int] | None:
        """The first limit without a permit, how long the rates make the job wait, and, if it waits for another run, how many
        permits it needs."""
        first: tuple[str, str, int] | None = None
        wait = 0.0
        for name, key, weight in uses:
            row = self.tables.limits.get(name)
            if name == "":
                if self._has_before(job_id, key):
                    first = first or (name, key, 1)
                continue
            if row is None:
                first = first or (name, key, 0)
                continue
            maximum, rate, burst = row.values
            if maximum is not None and used.get((name, key), 0) + self._counts(weight, maximum) > maximum:
                first = first or (name, key, min(weight, maximum))
            tokens = states[name, key].tokens
            if rate is not None and burst is not None and tokens is not None:
                needed = min(weight, burst)
                if tokens < needed - 1e-6:
                    first = first or (name, key, 0)
                    wait = max(wait, (needed - tokens) / rate)
        return None if first is None else (first[0], first[1], wait, first[2])

    def _take(
        self, job_id: bytes, token: int, uses: Sequence[tuple[str, str, int]], used: dict[LimitKey, int],
        states: dict[LimitKey, LimitState],
    ) -> None:  # fmt: skip
        for name, key, weight in uses:
            row = self.tables.limits.get(name)
            if row is None:
                continue  # an ordering key
            maximum, _, burst = row.values
            if maximum is not None:
                used[name, key] = used.get((name, key), 0) + self._counts(weight, maximum)
                self.tables.permits[name, key, job_id] = PermitRow(token, weight, maximum)
            tokens = states[name, key].tokens
            if burst is not None and tokens is not None:
                states[name, key] = states[name, key]._replace(tokens=tokens - min(weight, burst))

    def _has_before(self, job_id: bytes, key: str) -> bool:
        """A job of the ordering key that came before and has not ended, or any that runs."""

        def stands_in_the_way(row: JobRow) -> bool:
            if row.id == job_id or row.state in FINAL or ordering_key(row.headers) != key:
                return False
            return row.state == "PROCESSING" or ("order of keys" not in self.without and row.id < job_id)

        return any(map(stands_in_the_way, self.tables.jobs.values()))

    def _bucket_of_next(self, key: str) -> bytes | None:
        """Where the earliest job of an ordering key that has not ended waits; ``None``: in no bucket, or it runs."""
        unfinished = [
            row for row in self.tables.jobs.values() if row.state not in FINAL and ordering_key(row.headers) == key
        ]
        first = min(unfinished, key=lambda row: row.id, default=None)
        return first.bucket_id if first is not None and first.state == "ASSIGNED" else None

    def _check(self, keys: set[LimitKey]) -> None:
        for name, key in sorted(keys):
            row = self.tables.limits.get(name)
            if row is not None and (maximum := row.values[0]) is not None:
                self.audit.limits.admitted(
                    (name, key), maximum, self.tables.permits, self.tables.jobs, self._lent((name, key))
                )

    def limits_waiting_elsewhere(
        self, old: Snapshot, agent_id: bytes, names: Sequence[str], keys: Sequence[str], seconds: float
    ) -> list[Record]:
        found = {}
        for key in zip(names, keys, strict=True):
            state = self.tables.limit_states.get(key)
            waiting = None if state is None else state.waiting_bucket if key[0] else self._bucket_of_next(key[1])
            bucket = self.tables.buckets.get(waiting or b"")
            if state is None or bucket is None or bucket.owner == agent_id or bucket.state != "ACTIVE":
                continue
            if (state.waiting_us or 0) > self.now_us() - int(seconds * 1e6):
                found[bucket.id] = bucket.store
                self.hits["limit: waits elsewhere"] += 1
        return [Record(id=bucket_id, store=store) for bucket_id, store in sorted(found.items())]
