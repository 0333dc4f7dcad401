"""No input makes the server fail: whatever a request says, the answer is one of 2xx or 4xx with the shape of errors."""

from __future__ import annotations

import json
import random
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from jobmaster.clock import new_job_id
from jobmaster.rules.access import Role
from jobmaster.web.api.operation import PREFIX, Operation
from jobmaster.web.api.routes import OPERATIONS, openapi_document
from tests.integration.client.fixture import ClientFixture
from tests.support.web_callers import Caller

TEXTS = [
    "", " ", "a", "images.resize", "pay", "default", "eu", "HELD", "job_failed", "start", "high", "lane", "handler", "0",
    "-1", "1.5", "1e400", "NaN", "null", "2030-01-01T00:00:00Z", "2030-01-01", "9999-12-31T23:59:59Z", "0001-01-01T00:00:00Z",
    "\0", "a\0b", "\n", "\x1b[2J", "\u202e", "\U0001f600", "%", "_", "'", "'; DROP TABLE job; --", "$1", "{}", "[]", "a=b",
    "*/5 * * * *", "* * * * * *", "@daily", "../../etc/passwd", "<script>alert(1)</script>", "{{7*7}}", "a" * 201, "x" * 5000,
    "once/x", "50/s", "0/s", "1/0s", "00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff",
    "Europe/Berlin", "../zone",
]  # fmt: skip
NUMBERS: list[Any] = [0, 1, -1, 0.5, 1e-300, 1e300, 2**31, 2**53, 2**63, -(2**63), 2**64, 10**30, True, False, None]
SCHEMAS = json.loads(openapi_document())["components"]["schemas"]


class Guesses:
    """Values for a schema: most of the right kind, some of another."""

    def __init__(self, seed: int, job: str) -> None:
        self._random = random.Random(seed)
        self._job = job

    def text(self) -> str:
        return self._random.choice([*TEXTS, self._job, str(new_job_id())])

    def anything(self, depth: int = 0) -> Any:
        match self._random.randrange(5 if depth < 3 else 2):
            case 0:
                return self.text()
            case 1:
                return self._random.choice(NUMBERS)
            case 2:
                return [self.anything(depth + 1) for _ in range(self._random.randrange(3))]
            case _:
                return {self.text(): self.anything(depth + 1) for _ in range(self._random.randrange(3))}

    def of(self, schema: dict[str, Any], depth: int = 0) -> Any:
        if self._random.random() < 0.08 or depth > 6:
            return self.anything()
        if "$ref" in schema:
            return self.of(SCHEMAS[schema["$ref"].rpartition("/")[2]], depth + 1)
        if "anyOf" in schema:
            return self.of(self._random.choice(schema["anyOf"]), depth + 1)
        if "enum" in schema:
            return self._random.choice(schema["enum"])
        match schema.get("type"):
            case "object" if "properties" in schema:
                required = schema.get("required", ())
                return {
                    name: self.of(inner, depth + 1)
                    for name, inner in schema["properties"].items()
                    if name in required or self._random.random() < 0.25
                }
            case "object":
                inner = schema.get("additionalProperties")
                return {
                    self.text(): self.of(inner, depth + 1) if isinstance(inner, dict) else self.anything(1)
                    for _ in range(self._random.randrange(3))
                }
            case "array":
                return [self.of(schema.get("items", {}), depth + 1) for _ in range(self._random.randrange(3))]
            case "integer" | "number":
                return self._random.choice([*NUMBERS, 1, 2, 10])
            case "boolean":
                return self._random.random() < 0.5
            case "null":
                return None
            case "string" if schema.get("format") == "date-time":
                return self._random.choice(["2030-01-01T00:00:00Z", "1970-01-01T00:00:00+14:00", self.text()])
            case "string":
                return self.text()
        return self.anything()


async def sent(caller: httpx.AsyncClient, operation: Operation, guesses: Guesses, document: Any) -> httpx.Response:
    """One guessed request."""
    described = document["paths"][PREFIX + operation.path.replace(":path}", "}")][operation.method.lower()]
    path = PREFIX + operation.path.replace(":path}", "}")
    query: list[tuple[str, Any]] = []
    for parameter in described["parameters"]:
        value = guesses.of(parameter["schema"])
        if parameter["in"] == "path":
            path = path.replace(f"{{{parameter['name']}}}", quote(str(value), safe=""))
        elif parameter["name"] == "timeout":  # no agent here obeys a pause, and a wait of 20 s shows nothing more
            query.append(("timeout", 0))
        elif guesses.of({"type": "boolean"}):
            values = value if isinstance(value, list) else [value]
            query += [(parameter["name"], str(each)) for each in values]
    body: bytes | None = None
    if operation.body is not None:
        value = guesses.of(described["requestBody"]["content"]["application/json"]["schema"])
        if isinstance(value, dict) and operation.name == "pause":
            value["timeout"] = 0
        body = json.dumps(value).encode()
    return await caller.request(
        operation.method, path, params=query, content=body, headers={"Content-Type": "application/json"}
    )


async def any_input(client: ClientFixture, admin: httpx.AsyncClient, seeds: range) -> None:
    document = json.loads(openapi_document())
    job = await client.cluster.submit("images.resize", {"path": "a"}, after=3600.0)
    for seed in seeds:
        guesses = Guesses(seed, str(job.id))
        for operation in OPERATIONS:
            if operation.name == "stream_events":
                continue  # it has no end
            answer = await sent(admin, operation, guesses, document)
            said = f"seed {seed}, {operation.method} {answer.request.url}: {answer.status_code} {answer.text:.300}"
            assert answer.status_code < 500, f"{said} {answer.request.content!r:.600}"
            if answer.status_code >= 400:
                error = answer.json()["error"]
                assert error["message"], said
                assert error["code"], said


async def test_no_input_makes_the_server_fail(client: ClientFixture, caller: Caller) -> None:
    await any_input(client, caller(Role.ADMIN, raises=True), range(4))


@pytest.mark.slow
@pytest.mark.long
async def test_no_input_of_many_makes_the_server_fail(client: ClientFixture, caller: Caller) -> None:
    await any_input(client, caller(Role.ADMIN, raises=True), range(100, 160))
