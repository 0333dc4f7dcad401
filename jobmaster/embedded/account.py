"""The account that runs PostgreSQL: the present user, or, for root, an unprivileged account that exists already.

PostgreSQL refuses root. It runs as `nobody` then, and no existing permission is widened for it: the data directory is passed
as an open descriptor (``/proc/self/fd/<n>``), so every directory above it may stay 0700 root, and programs below a directory
that `nobody` cannot pass are copied. Two other ways fail: the working directory as the handle (``/proc/self/cwd``) works with
PostgreSQL 16 and later, but 15 changes directory while it looks for its own program and cannot come back; a uid without an
entry in the account database fails in initdb.
"""

from __future__ import annotations

import os
import pwd
import shutil
import stat
import sys
from pathlib import Path

import msgspec

from jobmaster.embedded.errors import AccountUnusable, DirectoryUnusable

# `nobody` first: a server that runs as `postgres` could touch the files of a real database on the same machine.
_CANDIDATES = ("nobody", "postgres")


class Account(msgspec.Struct, frozen=True):
    """An unprivileged account of this machine."""

    uid: int
    gid: int
    name: str


def server_account(data_directory: Path) -> Account | None:
    """The account that PostgreSQL runs as; ``None`` when it is the present user.

    A data directory that exists decides by its owner, so that a later start does not depend on which accounts exist.

    Raises:
        AccountUnusable: we are root and no other account can be used.
        DirectoryUnusable: the data directory belongs to another user.
    """
    owner = data_directory.stat().st_uid if data_directory.exists() else None
    ours = os.geteuid()
    if ours != 0:
        if owner is not None and owner != ours:
            raise DirectoryUnusable(
                f"the data directory {data_directory} belongs to user {_name(owner)}, not to {_name(ours)}",
                hint="run as that user, or choose another directory",
            )
        return None
    if not sys.platform.startswith("linux") or not Path("/proc/self/fd").is_dir():
        raise AccountUnusable(
            "PostgreSQL refuses to run as root, and on this system it cannot be run as another user from here",
            hint="run the command as an ordinary user",
        )
    if owner == 0:
        raise DirectoryUnusable(
            f"the data directory {data_directory} belongs to root, but PostgreSQL refuses to run as root",
            hint="give it to an unprivileged user, or choose another directory",
        )
    if owner is not None:
        return _account_of(owner, data_directory)
    for name in _CANDIDATES:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        if entry.pw_uid != 0:
            return Account(entry.pw_uid, entry.pw_gid, name)
    raise AccountUnusable(
        f"PostgreSQL refuses to run as root, and this machine has none of the accounts {', '.join(_CANDIDATES)}",
        hint="run the command as an ordinary user",
    )


def may_run(account: Account, program: Path) -> bool:
    """Whether the account can reach, read and execute the program, by the permission bits of its path.

    Access lists are ignored; where they forbid what the bits allow, the start fails with an error.
    """
    real = Path(os.path.realpath(program))
    execute = all(_allows(account, parent, stat.S_IXOTH) for parent in real.parents)
    return execute and _allows(account, real, stat.S_IROTH | stat.S_IXOTH)


def copy_out(tree: Path, target: Path) -> None:
    """Copy a directory tree so that every account can read it; the target must lie in a directory made by this package."""
    shutil.copytree(tree, target, symlinks=True, ignore=shutil.ignore_patterns("include", "__pycache__"))
    for folder, _, files in os.walk(target):
        os.chmod(folder, 0o755)  # noqa: S103 - a copy of public programs, which another account is to run
        for name in files:
            path = os.path.join(folder, name)
            if not os.path.islink(path):
                os.chmod(path, 0o755 if os.stat(path).st_mode & stat.S_IXUSR else 0o644)


def _account_of(uid: int, data_directory: Path) -> Account:
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        raise DirectoryUnusable(
            f"the data directory {data_directory} belongs to uid {uid}, which has no entry in the account database",
            hint="give the directory to an account that exists, or choose another directory",
        ) from None
    return Account(uid, entry.pw_gid, entry.pw_name)


def _allows(account: Account, path: Path, others: int) -> bool:
    status = path.stat()
    if status.st_uid == account.uid:
        wanted = others << 6
    elif status.st_gid == account.gid:
        wanted = others << 3
    else:
        wanted = others
    return status.st_mode & wanted == wanted


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"
