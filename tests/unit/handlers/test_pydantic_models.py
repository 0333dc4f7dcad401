"""Handlers whose arguments and results are pydantic models: declared, checked, written and read by pydantic."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, NewType, TypeVar
from uuid import UUID, uuid4

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, HttpUrl, SecretStr, computed_field, field_serializer, field_validator
from typing_extensions import TypeAliasType, TypedDict

from jobmaster.client.published_schema import problems
from jobmaster.codec import encode_args, encode_value
from jobmaster.handlers import Handler, Handlers
from jobmaster.model.errors import ConfigError, InvalidArguments
from jobmaster.model.job import ErrorInfo

T = TypeVar("T")


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Item(BaseModel):
    sku: str
    quantity: int = Field(gt=0)
    price: Decimal = Decimal(1)


class Order(BaseModel):
    id: UUID
    items: list[Item] = Field(min_length=1)
    due: datetime.datetime | None = None
    colour: Colour = Colour.RED
    photo: bytes = b""
    weight: float = 0.0
    tags: frozenset[str] = frozenset()


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"
    lives: int = 9


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"
    good: bool = True


class Page(BaseModel, Generic[T]):
    rows: list[T]


class Named(BaseModel):
    given: str = Field(alias="givenName")


@dataclasses.dataclass
class Parcel:
    order: Order
    raw: bytes = b""


class Extra(TypedDict):
    item: Item


@pydantic.dataclasses.dataclass
class Box:
    width: int = Field(gt=0)


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")
    side: int

    @computed_field  # type: ignore[prop-decorator]  # pydantic's own plugin knows it
    @property
    def area(self) -> int:
        return self.side**2


Orders = TypeAliasType("Orders", list[Order])


class Node(TypedDict, total=False):
    item: Item
    next: Node


ORDER = Order(
    id=uuid4(),
    items=[Item(sku="a", quantity=2, price=Decimal("1.50"))],
    due=datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC),
    colour=Colour.BLUE,
    photo=b"jpeg",
    weight=1.5,
    tags=frozenset("ab"),
)


def place(order: Order, note: str = "") -> Order: ...  # type: ignore[empty-body]


def declared(function: Callable[..., Any], **options: Any) -> Handler:
    return Handlers().add(function, **options)


def sent(handler: Handler, **args: object) -> dict[str, Any]:
    """What the handler gets of arguments that were submitted."""
    data = encode_args(handler.plain(args))
    handler.check(data)
    return handler.decode(data)


PLACE = declared(place, name="place")


def handler_of(annotation: Any) -> Handler:
    def work(value: Any) -> Any: ...

    work.__annotations__ = {"value": annotation, "return": annotation}
    return declared(work, name="work")


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (Order, ORDER),
        (Order | None, ORDER),
        (Order | None, None),
        (list[Order], [ORDER, ORDER]),
        (dict[str, Order], {"a": ORDER}),
        (dict[int, Item], {1: ORDER.items[0]}),
        (tuple[Item, ...], tuple(ORDER.items)),
        (Parcel, Parcel(ORDER, b"raw")),
        (Extra, {"item": ORDER.items[0]}),
        (Box, Box(3)),
        (Cat | Dog, Dog(good=False)),
        (Annotated[Cat | Dog, Field(discriminator="kind")], Cat(lives=3)),
        (Page[Item], Page[Item](rows=ORDER.items)),
        (Named, Named(givenName="Ada")),
        (Strict, Strict(side=3)),
        (HttpUrl, HttpUrl("https://example.org/a")),
        (Annotated[int, Field(gt=3)], 4),
        (pydantic.RootModel[list[int]], pydantic.RootModel[list[int]]([1])),
        (Orders, [ORDER]),
        (NewType("First", Order), ORDER),
        (Node, {"item": ORDER.items[0], "next": {"item": ORDER.items[0]}}),
    ],
    # The order of a set is that of the process, and all processes of a run must have the same names of tests.
    ids=lambda case: str(case).replace(repr(ORDER), "ORDER").replace(str(ORDER), "ORDER"),
)
def test_what_is_sent_is_what_arrives_as_argument_and_as_result(annotation: Any, value: object) -> None:
    handler = handler_of(annotation)
    assert sent(handler, value=value) == {"value": value}
    encoded = handler.encode_result(value, 1 << 20)
    assert isinstance(encoded, bytes | None), encoded
    assert handler.decode_result(encoded) == value


def test_the_plain_form_of_a_model_may_be_sent_too() -> None:
    plain = {"id": str(ORDER.id), "items": [{"sku": "a", "quantity": 2}]}
    got = sent(PLACE, order=plain, note="n")
    assert isinstance(got["order"], Order)
    assert got["order"].items == [Item(sku="a", quantity=2)]
    assert got["note"] == "n"
    assert PLACE.call(encode_args({"order": plain})) is None, "by position, and with a default of Python's"


@pytest.mark.parametrize(
    ("order", "words"),
    [
        ({"id": "x", "items": [{"sku": "a", "quantity": 1}]}, "argument 'order'.id: input should be a valid UUID"),
        (
            {"id": str(ORDER.id), "items": [{"sku": "a", "quantity": 0}, {"sku": 1, "quantity": 1}]},
            "argument 'order'.items[0].quantity: input should be greater than 0; "
            "argument 'order'.items[1].sku: input should be a valid string",
        ),
        ({"items": [{"sku": "a", "quantity": 1}]}, "argument 'order'.id: field required"),
        (3, "argument 'order': input should be"),
        (None, "argument 'order': input should be"),
    ],
)
def test_a_value_that_does_not_fit_is_named_with_its_field(order: object, words: str) -> None:
    with pytest.raises(InvalidArguments) as caught:
        PLACE.check(encode_args(PLACE.plain({"order": order})))
    assert caught.value.message.startswith(f"handler 'place': {words}")
    assert caught.value.hint == "it takes (order, note=...)"


def test_constraints_of_pydantic_hold_outside_models_too() -> None:
    with pytest.raises(InvalidArguments, match=r"argument 'value': input should be greater than 3"):
        handler_of(Annotated[int, Field(gt=3)]).check(b'{"value": 3}')


def test_names_are_checked_before_models_and_many_problems_are_cut() -> None:
    with pytest.raises(InvalidArguments, match=r"missing argument 'order'; unknown argument 'ordr'"):
        PLACE.check(b'{"ordr": {}}')
    items = [{"sku": "a", "quantity": 0}] * 9
    with pytest.raises(InvalidArguments, match=r"; and 4 more"):
        PLACE.check(encode_args({"order": {"id": str(ORDER.id), "items": items}}))


@pytest.mark.parametrize("weight", [float("nan"), float("inf")])
def test_a_float_that_json_cannot_carry_is_refused_in_models_too(weight: float) -> None:
    heavy = ORDER.model_copy(update={"weight": weight})
    with pytest.raises(InvalidArguments, match=r"argument 'order'.*weight.* is (nan|inf)"):
        encode_args(PLACE.plain({"order": heavy}))
    with pytest.raises(InvalidArguments, match=r"argument 'order'.*weight.* is (nan|inf)"):
        encode_args({"order": heavy})
    result = PLACE.encode_result(heavy, 1 << 20)
    assert isinstance(result, ErrorInfo)
    assert "weight" in result.message


def test_a_model_is_written_where_no_annotation_describes_it() -> None:
    """Submits by name, handlers without annotations, and ``cluster.confirm_run``."""
    data = encode_args({"order": ORDER, "url": HttpUrl("https://example.org/")})
    assert PLACE.decode(encode_args({"order": ORDER}))["order"] == ORDER
    assert msgspec.json.decode(data)["url"] == "https://example.org/"
    assert msgspec.json.decode(encode_value(Strict(side=2), "the result")) == {"side": 2}
    with pytest.raises(InvalidArguments, match=r"argument 'it'.*objects of type \w*Path is unsupported"):
        encode_args({"it": Path("a")})


class Login(BaseModel):
    password: SecretStr


class Revealing(BaseModel):
    password: SecretStr

    @field_serializer("password", when_used="json")
    def reveal(self, value: SecretStr) -> str:
        return value.get_secret_value()


def test_a_secret_that_would_arrive_as_asterisks_is_refused() -> None:
    secret, login = SecretStr("x"), Login(password=SecretStr("x"))
    for annotation, value in ((Login, login), (SecretStr, secret), (list[Login], [login])):
        with pytest.raises(InvalidArguments, match=r"argument 'value' holds a secret, .* asterisks"):
            handler_of(annotation).plain({"value": value})
        with pytest.raises(InvalidArguments, match=r"argument 'login' .*asterisks"):
            encode_args({"login": value})
    assert sent(handler_of(Login), value={"password": "x"}) == {"value": login}, "the plain form holds the text"
    got = sent(handler_of(Revealing), value=Revealing(password=SecretStr("x")))["value"]
    assert got.password.get_secret_value() == "x"


class Odd(BaseModel):
    it: int

    @field_validator("it")
    @classmethod
    def broken(cls, value: int) -> int:
        raise KeyError(value)


class Unwritable(BaseModel):
    it: int

    @field_serializer("it")
    def broken(self, value: int) -> str:
        raise KeyError(value)


def test_an_error_inside_a_validator_or_a_serializer_is_one_of_the_argument() -> None:
    with pytest.raises(InvalidArguments, match=r"argument 'value': a validator failed with KeyError: 1"):
        handler_of(Odd).check(b'{"value": {"it": 1}}')
    with pytest.raises(InvalidArguments, match=r"argument 'value' cannot be encoded as JSON"):
        handler_of(Unwritable).plain({"value": Unwritable(it=1)})
    with pytest.raises(InvalidArguments, match=r"argument 'value' cannot be encoded as JSON"):
        encode_args({"value": Unwritable(it=1)})


def test_a_result_that_does_not_fit_is_an_error_of_the_result() -> None:
    wrong = PLACE.encode_result({"id": 3}, 1 << 20)
    assert isinstance(wrong, ErrorInfo)
    assert (wrong.reason, "the result.id: " in wrong.message) == ("result", True)
    assert isinstance(PLACE.encode_result(None, 1 << 20), ErrorInfo)


class Point(msgspec.Struct):
    item: Item


class Anything(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)
    path: subprocess.Popen[bytes]


def test_types_that_cannot_travel_are_refused_when_the_handler_is_declared() -> None:
    for annotation in (Anything, list[Anything], Point, Cat | Point):
        with pytest.raises(ConfigError, match="parameter 'value' has a type that JSON cannot carry"):
            handler_of(annotation)


# ---------------------------------------------------------------- the published schema


def schema_of(handler: Handler) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(handler.spec.schema))
    return found


def test_the_published_schema_names_what_the_model_requires() -> None:
    schema = schema_of(PLACE)
    assert schema["required"] == ["order"]
    assert schema["properties"]["note"]["default"] == ""
    assert set(schema["$defs"]) == {"Order", "Item", "Colour"}
    good = {"order": msgspec.json.decode(ORDER.model_dump_json())}
    assert problems(schema, good) == []
    good["order"]["items"][0]["quantity"] = 0
    assert problems(schema, good) == ["argument 'order'.items[0].quantity: 0 is not more than 0"]
    assert problems(schema, {"order": {}})[0] == "argument 'order': missing field 'id'"


def test_definitions_of_the_same_name_stay_apart() -> None:
    @dataclasses.dataclass
    class Item:
        colour: Colour

    def work(mine: Any, order: Any, also: Any = None) -> None: ...

    work.__annotations__ = {"mine": Item, "order": Order, "also": Order | None}
    schema = schema_of(declared(work, name="w"))
    good = {"mine": {"colour": "red"}, "order": msgspec.json.decode(ORDER.model_dump_json())}
    assert problems(schema, good) == []
    assert problems(schema, {**good, "mine": {"sku": "a", "quantity": 1}}) != []


def test_a_pattern_of_another_engine_leaves_the_check_to_the_agent() -> None:
    class Word(BaseModel):
        text: str = Field(pattern=r"^\p{Lu}+$")

    handler = handler_of(Word)
    assert problems(schema_of(handler), {"value": {"text": "abc"}}) == []
    with pytest.raises(InvalidArguments, match=r"argument 'value'.text: string should match pattern"):
        handler.check(b'{"value": {"text": "abc"}}')


@given(
    st.builds(
        Order,
        items=st.lists(
            st.builds(Item, quantity=st.integers(1, 1 << 70), price=st.decimals(-9, 9, places=2)), min_size=1
        ),
        due=st.none() | st.datetimes(timezones=st.just(datetime.UTC)),
        photo=st.text().map(str.encode),
        weight=st.floats(allow_nan=False, allow_infinity=False),
    )
)
def test_every_model_passes_its_own_check_and_that_of_producers_without_the_code(order: Order) -> None:
    data = encode_args(PLACE.plain({"order": order}))
    assert PLACE.decode(data) == {"order": order}
    assert problems(schema_of(PLACE), msgspec.json.decode(data)) == []


# ---------------------------------------------------------------- programs without pydantic


def test_a_program_without_models_never_loads_pydantic() -> None:
    code = (
        "import sys, asyncio, jobmaster\n"
        "from jobmaster.codec import encode_args\n"
        "handlers = jobmaster.Handlers()\n"
        "@handlers.job\n"
        "def work(path: str, when: dict[str, list[int]] | None = None) -> list[int]: ...\n"
        "handlers.of(work).check(encode_args({'path': 'a'}))\n"
        "try: encode_args({'path': object()})\n"
        "except jobmaster.InvalidArguments as error: print(error.message)\n"
        "print(any(name.partition('.')[0] in ('pydantic', 'pydantic_core', 'fastapi') for name in sys.modules))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines() == [
        "argument 'path' cannot be encoded as JSON: Encoding objects of type object is unsupported",
        "False",
    ]


def test_handlers_without_models_have_the_decoder_of_msgspec_itself() -> None:
    def work(path: str) -> list[int]: ...  # type: ignore[empty-body]

    handler = declared(work)
    assert type(handler._decode) is type(msgspec.json.Decoder().decode)
    assert isinstance(handler._typed_result, msgspec.json.Decoder)
