"""``examples/fastapi_thumbnails``: a web server, an agent and HTTP requests."""

from __future__ import annotations

import io
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from uuid import uuid4

import httpx2
import pytest
from PIL import Image

from tests.support.patience import PATIENCE_SECONDS
from tests.support.waiting import wait_until
from tests.system.cli.conftest import Terminal

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


@pytest.fixture(scope="module")
def web(example: Terminal, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx2.Client]:
    """A client of the application, which runs under uvicorn in a process of its own."""
    folder = tmp_path_factory.mktemp("web")
    log = folder / "uvicorn.log"
    with log.open("wb") as out:
        server = subprocess.Popen(
            [sys.executable, "-m", "uvicorn", "app:app", "--port", "0"],
            cwd=example.folder,
            env={**example.environment, "PICTURES": str(folder / "pictures")},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
        )

    def address() -> str | None:
        assert server.poll() is None, log.read_text()
        found = re.search(r"running on (http://\S+)", log.read_text())
        return found[1] if found else None

    try:
        with httpx2.Client(base_url=wait_until(address, 30, log.read_text), timeout=PATIENCE_SECONDS) as client:
            yield client
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(PATIENCE_SECONDS)
        assert "Traceback" not in log.read_text()


def test_a_picture_becomes_a_thumbnail(web: httpx2.Client) -> None:
    body = io.BytesIO()
    Image.new("RGB", (300, 150), "red").save(body, "jpeg")
    answer = web.post("/thumbnails?width=100", content=body.getvalue())
    assert answer.status_code == 202
    job = answer.json()["id"]
    made = web.get(f"/thumbnails/{job}?wait=30")
    assert made.status_code == 200, made.text
    assert (made.json()["width"], made.json()["height"]) == (100, 50)
    picture = web.get(f"/thumbnails/{job}/picture")
    assert picture.headers["content-type"] == "image/png"
    with Image.open(io.BytesIO(picture.content)) as thumbnail:
        assert thumbnail.size == (100, 50)
        assert thumbnail.getpixel((9, 9))[0] > 200  # type: ignore[index]  # of a picture in colours


def test_a_body_that_is_no_picture_fails_with_its_reason(web: httpx2.Client) -> None:
    job = web.post("/thumbnails", content=b"words").json()["id"]
    answer = web.get(f"/thumbnails/{job}?wait=30")
    assert (answer.status_code, answer.json()) == (422, {"detail": "this is not a picture"})


def test_wrong_requests_have_their_status(web: httpx2.Client) -> None:
    assert web.post("/thumbnails?width=0", content=b"x").status_code == 422
    assert web.get("/thumbnails/nonsense").status_code == 422
    assert web.get(f"/thumbnails/{uuid4()}").status_code in (404, 504)


def test_the_page_of_the_interface_names_what_is_answered(web: httpx2.Client) -> None:
    paths = web.get("/openapi.json").json()["paths"]
    schema = paths["/thumbnails"]["post"]["responses"]["202"]["content"]["application/json"]["schema"]
    assert set(schema["properties"]) == {"id", "level", "duplicate", "unserved"}
