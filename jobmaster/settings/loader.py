"""Reads a configuration: command line over environment over file over defaults, checked as a whole.

The environment is an argument, so that tests and embedding programs choose it. Its default is the environment of the process,
so that a producer, an agent and a command started at one place use the same cluster.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from jobmaster.model.errors import CodeError
from jobmaster.settings.binding import Binder
from jobmaster.settings.config_file import CONFIG_VARIABLE, Unreadable, find_file, read_text
from jobmaster.settings.interpolation import Interpolator
from jobmaster.settings.model import ClusterSettings
from jobmaster.settings.overrides import Override, apply, find_new_entries, read_command_line, read_environment
from jobmaster.settings.problems import DEFAULT_ORIGIN, InvalidSettings, Origin, OriginKind, Problem, in_file_order
from jobmaster.settings.schema import settings_shape
from jobmaster.settings.section_relations import Findings, check_relations
from jobmaster.settings.yaml_tree import Node, parse_yaml


@dataclass(frozen=True, slots=True)
class LoadedSettings:
    """A valid configuration, and the origin of each part."""

    settings: ClusterSettings
    origins: Mapping[str, Origin]
    """Path of every leaf (``leases.lease``, ``handlers[0]``) that was written -> its origin. Other leaves are defaults."""
    warnings: tuple[Problem, ...] = ()
    source: Path | None = None
    """The file, as it was named; ``None`` when there is none."""

    def origin_of(self, path: str) -> Origin:
        """Origin of the leaf at ``path``."""
        return self.origins.get(path, DEFAULT_ORIGIN)


@dataclass(frozen=True, slots=True)
class _Layers:
    """The merged layers, before any value is read by type."""

    problems: list[Problem] = field(default_factory=list)
    warnings: list[Problem] = field(default_factory=list)


def load_settings(
    path: Path | str | None = None, env: Mapping[str, str] | None = None, overrides: Sequence[str] = ()
) -> LoadedSettings:
    """Settings from file, environment and command line.

    Args:
        path: the file. ``None``: the first of ``$JOBMASTER_CONFIG``, ``./jobmaster.yaml``, ``./cluster.yaml``, or no file
            when none of them exists.
        env: variables. ``None``: those of the process; ``{}``: no variables.
        overrides: ``key.path=value`` texts; of one key the last text counts.

    Raises:
        InvalidSettings: (a ``ConfigError``) with every problem.
    """
    env = os.environ if env is None else env
    layers = _Layers()
    source = find_file(None if path is None else Path(path), env, layers.warnings)
    origin = Origin(OriginKind.FILE, str(source)) if source else DEFAULT_ORIGIN
    root, whole = _read_root(source, path is None, env, origin, layers)
    command_line = read_command_line(overrides, layers.problems)
    environment = read_environment(env, root, layers.problems)
    if not whole:
        # After a syntax error the rest of the file is unknown, and findings about missing keys would mislead.
        raise InvalidSettings(in_file_order(layers.problems))
    directory = source.parent if source else Path()
    interpolator = Interpolator(env, directory)
    if root is not None:
        root = interpolator.fill(root, "", layers.problems)
    command_line = [
        Override(item.keys, interpolator.fill(item.node, ".".join(item.keys), layers.problems)) for item in command_line
    ]
    every = [*environment, *command_line]
    layers.warnings.extend(find_new_entries(every, root))
    return _bind(apply(root, every, replace(origin, line=1, column=1) if source else origin), layers, source)


def _bind(tree: Node, layers: _Layers, source: Path | None) -> LoadedSettings:
    binder = Binder()
    settings = binder.bind_block(settings_shape(), tree, "")
    if not isinstance(settings, ClusterSettings):
        raise CodeError("the shape of the settings is not that of ClusterSettings")
    findings = Findings(binder.place_of, binder.places.__contains__)
    check_relations(settings, findings)
    refused = {problem.path for problem in (*layers.problems, *binder.problems)}
    # A key that could not be read has its default here: a finding that follows from the default is dropped.
    related = [problem for problem in findings.problems if problem.path not in refused]
    problems = in_file_order([*layers.problems, *binder.problems, *related])
    warnings = in_file_order([*layers.warnings, *findings.warnings])
    if problems:
        raise InvalidSettings(problems, warnings)
    return LoadedSettings(settings, dict(binder.origins), tuple(warnings), source)


def _read_root(
    source: Path | None, searched: bool, env: Mapping[str, str], origin: Origin, layers: _Layers
) -> tuple[Node | None, bool]:
    """Node tree of the file, and whether it could be read to its end."""
    if source is None:
        return None, True
    try:
        text = read_text(source, origin)
    except Unreadable as error:
        problem = error.problem
        if searched and env.get(CONFIG_VARIABLE):
            problem = replace(problem, message=f"{problem.message}; ${CONFIG_VARIABLE} names it")
        layers.problems.append(problem)
        return None, False
    root, problems = parse_yaml(text, origin)
    layers.problems.extend(problems)
    return root, root is not None or not problems
