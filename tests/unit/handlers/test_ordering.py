"""``ordering_key`` of a handler: what it takes, the key of each job, and what agents publish."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from jobmaster import ConfigError, Handlers, InputError
from jobmaster.handlers.flow.ordering import PublishedOrdering
from jobmaster.model.errors import InvalidArguments


def declared(ordering_key: Any, **options: Any) -> Any:
    handlers = Handlers()

    @handlers.job(name="change", ordering_key=ordering_key, **options)
    async def change(order: int, part: str = "all", paid: bool = False, weights: list[float] | None = None) -> None: ...

    return handlers.get("change")


@pytest.mark.parametrize(
    ("template", "args", "key"),
    [
        ("order:{order}", b'{"order":17}', "order:17"),
        ("{order}/{part}/{paid}", b'{"order":17,"paid":true}', "17/all/true"),
        ("{{{part}}} }}", b'{"order":1,"part":"\xc3\xbc"}', "{\u00fc} }"),
        ("imports", b'{"order":17}', "imports"),
    ],
)
def test_the_key_of_a_template_is_the_same_for_programs_with_and_without_the_code(
    template: str, args: bytes, key: str
) -> None:
    handler = declared(template)
    assert handler.ordering_key(args) == key
    sent = msgspec.json.decode(msgspec.json.encode(handler.spec))["ordering"]
    assert msgspec.convert(sent, PublishedOrdering).key(args) == key


def test_a_function_is_called_with_defaults_and_is_known_to_programs_with_the_code_alone() -> None:
    handler = declared(lambda arguments: f"{arguments['order'] % 10}:{arguments['part']}")
    assert handler.ordering_key(b'{"order":17}') == "7:all"
    with pytest.raises(InputError, match="computed by a function") as refused:
        msgspec.convert(handler.spec.ordering, PublishedOrdering).key(b'{"order":17}')
    assert refused.value.hint == "submit it with the handler's code, or give ordering_key="


def test_a_handler_without_one_publishes_none() -> None:
    handler = declared(None)
    assert handler.ordering_key(b'{"order":1}') is None
    assert handler.spec.ordering is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("", "must be a template or a function, not ''"),
        (7, "must be a template or a function, not 7"),
        ("{order", "is no template"),
        ("{order!r}", "an argument has no format"),
        ("{order:>5}", "an argument has no format"),
        ("{order.id}", "may only name arguments"),
        ("{}", "may only name arguments"),
        ('"{order}"', "a quote or a backslash"),
        ("{customer}", r"names 'customer', and the handler takes \(order, part, paid, weights\)"),
        ("{weights}", "whose default None cannot be in a key"),
    ],
)  # fmt: skip
def test_what_is_no_ordering_key_is_refused_where_it_is_declared(given: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        declared(given)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"complete_time": 5}, "allows one run at a time"), ({"start": "lease"}, "needs start 'fenced'")],
)
def test_options_that_contradict_it_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        declared("{order}", **options)


@pytest.mark.parametrize(
    ("ordering_key", "args", "message"),
    [
        ("{part}", b'{"order":1,"part":"a\\"b"}', "a quote or a backslash"),
        ("{part}", b'{"order":1,"part":""}', "is empty"),
        ("{part}", b'{"order":1,"part":"%s"}' % (b"x" * 201), "the limit is 200"),
        ("{weights}{part}", b'{"order":1,"weights":[1.5]}', r"argument 'weights' .* not \[1.5\]"),
        (lambda arguments: arguments["order"], b'{"order":1}', "must be text, not int"),
        (lambda arguments: arguments["nothing"], b'{"order":1}', "cannot be computed: KeyError: 'nothing'"),
    ],
)
def test_arguments_that_give_no_key_are_refused(ordering_key: Any, args: bytes, message: str) -> None:
    handlers = Handlers()

    @handlers.job(name="change", ordering_key=ordering_key)
    async def change(order: int, part: str = "all", weights: list[float] | str = "none") -> None: ...

    handler = handlers.get("change")
    assert handler is not None
    with pytest.raises(InvalidArguments, match=message):
        handler.ordering_key(args)
