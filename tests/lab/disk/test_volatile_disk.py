"""The disk of the laboratory forgets what was not synced, and nothing else."""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.chaos.cluster.machine import private_mounts
from tests.lab.disk.disk_program import PAGE, Drive
from tests.lab.disk.volatile_disk import DiskUnavailable, VolatileDisk

pytestmark = pytest.mark.slow

Body = Callable[[VolatileDisk], None]
_MEGABYTES = 64


@pytest.fixture
def on_disk(tmp_path: Path) -> Iterator[Callable[[Body], None]]:
    """Runs a test's body in a thread of its own: a mount namespace is a thread's, and the other tests keep theirs."""

    def made() -> VolatileDisk:
        if (why := private_mounts()) is not None:
            raise DiskUnavailable(why)
        return VolatileDisk(tmp_path / "disk", tmp_path / "mount", _MEGABYTES)

    if os.geteuid() != 0 or not sys.platform.startswith("linux"):
        pytest.skip("mounts need root on Linux")
    with ThreadPoolExecutor(1) as thread:
        try:
            disk = thread.submit(made).result()
        except DiskUnavailable as error:
            pytest.skip(f"no disk that forgets can be made here: {error}")
        yield lambda body: thread.submit(body, disk).result()
        thread.submit(disk.close).result()


def write(path: Path, data: bytes, *, sync: bool, flags: int = 0) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | flags)
    try:
        os.pwrite(descriptor, data, 0)
        if sync:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def power_cycle(disk: VolatileDisk, share: float = 0.0) -> dict[str, int]:
    pages = disk.cut(7, share)
    disk.restore()
    return pages


def test_what_was_synced_outlives_a_cut_and_what_was_not_is_gone(on_disk: Callable[[Body], None]) -> None:
    def body(disk: VolatileDisk) -> None:
        write(disk.mount / "synced", b"new" * PAGE, sync=True)
        write(disk.mount / "changed", b"old" * PAGE, sync=True)
        write(disk.mount / "renamed", b"kept" * PAGE, sync=True)
        write(disk.mount / "changed", b"new" * PAGE, sync=False)
        (disk.mount / "renamed").rename(disk.mount / "under another name")
        write(disk.mount / "not synced", b"new" * PAGE, sync=False)
        power_cycle(disk)
        assert (disk.mount / "synced").read_bytes() == b"new" * PAGE
        assert (disk.mount / "changed").read_bytes() == b"old" * PAGE
        assert (disk.mount / "renamed").read_bytes() == b"kept" * PAGE
        assert not (disk.mount / "not synced").exists()

    on_disk(body)


@pytest.mark.parametrize("share", [pytest.param(0.0, marks=pytest.mark.long), 1.0])
def test_a_write_past_the_kernels_cache_is_in_that_of_the_drive_until_a_sync_and_a_share_of_it_is_kept(
    on_disk: Callable[[Body], None], share: float
) -> None:
    def body(disk: VolatileDisk) -> None:
        path = disk.mount / "file"
        write(path, b"old" * PAGE, sync=True)
        descriptor = os.open(path, os.O_RDWR | os.O_DIRECT)
        page = mmap.mmap(-1, PAGE)  # aligned, as O_DIRECT demands
        page[:] = b"new!" * (PAGE // 4)
        os.pwrite(descriptor, page, 0)
        os.close(descriptor)
        pages = power_cycle(disk, share)
        assert pages["unsynced"] >= 1
        assert pages["kept"] == pages["unsynced"] * share
        assert path.read_bytes()[:3] == (b"new" if share else b"old")

    on_disk(body)


def test_what_the_kernel_wrote_back_without_a_flush_is_kept_in_part_and_in_any_order(
    on_disk: Callable[[Body], None],
) -> None:
    def body(disk: VolatileDisk) -> None:
        path = disk.mount / "file"
        write(path, b"o" * PAGE * 100, sync=True)
        write(path, b"n" * PAGE * 100, sync=False)
        pages = power_cycle(disk, 0.5)
        assert pages["unsynced"] >= 100
        found = {number for number in range(100) if path.read_bytes()[number * PAGE] == ord("n")}
        assert 10 < len(found) < 90
        assert found != set(range(len(found)))

    on_disk(body)


def test_a_drive_that_lies_forgets_what_was_synced(on_disk: Callable[[Body], None]) -> None:
    def body(disk: VolatileDisk) -> None:
        write(disk.mount / "file", b"old" * PAGE, sync=True)
        disk.sync()
        disk.lie()
        write(disk.mount / "file", b"new" * PAGE, sync=True)
        power_cycle(disk)
        assert (disk.mount / "file").read_bytes() == b"old" * PAGE

    on_disk(body)


def test_where_such_a_disk_cannot_be_made_the_reason_names_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DiskUnavailable, match=r"mkfs\.ext4: .*No such file"):
        VolatileDisk(tmp_path / "disk", tmp_path / "mount", _MEGABYTES)


def test_a_read_of_a_drive_sees_its_cache_at_any_offset(tmp_path: Path) -> None:
    image = tmp_path / "image"
    image.write_bytes(bytes(range(256)) * (4 * PAGE // 256))
    expected = bytearray(image.read_bytes())
    drive = Drive(str(image), lies=False)
    for offset, size in ((0, 10), (PAGE - 5, 10), (2 * PAGE, PAGE), (3 * PAGE + 17, 100)):
        expected[offset : offset + size] = b"x" * size
        drive.write(offset, memoryview(b"x" * size))
    for offset, size in ((0, 4 * PAGE), (1, 3), (PAGE - 7, 20), (2 * PAGE + 5, PAGE + 30), (3 * PAGE, PAGE)):
        assert drive.read(offset, size) == bytes(expected[offset : offset + size])
    assert image.read_bytes() != expected
    drive.sync()
    assert image.read_bytes() == expected


def test_one_seed_of_a_cut_keeps_the_same_pages(tmp_path: Path) -> None:
    found = []
    for name in ("one", "two"):
        image = tmp_path / name
        image.write_bytes(bytes(64 * PAGE))
        drive = Drive(str(image), lies=False)
        drive.write(0, memoryview(b"x" * (64 * PAGE)))
        assert 0 < drive.cut(3, 0.5)["kept"] < 64
        found.append(image.read_bytes())
    assert found[0] == found[1]
