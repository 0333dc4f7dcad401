"""Values of the environment and the command line, put over those of the file.

``JOBMASTER_LEASES__LEASE=15s`` and ``--set leases.lease=15s`` both name a path. The type at the end of the path decides
how the text is read: a leaf takes it as it is (no quoting, so that a password may hold any character), a list takes
``one,two`` or YAML, a section takes YAML such as ``{critical: 3}`` and replaces the whole section. References such as
``${file:/run/secrets/dsn}`` are replaced on the command line (where a secret would show in the list of processes). The text
of a variable is taken as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from jobmaster.settings.masking import mask_secrets, show_value
from jobmaster.settings.problems import Origin, OriginKind, Problem
from jobmaster.settings.schema import Block, Leaf, Series, Shape, Table, settings_shape, suggest
from jobmaster.settings.yaml_tree import Entry, MappingNode, Node, ScalarNode, SequenceNode, Style, is_null, parse_yaml

PREFIX = "JOBMASTER_"

OTHER_VARIABLES: Mapping[str, str] = {
    "JOBMASTER_CONFIG": "Path of the configuration file, used when --config is not given.",
    "JOBMASTER_POSTGRES_BIN": "Directory with the PostgreSQL programs for the embedded master.",
    "JOBMASTER_VALKEY_SERVER": "Path of the Valkey or Redis server program for embedded stores.",
}
"""Variables with the prefix that are no settings."""

# A Kubernetes Service named "jobmaster..." puts these into every pod of its namespace; they are no settings.
_SERVICE_LINK = re.compile(
    r"JOBMASTER_(?:[A-Z0-9_]+_)?(?:SERVICE_HOST|SERVICE_PORT(?:_[A-Z0-9_]+)?|PORT(?:_[0-9]+_\w+)?)"
)
_SERVICE_VALUE = re.compile(r"(?:tcp|udp|sctp)://|[0-9.:a-f]+$|(?:tcp|udp|sctp)$")


@dataclass(frozen=True, slots=True)
class Override:
    """One value from outside the file: the keys of its path, and its node."""

    keys: tuple[str, ...]
    node: Node


class UnknownPath(ValueError):
    """A path that leads to no setting; ``known`` are the valid keys at ``depth``."""

    def __init__(self, depth: int, known: Sequence[str]) -> None:
        super().__init__(depth)
        self.depth, self.known = depth, known


def resolve(keys: Sequence[str]) -> Shape:
    """Shape at the end of a path of keys; ``UnknownPath`` otherwise."""
    shape: Shape = settings_shape()
    for depth, key in enumerate(keys):
        match shape:
            case Block() if key in shape.keys:
                shape = shape.keys[key].shape
            case Table():
                shape = shape.value
            case Block():
                raise UnknownPath(depth, list(shape.keys))
            case _:
                raise UnknownPath(depth, ())
    return shape


def read_environment(env: Mapping[str, str], root: Node | None, problems: list[Problem]) -> list[Override]:
    """Overrides of all ``JOBMASTER_*`` variables, sections before the keys inside them."""
    overrides = []
    for name in sorted(env, key=lambda name: (name.count("__"), name)):
        if not name.startswith(PREFIX) or name in OTHER_VARIABLES or _is_service_link(name, env[name]):
            continue
        origin = Origin(OriginKind.ENVIRONMENT, name)
        keys = _match_names(name.removeprefix(PREFIX).lower().split("__"), root)
        try:
            shape = resolve(keys)
        except UnknownPath:
            near = suggest(name, [*known_variables(root), *OTHER_VARIABLES])
            hint = near or "settings are JOBMASTER_<SECTION>__<KEY>, such as JOBMASTER_LEASES__LEASE"
            problems.append(Problem(origin, "", f"no setting and no known variable is called {name}", hint))
            continue
        overrides.append(Override(tuple(keys), _read_text(shape, env[name], origin, keys, problems)))
    return overrides


def read_command_line(texts: Iterable[str], problems: list[Problem]) -> list[Override]:
    """Overrides of ``path=value`` texts, in the order given."""
    overrides = []
    for text in texts:
        path, equals, value = text.partition("=")
        path = path.strip()
        origin = Origin(OriginKind.COMMAND_LINE, mask_secrets(path))
        if not equals or not path:
            problems.append(Problem(origin, "", "expected KEY=VALUE", "write --set leases.lease=15s"))
            continue
        keys = path.split(".")
        try:
            shape = resolve(keys)
        except UnknownPath as error:
            message = f"there is no key {show_value(keys[error.depth])}"
            problems.append(Problem(origin, "", message, mask_secrets(_path_hint(keys, error))))
            continue
        overrides.append(Override(tuple(keys), _read_text(shape, value, origin, keys, problems)))
    return overrides


def apply(root: Node | None, overrides: Iterable[Override], origin: Origin) -> Node:
    """The tree with every override in its place; mappings on the way are made where they are missing."""
    tree: Node = MappingNode(origin=origin) if root is None else root
    for override in overrides:
        tree = _put(tree, override.keys, override.node)
    return tree


def known_variables(root: Node | None) -> list[str]:
    """Names of all variables that set one leaf. A table has the entries of the file, else ``default``."""
    return [variable_of(keys) for keys in leaf_paths(settings_shape(), root)]


def variable_of(keys: Sequence[str]) -> str:
    """``("leases", "lease")`` -> ``JOBMASTER_LEASES__LEASE``."""
    return PREFIX + "__".join(keys).upper().replace("-", "_")


def find_new_entries(overrides: Iterable[Override], root: Node | None) -> list[Problem]:
    """Warnings for overrides that add an entry to a table of the file: most such entries are typing errors."""
    warnings = []
    for override in overrides:
        shape: Shape = settings_shape()
        node = root
        for depth, key in enumerate(override.keys):
            entries = node.entries if isinstance(node, MappingNode) else {}
            if isinstance(shape, Table) and entries and key not in entries:
                path = ".".join(override.keys[: depth + 1])
                message = f'adds "{key}", which the file does not have'
                warnings.append(Problem(override.node.origin, path, message, suggest(key, entries)))
                break
            shape = resolve(override.keys[: depth + 1])
            node = entries[key].value if key in entries else None
    return warnings


def leaf_paths(shape: Shape, node: Node | None) -> list[tuple[str, ...]]:
    """Paths of all leaves and lists below a shape."""
    entries = node.entries if isinstance(node, MappingNode) else {}

    def below(key: str, inner: Shape) -> list[tuple[str, ...]]:
        child = entries[key].value if key in entries else None
        return [(key, *rest) for rest in leaf_paths(inner, child)]

    match shape:
        case Block():
            return [path for name, key in shape.keys.items() for path in below(name, key.shape)]
        case Table():
            return [path for name in entries or ("default",) for path in below(name, shape.value)]
        case _:
            return [()]


def _is_service_link(name: str, value: str) -> bool:
    return bool(_SERVICE_LINK.fullmatch(name) and _SERVICE_VALUE.match(value)) and "__" not in name


def _match_names(keys: list[str], root: Node | None) -> list[str]:
    """Keys of a variable, matched with the file. Variables cannot hold ``-``, so ``PAY_ROLL`` matches ``pay-roll``."""
    matched, node = [], root
    for key in keys:
        entries = node.entries if isinstance(node, MappingNode) else {}
        if key not in entries:
            key = next((name for name in entries if name.replace("-", "_") == key), key)
        matched.append(key)
        node = entries[key].value if key in entries else None
    return matched


def _read_text(shape: Shape, text: str, origin: Origin, keys: Sequence[str], problems: list[Problem]) -> Node:
    raw = ScalarNode(text, Style.RAW, origin, text)
    if isinstance(shape, Leaf):
        return raw
    stripped = text.strip()
    if isinstance(shape, Series) and not stripped.startswith("["):
        words = [word.strip() for word in stripped.split(",") if word.strip()]
        return SequenceNode([ScalarNode(word, Style.RAW, origin, word) for word in words], origin)
    node, found = parse_yaml(text, origin)
    path = ".".join(keys)
    for problem in found:
        inner = f"{path}.{problem.path}" if problem.path else path
        problems.append(Problem(origin, inner, problem.message, problem.hint))
    return ScalarNode("", Style.BROKEN, origin, "") if node is None and found else node or MappingNode(origin=origin)


def _put(node: Node, keys: Sequence[str], value: Node) -> Node:
    if not keys:
        return value
    if not isinstance(node, MappingNode) and not is_null(node):
        return node  # the file has no section here: the binder reports it
    entries = dict(node.entries) if isinstance(node, MappingNode) else {}
    key = keys[0]
    old = entries.get(key)
    below = old.value if old else MappingNode(origin=value.origin)
    place = old.origin if old and len(keys) > 1 else value.origin
    entries[key] = Entry(place, _put(below, keys[1:], value))
    return MappingNode(entries, origin=node.origin)


def _path_hint(keys: Sequence[str], error: UnknownPath) -> str:
    if not error.known:
        return f"{'.'.join(keys[: error.depth])} is a single value and has no keys"
    word = keys[error.depth]
    return suggest(word, error.known) or f"known here: {', '.join(error.known)}"
