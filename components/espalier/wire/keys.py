"""API keys of the endpoint, of which the server stores only digests.

A key file has one key per line, its name and SHA-256 digest:

    alice sha256:5e884898da28047151d0e56f8dc6292773603d0d6aabbdd62a11ef721d1542d8

`espalier api-key alice --file api-keys` makes a key, prints it once, and adds such a line. A key
has 256 random bits, so a fast digest is enough: it cannot be guessed.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import re
import secrets
from collections.abc import Mapping
from pathlib import Path

from starlette.requests import Request

from espalier.records import ServingError
from espalier.wire.requests import Refusal

KEYS_VARIABLE = "ESPALIER_API_KEYS"
"""Environment variable with the lines of a key file, for a Kubernetes Secret. It is read once."""
_PREFIX = "esp-"
_LINE = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._@-]{0,63})\s+sha256:(?P<digest>[0-9a-f]{64})")
_FORM = "NAME sha256:DIGEST, as `espalier api-key NAME --file FILE` writes it"

log = logging.getLogger(__name__)


class ApiKeys:
    """The API keys that the server accepts; keys from a file are reloaded when it changes."""

    def __init__(
        self,
        digests: Mapping[str, str],
        path: Path | None = None,
        read: tuple[int, int, int] | None = None,
    ) -> None:
        """Store digests by name, with their file and the state it had before it was read."""
        self._digests = dict(digests)
        self._path, self._read = path, read
        self._fault = ""

    @classmethod
    def open(cls, path: Path | None, environment: Mapping[str, str]) -> ApiKeys | None:
        """Load the keys of a file, or of the environment variable; None if neither is given.

        Raises:
            ServingError: the file cannot be read, a line is malformed, or there is no key.
        """
        if path is not None:
            # take the state first, so that the next refresh sees a change made while reading
            read = _state(path)
            return cls(_read_file(path), path, read)
        given = environment.get(KEYS_VARIABLE)
        return None if given is None else cls(_parsed(given, f"${KEYS_VARIABLE}"))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the keys."""
        return tuple(self._digests)

    def owner(self, key: str) -> str | None:
        """Return the name of a key, None if unknown, in time that does not depend on the match."""
        digest = _digest(key)
        found = None
        for name, known in self._digests.items():
            if hmac.compare_digest(known, digest):
                found = name
        return found

    def refresh(self) -> None:
        """Reload the file if it has changed; keep the current keys if it is invalid.

        A half-written file must not lock anybody out. To revoke a key, delete its line.
        """
        if self._path is None:
            return
        try:
            state = _state(self._path)
            if state == self._read:
                return
            self._digests = _read_file(self._path)
            self._read, self._fault = state, ""
            log.warning("%s: read again, %d keys", self._path, len(self._digests))
        except ServingError as error:
            if str(error) != self._fault:
                self._fault = str(error)
                log.error("the API keys stay as they were: %s", error)


def new_key(name: str, path: Path) -> str:
    """Make a key and append its digest to a file, which is created if missing.

    Returns:
        The key, which is not stored anywhere.

    Raises:
        ServingError: the name is invalid or taken, or the file cannot be written.
    """
    key = f"{_PREFIX}{secrets.token_urlsafe(32)}"
    line = f"{name} sha256:{_digest(key)}"
    if _LINE.fullmatch(line) is None:
        raise ServingError(
            f"{name!r} is not a valid name of a key: letters, digits and ._@-, at most 64 of them"
        )
    try:
        # mode 0600 hides the names of the owners; a digest alone gives no access
        written = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        with os.fdopen(written, "r+", encoding="utf-8") as file:
            held = file.read()
            if name in _parsed(held, str(path), may_be_empty=True):
                raise ServingError(f"{path}: has a key of that name; revoke it, or choose another")
            file.write(f"{line}\n" if not held or held.endswith("\n") else f"\n{line}\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ServingError(f"{path}: keys cannot be kept there ({error})") from error
    return key


def bearer(authorization: str) -> str | None:
    """Return the key of an Authorization header, None if it has no bearer key."""
    scheme, _, key = authorization.strip().partition(" ")
    return key.strip() or None if scheme.lower() == "bearer" else None


def expect_key(request: Request, keys: ApiKeys | None) -> None:
    """Check that a request has a known key; with `keys` None every request passes.

    Raises:
        Refusal: the request has no key, or an unknown one.
    """
    if keys is None:
        return
    key = bearer(request.headers.get("authorization", ""))
    if key is None or keys.owner(key) is None:
        # the key is not repeated: it may be right for another server
        wrong = "no API key was given" if key is None else "the API key is not known here"
        raise Refusal(401, f"{wrong}; send `Authorization: Bearer KEY`", code="invalid_api_key")


def _read_file(path: Path) -> dict[str, str]:
    try:
        return _parsed(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise ServingError(f"{path}: no file of API keys ({error})") from error


def _parsed(text: str, where: str, *, may_be_empty: bool = False) -> dict[str, str]:
    """Return digests by name; error messages never quote a line, which may hold a key."""
    digests: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _LINE.fullmatch(line.strip())
        if match is None:
            raise ServingError(f"{where}, line {number}: is not a key; expected {_FORM}")
        if match["name"] in digests:
            raise ServingError(f"{where}, line {number}: a second key has that name")
        digests[match["name"]] = match["digest"]
    if not digests and not may_be_empty:
        raise ServingError(f"{where}: has no key, so nobody could send requests; expected {_FORM}")
    return digests


def _state(path: Path) -> tuple[int, int, int]:
    try:
        found = path.stat()
    except OSError as error:
        raise ServingError(f"{path}: no file of API keys ({error})") from error
    return found.st_ino, found.st_mtime_ns, found.st_size


def _digest(key: str) -> str:
    # header bytes may be anything and are decoded as Latin-1
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()
