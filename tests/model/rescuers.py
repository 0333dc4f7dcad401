"""Certificate, rescue and the leader's maintenance of bucket 1: fence, pages, close, sweep, and what comes back later."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tests.model import master
from tests.model.explorer import Step
from tests.model.rules import Setting
from tests.model.state import (
    ACTIVE,
    BY_RESCUER,
    COMPLETING,
    DRAINING,
    FROZEN,
    GONE,
    LOST,
    READY,
    Bucket,
    Copy,
    Entry,
    KeptOutcome,
    Page,
    Rescuer,
    State,
    Store,
)

_EPOCHS_MAX = 6
_At = Callable[[State, Rescuer | None], State]
"""The state with this drain (the rescuer's or the zombie's) at another point, or ended."""
_OWNED = (ACTIVE, COMPLETING, FROZEN)


def steps(setting: Setting, state: State) -> Iterator[Step[State]]:
    """Certifier, rescuers, leader."""
    yield from _certify(setting, state)
    if state.rescuer is None:
        yield from _take(setting, state)
    else:
        yield from _drain(setting, state, state.rescuer, zombie=False)
        yield from _fall(setting, state, state.rescuer)
    if state.zombie is not None:
        yield from _drain(setting, state, state.zombie, zombie=True)
    yield from _keep_house(setting, state)


def _certify(setting: Setting, state: State) -> Iterator[Step[State]]:
    bucket, lease = state.bucket, state.lease
    if bucket.owner != "A" or bucket.state not in _OWNED:
        return
    dead = state.agent.mode == "dead"
    lost = state._replace(bucket=bucket._replace(state=LOST))
    if setting.scope.leased:
        if not lease.valid and not lease.seen_over and not lease.certified:
            yield Step("K0 the certifier has seen the lease over", state._replace(lease=lease._replace(seen_over=True)))
        if lease.seen_over and not (setting.rules.certificate_cas and lease.valid):
            # Without the compare-and-set the bucket changes and the agent's own row does not: it goes on renewing.
            certified = lease._replace(certified=setting.rules.certificate_cas, seen_over=False)
            yield Step("certificate: the bucket is LOST", lost._replace(lease=certified))
    elif dead or setting.scope.zombie:
        yield Step("certificate: the bucket is LOST", lost, fault=not dead)


def _take(setting: Setting, state: State) -> Iterator[Step[State]]:
    bucket = state.bucket
    abandoned = bucket.state == DRAINING  # by a rescuer that died; its own certificate is left out
    if not (bucket.state == LOST or abandoned):
        return
    known = state.store.epoch if setting.rules.highest_epoch else 0
    epoch = max(bucket.epoch, known) + 1
    if epoch > _EPOCHS_MAX:
        return
    name = "R2" if state.first_rescuer_gone else "R1"
    rescuer = Rescuer(name, epoch)
    taken = state._replace(bucket=Bucket(DRAINING, epoch, name), rescuer=rescuer)
    yield Step("D0 taken: epoch + 1 in the master, store not fenced", taken)
    if setting.scope.rescuer_unaware and name == "R1":
        yield Step("D0 taken, reply lost", taken._replace(rescuer=rescuer._replace(at="unaware")), fault=True)


def _fall(setting: Setting, state: State, rescuer: Rescuer) -> Iterator[Step[State]]:
    if rescuer.name == "R1" and not state.first_rescuer_gone:
        gone = state._replace(rescuer=None, first_rescuer_gone=True)
        if setting.scope.rescuer_crash:
            yield Step("the first rescuer crashes", gone, fault=True)
        if setting.scope.rescuer_zombie:
            yield Step("the first rescuer is certified dead and is not", gone._replace(zombie=rescuer), fault=True)


# ---------------------------------------------------------------- one drain


def _drain(setting: Setting, state: State, me: Rescuer, *, zombie: bool) -> Iterator[Step[State]]:
    def at(after: State, now: Rescuer | None) -> State:
        return after._replace(zombie=now) if zombie else after._replace(rescuer=now)

    store = state.store
    mine = (store.epoch, store.owner) == (me.epoch, me.name) or (store.epoch > 0 and not setting.rules.store_fence)
    if me.at == "unaware":
        if setting.rules.rescuer_looks_again:
            yield Step("rescuer finds a bucket of its own that it did not know", at(state, me._replace(at="fence")))
    elif me.at == "fence":
        yield from _fence(setting, state, me, at)
    elif me.at == "pages" and me.page is None:
        if not mine:
            yield Step("rescuer refused by the store: fence again", at(state, me._replace(at="fence")))
        elif (page := _next_page(setting, store)) is not None:
            yield Step(f"rescuer reads {page.where}", at(state, me._replace(page=page)))
        else:
            closed = state._replace(store=store._replace(state=READY))
            yield Step("X0 closed in the store, not in the master", at(closed, me._replace(at="sweep")))
    elif me.at == "pages":
        yield from _move(setting, state, me, mine, at)
    else:
        yield from _close(setting, state, me, at)


def _fence(setting: Setting, state: State, me: Rescuer, at: _At) -> Iterator[Step[State]]:
    store = state.store
    same = (store.epoch, store.owner) == (me.epoch, me.name)
    if store.epoch < me.epoch or same:
        lists = Store(DRAINING, me.epoch, me.name) if store.epoch == 0 else store
        fenced = lists._replace(state=DRAINING, epoch=me.epoch, owner=me.name)
        taken = state._replace(store=fenced, rolled_back=False)
        if fenced.granted and setting.rules.rescuer_waits:
            if taken != state:
                yield Step("fenced in the store, which stands for the former owner: wait", taken)
            return
        taken = taken._replace(store=fenced._replace(granted=False))
        yield Step("D1 fenced in the store", at(taken, me._replace(at="pages")))
    elif setting.rules.highest_epoch:
        own = (state.bucket.epoch, state.bucket.owner) == (me.epoch, me.name) and state.bucket.state == DRAINING
        lost = state._replace(bucket=state.bucket._replace(state=LOST)) if own else state
        yield Step("rescuer outrun by the store's epoch: LOST again", at(lost, None))


def _next_page(setting: Setting, store: Store) -> Page | None:
    kept = [Page("kept", 0, each) for each in store.kept]
    others = [Page("claimed", each.name, each.entries[0]) for each in store.claimed]
    others += [Page("pending", 0, entry) for entry in store.pending[:1]]
    others += [Page("assigned", 0, entry) for entry in store.assigned[:1]]
    pages = kept + others if setting.rules.kept_first else others + kept
    return pages[0] if pages else None


def _move(setting: Setting, state: State, me: Rescuer, mine: bool, at: _At) -> Iterator[Step[State]]:
    """Master first, store second."""
    page = me.page
    assert page is not None
    if page.committed or (not page.removed and not setting.rules.rescuer_commits_first):
        now = None if page.committed else page._replace(removed=True)
        after = state._replace(store=without(state.store, page)) if mine else state
        yield Step("V1 removed from the store", at(after, me._replace(page=now, at="pages" if mine else "fence")))
        return
    written = _commit(setting, state, me, page.item)
    if written.result == master.FENCED and setting.rules.two_refusals:
        yield Step("rescuer refused by the bucket: superseded", at(state, None))
        return
    now = None if page.removed else page._replace(committed=True)
    yield Step(
        "V0 moved in the master, not in the store", at(written.state, me._replace(page=now)), broken=written.broken
    )
    if setting.scope.lost_commits and written.state != state:
        yield Step("V0 moved, reply lost", written.state, fault=True, broken=written.broken)


def _commit(setting: Setting, state: State, me: Rescuer, item: Entry | KeptOutcome) -> master.Written:
    if isinstance(item, KeptOutcome):
        job, token, origin = item.entry
        written = master.write(setting, state, Copy(job, token, 1, 1, origin, "", 0, 1), item.what)
        if not written.broken and written.result == master.REFUSED and state.jobs[job].outcomes == 0:
            row = state.jobs[job].row
            by_rescue = row is not None and row.origin == BY_RESCUER
            return written._replace(broken=master.THROWN_AWAY if by_rescue else "")
        return written
    return master.rescue(setting, state, item.job, me.epoch, me.name)


def without(store: Store, page: Page) -> Store:
    item = page.item
    if isinstance(item, KeptOutcome):
        return store._replace(kept=tuple(each for each in store.kept if each != item))
    if page.where == "claimed":
        kept = []
        for each in store.claimed:
            if each.name == page.name and each.entries[0] == item:
                each = each._replace(entries=each.entries[1:])
            if each.entries:
                kept.append(each)
        return store._replace(claimed=tuple(kept))
    if page.where == "pending":
        return store._replace(pending=store.pending[1:]) if store.pending[:1] == (item,) else store
    return store._replace(assigned=tuple(each for each in store.assigned if each != item))


def _close(setting: Setting, state: State, me: Rescuer, at: _At) -> Iterator[Step[State]]:
    bucket = state.bucket
    if (bucket.state, bucket.epoch, bucket.owner) != (DRAINING, me.epoch, me.name) and setting.rules.rescuer_lock:
        yield Step("rescuer refused by the bucket: superseded", at(state, None))
        return
    left = [number for number, job in enumerate(state.jobs) if master.names_bucket(job)]
    if not left:
        if bucket.state == DRAINING:
            yield Step(
                "X1 READY_TO_DELETE in the master", at(state._replace(bucket=bucket._replace(state=READY)), None)
            )
        else:
            yield Step("rescuer refused by the bucket: superseded", at(state, None))
    elif setting.rules.sweep:
        written = master.sweep(setting, state, left[0], me.epoch, me.name)
        yield Step("rescuer sweeps a row", written.state, broken=written.broken)


# ---------------------------------------------------------------- the leader


def _keep_house(setting: Setting, state: State) -> Iterator[Step[State]]:
    rules, bucket, store = setting.rules, state.bucket, state.store
    if rules.leader_sweep:
        for number, job in enumerate(state.jobs):
            if job.row is not None and master.names_bucket(job) and _orphaned(bucket, job.row.epoch):
                written = master.return_orphan(setting, state, number)
                yield Step("leader: a row of no living bucket is returned", written.state, broken=written.broken)
    if state.rescuer is not None or not setting.scope.rollback:
        return
    if bucket.state == READY and store.epoch:
        if store.empty() and store.state not in (ACTIVE, COMPLETING):
            gone = Store(GONE, 0, "")
            yield Step("X2 keys deleted, tombstone stands", state._replace(store=gone, rolled_back=False))
        elif rules.resurrects:
            lost = state._replace(bucket=bucket._replace(state=LOST), first_rescuer_gone=True)
            yield Step("X3 keys are there again: LOST", lost)
    elif bucket.state == READY:
        yield Step("tombstone dropped", state._replace(bucket=Bucket(GONE, bucket.epoch, "")))
    elif bucket.state == GONE and store.epoch and rules.resurrects:
        yield from _resurrect(setting, state._replace(first_rescuer_gone=True))
    elif bucket.state == ACTIVE and bucket.owner == "K" and "resurrection" not in state.spent:
        yield Step("resurrected keys: LOST", state._replace(bucket=bucket._replace(state=LOST)))


def _resurrect(setting: Setting, state: State) -> Iterator[Step[State]]:
    """The master has forgotten the bucket, but not what its epochs were."""
    epoch = state.bucket.epoch + 1
    if setting.rules.resurrects_at_once:
        resurrected = state._replace(bucket=Bucket(LOST, epoch, "K"))
        yield Step("X3 keys of an unknown bucket: resurrected as LOST", resurrected)
        return
    made = state._replace(bucket=Bucket(ACTIVE, epoch, "K"))
    yield Step("X3 keys of an unknown bucket: made anew", made)
    yield Step("X3 made anew, the next call fails", made._replace(spent=state.spent | {"resurrection"}), fault=True)


def _orphaned(bucket: Bucket, epoch: int) -> bool:
    """An older epoch of an owner is from before an emergency stop; the owner ends such copies or gives them back."""
    return bucket.state not in (LOST, DRAINING) and (bucket.epoch < epoch or bucket.state not in _OWNED)


# ---------------------------------------------------------------- emergency stop


def freeze(state: State) -> Iterator[Step[State]]:
    """The operator stops a bucket, in the master and then in its store, and lets it go on under a new epoch."""
    bucket, store = state.bucket, state.store
    if bucket == Bucket(ACTIVE, 1, "A"):
        yield Step("FROZEN by the operator", state._replace(bucket=bucket._replace(state=FROZEN)), fault=True)
    elif bucket.state == FROZEN:
        if (store.state, store.epoch, store.owner) == (ACTIVE, bucket.epoch, bucket.owner):
            yield Step("FROZEN in the store", state._replace(store=store._replace(state=FROZEN)), fault=True)
        yield Step("unfrozen: epoch + 1", state._replace(bucket=Bucket(ACTIVE, bucket.epoch + 1, bucket.owner)))
