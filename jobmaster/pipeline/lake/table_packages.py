"""The packages that write tables of other formats over the files of the lake. An extra with a format's name has each."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from importlib.util import find_spec

from jobmaster.distribution import install_command
from jobmaster.model.errors import Refused

DELTA, ICEBERG = "delta", "iceberg"
_PACKAGES: Mapping[str, str] = {DELTA: "deltalake", ICEBERG: "pyiceberg"}


def require_table_package(form: str) -> None:
    """``Refused`` when the package of a format is not installed, or too old."""
    package = _PACKAGES[form]
    if find_spec(package) is None:
        problem = "is not installed"
    elif form == DELTA and not _removes_single_files():
        problem = f"{version(package)} is too old (it cannot remove single files from a table)"
    else:
        return
    stop = "jobmaster pipeline tables" + ("" if form == DELTA else f" --format {form}") + " --stop"
    raise Refused(
        f"the package {package} {problem}, and the lake has {form.capitalize()} tables, or is to have them",
        hint=f"{install_command(form)}; to leave the tables as they are: {stop}",
    )


def _removes_single_files() -> bool:
    from deltalake import transaction

    return hasattr(transaction, "RemoveAction")
