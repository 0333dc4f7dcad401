"""No output contains a password, also when the URL is malformed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobmaster.settings.loader import load_settings
from jobmaster.settings.masking import mask_secrets, show_value
from jobmaster.settings.problems import InvalidSettings


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


@pytest.mark.parametrize(
    "piece",
    ["a", "-", "a.", "password", "password ", "password=", "pwd: '", "token=\\", "=", "://", "a://", ":@", "\\"],
)
def test_a_wrong_value_as_long_as_a_file_is_shown_as_quickly_as_a_short_one(piece: str, tmp_path: Path) -> None:
    """With an expression that looks back, each of these took minutes or hours."""
    long = piece * (100 * 1024 // len(piece))
    assert len(show_value(long)) < 12 * 90
    file = tmp_path / "jobmaster.yaml"
    file.write_text(f"master: {{pool_size: {json.dumps(long)}}}\n")
    with pytest.raises(InvalidSettings, match="pool_size"):
        load_settings(file)


def test_a_password_that_is_cut_off_is_masked_all_the_same() -> None:
    assert show_value("postgresql://app:" + "s3cret" * 1000 + "@h/db") == '"postgresql://app:***@h/db"'
    assert "s3cret" not in show_value("x" * 70 + " password='" + "s3cret " * 1000)
