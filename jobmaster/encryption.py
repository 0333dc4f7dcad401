"""Payloads that the servers cannot read: AES-GCM over arguments, results and error texts, with keys that rotate.

A sealed value is the JSON object ``{"$sealed": "<key id>.<scope>.<nonce and ciphertext>"}``, so that it fits every column
and entry. What it belongs to is authenticated with it: the kind of value, the handler, and the id of the job (scope ``job``);
or the handler alone (scope ``handler``) where the id is decided later, as with an idempotency key. A value that was moved to
another place does not open.

The nonce is made from the value and its place (a keyed hash, as in a synthetic initialisation vector): the same submit sent
again has the same bytes, which is how the cluster knows it again. So a reader of the servers sees that two values of one job
are equal, and nothing else. Source of the idea: RFC 5297 for the nonce, the payload codecs of Temporal for the place.

A sealed value is also proof that a program with a key has made it, so a cluster can ask for it: the jobs of handlers in
``encryption.require`` do not run without. A signature beside the arguments would prove the same with a second kind of keys.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Collection, Mapping
from enum import StrEnum

import msgspec

from jobmaster.distribution import install_command
from jobmaster.model.errors import ConfigError, Refused
from jobmaster.model.job import SEALED_TEXT_PREFIX, ErrorInfo
from jobmaster.model.job_view import JobView

KEY_BYTES = 32
EVERY_HANDLER = "*"
"""In ``encryption.require``: the jobs of all handlers."""
_PREFIX = b'{"$sealed":'
_NONCE_BYTES = 12


class SealKind(StrEnum):
    """What a value is."""

    ARGUMENTS = "argument object"
    RESULT = "result"
    ERROR = "error"


class CannotOpen(Refused):
    """A sealed value cannot be read: its key is missing, or it is not the value that was sealed here."""


class NotSealed(CannotOpen):
    """The arguments of a job are plain, and its handler takes sealed ones alone."""


class _Sealed(msgspec.Struct):
    text: str = msgspec.field(name="$sealed")


class _ErrorText(msgspec.Struct, array_like=True):
    message: str
    traceback: str


def is_sealed(data: bytes | None) -> bool:
    """True for a value that was sealed."""
    return data is not None and data.startswith(_PREFIX)


class PayloadCipher:
    """Seals and opens values with the keys of a cluster.

    Args:
        keys: key id -> base64 of 32 bytes.
        active: id of the key that seals; ``None``: values are opened only.
        required: names of the handlers whose jobs run with sealed arguments alone; ``EVERY_HANDLER`` means all.

    Raises:
        ConfigError: a key is none, the active one is missing, or the extra ``encryption`` is not installed.
    """

    def __init__(self, keys: Mapping[str, str], active: str | None, required: Collection[str] = ()) -> None:
        try:
            from cryptography.exceptions import InvalidTag
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ImportError:
            hint = install_command("encryption")
            raise ConfigError("encryption needs the package cryptography, which is not installed", hint=hint) from None
        self._invalid = InvalidTag
        raw = {name: _key_bytes(name, text) for name, text in keys.items()}
        self._ciphers = {name: AESGCM(hmac.digest(key, b"jobmaster encryption", "sha256")) for name, key in raw.items()}
        self._nonce_keys = {name: hmac.digest(key, b"jobmaster nonce", "sha256") for name, key in raw.items()}
        if active is not None and active not in raw:
            raise ConfigError(f"encryption.active names the key {active!r}, which is not among encryption.keys")
        self._active = active
        self._required = frozenset(required)

    @property
    def seals(self) -> bool:
        """There is an active key."""
        return self._active is not None

    def seal(self, kind: SealKind, handler: str, job_id: bytes | None, data: bytes) -> bytes:
        """A value as it is stored.

        Args:
            job_id: ``None``: the value belongs to the handler, whichever job it is of.
        """
        return msgspec.json.encode(_Sealed(self._sealed(kind, handler, job_id, data)))

    def open(self, kind: SealKind, handler: str, job_id: bytes, data: bytes) -> bytes:
        """The value; one that was not sealed is itself.

        Raises:
            CannotOpen: its key is missing, or it belongs to something else.
        """
        if not data.startswith(_PREFIX):
            return data
        try:
            text = msgspec.json.decode(data, type=_Sealed).text
        except msgspec.DecodeError:
            return data  # an argument of that name
        return self._opened(kind, handler, job_id, text)

    def requires(self, handler: str) -> bool:
        """The jobs of the handler run with sealed arguments alone."""
        return handler in self._required or EVERY_HANDLER in self._required

    def open_arguments(self, handler: str, job_id: bytes, data: bytes) -> bytes:
        """The arguments of a job that is to run, or to be submitted again.

        Raises:
            NotSealed: they are plain, and the handler takes sealed ones alone.
            CannotOpen: as ``open``.
        """
        opened = self.open(SealKind.ARGUMENTS, handler, job_id, data)
        if opened is data and self.requires(handler):
            raise NotSealed(
                f"the arguments of a job of handler {handler!r} are not sealed, and encryption.require names the handler",
                hint="a program without the key has made the job, or a way of submit that seals nothing (docs/security.md)",
            )
        return opened

    def seal_error(self, handler: str, job_id: bytes, info: ErrorInfo) -> ErrorInfo:
        """An error whose message and traceback cannot be read without a key. Its type and reason stay."""
        data = msgspec.json.encode(_ErrorText(info.message, info.traceback))
        text = self._sealed(SealKind.ERROR, handler, job_id, data)
        return msgspec.structs.replace(info, message=SEALED_TEXT_PREFIX + text, traceback="")

    def open_error(self, handler: str, job_id: bytes, info: ErrorInfo) -> ErrorInfo:
        """The error as it was raised; ``CannotOpen`` as ``open``."""
        if not info.message.startswith(SEALED_TEXT_PREFIX):
            return info
        data = self._opened(SealKind.ERROR, handler, job_id, info.message.removeprefix(SEALED_TEXT_PREFIX))
        text = msgspec.json.decode(data, type=_ErrorText)
        return msgspec.structs.replace(info, message=text.message, traceback=text.traceback)

    def _sealed(self, kind: SealKind, handler: str, job_id: bytes | None, data: bytes) -> str:
        name = self._active
        assert name is not None, "nothing is sealed without an active key"
        place = _place(kind, handler, job_id)
        nonce = hmac.new(self._nonce_keys[name], place + data, hashlib.sha256).digest()[:_NONCE_BYTES]
        sealed = nonce + self._ciphers[name].encrypt(nonce, data, place)
        scope = "handler" if job_id is None else "job"
        return f"{name}.{scope}.{base64.urlsafe_b64encode(sealed).decode()}"

    def _opened(self, kind: SealKind, handler: str, job_id: bytes, text: str) -> bytes:
        name, _, rest = text.partition(".")
        scope, _, encoded = rest.partition(".")
        cipher = self._ciphers.get(name)
        if cipher is None:
            raise CannotOpen(
                f"the {kind.value} of a job of handler {handler!r} needs the key {name[:40]!r}, which is not known here",
                hint="add it to encryption.keys",
            )
        try:
            sealed = base64.b64decode(encoded, altchars=b"-_", validate=True)
            place = _place(kind, handler, job_id if scope == "job" else None)
            return cipher.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], place)
        except (self._invalid, binascii.Error, ValueError):
            raise CannotOpen(
                f"the {kind.value} of a job of handler {handler!r} is not what was sealed for it",
                hint="they were changed, moved from another job, or sealed with another key of the same id",
            ) from None


def _place(kind: SealKind, handler: str, job_id: bytes | None) -> bytes:
    """What a value belongs to; no two places have the same bytes."""
    return msgspec.json.encode(["jobmaster 1", kind.value, handler, None if job_id is None else job_id.hex()])


def _key_bytes(name: str, text: str) -> bytes:
    try:
        key = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) != KEY_BYTES:
        raise ConfigError(
            f"encryption.keys.{name} is not base64 of {KEY_BYTES} bytes",
            hint="make one with: python -c 'import os, base64; print(base64.b64encode(os.urandom(32)).decode())'",
        )
    return key


def cipher_of(keys: Mapping[str, str], active: str | None, required: Collection[str]) -> PayloadCipher | None:
    """The cipher of a cluster; ``None``: it has no keys, and nothing is sealed or opened."""
    return PayloadCipher(keys, active, required) if keys else None


def opened_view(cipher: PayloadCipher | None, view: JobView) -> JobView:
    """A job with its arguments, result and error opened; ``CannotOpen`` as ``PayloadCipher.open``."""
    if cipher is None:
        return view
    job_id, handler, result, error = view.id_bytes, view.handler, view.result_json, view.error
    return msgspec.structs.replace(
        view,
        arguments_json=cipher.open(SealKind.ARGUMENTS, handler, job_id, view.arguments_json),
        result_json=None if result is None else cipher.open(SealKind.RESULT, handler, job_id, result),
        error=None if error is None else cipher.open_error(handler, job_id, error),
    )
