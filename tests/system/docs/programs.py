"""The programs of the pages that are run section by section: what each takes for granted, and what it has to have done."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.support.pages.page_programs import Program, sections, whole
from tests.support.pages.page_runner import REPOSITORY
from tests.system.docs import migrating_checks, recipe_checks
from tests.system.docs.recipe_checks import Check, Names

RECIPES = REPOSITORY / "docs" / "recipes.md"
MIGRATING = sorted((REPOSITORY / "docs" / "migrating").glob("*.md"))
PAGES = [RECIPES, *MIGRATING]
PROGRAMS = [*sections(RECIPES), *(whole(page) for page in MIGRATING)]
CHECKS: Mapping[str, Check] = {
    **{f"recipes: {title}": check for title, check in recipe_checks.CHECKS.items()},
    **migrating_checks.CHECKS,
}
NAMES: Mapping[str, Names] = {
    **{f"recipes: {title}": names for title, names in recipe_checks.NAMES.items()},
    **migrating_checks.NAMES,
}


def key_of(program: Program) -> str:
    """Its key in ``CHECKS`` and ``NAMES``."""
    return f"recipes: {program.title}" if program.page == RECIPES else program.page.stem


def before(program: Program) -> dict[str, Any]:
    """Names that the program takes for granted."""
    make = NAMES.get(key_of(program))
    return {} if make is None else make()


def opened(program: Program) -> Check | None:
    """What makes names that need the cluster."""
    return recipe_checks.BEFORE.get(program.title) or migrating_checks.BEFORE.get(program.page.stem)


def check_of(program: Program) -> Check:
    """What the program has to have done."""
    return CHECKS[key_of(program)]
