"""Rules of this repository that ruff and mypy cannot express, as functions that return findings: ``place: what is wrong``.

A function takes source text or a syntax tree, never the tree of files, so that each rule has a test with a bad sample.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

LINES_SOFT_MAX = 600
MODULES_MAX = 20
FUNCTION_LINES_MAX = 60
FRAGMENT_LINES = 60
PARAMETERS_MAX = 8
BANNED_NAMES = frozenset({"utils", "util", "common", "helpers", "helper", "base", "core", "misc", "shared", "stuff"})

Function = ast.FunctionDef | ast.AsyncFunctionDef

_MUTATORS = frozenset({
    "add", "append", "appendleft", "clear", "discard", "extend", "insert", "pop", "popitem", "popleft", "remove",
    "setdefault", "update",
})  # fmt: skip
_CONTAINERS = frozenset({"dict", "list", "set", "defaultdict", "deque", "OrderedDict", "Counter"})
_ID_MAKERS = frozenset({"uuid1", "uuid3", "uuid4", "uuid5", "uuid6", "uuid7", "uuid8"})

# A statement begins with its verb and goes on like one; prose that mentions SELECT does not.
_SQL = re.compile(
    r"\bSELECT\s+[^;]*?\sFROM\s|^\s*SELECT\s|\bINSERT\s+INTO\s|\bUPDATE\s+\S+(\s+\w+)?\s+SET\s|\bDELETE\s+FROM\s"
    r"|\b(CREATE|ALTER|DROP|TRUNCATE)\s+(OR\s+REPLACE\s+)?"
    r"(TABLE|INDEX|VIEW|SCHEMA|TYPE|FUNCTION|TRIGGER|DATABASE|ROLE|USER|EXTENSION)\b"
    r"|^\s*(BEGIN;|COPY\s+\S+.*\s(FROM|TO)\s|LOCK\s+TABLE\s|LISTEN\s|NOTIFY\s|SHOW\s|VACUUM\b|ANALYZE\b|SET\s+\w+\s+(=|TO)\s|SET\s+LOCAL\s)",
    re.DOTALL,
)
_LUA = re.compile(r"\bredis\.(call|pcall|register_function)\b|^#!lua", re.MULTILINE)
_HEADER_KEY = re.compile(r"^-- *([a-z]+):", re.MULTILINE)


_UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX)\b")
_MACHINE_PATH = re.compile(r"(?<![\w.\-~}])/(root|work|tmp|home/[a-z]+|Users/[a-z]+)(?![\w\-])")
_REGISTRY = re.compile(
    r"pypi[.]org|pythonhosted|python[.]org/simple|index-url=|artifactory|/repository/pypi|/pypi/simple"
)
_NODES = "nodes of the tree"
_LONG_TEXT = re.compile(r"(\"{3}|'{3}).*?\1", re.DOTALL)
_COURT = re.compile(r"\b(judge|judgement|verdict)", re.IGNORECASE)
"""Servers and agents check leases and write certificates; rules decide; checks have a status."""


@cache
def syntax_tree(source: str) -> ast.Module:
    """Of a module that several rules read."""
    return ast.parse(source)


def nodes(tree: ast.Module) -> list[ast.AST]:
    """All of a tree, outer ones first. They are kept with it, because several rules walk the same tree."""
    found: list[ast.AST] | None = getattr(tree, _NODES, None)
    if found is None:
        found = list(ast.walk(tree))
        setattr(tree, _NODES, found)
    return found


# ---------------------------------------------------------------- size


def long_modules(place: str, source: str) -> list[str]:
    """Modules over ``LINES_SOFT_MAX``. One concept is one module, so this is a warning, not a failure."""
    lines = source.count("\n")
    return [f"{place}: {lines} lines, more than {LINES_SOFT_MAX}"] if lines > LINES_SOFT_MAX else []


def long_functions(place: str, source: str) -> list[str]:
    """Functions over the limit. Only a module whose text may have one is parsed."""
    if not _may_have_a_long_function(source):
        return []
    found = []
    for function in functions(syntax_tree(source)):
        length = (function.end_lineno or function.lineno) - function.lineno + 1
        if length > FUNCTION_LINES_MAX:
            found.append(f"{place}:{function.name}: {length} lines, {FUNCTION_LINES_MAX} are allowed")
    return found


def _may_have_a_long_function(source: str) -> bool:
    """By the indentation: a function ends before the next line that is not deeper than its ``def``.

    Texts in three quotes count as empty lines. A closing bracket before the colon, and a comment, may be no deeper.
    """
    text = _LONG_TEXT.sub(lambda match: "\n" * match[0].count("\n"), source)
    begun: list[tuple[int, int]] = []
    for number, line in enumerate(text.split("\n")):
        code = line.lstrip()
        if not code or code[0] in ")]}#":
            continue
        depth = len(line) - len(code)
        while begun and begun[-1][0] >= depth:
            if number - begun.pop()[1] > FUNCTION_LINES_MAX:
                return True
        if code.startswith(("def ", "async def ")):
            begun.append((depth, number))
    return any(text.count("\n") - first > FUNCTION_LINES_MAX for _, first in begun)


def fragments(modules: Mapping[str, str]) -> list[str]:
    """Modules of fewer than ``FRAGMENT_LINES`` with one importer, in their own package: most are a part of that importer.

    Args:
        modules: source text of every module of the product, by path from the import root (``jobmaster/clock.py``).
    """
    names = {_module_name(path): path for path in modules}
    importers: dict[str, set[str]] = {path: set() for path in modules}
    for path, source in modules.items():
        for name in _imported(syntax_tree(source)):
            if names.get(name, path) != path:
                importers[names[name]].add(path)
    return [
        f"{path}: only {Path(importer).name} imports its {source.count(chr(10))} lines"
        for path, source in modules.items()
        if source.count("\n") < FRAGMENT_LINES and not path.endswith("/__init__.py")
        for importer in (importers[path] if len(importers[path]) == 1 else ())
        if Path(importer).parent == Path(path).parent and Path(importer).name != "__init__.py"
    ]


def _module_name(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in nodes(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def crowded_packages(modules: Iterable[str]) -> list[str]:
    """Packages and folders with more than ``MODULES_MAX`` modules side by side, their own ``__init__`` apart.

    Args:
        modules: paths of modules.
    """
    counts = Counter(str(path.parent) for path in map(Path, modules) if path.name != "__init__.py")
    return [f"{package}: {count} modules" for package, count in sorted(counts.items()) if count > MODULES_MAX]


def too_many_parameters(place: str, tree: ast.Module) -> list[str]:
    """Functions that take more than ``PARAMETERS_MAX``, ``self`` apart."""
    owners = {id(item): node.name for node in nodes(tree) if isinstance(node, ast.ClassDef) for item in node.body}
    found = []
    for function in functions(tree):
        arguments = function.args
        names = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        count = sum(1 for name in names if name.arg not in ("self", "cls"))
        if count > PARAMETERS_MAX:
            owner = owners.get(id(function))
            found.append(f"{place}:{f'{owner}.' if owner else ''}{function.name}: {count} parameters")
    return found


def functions(tree: ast.Module) -> Iterator[Function]:
    """Every function and method. An expression holds none, so a tenth of the nodes is looked at."""
    blocks: list[ast.AST] = [tree]
    while blocks:
        block = blocks.pop()
        if isinstance(block, Function):
            yield block
        for part in ("body", "orelse", "finalbody", "handlers", "cases"):
            blocks += getattr(block, part, ())


# ---------------------------------------------------------------- habits


def catches_everything(place: str, tree: ast.Module) -> list[str]:
    """Handlers of ``Exception``, ``BaseException`` or everything that do not end with ``raise``."""
    found = []
    for node in nodes(tree):
        if not isinstance(node, ast.ExceptHandler):
            continue
        kinds = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
        broad = any(kind is None or _name(kind) in ("Exception", "BaseException") for kind in kinds)
        last = node.body[-1]
        if broad and not (isinstance(last, ast.Raise) and last.exc is None):
            found.append(f"{place}:{node.lineno}: catches everything")
    return found


def mutated_globals(place: str, tree: ast.Module) -> list[str]:
    """``global`` statements, and containers of the module that a function of the module changes."""
    names = {
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign) and _is_container(node.value)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }
    found = [f"{place}:{node.lineno}: global" for node in nodes(tree) if isinstance(node, ast.Global)]
    for function in functions(tree) if names else ():
        own = {node.id for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        for node in ast.walk(function):
            changed = _changed_name(node)
            if changed in names - own:
                found.append(f"{place}:{function.name}: changes the module's {changed}")
    return found


def _is_container(value: ast.expr | None) -> bool:
    if isinstance(value, ast.Call):
        return _name(value.func) in _CONTAINERS
    return isinstance(value, ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp)


def _changed_name(node: ast.AST) -> str:
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
        return _name(node.value)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _MUTATORS:
        return _name(node.func.value)
    return ""


def _name(node: ast.expr | None) -> str:
    return node.id if isinstance(node, ast.Name) else ""


def open_keywords(place: str, tree: ast.Module) -> list[str]:
    """``**kwargs`` without a type that lists the keywords (``Unpack``)."""
    found = []
    for function in functions(tree):
        words = function.args.kwarg
        if words is not None and "Unpack" not in ast.dump(words.annotation or ast.Constant(None)):
            found.append(f"{place}:{function.name}: **{words.arg} takes any keyword")
    return found


def ids_made(place: str, tree: ast.Module) -> list[str]:
    """Calls that make ids."""
    found = []
    for node in nodes(tree):
        made = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
        imported = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
        if made in _ID_MAKERS or "uuid_utils" in imported or _ID_MAKERS & set(imported):
            found.append(f"{place}:{getattr(node, 'lineno', 0)}: makes ids")
    return found


def clock_ban_lifted(place: str, source: str) -> list[str]:
    """Lines that lift ruff's ban on clocks (``noqa``)."""
    return [
        f"{place}:{n}: lifts the ban"
        for n, line in enumerate(source.splitlines(), 1)
        if re.search(r"noqa.*TID251", line)
    ]


