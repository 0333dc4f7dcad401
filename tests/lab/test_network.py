"""The faults of the laboratory's network are what their names state."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.page import PAGE, made
from tests.lab.network import LabUnavailable, Network
from tests.lab.page import MODULE, PARTS
from tests.support.patience import PATIENCE_SECONDS

pytestmark = pytest.mark.slow

HOSTS = ("one", "two", "three")
Body = Callable[[Network], None]
_ASK = """
import socket, sys
with socket.socket() as probe:
    probe.settimeout(float(sys.argv[2]))
    try:
        probe.connect((sys.argv[1], 9))
    except ConnectionRefusedError:
        print("answered")
    except TimeoutError:
        print("silent")
"""
_ECHO = """
import socket
with socket.create_server(("", 9)) as server:
    print("ready", flush=True)
    link, _ = server.accept()
    link.sendall(b"hello")
    link.recv(1)
"""
_LISTEN = """
import socket, sys
with socket.create_connection((sys.argv[1], 9)) as link:
    print(link.recv(5).decode(), flush=True)
    sys.stdin.readline()
    link.settimeout(0.5)
    try:
        print("closed" if link.recv(1) == b"" else "data", flush=True)
    except TimeoutError:
        print("silent", flush=True)
    sys.stdin.readline()
    link.settimeout(float(sys.argv[2]))
    try:
        link.sendall(b"x")
        link.recv(1)
    except ConnectionResetError:
        print("reset", flush=True)
"""


@pytest.fixture
def on_network(tmp_path: Path) -> Iterator[Callable[[Body], None]]:
    """Runs a test's body in a thread of its own: a mount namespace is a thread's, and the other tests keep theirs."""
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    with ThreadPoolExecutor(1) as thread:
        try:
            network = thread.submit(Network, tmp_path / "network", HOSTS).result()
        except LabUnavailable as error:
            pytest.skip(str(error))
        yield lambda body: thread.submit(body, network).result()
        thread.submit(network.close).result()


def started(network: Network, host: str, script: str, *arguments: str) -> subprocess.Popen[str]:
    pipe: Any = subprocess.PIPE
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.Popen([*network.prefix(host), *command], stdin=pipe, stdout=pipe, text=True)


def asked(network: Network, sender: str, receiver: str, seconds: float = PATIENCE_SECONDS) -> str:
    """What becomes of a connect to a port without a listener."""
    return started(network, sender, _ASK, network.address(receiver), str(seconds)).communicate()[0].strip()


def silent(network: Network, sender: str, receiver: str) -> bool:
    return asked(network, sender, receiver, 0.3) == "silent"


def test_one_silent_way_and_a_link_that_is_down_are_silent_for_those_two_or_for_the_host_and_can_be_opened(
    on_network: Callable[[Body], None],
) -> None:
    def body(network: Network) -> None:
        network.silence([("one", "two")])
        network.silence([("one", "two"), ("three", "two")])  # two partitions that overlap
        assert silent(network, "one", "two")
        assert silent(network, "three", "two")
        assert asked(network, "one", "three") == "answered"
        network.open([("one", "two"), ("three", "two")])
        assert silent(network, "one", "two")
        assert asked(network, "three", "two") == "answered"
        network.open([("one", "two")])
        assert asked(network, "one", "two") == "answered"
        network.link_down("one")
        assert silent(network, "two", "one")
        assert asked(network, "two", "three") == "answered"
        network.link_up("one")
        assert asked(network, "two", "one") == "answered"

    on_network(body)


def test_a_host_that_vanishes_kills_its_processes_sends_no_fin_and_answers_old_connections_with_a_reset_when_it_is_back(
    on_network: Callable[[Body], None],
) -> None:
    def body(network: Network) -> None:
        server = started(network, "one", _ECHO)
        assert server.stdout is not None
        assert server.stdout.readline() == "ready\n"
        client = started(network, "two", _LISTEN, network.address("one"), str(PATIENCE_SECONDS))
        assert client.stdout is not None
        assert client.stdin is not None
        assert client.stdout.readline() == "hello\n"
        assert network.vanish("one") == [server.pid]
        assert server.wait() == -signal.SIGKILL
        print(file=client.stdin, flush=True)
        assert client.stdout.readline() == "silent\n"
        network.appear("one")
        print(file=client.stdin, flush=True)
        assert client.communicate()[0] == "reset\n"
        server.communicate()

    on_network(body)


def test_without_root_the_reason_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(LabUnavailable, match="network namespaces need root; start it as root"):
        Network(tmp_path / "network", HOSTS)


def test_the_page_shows_the_catalogue_and_the_kept_runs() -> None:
    kept = PAGE.read_text(encoding="utf-8")
    assert made(kept, MODULE, PARTS) == kept, "run: python -m tests.lab.page"
