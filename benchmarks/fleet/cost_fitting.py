"""Counts CPU and fits costs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from benchmarks.support.measured_cluster import MeasuredCluster, cpu_of, descendants

_T = TypeVar("_T")


class Used(NamedTuple):
    """CPU of one call, in microseconds."""

    server: float
    client: float
    wal_bytes: float = 0.0


def exact_cpu(pid: int) -> float:
    """CPU seconds of a process, all its threads, to the nanosecond where the kernel provides them."""
    spent = 0
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            spent += int((task / "schedstat").read_text().split()[0])
    except OSError:
        return cpu_of(pid)
    return spent / 1e9 if spent else cpu_of(pid)


def postgres_cpu(measured: MeasuredCluster) -> float:
    """CPU seconds of every living process of the database server."""
    return sum(map(exact_cpu, descendants(measured.servers.status().postgres.pid or 0)))


def fitted(points: Sequence[tuple[float, float]]) -> dict[str, float]:
    """``fixed`` and ``per`` of a line through the points, least squares of relative errors, neither below zero."""
    weights = [1.0 / max(y, 1e-9) ** 2 for _, y in points]
    total = sum(weights)
    mean_x = sum(w * x for w, (x, _) in zip(weights, points, strict=True)) / total
    mean_y = sum(w * y for w, (_, y) in zip(weights, points, strict=True)) / total
    spread = sum(w * (x - mean_x) ** 2 for w, (x, _) in zip(weights, points, strict=True))
    moment = sum(w * (x - mean_x) * (y - mean_y) for w, (x, y) in zip(weights, points, strict=True))
    per = max(moment / spread, 0.0) if spread else 0.0
    return {"fixed": round(max(mean_y - per * mean_x, 0.0), 3), "per": round(per, 5)}


def each(batches: list[_T], call: Callable[[_T], Awaitable[object]]) -> Callable[[], Awaitable[object]]:
    """A call with the next batch."""
    return lambda: call(batches.pop())
