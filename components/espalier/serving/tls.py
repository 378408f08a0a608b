"""TLS of the endpoint: a certificate and key that are checked by a handshake and can be renewed."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path
from typing import NamedTuple

from espalier.records import ServingError

log = logging.getLogger(__name__)


class _State(NamedTuple):
    """Inode and modification time (ns) of both files; a change means a renewed certificate."""

    certificate: tuple[int, int]
    key: tuple[int, int]


class TlsFiles:
    """The files of a certificate and its key, and the TLS context made from them."""

    def __init__(self, certificate: Path, key: Path) -> None:
        """Load the files and check them with a handshake.

        Raises:
            ServingError: a file is missing, the key does not belong to the certificate, or the
                certificate is not valid now or not for a server.
        """
        self._certificate, self._key = certificate, key
        self._state = self._found()
        self._fault = ""
        self._context = tried_context(certificate, key)

    @property
    def context(self) -> ssl.SSLContext:
        """The context for new connections."""
        return self._context

    def refresh(self) -> None:
        """Load the files again if they have changed; ignore them where they are invalid."""
        try:
            state = self._found()
            if state == self._state:
                return
            self._context = tried_context(self._certificate, self._key)
            self._state, self._fault = state, ""
            log.warning("%s: the certificate was renewed", self._certificate)
        except ServingError as error:  # the second of the two files may not be written yet
            if str(error) != self._fault:
                self._fault = str(error)
                log.error("the former certificate stays in use: %s", error)

    def _found(self) -> _State:
        return _State(_stat(self._certificate), _stat(self._key))


def tried_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """A server's context of TLS 1.2 or later, checked by a handshake in memory.

    Args:
        certificate: PEM, the server's certificate first, then the intermediate ones.
        key: PEM, without a passphrase.

    Raises:
        ServingError: see `TlsFiles`.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # without `password`, OpenSSL would ask for a passphrase on the terminal
        context.load_cert_chain(certificate, key, password=_refuse_passphrase)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            why = f"{key}: is not the key of {certificate}; name the two that were issued together"
        else:
            why = f"{certificate} and {key}: not a certificate and its key in PEM ({error.reason})"
        raise ServingError(why) from error
    except OSError as error:
        raise ServingError(
            f"{certificate} or {key}: cannot be read ({error.strerror or error})"
        ) from error
    try:
        _shake_hands(context, certificate)
    except ssl.SSLCertVerificationError as error:
        raise ServingError(
            f"{certificate}: clients would refuse it: {error.verify_message}. Renew it"
        ) from error
    except ssl.SSLError as error:
        raise ServingError(f"{certificate}: a handshake with it fails: {error}") from error
    return context


def _shake_hands(context: ssl.SSLContext, certificate: Path) -> None:
    """Complete a handshake in memory with a client that trusts this certificate.

    The host name in the certificate is not checked.

    Raises:
        ssl.SSLError: the handshake fails.
    """
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname = False
    trusting.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    trusting.load_verify_locations(certificate)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trusting.wrap_bio(to_client, to_server)
    server = context.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):  # a handshake of TLS 1.3 takes two turns of each side; 4 leaves room
        for side in (client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue


def _refuse_passphrase() -> str:
    raise ServingError("the key of the certificate has a passphrase; store it without one")


def _stat(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError as error:
        raise ServingError(f"{path}: cannot be read ({error.strerror})") from error
    return found.st_ino, found.st_mtime_ns
