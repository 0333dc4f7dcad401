"""``jobmaster web`` as a process."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import msgspec
import pytest
import yaml

from jobmaster.model.errors import ConfigError
from jobmaster.settings.model import ClusterSettings, Web, WebToken
from jobmaster.web.server import check_exposure, serve
from tests.integration.client.fixture import ClientFixture
from tests.support.patience import PATIENCE_SECONDS

ROOT = Path(__file__).parents[3]


class WebProcess:
    """A server for the cluster of a test."""

    def __init__(self, client: ClientFixture, folder: Path, *options: str, **web: object) -> None:
        document = {
            "cluster": client.settings.cluster,
            "master": {"dsn": client.dsn, "schema": client.settings.schema_name()},
            "stores": {"default": {"url": client.settings.stores["default"].url}},
            "web": {"port": 0, **web},
        }
        config = folder / "web.yaml"
        config.write_text(yaml.safe_dump(document), encoding="utf-8")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "jobmaster.cli.main", "web", "--config", str(config), *options],
            env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'agents'}"},
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stderr is not None
        self.line = self.process.stderr.readline()
        found = re.search(r"http://\S+", self.line)
        assert found, self.line + self.process.stderr.read()
        self.url = found[0]

    def __enter__(self) -> WebProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal; the exit code."""
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_SECONDS)


@pytest.mark.slow
def test_the_command_serves_this_machine_and_stops_at_a_signal(client: ClientFixture, tmp_path: Path) -> None:
    with WebProcess(client, tmp_path) as web:
        assert "(read only)" in web.line
        assert httpx.get(f"{web.url}/live", timeout=PATIENCE_SECONDS).json() == {"live": True}
        assert httpx.get(f"{web.url}/", timeout=PATIENCE_SECONDS).status_code == 200
        assert httpx.post(f"{web.url}/", timeout=PATIENCE_SECONDS).status_code == 403
        assert web.stop() == 0


@pytest.mark.slow
@pytest.mark.parametrize("by_signal", [pytest.param(True, marks=pytest.mark.long), False])
def test_a_child_of_another_command_stops_at_a_signal_and_with_its_parent(
    client: ClientFixture, tmp_path: Path, by_signal: bool
) -> None:
    """Its thread waits for the end of standard input when the interpreter ends: that must not abort it."""
    with WebProcess(client, tmp_path, "--leave-with-stdin") as web:
        if by_signal:
            web.process.terminate()
            assert web.process.wait(PATIENCE_SECONDS) == 0  # (``communicate`` would close standard input)
        _, printed = web.process.communicate(timeout=PATIENCE_SECONDS)
        assert web.process.returncode == 0
        assert "Fatal" not in printed


@pytest.mark.parametrize(
    ("host", "has_token", "starts"),
    [
        ("127.0.0.1", False, True),
        ("localhost", False, True),
        ("::1", False, True),
        ("127.8.8.8", False, True),
        ("0.0.0.0", False, False),
        ("::", False, False),
        ("10.0.0.1", False, False),
        ("jobs.example.org", False, False),
        ("127.0.0.1.example.org", False, False),
        ("0.0.0.0", True, True),
    ],
)
def test_an_address_that_others_reach_needs_a_token(host: str, has_token: bool, starts: bool) -> None:
    tokens = {"ann": WebToken(sha256="0" * 64)} if has_token else {}
    settings = ClusterSettings(web=Web(host=host, tokens=tokens)).web
    if starts:
        check_exposure(settings)
    else:
        with pytest.raises(ConfigError, match=r"web\.tokens is empty"):
            check_exposure(settings)


async def test_a_port_that_is_taken_is_one_sentence_before_anything_is_opened(client: ClientFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        settings = msgspec.structs.replace(client.settings, web=Web(port=taken.getsockname()[1]))
        with pytest.raises(ConfigError, match=r"cannot listen on 127\.0\.0\.1 port"):
            await serve(settings, read_only=False, started=print)