# ---------------------------------------------------------------- other languages


def foreign_text(place: str, tree: ast.Module) -> list[str]:
    """SQL and Lua inside string literals (docstrings apart)."""
    documents = {
        id(node.body[0].value)
        for node in nodes(tree)
        if isinstance(node, ast.Module | ast.ClassDef | Function) and node.body and isinstance(node.body[0], ast.Expr)
    }
    found = []
    for node in nodes(tree):
        if isinstance(node, ast.Constant) and id(node) not in documents and isinstance(node.value, str | bytes):
            text = node.value if isinstance(node.value, str) else node.value.decode("latin-1")
            for language, pattern in (("SQL", _SQL), ("Lua", _LUA)):
                if pattern.search(text):
                    found.append(f"{place}:{node.lineno}: {language} in a string")
    return found


def header_lacks(place: str, source: str, wanted: Collection[str]) -> list[str]:
    """Headers without a first line of name and purpose, or without a wanted key."""
    stem = Path(place).stem
    header = []
    for line in source.splitlines():
        if not line.startswith("--"):
            break
        header.append(line)
    found = (
        [] if header and re.match(rf"-- (\d{{4}} )?({stem}|I\d+)\b", header[0]) else [f"{place}: no line with its name"]
    )
    keys = set(_HEADER_KEY.findall("\n".join(header[1:])))
    return found + [f"{place}: its header has no `{key}:`" for key in wanted if key not in keys]


# ---------------------------------------------------------------- words


def unwelcome_words(place: str, text: str) -> list[str]:
    """Marks of unfinished work, paths of one machine, hosts of package registries, words of courts."""
    patterns = {
        "unfinished": _UNFINISHED,
        "path of one machine": _MACHINE_PATH,
        "host of a registry": _REGISTRY,
        "word of a court": _COURT,
    }
    return [
        f"{place}:{text.count(chr(10), 0, match.start()) + 1}: {what}: {match[0]!r}"
        for what, pattern in patterns.items()
        for match in pattern.finditer(text)
        # A container has a directory for temporary files of its own.
        if not (place.startswith("config/deploy/") and match[0] == "/tmp")
    ]


def banned_name(path: Path) -> list[str]:
    """Names that do not describe their content."""
    return [f"{path}: the name does not describe the content"] if path.stem.lower() in BANNED_NAMES else []
