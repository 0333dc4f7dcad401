"""Capabilities: which words a job requires, and what a program lacks."""

from __future__ import annotations

import pytest

from jobmaster.codec import decode_headers, encode_headers, headers_requiring
from jobmaster.model.job import Headers, SignalWait
from jobmaster.rules.capabilities import CAPABILITIES, OF_FIELDS, Capability, lacking, required_words

PLAIN = Headers(tags=("a",), metadata={"requires": '{"requires":["no"]'}, timeout_seconds=1.0)


@pytest.mark.parametrize("headers", [Headers(), PLAIN, Headers(complete_seconds=0.0), Headers(accept_seconds=1.0)])
def test_headers_that_an_older_program_may_ignore_require_nothing(headers: Headers) -> None:
    encoded = encode_headers(headers)
    assert decode_headers(encoded).requires == ()
    assert required_words(encoded) == lacking(encoded, ()) == frozenset()


def test_a_field_that_is_unsafe_to_ignore_requires_its_word_and_the_first_bytes_show_it() -> None:
    encoded = encode_headers(Headers(complete_seconds=2.0, tags=("a]",)))
    assert encoded.startswith(b'{"requires":["complete_time"]')
    assert required_words(encoded) == {"complete_time"}
    assert lacking(encoded, ()) == {"complete_time"}
    assert lacking(encoded) == frozenset(), "this program knows every word that it sets"
    again = encode_headers(decode_headers(encoded))
    assert again == encoded, "encoded again, as after a snooze"


@pytest.mark.parametrize(
    ("headers", "word"),
    [
        (Headers(workflow=("0", 1)), "workflows"),
        (Headers(batch=True), "batches"),
        (Headers(ordering_key="k"), "ordering"),
        (Headers(signal=SignalWait(key="k")), "signals"),
    ],
)
def test_what_an_older_program_would_neglect_requires_a_word(headers: Headers, word: str) -> None:
    assert lacking(encode_headers(headers), CAPABILITIES - {word}) == {word}


def test_a_word_without_a_field_is_added_to_encoded_headers_and_stays_when_they_are_encoded_again() -> None:
    assert headers_requiring(b"", "limits") == b'{"requires":["limits"]}'
    both = headers_requiring(encode_headers(Headers(complete_seconds=2.0)), "limits")
    assert required_words(both) == {"complete_time", "limits"}
    assert headers_requiring(both, "limits") == both == encode_headers(decode_headers(both))


def test_words_of_a_newer_program_are_read_and_kept() -> None:
    newer = b'{"requires":["complete_time","orbit"],"tags":["a"],"orbit":7}'
    assert lacking(newer) == {"orbit"}
    assert decode_headers(encode_headers(decode_headers(newer))).requires == ("complete_time", "orbit")


def test_the_words_have_only_letters_that_are_read_without_a_parser() -> None:
    assert all(word.replace("_", "").isalpha() and word.islower() and word.isascii() for word in CAPABILITIES)
    assert set(OF_FIELDS) <= set(Headers.__struct_fields__)
    assert {*OF_FIELDS.values(), Capability.LIMITS} == set(Capability)
    assert Headers.__struct_fields__[0] == "requires"
