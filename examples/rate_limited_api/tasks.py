"""The handler that asks the API: two requests of a tenant at once and ten a second, and none while the API is down."""

import json
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

from jobmaster import Breaker, Handlers, Limit

handlers = Handlers()

# Each tenant has permits and a rate of its own, in the whole cluster: one that sends a million jobs delays no other tenant.
PER_TENANT = Limit("geocoder", 2, key="{tenant}", rate="10/s", burst=2)

# After four calls of which half have failed no job starts for two seconds; then one job tries it. Waiting uses up no attempt.
GEOCODER = Breaker("geocoder", failures=0.5, window=10, min_calls=4, open_for=2, half_open=1, on=URLError)


@handlers.job(
    name="geo.locate", limit=PER_TENANT, breaker=GEOCODER, timeout=30, max_attempts=20, backoff=0.5, backoff_max=5
)
def locate(api: str, tenant: str, place: str) -> Any:
    with urlopen(f"{api}/geocode/{tenant}/{place}", timeout=10) as answer:
        return json.load(answer)
