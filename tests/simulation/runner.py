"""Many seeds, in several processes: every so often one is played twice, and the two traces must be the same."""

from __future__ import annotations

import gc
import hashlib
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import NamedTuple, TypeVar

from tests.simulation.ablations import ABLATIONS, SEEDS_MAX
from tests.simulation.history import FAULTLESS_EVERY, History, Result
from tests.simulation.runtime.event_loop import SilencedErrors

_A = TypeVar("_A")
_B = TypeVar("_B")
TWICE_EVERY = 50
"""Of so many seeds one is played twice."""
_CHUNK = 25
_COLLECT_EVERY = 12


class Part(NamedTuple):
    """What one process has played."""

    results: list[Result]
    cpu_seconds: dict[bool, float]
    """By whether the histories were faultless."""
    replayed: int


@dataclass
class Report:
    """All of them together."""

    results: list[Result] = field(default_factory=list)
    cpu_seconds: dict[bool, float] = field(default_factory=lambda: {True: 0.0, False: 0.0})
    replayed: int = 0

    def add(self, part: Part) -> None:
        self.results += part.results
        for faultless, seconds in part.cpu_seconds.items():
            self.cpu_seconds[faultless] += seconds
        self.replayed += part.replayed

    @property
    def hits(self) -> Counter[str]:
        total: Counter[str] = Counter()
        for result in self.results:
            total.update(result.hits)
        return total

    @property
    def violating(self) -> list[Result]:
        return [result for result in self.results if result.violations]

    def figures(self) -> dict[str, object]:
        """For the last line."""
        faulty = [result for result in self.results if not result.faultless]
        digest = hashlib.blake2b(digest_size=16)
        for result in sorted(self.results, key=lambda result: result.seed):
            digest.update(result.digest.encode())
        return {
            "seeds": len(faulty),
            "faultless_seeds": len(self.results) - len(faulty),
            "violations": len(self.violating),
            "violating_seeds": [result.seed for result in self.violating][:20],
            "events_per_seed": int(median(result.events for result in faulty)) if faulty else 0,
            "jobs_per_seed": int(median(result.jobs for result in faulty)) if faulty else 0,
            "faults_per_seed": int(median(result.faults for result in faulty)) if faulty else 0,
            "least_faults": min((result.faults for result in faulty), default=0),
            "least_jobs": min((result.jobs for result in faulty), default=0),
            "seeds_per_cpu_second": round(len(faulty) / self.cpu_seconds[False], 1) if faulty else 0.0,
            "cpu_seconds": round(sum(self.cpu_seconds.values()), 1),
            "replayed_twice": self.replayed,
            "trace_digest": digest.hexdigest(),
        }


def seeds_of(first: int, faulty: int) -> list[int]:
    """The next seeds from ``first`` on, until so many of them are not faultless."""
    found: list[int] = []
    seed = first
    while faulty > 0:
        found.append(seed)
        faulty -= seed % FAULTLESS_EVERY != 0
        seed += 1
    return found


def play(seeds: Sequence[int], run: Callable[[int], Result] | None = None, *, collects: bool = True) -> Part:
    """Some seeds in this process.

    Args:
        collects: collect what histories leave behind; not in a process that ends when they have been played.
    """
    results: list[Result] = []
    spent = {True: 0.0, False: 0.0}
    replayed = 0
    with _Uncollected(ever=collects) as uncollected:
        for seed in seeds:
            began = time.process_time()
            result = run(seed) if run is not None else History(seed).run()
            uncollected.next()
            spent[result.faultless] += time.process_time() - began
            if run is None and seed % TWICE_EVERY == 1:
                again = History(seed).run()
                replayed += 1
                if again.digest != result.digest:
                    result = _with(result, f"determinism: seed {seed} has two traces")
            results.append(result)
    return Part(results, spent, replayed)


def _with(result: Result, violation: str) -> Result:
    return Result(**{**vars(result), "violations": (*result.violations, violation)})


class _Uncollected:
    """Histories leave circles behind; they are collected between histories and never within one.

    Args:
        ever: collected at all.
    """

    def __init__(self, *, ever: bool) -> None:
        self._ever = ever

    def __enter__(self) -> _Uncollected:
        self._was_on = gc.isenabled()
        self._since = 0
        self._collect()  # what lies about here is not ours to speak of
        gc.disable()
        return self

    def next(self) -> None:
        self._since += 1
        if self._since >= _COLLECT_EVERY:
            self._since = 0
            self._collect()

    def _collect(self) -> None:
        if self._ever:
            with SilencedErrors():
                gc.collect()

    def __exit__(self, *_: object) -> None:
        self._collect()
        if self._was_on:
            gc.enable()


def play_all(seeds: Sequence[int], jobs: int, on_progress: Callable[[Report], None]) -> Report:
    """All seeds in several processes, each of which ends after a chunk of them: nothing is collected there."""
    report = Report()
    chunks = [seeds[start : start + _CHUNK] for start in range(0, len(seeds), _CHUNK)]
    if jobs > 1:
        History(seeds[0]).run()  # what is loaded and compiled with the first history is there for every process
    for part in _spread(partial(play, collects=jobs <= 1), chunks, jobs, tasks_each=1):
        report.add(part)
        on_progress(report)
    return report


class Caught(NamedTuple):
    """An ablation and how it was noticed."""

    name: str
    seeds: int
    """Histories with faults until one was violated; 0: none was, or one that is violated with the guard too."""
    violation: str
    seed: int = 0
    """The history that noticed it; 0: none did."""


def catch(name: str, seeds_max: int = SEEDS_MAX, *, known: int = 1) -> Caught:
    """Play seeds without a guard until one notices. That history is played with the guard too: it must keep every promise.

    Args:
        known: a seed that has noticed it before; the search begins there. If the histories have changed since, it only takes
            longer.
    """
    ablation = ABLATIONS[name]
    seeds = [seed for seed in seeds_of(1, seeds_max) if seed % FAULTLESS_EVERY != 0]
    seeds = [*(seed for seed in seeds if seed >= known), *(seed for seed in seeds if seed < known)]
    portions = [seeds[:1], *(seeds[start : start + 4] for start in range(1, len(seeds), 4))]
    played = 0
    for some in portions:
        for result in play(some, ablation.run).results:
            played += 1
            if result.violations:
                if complete := ablation.with_every_guard(result.seed).violations:
                    return Caught(name, 0, f"seed {result.seed} with every guard: {complete[0]}")
                return Caught(name, played, result.violations[0], result.seed)
    return Caught(name, 0, "")


def catch_all(names: Sequence[str], jobs: int) -> Iterator[Caught]:
    """All of them in several processes."""
    return _spread(catch, names, jobs)


def _spread(work: Callable[[_A], _B], orders: Sequence[_A], jobs: int, tasks_each: int | None = None) -> Iterator[_B]:
    if jobs <= 1:
        yield from map(work, orders)
        return
    method = "fork" if sys.platform.startswith("linux") else "spawn"
    context = multiprocessing.get_context(method)
    # What is there at its begin is never collected in a process.
    with context.Pool(jobs, initializer=gc.freeze, maxtasksperchild=tasks_each) as pool:
        yield from pool.imap_unordered(work, orders)
