"""Names of the product that nothing in the product uses. ``make lint`` runs this module; a use in a test does not count.

A *name* is a function, a class, a constant of a module, or a method. It is used when another place of the product names it:

* a name of a module: its module reads it outside its definition, another module imports it, an attribute has that name, or a
  text constant consists of it (``getattr``, ``"package.module:name"``);
* a method: an attribute has that name, or a text constant consists of it.

The check finds further: SQL files and Lua functions that no text constant names, local names of Lua that no Lua text reads,
and settings that no other module reads.

It leaves out: fields, members of enumerations, decorated functions (the decorator has them), names with two underscores,
overrides in a class that extends a class of another project, and public methods of the classes in ``__all__`` of
``jobmaster`` and of ``jobmaster.testing``, which programs call. In ``jobmaster/specification`` the use in a test counts,
because tests are what reads a specification.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PRODUCT = ("jobmaster", "agents")
SPECIFICATION = "jobmaster/specification/"
SETTINGS = "jobmaster/settings/"
PUBLIC = ("jobmaster/__init__.py", "jobmaster/testing/__init__.py")

ALLOWED = {
    "tcp_dsn": "programs that measure an embedded server over TCP call it",
    "tcp_url": "programs that measure an embedded server over TCP call it",
    "JobMasterConfig": "Django finds it in jobmaster.django.apps",
    "history_frame": "programs with a session of Spark call it",
    "exposition": "producers serve cluster.telemetry.exposition() to their scraper",
}
"""Names that nothing in the product uses, and why they stay. A handful at most."""

_REMEDY = "use it in the product, delete it, or list it with a reason in ALLOWED of tests/repository/unused.py"
_FOREIGN = frozenset({"asyncio", "asyncpg", "click", "concurrent", "django", "logging", "pyiceberg", "pyspark"})
"""Projects that call methods of the classes that extend theirs."""
_FOREIGN_HERE = ("jobmaster.django.interface",)
"""Modules of the product that pass on names of such projects."""
_PLAIN_DECORATORS = frozenset({"property", "staticmethod", "classmethod", "cache", "dataclass", "contextmanager"})
"""Decorators that give the function to no caller."""
_ONE_NAME = re.compile(r"[\w.:/-]+")
_LUA_LOCAL = re.compile(r"^ *local (?:function )?([\w, ]+)", re.MULTILINE)
_COMMENT = re.compile(r"--.*")

Node = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Assign | ast.AnnAssign


class Definition(NamedTuple):
    """A name and its place."""

    path: str
    name: str
    node: Node
    owner: str
    """Class of a method; empty for a name of the module."""

    def __str__(self) -> str:
        kind = "class" if isinstance(self.node, ast.ClassDef) else "method" if self.owner else "name"
        return f"{self.path}:{self.node.lineno}: the {kind} {self.name} is used by nothing"


class Module:
    """What one module defines and what it names."""

    def __init__(self, path: str, source: str) -> None:
        self.path = path
        self.name = path.removeprefix("agents/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        tree = ast.parse(source)
        self.reads: Counter[str] = Counter()
        self.attributes: Counter[str] = Counter()
        self.texts: set[str] = set()
        """Text constants that consist of names, whole and in their parts."""
        self.imports: set[tuple[str, str]] = set()
        """(module, name) of every ``from module import name``."""
        self.foreign: set[str] = set()
        """Names of other projects, and names that are assigned from them."""
        documents: set[int] = set()
        classes = []
        for node in ast.walk(tree):
            match node:
                case ast.Name() if _is_read(node):
                    self.reads[node.id] += 1
                case ast.Attribute():
                    self.attributes[node.attr] += 1
                case ast.Constant(value=str() | bytes() as value) if id(node) not in documents:
                    self._note_text(value if isinstance(value, str) else value.decode("latin-1"))
                case ast.Expr(value=ast.Constant()):
                    documents.add(id(node.value))
                case ast.ClassDef():
                    classes.append(node)
                case ast.ImportFrom(module=str() as module):
                    self.imports |= {(module, alias.name) for alias in node.names}
                    if module.partition(".")[0] in _FOREIGN or module in _FOREIGN_HERE:
                        self.foreign |= {alias.asname or alias.name for alias in node.names}
                case ast.Import():
                    self.foreign |= _FOREIGN & {alias.name.partition(".")[0] for alias in node.names}
                case ast.Assign(targets=[ast.Name() as target]) if _root(node.value) in self.foreign:
                    self.foreign.add(target.id)
        self.definitions = list(_definitions(path, tree))
        for owner in classes:
            if any(_root(base) in self.foreign for base in owner.bases):
                self.foreign.add(owner.name)
            else:
                self.definitions += _definitions(path, owner)

    def _note_text(self, text: str) -> None:
        if _ONE_NAME.fullmatch(text):
            self.texts |= {text, *re.split("[.:]", text)} - {""}  # names of modules have no owner: the empty one


def _is_read(node: ast.Name) -> bool:
    return isinstance(node.ctx, ast.Load)


def _definitions(path: str, owner: ast.Module | ast.ClassDef) -> Iterator[Definition]:
    of_class = owner.name if isinstance(owner, ast.ClassDef) else ""
    for node in owner.body:
        match node:
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                if all(_root(decorator) in _PLAIN_DECORATORS for decorator in node.decorator_list):
                    yield Definition(path, node.name, node, of_class)
            case ast.Assign(targets=targets) if not of_class:
                for target in targets:
                    if isinstance(target, ast.Name):
                        yield Definition(path, target.id, node, "")
            case ast.AnnAssign(target=ast.Name() as target) if not of_class:
                yield Definition(path, target.id, node, "")


def _root(node: ast.AST | None) -> str:
    """``a`` of ``a``, ``a.b``, ``a(...)`` and ``a[...]``."""
    while node is not None and not isinstance(node, ast.Name):
        node = getattr(node, "func", None) or getattr(node, "value", None)
    return node.id if node is not None else ""


# ---------------------------------------------------------------- Python


def unused_names(product: Collection[Module], tests: Collection[Module] = ()) -> list[Definition]:
    """Functions, classes, constants and methods of the product that it does not use.

    Args:
        tests: modules whose uses count for the specification.
    """
    of_product, of_both = _Uses(product), _Uses([*product, *tests])
    public = {text for module in product if module.path in PUBLIC for text in module.texts}
    return [
        definition
        for module in product
        for definition in module.definitions
        if not definition.name.startswith("__")
        and not (definition.owner in public and not definition.name.startswith("_"))
        and not (of_both if module.path.startswith(SPECIFICATION) else of_product).has(module, definition)
    ]


class _Uses:
    """Every use in some modules."""

    def __init__(self, modules: Collection[Module]) -> None:
        self._attributes: Counter[str] = Counter()
        self._texts: set[str] = set()
        self._imports: set[tuple[str, str]] = set()
        for module in modules:
            self._attributes.update(module.attributes)
            self._texts |= module.texts
            if not module.path.endswith("/__init__.py"):
                self._imports |= module.imports
        # A package that imports a name hands it on: that is a use if a module imports it from the package.
        for module in modules:
            if module.path.endswith("/__init__.py"):
                self._imports |= {found for found in module.imports if (module.name, found[1]) in self._imports}

    def has(self, module: Module, definition: Definition) -> bool:
        """Whether something other than the definition itself names it."""
        name = definition.name
        if name in self._texts or (not definition.owner and (module.name, name) in self._imports):
            return True
        if self._attributes[name] > module.attributes[name]:
            return True
        if not module.attributes[name] and not module.reads[name]:
            return False
        inside = list(ast.walk(definition.node))
        attributes = sum(1 for node in inside if isinstance(node, ast.Attribute) and node.attr == name)
        reads = sum(1 for node in inside if isinstance(node, ast.Name) and node.id == name and _is_read(node))
        return module.attributes[name] > attributes or (not definition.owner and module.reads[name] > reads)


def unused_settings(model: ast.Module, others: Collection[Module]) -> list[tuple[str, int]]:
    """Names and lines of settings that nothing reads: neither another module nor a method of their section.

    The check of the section itself (``__post_init__``) is no reader. A section that calls ``getattr`` reads all.
    """
    read = Counter[str]()
    for module in others:
        read.update(module.attributes)
    found = []
    for section in (node for node in model.body if isinstance(node, ast.ClassDef)):
        methods = [node for node in section.body if isinstance(node, ast.FunctionDef) and node.name != "__post_init__"]
        inside = [node for method in methods for node in ast.walk(method)]
        own = {node.attr for node in inside if isinstance(node, ast.Attribute)}
        if not any(isinstance(node, ast.Name) and node.id == "getattr" for node in inside):
            found += [
                (field.target.id, field.lineno)
                for field in section.body
                if isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and field.target.id not in own
                and not read[field.target.id]
            ]
    return found


# ---------------------------------------------------------------- SQL and Lua


def unused_files(names: Collection[str], texts: Collection[str]) -> list[str]:
    """Statements or functions (``group/stem`` or ``stem``) that no text names, whole or as ``group/`` and ``stem``."""
    return [
        name
        for name in names
        if name not in texts and not ("/" in name and set(name.replace("/", "/ ").split()) <= set(texts))
    ]


def unused_locals(sources: Mapping[str, str], shared: str = "prelude") -> list[tuple[str, str]]:
    """(file, name) of each local name of Lua that is written once; those of the shared file are read in all files.

    Args:
        sources: text of each file by its stem.
    """
    code = {stem: _COMMENT.sub("", source) for stem, source in sources.items()}
    words = {stem: Counter(re.findall(r"\w+", text)) for stem, text in code.items()}
    everywhere = sum(words.values(), Counter[str]())
    return [
        (stem, name)
        for stem, text in code.items()
        for names in _LUA_LOCAL.findall(text)
        for name in re.findall(r"\w+", names)
        if (everywhere if stem == shared else words[stem])[name] < 2
    ]


# ---------------------------------------------------------------- the tree


def findings(root: Path) -> Iterator[tuple[str, str]]:
    """Name, and ``file:line: what is unused``, of everything unused in a tree."""
    product = [module for folder in PRODUCT for module in _modules(root, folder)]
    tests = list(_modules(root, "tests"))
    for definition in unused_names(product, tests):
        yield definition.name, str(definition)
    model = root / SETTINGS / "model.py"
    others = [module for module in product if not module.path.startswith(SETTINGS)]
    for name, line in unused_settings(ast.parse(model.read_text(encoding="utf-8")), others):
        yield name, f"{SETTINGS}model.py:{line}: the setting {name} is read by nothing"
    texts = {text for module in product for text in module.texts}
    for folder in ("jobmaster/master/sql", "jobmaster/audit/sql"):
        names = [path.relative_to(root / folder).with_suffix("").as_posix() for path in (root / folder).rglob("*.sql")]
        for name in unused_files(sorted(names), texts):
            yield name, f"{folder}/{name}.sql:1: the statement {name} is called by nothing"
    folder = "jobmaster/agentstore/lua"
    sources = {path.stem: path.read_text(encoding="utf-8") for path in sorted((root / folder).glob("*.lua"))}
    of_stores = {text for module in product if module.path.startswith("jobmaster/agentstore/") for text in module.texts}
    for name in unused_files(sources, of_stores):
        yield name, f"{folder}/{name}.lua:1: the function {name} is called by nothing"
    for stem, name in unused_locals(sources):
        line = next(
            n for n, text in enumerate(sources[stem].splitlines(), 1) if re.search(rf"local .*\b{name}\b", text)
        )
        yield name, f"{folder}/{stem}.lua:{line}: the local name {name} is read by nothing"


def _modules(root: Path, folder: str) -> Iterator[Module]:
    for path in sorted((root / folder).rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        if folder != "tests" or "jobmaster.specification" in source:
            yield Module(path.relative_to(root).as_posix(), source)


def report(root: Path) -> list[str]:
    """Lines for a person: every unused name that is not allowed, and every allowed name that is used."""
    found = list(findings(root))
    idle = sorted(ALLOWED.keys() - {name for name, _ in found})
    lines = [f"{text}: {_REMEDY}" for name, text in found if name not in ALLOWED]
    return lines + [
        f"tests/repository/unused.py: ALLOWED lists {name}, which is used: delete its line" for name in idle
    ]


if __name__ == "__main__":
    lines = report(ROOT)
    sys.stderr.write("".join(f"{line}\n" for line in lines))
    sys.exit(bool(lines))
