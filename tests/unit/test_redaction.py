"""Secret arguments in texts, in whatever form they stand there."""

from __future__ import annotations

import json
from collections.abc import Callable
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobmaster.handlers import Handlers
from jobmaster.model.errors import JobMasterError
from jobmaster.model.redaction import SecretTexts, masked_arguments

SECRET = st.text(min_size=4, max_size=40).filter(lambda text: "*" not in text)
FORMS: list[Callable[[str], str]] = [str, repr, json.dumps, lambda text: quote(text, safe="")]


@given(SECRET, st.sampled_from(FORMS))
def test_no_form_of_a_secret_stays_in_a_text(secret: str, form: Callable[[str], str]) -> None:
    arguments = json.dumps({"token": {"inner": [secret]}, "open": "shown"}).encode()
    cut = SecretTexts(arguments, ("token",)).cut(f"before {form(secret)} after")
    assert form(secret) not in cut
    assert "***" in cut


def test_masked_arguments_keep_their_names_and_the_other_values() -> None:
    assert masked_arguments(b'{"a":1,"b":{"c":2}}', ("b", "absent")) == b'{"a":1,"b":"***"}'
    assert masked_arguments(b'{"a":1}', ()) == b'{"a":1}'


def test_numbers_and_lines_are_cut_and_short_values_are_not_looked_for() -> None:
    arguments = b'{"pin":123456,"key":"first line\\nsecond line","flag":true,"short":"ab"}'
    texts = SecretTexts(arguments, ("pin", "key", "flag", "short"))
    assert texts.cut("pin 123456, second line, True, ab") == "pin ***, ***, True, ab"
    assert SecretTexts(b"no json", ("a",)).cut("text") == "text"


@pytest.mark.parametrize("secret", ["tokn", ("token", "other"), 7])
def test_a_secret_argument_that_the_handler_does_not_have_is_refused(secret: str) -> None:
    with pytest.raises(JobMasterError):

        @Handlers().job(secret=secret)
        async def charge(token: str) -> None: ...
