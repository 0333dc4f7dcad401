"""A server with TLS in front of one without: real handshakes, certificates of a private authority, and nothing else changed.

The servers that the tests start are built without TLS. A client of a store begins with the handshake; one of PostgreSQL asks
for it first (``SSLRequest``).
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import ipaddress
import ssl
import struct
from pathlib import Path
from types import TracebackType
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_SSL_REQUEST = struct.pack(">ii", 8, 80877103)
_DAY = datetime.timedelta(days=1)


class Authority:
    """A certificate authority of one test; its certificate is the file ``root``."""

    def __init__(self, directory: Path, name: str = "authority") -> None:
        self._directory, self._name = directory, name
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = self._builder(self._subject, self._key.public_key())
        certificate = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True).sign(
            self._key, hashes.SHA256()
        )
        self.root = directory / f"{name}.pem"
        self.root.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def server_context(self, host: str) -> ssl.SSLContext:
        """For a server of this host name."""
        key = ec.generate_private_key(ec.SECP256R1())
        names: list[x509.GeneralName] = [x509.DNSName(host)]
        with contextlib.suppress(ValueError):
            names = [x509.IPAddress(ipaddress.ip_address(host))]
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
        certificate = (
            self._builder(subject, key.public_key())
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        path = self._directory / f"{self._name}-{host}.pem"
        path.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
            + certificate.public_bytes(serialization.Encoding.PEM)
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(path)
        return context

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._subject)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _DAY)
            .not_valid_after(now + _DAY)
        )


class TlsFront:
    """Listens on 127.0.0.1 and passes on what comes through TLS.

    Args:
        socket: the unix socket of the server behind it.
        postgres: the client asks for TLS before its handshake; one that does not ask is cut.
    """

    def __init__(self, socket: str, context: ssl.SSLContext, *, postgres: bool = False) -> None:
        self._socket, self._context, self._postgres = socket, context, postgres
        self._server: asyncio.Server | None = None
        self._passing: set[asyncio.Task[None]] = set()
        self.port = 0
        self.passed = 0
        """Connections with a finished handshake."""

    async def __aenter__(self) -> Self:
        context = None if self._postgres else self._context
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, ssl=context)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in tuple(self._passing):
            task.cancel()
        await asyncio.gather(*self._passing, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._passing.add(task)
        try:
            with contextlib.suppress(OSError, EOFError):
                if self._postgres:
                    if await reader.readexactly(8) != _SSL_REQUEST:
                        return
                    writer.write(b"S")
                    await writer.start_tls(self._context)
                self.passed += 1
                behind, to_behind = await asyncio.open_unix_connection(self._socket)
                await asyncio.gather(_copy(reader, to_behind), _copy(behind, writer))
        finally:
            self._passing.discard(task)
            writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    finally:
        writer.close()
