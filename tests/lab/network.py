"""Hosts as network namespaces: each has one link to a switch, and links and ways between hosts fall silent.

All of it belongs to a mount namespace of this process: it ends with it, also after SIGKILL, and the machine's own network
never changes. The switch is a bridge in a namespace of its own.

A way from one host to another is one entry in the first one's neighbour table. The entry of a silent way names a hardware
address that no host has: packets leave, and no host takes them. Neither end learns of it: no FIN, no RST, no ICMP. A program
for packet filters (``nft``, ``iptables``) is not needed.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tests.chaos.cluster.machine import private_mounts
from tests.chaos.cluster.servers import send

_CLONE_NEWNET = 0x40000000
_GONE_SECONDS = 60.0
_DOWN_SECONDS, _UP_SECONDS = 0.08, 0.15
_NARROW = ("tbf", "rate", "2mbit", "burst", "8kb", "latency", "150ms")
_DELAYED = ("netem", "delay", "40ms", "20ms", "loss", "3%")
Way = tuple[str, str]
"""Sender and receiver."""


class LabUnavailable(Exception):
    """This machine, or this account, cannot make the hosts."""


def _run(*command: str, given: str = "") -> None:
    done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != 0:
        raise LabUnavailable(f"{' '.join(command)}: {(done.stderr or done.stdout).strip()[:300]}")


class Network:
    """A switch and its hosts.

    Args:
        directory: holds one file for each namespace.
        hosts: their names; the number of each is its place here, and its address ``10.77.0.(1 + place)``.

    Raises:
        LabUnavailable: no root, or the kernel or a program lacks something.
    """

    def __init__(self, directory: Path, hosts: Sequence[str]) -> None:
        if os.geteuid() != 0:
            raise LabUnavailable("network namespaces need root; start it as root")
        if (why := private_mounts()) is not None:
            raise LabUnavailable(why)
        self._directory = directory
        directory.mkdir()
        self.hosts = list(hosts)
        self._silent: Counter[Way] = Counter()
        self._down: Counter[str] = Counter()
        self._gone: set[str] = set()
        self._lock = threading.RLock()
        self._namespace("switch")
        self._ip("switch", "link add br0 type bridge", "link set br0 up")
        for host in self.hosts:
            self._make(host)
        self.no_delay = self._without_netem()

    def close(self) -> None:
        """The namespaces go, as far as nothing runs in them."""
        for name in (*self.hosts, "switch"):
            if name not in self._gone:
                _run("umount", str(self._directory / name))

    def address(self, host: str) -> str:
        return f"10.77.0.{self._number(host)}"

    def prefix(self, host: str) -> tuple[str, ...]:
        """The command to put before one that is to run on a host."""
        return ("nsenter", f"--net={self._directory / host}", "--")

    @contextlib.contextmanager
    def inside(self, host: str) -> Iterator[None]:
        """What this thread starts meanwhile runs on the host."""
        with Path("/proc/thread-self/ns/net").open("rb") as before:
            with (self._directory / host).open("rb") as there:
                _enter(there.fileno())
            try:
                yield
            finally:
                _enter(before.fileno())

    # ------------------------------------------------------------ silence

    def silence(self, ways: Iterable[Way]) -> None:
        """Nothing arrives on these ways any more. Each silence ends with an `open` of its own."""
        self._silent.update(ways := list(ways))
        self._apply({way[0] for way in ways})

    def open(self, ways: Iterable[Way]) -> None:
        self._silent.subtract(ways := list(ways))
        self._apply({way[0] for way in ways})

    def link_down(self, host: str) -> None:
        """The port of the switch goes down: nothing from or to the host."""
        with self._lock:
            self._down[host] += 1
            self._port(host)

    def link_up(self, host: str) -> None:
        with self._lock:
            self._down[host] -= 1
            self._port(host)

    def flap(self, host: str, over: threading.Event) -> None:
        """Down and up again several times a second until it is over: a third of the packets is lost."""
        while not over.wait(_UP_SECONDS):
            self.link_down(host)
            time.sleep(_DOWN_SECONDS)
            self.link_up(host)

    def narrow(self, host: str) -> None:
        """2 Mbit/s towards the host, and a short queue: delay, and loss when it is full."""
        self._queue(host, *_NARROW)

    def delay(self, host: str) -> None:
        """Delay, jitter and loss towards the host."""
        self._queue(host, *_DELAYED)

    def wide(self, host: str) -> None:
        """The end of `narrow` and `delay`."""
        with self._lock, contextlib.suppress(LabUnavailable):  # the port went with its host
            _run(*self.prefix("switch"), "tc", "qdisc", "del", "dev", self._port_name(host), "root")

    # ------------------------------------------------------------ hosts that vanish

    def vanish(self, host: str) -> list[int]:
        """The link goes down first, so that no FIN or RST gets out; then SIGKILL to every process of the host at once.

        Its namespace goes, and with it what the kernel had still to send. The processes that died.
        """
        with self._lock:
            self._gone.add(host)
            self._ip("switch", f"link set {self._port_name(host)} down")
        killed: set[int] = set()
        end = time.monotonic() + _GONE_SECONDS
        while pids := [pid for pid in self._processes(host) if _runs(pid)]:
            send(pids, signal.SIGKILL)
            killed.update(pids)
            if time.monotonic() > end:
                raise TimeoutError(f"processes {pids} of the host {host} do not end")
            time.sleep(0.01)
        self._ip("switch", f"link del {self._port_name(host)}")
        _run("umount", str(self._directory / host))
        return sorted(killed)

    def appear(self, host: str) -> None:
        """The host is back with its addresses, and has forgotten every connection."""
        with self._lock:
            self._make(host)
            self._gone.discard(host)
            self._port(host)
            self._apply([host])

    def _processes(self, host: str) -> list[int]:
        namespace = (self._directory / host).stat().st_ino
        found = []
        for path in Path("/proc").glob("[0-9]*/ns/net"):
            with contextlib.suppress(OSError):
                if path.stat().st_ino == namespace:
                    found.append(int(path.parts[2]))
        return found

    # ------------------------------------------------------------ how

    def _number(self, host: str) -> int:
        return self.hosts.index(host) + 1

    def _port_name(self, host: str) -> str:
        return f"p{self._number(host)}"

    def _hardware(self, host: str, kind: str = "00") -> str:
        return f"02:{kind}:00:00:00:{self._number(host):02x}"

    def _namespace(self, name: str) -> None:
        path = self._directory / name
        path.touch()
        _run("unshare", f"--net={path}", "ip", "link", "set", "lo", "up")

    def _ip(self, host: str, *lines: str) -> None:
        _run(*self.prefix(host), "ip", "-batch", "-", given="\n".join(lines) + "\n")

    def _make(self, host: str) -> None:
        self._namespace(host)
        port = self._port_name(host)
        _run(
            *(
                "nsenter",
                f"--net={self._directory / host}",
                "ip",
                "link",
                "add",
                "eth0",
                "address",
                self._hardware(host),
            ),
            *("type", "veth", "peer", "name", port),
        )
        # A descriptor of the other namespace is the only name that works for one without an entry in /run/netns.
        with (self._directory / "switch").open("rb") as switch:
            path = f"/proc/{os.getpid()}/fd/{switch.fileno()}"
            _run(*self.prefix(host), "ip", "link", "set", port, "netns", path)
        self._ip("switch", f"link set {port} master br0", f"link set {port} up")
        self._ip(
            host,
            f"addr add {self.address(host)}/24 dev eth0",
            "link set eth0 up",
            *(self._neighbour(host, other) for other in self.hosts if other != host),
        )

    def _neighbour(self, host: str, other: str) -> str:
        kind = "ff" if self._silent[host, other] > 0 else "00"
        return f"neigh replace {self.address(other)} lladdr {self._hardware(other, kind)} nud permanent dev eth0"

    def _apply(self, senders: Iterable[str]) -> None:
        with self._lock:
            for host in senders:
                if host not in self._gone:
                    self._ip(host, *(self._neighbour(host, other) for other in self.hosts if other != host))

    def _port(self, host: str) -> None:
        if host not in self._gone:
            self._ip("switch", f"link set {self._port_name(host)} {'down' if self._down[host] > 0 else 'up'}")

    def _queue(self, host: str, *discipline: str) -> None:
        with self._lock:
            if host not in self._gone:
                _run(
                    *self.prefix("switch"), "tc", "qdisc", "replace", "dev", self._port_name(host), "root", *discipline
                )

    def _without_netem(self) -> str | None:
        """The reason if the kernel cannot delay packets."""
        try:
            self.delay(self.hosts[0])
        except LabUnavailable as error:
            return str(error).rsplit(": ", 1)[-1] + " (CONFIG_NET_SCH_NETEM)"
        self.wide(self.hosts[0])
        return None


def _enter(descriptor: int) -> None:
    if ctypes.CDLL(None, use_errno=True).setns(descriptor, _CLONE_NEWNET) != 0:
        raise LabUnavailable(f"setns: {os.strerror(ctypes.get_errno())}")


def _runs(pid: int) -> bool:
    """Whether the process has not ended; one that waits to be collected has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in {"Z", "X"}
    except OSError:
        return False
