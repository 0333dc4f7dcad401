"""``python disk_program.py IMAGE DIRECTORY LIES``: a disk with a volatile write cache, served through FUSE as one file.

What is written stays in the memory of this program until the file is synced, as in the cache of a drive. A loop device on the
file sends each flush of the file system above it as such a sync. The cut of the power drops what was not synced; of that a
share may reach the image, page by page, since a drive writes its cache in any order.

The program speaks the protocol of ``/dev/fuse`` (``linux/fuse.h``) itself: one file in one directory takes fewer lines than
a binding to libfuse, and nothing has to be installed. Standard library only.

Control: one line of JSON on standard input, one on standard output. The program ends with its standard input.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import random
import select
import stat
import struct
import sys
from collections.abc import Callable
from enum import IntEnum
from typing import Any

PAGE = 4096
FILE = b"disk"
_WRITE_MAX = 1 << 20
_ROOT, _NODE = 1, 2
_SECONDS_VALID = 3600
_DIRECT_IO = 1
_PR_SET_IO_FLUSHER = 57
_MINOR = 31
_FLAGS = 1 << 0 | 1 << 5 | 1 << 15 | 1 << 22
"""FUSE_ASYNC_READ, FUSE_BIG_WRITES, FUSE_ASYNC_DIO, FUSE_MAX_PAGES."""
_IN, _OUT = struct.Struct("<IIQQIIIHH"), struct.Struct("<IiQ")
_INIT_OUT = struct.Struct("<IIIIHHIIHHIIH22x")
_ATTRIBUTES = struct.Struct("<QQQQQQIIIIIIIIII")
_TRANSFER = struct.Struct("<QQIIQII")
"""Handle, offset, size, and flags that nothing here needs: of a read, and of a write in front of its data."""


class Opcode(IntEnum):
    """Requests that are answered by more than the error ENOSYS."""

    LOOKUP = 1
    FORGET = 2
    GETATTR = 3
    SETATTR = 4
    OPEN = 14
    READ = 15
    WRITE = 16
    STATFS = 17
    RELEASE = 18
    FSYNC = 20
    FLUSH = 25
    INIT = 26
    OPENDIR = 27
    RELEASEDIR = 29
    INTERRUPT = 36
    DESTROY = 38
    BATCH_FORGET = 42


_SILENT = {Opcode.FORGET, Opcode.BATCH_FORGET, Opcode.INTERRUPT}
"""They have no answer."""
_EMPTY = {Opcode.RELEASE, Opcode.FLUSH, Opcode.RELEASEDIR, Opcode.DESTROY}


class Drive:
    """The image, the cache in front of it, and the power.

    Args:
        lies: a sync is answered and writes nothing: a drive that ignores flushes.
    """

    def __init__(self, image: str, *, lies: bool) -> None:
        self._file = os.open(image, os.O_RDWR)
        self.size = os.fstat(self._file).st_size
        self._pages: dict[int, bytes] = {}
        self.lies = lies
        self.on = True
        self.syncs = 0

    def read(self, offset: int, size: int) -> bytes:
        """Bytes of the image with what the cache has instead of them."""
        data = os.pread(self._file, size, offset)
        if not self._pages:
            return data
        first, last = offset // PAGE, (offset + size - 1) // PAGE
        found = [page for page in range(first, last + 1) if page in self._pages]
        if not found:
            return data
        whole = bytearray(data)
        for page in found:
            begin = page * PAGE - offset
            cut = max(-begin, 0)
            part = self._pages[page][cut : cut + size - max(begin, 0)]
            whole[max(begin, 0) : max(begin, 0) + len(part)] = part
        return bytes(whole)

    def write(self, offset: int, data: memoryview) -> None:
        """Into the cache, in whole pages."""
        head = offset % PAGE
        tail = -(offset + len(data)) % PAGE
        if head or tail:
            begin = offset - head
            around = bytearray(self.read(begin, head + len(data) + tail))
            around[head : head + len(data)] = data
            offset, data = begin, memoryview(around)
        first = offset // PAGE
        for number in range(len(data) // PAGE):
            self._pages[first + number] = bytes(data[number * PAGE : (number + 1) * PAGE])

    def sync(self) -> None:
        """Everything in the cache reaches the image."""
        self.syncs += 1
        if not self.lies:
            self._keep(self._pages)
            self._pages.clear()

    def cut(self, seed: int, share: float) -> dict[str, int]:
        """The power is gone; a share of the pages in the cache has reached the image. How many there were, how many did."""
        rng = random.Random(seed)
        kept = {page: data for page, data in self._pages.items() if rng.random() < share}
        answer = {"unsynced": len(self._pages), "kept": len(kept)}
        self._keep(kept)
        self._pages.clear()
        self.on = False
        return answer

    def _keep(self, pages: dict[int, bytes]) -> None:
        for page, data in pages.items():
            os.pwrite(self._file, data, page * PAGE)


class FuseServer:
    """Answers the kernel's requests for one directory with one file."""

    def __init__(self, drive: Drive, directory: str) -> None:
        self._drive = drive
        self.descriptor = os.open("/dev/fuse", os.O_RDWR | os.O_NONBLOCK)
        options = f"fd={self.descriptor},rootmode=40000,user_id=0,group_id=0,allow_other,max_read={_WRITE_MAX}"
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mount(b"lab-disk", directory.encode(), b"fuse.lab-disk", 0, options.encode()) != 0:
            raise OSError(ctypes.get_errno(), f"mount of a FUSE file system: {os.strerror(ctypes.get_errno())}")
        libc.prctl(_PR_SET_IO_FLUSHER, 1, 0, 0, 0)  # memory for this program must not wait for writes to this disk
        self._buffer = bytearray(_WRITE_MAX + PAGE)
        self._answers: dict[Opcode, Callable[[int, memoryview], bytes]] = {
            Opcode.INIT: self._init,
            Opcode.LOOKUP: self._lookup,
            Opcode.GETATTR: self._attributes_of,
            Opcode.SETATTR: self._attributes_of,
            Opcode.OPEN: lambda *_: struct.pack("<QIi", 0, _DIRECT_IO, 0),
            Opcode.OPENDIR: lambda *_: struct.pack("<QIi", 0, 0, 0),
            Opcode.READ: self._read,
            Opcode.WRITE: self._write,
            Opcode.FSYNC: self._sync,
            Opcode.STATFS: lambda *_: struct.pack("<QQQQQIIII24x", 0, 0, 0, 2, 0, PAGE, 255, PAGE, 0),
            **dict.fromkeys(_EMPTY, lambda *_: b""),
        }

    def answer_one(self) -> bool:
        """One request; false when the file system is unmounted."""
        try:
            size = os.readv(self.descriptor, [self._buffer])
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EINTR, errno.ENOENT):
                return True  # none is there, or the one that was there is interrupted
            if error.errno == errno.ENODEV:
                return False
            raise
        _, number, unique, node, *_ = _IN.unpack_from(self._buffer)
        body = memoryview(self._buffer)[_IN.size : size]
        if number in _SILENT:
            return True
        failure, data = 0, b""
        try:
            known = self._answers.get(number)  # an IntEnum is found by its number
            if known is None:
                raise OSError(errno.ENOSYS, "")
            data = known(node, body)
        except OSError as error:
            failure = error.errno or errno.EIO
        finally:
            body.release()
        with contextlib.suppress(FileNotFoundError):  # the request was interrupted
            os.writev(self.descriptor, [_OUT.pack(_OUT.size + len(data), -failure, unique), data])
        return True

    def _init(self, _: int, body: memoryview) -> bytes:
        major, _, readahead, offered = struct.unpack_from("<IIII", body)
        pages = _WRITE_MAX // PAGE
        return _INIT_OUT.pack(major, _MINOR, readahead, offered & _FLAGS, 64, 48, _WRITE_MAX, 1, pages, 0, 0, 0, 0)

    def _lookup(self, node: int, body: memoryview) -> bytes:
        if node != _ROOT or bytes(body).rstrip(b"\0") != FILE:
            raise OSError(errno.ENOENT, "")
        return struct.pack("<QQQQII", _NODE, 0, _SECONDS_VALID, _SECONDS_VALID, 0, 0) + self._attributes(_NODE)

    def _attributes_of(self, node: int, _: memoryview) -> bytes:
        return struct.pack("<QII", _SECONDS_VALID, 0, 0) + self._attributes(node)

    def _attributes(self, node: int) -> bytes:
        mode, size = (stat.S_IFDIR | 0o755, 0) if node == _ROOT else (stat.S_IFREG | 0o600, self._drive.size)
        return _ATTRIBUTES.pack(node, size, size // 512, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, PAGE, 0)

    def _read(self, _: int, body: memoryview) -> bytes:
        self._powered()
        offset, size = _TRANSFER.unpack_from(body)[1:3]
        return self._drive.read(offset, size)

    def _write(self, _: int, body: memoryview) -> bytes:
        self._powered()
        offset, size = _TRANSFER.unpack_from(body)[1:3]
        with body[_TRANSFER.size : _TRANSFER.size + size] as data:
            self._drive.write(offset, data)
        return struct.pack("<II", size, 0)

    def _sync(self, *_: object) -> bytes:
        self._powered()
        self._drive.sync()
        return b""

    def _powered(self) -> None:
        if not self._drive.on:
            raise OSError(errno.EIO, "")


def obeyed(drive: Drive, order: dict[str, Any]) -> dict[str, Any]:
    """The answer to one order of the test: ``cut``, ``on``, or ``state``."""
    if order["order"] == "cut":
        return drive.cut(order["seed"], order["share"])
    if order["order"] == "on":
        drive.on = True
    elif order["order"] == "lie":
        drive.lies = True
    return {"syncs": drive.syncs}


def main(image: str, directory: str) -> None:
    """Serve until standard input ends or the file system is unmounted."""
    drive = Drive(image, lies=False)
    try:
        server = FuseServer(drive, directory)
    except OSError as error:
        reason = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
        print(json.dumps({"error": reason}), flush=True)  # noqa: T201 - the answer
        return
    print(json.dumps({}), flush=True)  # noqa: T201 - the answer
    poller = select.poll()
    poller.register(server.descriptor, select.POLLIN)
    poller.register(sys.stdin.fileno(), select.POLLIN)
    while True:
        for descriptor, _ in poller.poll():
            if descriptor == server.descriptor:
                if not server.answer_one():
                    return
            elif line := os.read(descriptor, PAGE):
                print(json.dumps(obeyed(drive, json.loads(line))), flush=True)  # noqa: T201 - the answer
            else:
                return


if __name__ == "__main__":
    main(*sys.argv[1:])
