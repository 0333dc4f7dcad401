"""No password in what is shown, however badly the URL is written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobmaster.settings.masking import mask_secrets, show_value


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("postgresql://app:pw@db:5432/jobs", "postgresql://app:***@db:5432/jobs"),
        ("postgresql://app@db/jobs", "postgresql://app@db/jobs"),
        ("postgresql://db:5432/jobs", "postgresql://db:5432/jobs"),
        ("redis://:pw@host:6379/0", "redis://:***@host:6379/0"),
        ("redis://pw@host:6379/0", "redis://***@host:6379/0"),
        ("postgresql://app:p:w/x?@y@db/jobs", "postgresql://app:***@db/jobs"),
        ("postgresql://db/jobs?user=a&password=pw&sslmode=require", "postgresql://db/jobs?user=a&password=***&sslmode=require"),
        ("host=db password=pw dbname=jobs", "host=db password=*** dbname=jobs"),
        ("host=db password='p w' dbname=jobs", "host=db password=*** dbname=jobs"),
        ("host=db password=p,w dbname=jobs", "host=db password=*** dbname=jobs"),
        ("sslpassword=pw", "sslpassword=***"),
        ("app:pw@db/jobs", "app:***@db/jobs"),
        ("nothing to hide", "nothing to hide"),
    ],
)  # fmt: skip
def test_the_password_is_masked_and_the_rest_stays(text: str, masked: str) -> None:
    assert mask_secrets(text) == masked


PASSWORD = st.text(st.characters(exclude_categories=["C"]), min_size=1, max_size=20).map(lambda tail: f"s3cret{tail}")


@given(PASSWORD, st.sampled_from(["postgresql://app:{}@db/jobs", "redis://:{}@h:1/0", "pg//app:{}@db", "a:{}@b"]))
def test_no_password_of_a_url_survives(password: str, form: str) -> None:
    assert "s3cret" not in mask_secrets(form.format(password))
    assert "s3cret" not in show_value(form.format(password))


@given(st.text(max_size=500))
def test_a_shown_value_is_one_bounded_line(text: str) -> None:
    shown = show_value(text)
    assert shown.isprintable()
    assert len(shown) < 12 * 90
