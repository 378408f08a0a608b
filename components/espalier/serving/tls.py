"""TLS of the endpoint: a certificate and its key, tried before listening, renewed while it runs."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path
from typing import NamedTuple

from espalier.records import ServingError

log = logging.getLogger(__name__)


class _State(NamedTuple):
    """Tells whether one of two files was replaced."""

    certificate: tuple[int, int]
    key: tuple[int, int]


class TlsFiles:
    """The files of a certificate and its key, and the context that holds them."""

    def __init__(self, certificate: Path, key: Path) -> None:
        """Load and try them.

        Raises:
            ServingError: a file is missing, the key is not the certificate's, or the certificate
                is not valid now, or not for a server.
        """
        self._certificate, self._key = certificate, key
        self._state = self._found()
        self._fault = ""
        self._context = tried_context(certificate, key)

    @property
    def context(self) -> ssl.SSLContext:
        """For connections that are accepted from now on."""
        return self._context

    def refresh(self) -> None:
        """Load the files again if they have changed; what is not valid changes nothing."""
        try:
            state = self._found()
            if state == self._state:
                return
            self._context = tried_context(self._certificate, self._key)
            self._state, self._fault = state, ""
            log.warning("%s: the certificate was renewed", self._certificate)
        except ServingError as error:  # the second of two files may still be on its way
            if str(error) != self._fault:
                self._fault = str(error)
                log.error("the former certificate stays in use: %s", error)

    def _found(self) -> _State:
        return _State(_stat(self._certificate), _stat(self._key))


def tried_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """A server's context of TLS 1.2 or later, once a handshake with itself has succeeded.

    Args:
        certificate: PEM, the server's own first, then those between it and its authority.
        key: PEM, without a passphrase.

    Raises:
        ServingError: see `TlsFiles`.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # a key with a passphrase would be asked for on the terminal
        context.load_cert_chain(certificate, key, password=_refuse_passphrase)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            told = f"{key}: is not the key of {certificate}; name the two that were issued together"
        else:
            told = f"{certificate} and {key}: not a certificate and its key in PEM ({error.reason})"
        raise ServingError(told) from error
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
        raise ServingError(f"{certificate}: no handshake succeeds with it: {error}") from error
    return context


def _shake_hands(context: ssl.SSLContext, certificate: Path) -> None:
    """Complete a handshake in memory, as a client that trusts this very certificate.

    Raises:
        ssl.SSLError: it does not succeed; the name in the certificate is not looked at.
    """
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname = False
    trusting.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    trusting.load_verify_locations(certificate)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trusting.wrap_bio(to_client, to_server)
    server = context.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):  # TLS 1.3 takes two turns of each
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
