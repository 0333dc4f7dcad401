"""What a submit in SQL must know of the configuration: limits, defaults, and the lanes that agents serve.

Published in the master by its migrator and by every agent that registers; the function ``submit`` of the schema reads it.
"""

from __future__ import annotations

import msgspec

from jobmaster.model.job import Priority
from jobmaster.settings.model import ClusterSettings


def served_lanes(settings: ClusterSettings) -> set[str]:
    """Lanes for which some agent of the configuration has buckets."""
    return {
        lane
        for agent in settings.agents.values()
        for lane, counts in agent.bucket_counts().items()
        if any(msgspec.structs.astuple(counts))
    }


def submit_rules(settings: ClusterSettings) -> dict[str, object]:
    """Values by column of the table ``submit_rule``."""
    limits, defaults = settings.limits, settings.jobs
    return {
        "args_bytes": limits.args_bytes,
        "headers_bytes": limits.headers_bytes,
        "tags": limits.tags,
        "tag_chars": limits.tag_chars,
        "due_ahead_days": limits.due_ahead_days,
        "clock_skew_seconds": limits.clock_skew_seconds,
        "priority": int(Priority.parse(defaults.priority)),
        "lane": defaults.lane,
        "lanes": sorted(served_lanes(settings)),
    }
