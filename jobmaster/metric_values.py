"""Values of metrics: histograms, counters by label, and the bounds on how many labels there are.

A hot path adds to them without a lock and without a library; ``jobmaster.telemetry`` shows them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable
from operator import add

SERIES_MAX = 1000
"""Series of a counter whose labels come from jobs."""
FEW = 8
"""Values that are counted one by one faster than as a batch."""
OTHER = "other"
"""Value of a label of everything beyond a bound."""


class Histogram:
    """Counts per upper bound; one bisect per observation, or one per bound for a whole batch."""

    __slots__ = ("bounds", "bounds_us", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.bounds_us = [round(bound * 1e6) for bound in bounds]
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """One value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def observe_batch_us(self, values: list[int]) -> None:
        """Many values in microseconds, perhaps sorted in place: per value a tenth of the price of ``observe``."""
        counts, bounds, end = self.counts, self.bounds_us, len(values)
        self.total += sum(values) / 1e6
        if end <= FEW:
            for value in values:
                counts[bisect_left(bounds, value)] += 1
            return
        values.sort()  # what ended together is mostly in order already; a search for the least and the greatest costs as much
        place, last = bisect_left(bounds, values[0]), bisect_left(bounds, values[-1])
        seen = 0
        while place < last:
            below = bisect_right(values, bounds[place], seen)
            counts[place] += below - seen
            seen = below
            place += 1
        counts[place] += end - seen

    def cumulative(self, shown: Collection[float]) -> list[tuple[str, float]]:
        """``(upper bound, values at or below it)`` as Prometheus wants them.

        Args:
            shown: the bounds to be returned, some of this histogram's.
        """
        pairs: list[tuple[str, float]] = []
        running = 0
        for bound, count in zip(self.bounds, self.counts, strict=False):
            running += count
            if bound in shown:
                pairs.append((str(bound), float(running)))
        pairs.append(("+Inf", float(running + self.counts[-1])))
        return pairs

    @classmethod
    def sum(cls, bounds: tuple[float, ...], parts: Iterable[Histogram]) -> Histogram:
        """The values of all parts, which have these bounds."""
        whole = cls(bounds)
        for part in parts:
            whole.counts = list(map(add, whole.counts, part.counts))
            whole.total += part.total
        return whole


Tally = defaultdict[str, int]
Labels = tuple[str, ...]
"""Values of labels, in the order of their names."""


class Tallies(dict[Labels, int]):
    """A counter by labels that come from jobs, with at most ``SERIES_MAX`` series and one for all others."""

    def add(self, labels: Labels, count: int = 1) -> None:
        """Count under these labels, or under ``other``."""
        self[self.place(labels)] += count

    def place(self, labels: Labels) -> Labels:
        """The labels under which these are counted, from now on; the count of new ones is 0."""
        if labels not in self:
            if len(self) >= SERIES_MAX:
                labels = (OTHER,) * len(labels)
            self.setdefault(labels, 0)
        return labels


class Histograms(dict[Labels, Histogram]):
    """A histogram for each of at most ``most`` labels, and one for all others."""

    def __init__(self, bounds: tuple[float, ...], most: int) -> None:
        super().__init__()
        self._bounds = bounds
        self._most = most

    def of(self, *labels: str) -> Histogram:
        """The histogram of these labels, or that of ``other``."""
        found = self.get(labels)
        if found is None:
            if len(self) >= self._most:
                labels = (OTHER,) * len(labels)
            found = self.setdefault(labels, Histogram(self._bounds))
        return found


class NameLimit:
    """The first ``most`` names are values of labels; ``other`` stands for the rest."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._names: set[str] = set()

    def label(self, name: str) -> str:
        """The name, or ``other``."""
        if name not in self._names:
            if len(self._names) >= self._most:
                return OTHER
            self._names.add(name)
        return name
