"""The reference of the Python API, `docs/api.md`, from signatures and docstrings of the public names.

``python -m tests.repository.api_reference`` writes it; ``test_api_reference`` compares what is kept with what would be made.
The code is read by griffe, so nothing is imported but ``jobmaster`` itself.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import griffe

import jobmaster

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "api.md"
HEAD = """# Python API

<!-- Made from the code: python -m tests.repository.api_reference -->

Every public name. What is not on this page may change without notice.
"""
MODULES = {
    "jobmaster": "For programs that submit jobs and modules that declare handlers. `import jobmaster` is all that they need.",
    "jobmaster.testing": "For tests ([testing](how-to/test.md)).",
    "jobmaster.fastapi": "For FastAPI and Starlette ([FastAPI](fastapi.md)).",
    "jobmaster.django": "For Django ([Django](django.md)).",
}
"""Module -> what it is for. The public names are those of its ``__all__``."""
PLUGIN = "jobmaster.testing.plugin"
FIXTURES = "Fixtures of pytest"
FIXTURES_PURPOSE = "For tests; the plugin is loaded by itself ([testing](how-to/test.md))."
_SECTIONS = ("function", "class", "attribute")
_WHOLE = "Cluster"
_PARTS = "jobmaster.client.calls."


def reference() -> str:
    """The whole page."""
    package = package_read()
    parts = [HEAD]
    for module, purpose in MODULES.items():
        parts.append(f"## {module}\n\n{purpose}\n")
        for name in public_names(module):
            parts.append(entry(name, target(package, module, name)))
    parts.append(f"## {FIXTURES}\n\n{FIXTURES_PURPOSE}\n")
    parts.extend(fixture_entry(fixture) for fixture in fixtures(package))
    return "\n".join(parts)


@cache
def package_read() -> griffe.Module:
    """The package, as its source describes it."""
    loader = griffe.GriffeLoader(search_paths=[ROOT], docstring_parser="google")
    package = loader.load("jobmaster")
    assert isinstance(package, griffe.Module)
    loader.resolve_aliases(implicit=True)
    return package


def fixtures(package: griffe.Module) -> list[griffe.Function]:
    """Fixtures of the plugin that a test may ask for: those that come back as a documented type."""
    plugin = package[PLUGIN.removeprefix("jobmaster.")]
    documented = {name for module in MODULES for name in public_names(module)}
    return [
        member
        for member in plugin.members.values()
        if isinstance(member, griffe.Function) and is_fixture(member) and value_of(member) in documented
    ]


def is_fixture(function: griffe.Function) -> bool:
    return any(str(decorator.value).startswith("pytest.fixture") for decorator in function.decorators)


def value_of(fixture: griffe.Function) -> str:
    """Name of the type that the test gets."""
    return re.sub(r"^\w*Iterator\[(.*)\]$", r"\1", str(fixture.returns))


def fixture_entry(fixture: griffe.Function) -> str:
    return "\n".join([f"### {fixture.name}", "", f"Type: `{value_of(fixture)}`", "", *text(fixture)])


def public_names(module: str) -> list[str]:
    """Public names of a module: functions and classes first, errors last, each in alphabetical order."""
    found = __import__(module, fromlist=["__all__"])
    names = [name for name in found.__all__ if not name.startswith("__")]
    return sorted(names, key=lambda name: (is_error(getattr(found, name)), name.lower()))


def is_error(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, BaseException)


def target(package: griffe.Module | griffe.Alias, module: str, name: str) -> griffe.Object | griffe.Alias:
    """The definition behind a public name, which may be imported when it is asked for."""
    path = module.split(".")[1:]
    origin = jobmaster._MODULE_OF.get(name, "") if module == "jobmaster" else ""
    value = getattr(__import__(module, fromlist=[name]), name)
    home = getattr(value, "__module__", None) or origin
    if isinstance(home, str) and home.startswith("jobmaster"):
        path = home.split(".")[1:]
        name = getattr(value, "__name__", name)
    found: griffe.Object | griffe.Alias = package
    for part in (*path, name):
        found = found[part]
    return found.final_target if isinstance(found, griffe.Alias) else found


def entry(name: str, found: griffe.Object | griffe.Alias, level: str = "###") -> str:
    """Heading, signature and text of one name, with the public members of a class."""
    lines = [f"{level} {name}", ""]
    if isinstance(found, griffe.Function):
        lines += ["```text", *signatures(found), "```", ""]
    elif isinstance(found, griffe.Class) and (bases := shown_bases(found)):
        lines += [f"Bases: {', '.join(f'`{base}`' for base in bases)}", ""]
    lines += text(found)
    if isinstance(found, griffe.Class):
        lines += list(members(found))
    return "\n".join(lines)


def signatures(function: griffe.Function) -> list[str]:
    """One line for each overload, or for the function itself."""
    prefix = "async " if "async" in function.labels else ""
    return [f"{prefix}{clean(one.signature())}" for one in (function.overloads or [function])]


def clean(signature: str) -> str:
    return re.sub(r"\(self(?:, /)?(?:, )?", "(", signature)


def parts(found: griffe.Class) -> list[griffe.Class]:
    """Bases that hold some of the methods of ``Cluster``: what they define is shown as its own."""
    return [base for base in found.mro() if base.path.startswith(_PARTS)] if found.name == _WHOLE else []


def shown_bases(found: griffe.Class) -> list[str]:
    hidden = {base.name for base in parts(found)}
    return [str(base) for base in found.bases if str(base) not in hidden]


def members_of(found: griffe.Class) -> dict[str, griffe.Object | griffe.Alias]:
    """Fields, properties and methods of a class with a name of their own that are public."""
    own: dict[str, griffe.Object | griffe.Alias] = {}
    for part in (found, *parts(found)):
        for name, member in part.members.items():
            own.setdefault(name, member)
    return {
        name: member
        for name, member in own.items()
        if not name.startswith("_") and (isinstance(member, griffe.Function) or is_field(found, member))
    }


def is_field(found: griffe.Class, member: griffe.Object | griffe.Alias) -> bool:
    """Whether a member is one that the page lists: it has a text, a type, or is a value of an enum."""
    if member.is_alias or not isinstance(member, griffe.Attribute):
        return False
    return bool(member.docstring or member.annotation or is_member_of_enum(found))


def members(found: griffe.Class) -> Iterator[str]:
    """Fields, properties and methods with a name of their own."""
    own = members_of(found)
    fields = []
    for name, member in own.items():
        if isinstance(member, griffe.Attribute):
            shown = f": {member.annotation}" if member.annotation else ""
            summary = " ".join(prose(member.docstring.value).split()) if member.docstring else ""
            fields.append(f"* `{name}{shown}`{'  ' if summary else ''}{summary}".replace("`  ", "`: "))
    if fields:
        yield from (*fields, "")
    for name, member in own.items():
        if isinstance(member, griffe.Function):
            yield entry(f"{found.name}.{name}", member, "####")


def is_member_of_enum(found: griffe.Class) -> bool:
    return any("Enum" in str(base) for base in found.bases)


def text(found: griffe.Object | griffe.Alias) -> list[str]:
    """The docstring as Markdown."""
    if found.docstring is None:
        return []
    lines: list[str] = []
    for section in found.docstring.parsed:
        match section.kind:
            case griffe.DocstringSectionKind.text:
                lines += [prose(section.value), ""]
            case griffe.DocstringSectionKind.parameters | griffe.DocstringSectionKind.attributes:
                lines += ["Arguments:", ""]
                lines += [f"* `{item.name}`: {one_line(item.description)}" for item in section.value] + [""]
            case griffe.DocstringSectionKind.raises:
                lines += ["Raises:", ""]
                lines += [f"* `{item.annotation}`: {one_line(item.description)}" for item in section.value] + [""]
            case griffe.DocstringSectionKind.returns | griffe.DocstringSectionKind.yields:
                lines += [f"{section.kind.value.capitalize()}:", ""]
                lines += [f"* {one_line(item.description)}" for item in section.value] + [""]
            case _:
                value = section.value
                lines += [
                    prose(getattr(value, "contents", None) or getattr(value, "description", None) or str(value)),
                    "",
                ]
    return lines


def one_line(value: str) -> str:
    return " ".join(prose(value).split())


def prose(value: str) -> str:
    """Docstring text as Markdown: code spans, and indented examples after ``::`` as blocks."""
    lines = inspect.cleandoc(value).split("\n")
    shown: list[str] = []
    example = False
    for line in lines:
        if line.strip() == "::":
            shown += ["", "```text"]
            example = True
        elif example and line and not line.startswith(" "):
            shown += ["```", "", line]
            example = False
        else:
            shown.append(line[4:] if example else line)
    if example:
        shown.append("```")
    tidy = "\n".join(shown).replace("``", "`") if "```" not in "\n".join(shown) else code_spans("\n".join(shown))
    return re.sub(r"```text\n\n", "```text\n", re.sub(r"\n+\n```", "\n```", tidy)).strip()


def code_spans(value: str) -> str:
    return re.sub(r"(?<!`)``(?!`)", "`", value)


def main() -> None:
    PAGE.write_text(reference(), encoding="utf-8")


if __name__ == "__main__":
    main()
