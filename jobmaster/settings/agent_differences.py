"""The settings that all agents of a cluster should have in common, and the differences between agents.

A difference breaks nothing at once: a lease row holds its own length, and the failure detector uses that. But the moment of a
rescue, how early jobs leave the master, and the number of rescues or snoozes that ends a job then depend on which agent acts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import msgspec

from jobmaster.settings.model import ClusterSettings

_OWN = frozenset({"leases.grace"})
"""Keys of these sections that may differ."""
_UNITS = ("_seconds", "_bytes")


def common(settings: ClusterSettings) -> dict[str, object]:
    """Values by their key in the configuration."""
    found: dict[str, object] = {}
    for section in ("leases", "thresholds"):
        for name, value in msgspec.to_builtins(getattr(settings, section)).items():
            unit = next((unit for unit in _UNITS if name.endswith(unit)), "")
            found[f"{section}.{name.removesuffix(unit)}"] = value
    found["jobs.max_rescues"] = settings.jobs.max_rescues
    found["jobs.max_snoozes"] = settings.jobs.max_snoozes
    found["jobs.max_reassigns"] = settings.jobs.max_reassigns
    found["zone"] = settings.zone
    return {key: value for key, value in found.items() if key not in _OWN}


def differences(published: Sequence[tuple[str, Mapping[str, object]]]) -> list[str]:
    """One sentence for each key about which agents differ.

    Args:
        published: names of agents and what each has published; a key that an agent has not published is not compared for it.
    """
    values: dict[str, dict[str, list[str]]] = {}
    for name, settings in published:
        for key, value in settings.items():
            values.setdefault(key, {}).setdefault(json.dumps(value), []).append(name)
    return [
        f"{key} is {' and '.join(f'{value} on {_some(names)}' for value, names in sorted(found.items()))}"
        for key, found in sorted(values.items())
        if len(found) > 1
    ]


def _some(names: Sequence[str], most: int = 3) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
