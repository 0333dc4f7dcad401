"""Sealed payloads: what opens, and what does not."""

from __future__ import annotations

import base64
import os

import pytest

from jobmaster.encryption import CannotOpen, NotSealed, PayloadCipher, SealKind, is_sealed
from jobmaster.model.errors import ConfigError
from jobmaster.model.job import ErrorInfo

ARGS = b'{"card":"4111-1111"}'
ONE, OTHER = bytes(16), bytes([1] * 16)


def new_key() -> str:
    return base64.b64encode(os.urandom(32)).decode()


@pytest.fixture
def cipher() -> PayloadCipher:
    return PayloadCipher({"k1": new_key()}, "k1")


def test_what_was_sealed_opens_in_its_place_and_shows_nothing(cipher: PayloadCipher) -> None:
    sealed = cipher.seal(SealKind.ARGUMENTS, "charge", ONE, ARGS)
    assert is_sealed(sealed)
    assert b"4111" not in sealed
    assert cipher.open(SealKind.ARGUMENTS, "charge", ONE, sealed) == ARGS
    assert cipher.seal(SealKind.ARGUMENTS, "charge", ONE, ARGS) == sealed, "a submit that is sent again is the same"
    assert cipher.open(SealKind.ARGUMENTS, "charge", ONE, ARGS) == ARGS, "what was not sealed is itself"


def test_a_value_that_was_moved_or_changed_does_not_open(cipher: PayloadCipher) -> None:
    sealed = cipher.seal(SealKind.ARGUMENTS, "charge", ONE, ARGS)
    changed = sealed[:-6] + (b"A" if sealed[-6:-5] != b"A" else b"B") + sealed[-5:]
    for kind, handler, job_id, data in (
        (SealKind.ARGUMENTS, "charge", OTHER, sealed),
        (SealKind.ARGUMENTS, "other", ONE, sealed),
        (SealKind.RESULT, "charge", ONE, sealed),
        (SealKind.ARGUMENTS, "charge", ONE, changed),
        (SealKind.ARGUMENTS, "charge", ONE, sealed.replace(b".job.", b".handler.")),
        (SealKind.ARGUMENTS, "charge", ONE, b'{"$sealed":"k1.job.###"}'),
        (SealKind.ARGUMENTS, "charge", ONE, b'{"$sealed":"k1"}'),
    ):
        with pytest.raises(CannotOpen, match="not what was sealed"):
            cipher.open(kind, handler, job_id, data)


def test_a_value_of_a_handler_opens_for_each_of_its_jobs_and_for_no_other(cipher: PayloadCipher) -> None:
    sealed = cipher.seal(SealKind.ARGUMENTS, "charge", None, ARGS)
    assert cipher.open(SealKind.ARGUMENTS, "charge", OTHER, sealed) == ARGS
    with pytest.raises(CannotOpen):
        cipher.open(SealKind.ARGUMENTS, "other", ONE, sealed)


def test_after_a_rotation_old_keys_open_and_the_new_one_seals() -> None:
    old, new = new_key(), new_key()
    sealed = PayloadCipher({"k1": old}, "k1").seal(SealKind.RESULT, "charge", ONE, b"42")
    both = PayloadCipher({"k1": old, "k2": new}, "k2")
    assert both.open(SealKind.RESULT, "charge", ONE, sealed) == b"42"
    assert b'"k2.' in both.seal(SealKind.RESULT, "charge", ONE, b"42")
    with pytest.raises(CannotOpen, match="'k1'"):
        PayloadCipher({"k2": new}, "k2").open(SealKind.RESULT, "charge", ONE, sealed)


def test_the_texts_of_an_error_are_sealed_and_its_type_stays(cipher: PayloadCipher) -> None:
    info = ErrorInfo("ValueError", "card 4111", "error", "Traceback 4111")
    sealed = cipher.seal_error("charge", ONE, info)
    assert (sealed.type, sealed.reason, sealed.traceback) == ("ValueError", "error", "")
    assert "4111" not in sealed.message
    assert cipher.open_error("charge", ONE, sealed) == info
    assert cipher.open_error("charge", ONE, info) == info


@pytest.mark.parametrize(
    ("keys", "active"), [({"k1": "short"}, "k1"), ({"k1": new_key()}, "k2"), ({"k1": "***"}, None)]
)
def test_a_key_that_is_none_is_refused_without_being_shown(keys: dict[str, str], active: str | None) -> None:
    with pytest.raises(ConfigError) as caught:
        PayloadCipher(keys, active)
    assert all(key not in str(caught.value) for key in keys.values() if key != "***")


@pytest.mark.parametrize("data", [b"{}", b'{"order":1}', b'{"$sealed":5}', b'{"$sealed":"k1.job.AAAA"}'])
def test_arguments_that_no_key_has_sealed_do_not_open_where_a_seal_is_required(data: bytes) -> None:
    key = new_key()
    asks = PayloadCipher({"k1": key}, "k1", ["charge"])
    with pytest.raises(CannotOpen):
        asks.open_arguments("charge", ONE, data)
    sealed = PayloadCipher({"k1": key}, "k1").seal(SealKind.ARGUMENTS, "charge", ONE, b"{}")
    assert asks.open_arguments("charge", ONE, sealed) == b"{}"
    with pytest.raises(CannotOpen):
        asks.open_arguments("charge", OTHER, sealed)
    with pytest.raises(NotSealed):
        PayloadCipher({"k1": key}, "k1", ["*"]).open_arguments("mail", ONE, b"{}")
    assert asks.open_arguments("mail", ONE, b"{}") == b"{}"
