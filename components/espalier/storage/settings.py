"""S3 endpoint and credentials, from the environment or a credentials file."""

from __future__ import annotations

import configparser
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from espalier.records import StorageError
from espalier.storage.role import Role, role_endpoint

_AMAZON = "https://s3.{region}.amazonaws.com"
_DEFAULT_REGION = "us-east-1"


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Retries:
    """Pauses and limits of retries while a server is unreachable or fails (5xx)."""

    first_pause_s: float = 0.5
    longest_pause_s: float = 8.0
    total_s: float = 120.0
    """Retries end after this time; an S3 server restarts in seconds to a minute."""
    timeout_s: float = 60.0
    """Time without data after which an open connection counts as failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Settings:
    """An S3 server with credentials, which `repr` never shows."""

    endpoint: str
    region: str
    access_key: str = field(default="", repr=False)
    secret_key: str = field(default="", repr=False)
    session_token: str | None = field(default=None, repr=False)
    role: Role | None = None
    """Role whose temporary keys are used instead of `access_key` and `secret_key`."""
    ca_bundle: str | None = None
    retries: S3Retries = S3Retries()

    @property
    def host(self) -> str:
        """Host, with the port if there is one."""
        return urlsplit(self.endpoint).netloc

    @property
    def is_encrypted(self) -> bool:
        """Whether the endpoint is https."""
        return urlsplit(self.endpoint).scheme == "https"


def s3_settings(environment: Mapping[str, str]) -> S3Settings:
    """Settings from the environment variables that every S3 client reads.

        server        AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL, else Amazon's; AWS_REGION or
                      AWS_DEFAULT_REGION; AWS_CA_BUNDLE
        credentials   the first of these that is set:
                      AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN;
                      AWS_ROLE_ARN with AWS_WEB_IDENTITY_TOKEN_FILE, exchanged at
                      AWS_ENDPOINT_URL_STS, else at Amazon's STS;
                      the profile AWS_PROFILE of AWS_SHARED_CREDENTIALS_FILE (~/.aws/credentials)

    Raises:
        StorageError: the endpoint is not a URL, or there are no credentials.
    """
    region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION")
    region = region or _DEFAULT_REGION
    endpoint = environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL")
    endpoint = (endpoint or _AMAZON.format(region=region)).rstrip("/")
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.path or parts.query:
        raise StorageError(
            "AWS_ENDPOINT_URL_S3 is not the address of an S3 server: write it as "
            "https://HOST or http://HOST:PORT, without a path"
        )
    if "@" in parts.netloc:
        raise StorageError(
            "AWS_ENDPOINT_URL_S3 holds a user or password; credentials go into AWS_ACCESS_KEY_ID "
            "and AWS_SECRET_ACCESS_KEY, or into a credentials file"
        )
    ca_bundle = environment.get("AWS_CA_BUNDLE")
    if role := _role(environment, region):
        return S3Settings(endpoint=endpoint, region=region, role=role, ca_bundle=ca_bundle)
    access_key, secret_key, session_token = _keys(environment)
    return S3Settings(
        endpoint=endpoint,
        region=region,
        access_key=access_key,
        secret_key=secret_key,
        session_token=session_token,
        ca_bundle=ca_bundle,
    )


def _role(environment: Mapping[str, str], region: str) -> Role | None:
    """The role that the platform gave this pod; as in Amazon's clients, set keys come first."""
    arn, token_file = (
        environment.get(name) for name in ("AWS_ROLE_ARN", "AWS_WEB_IDENTITY_TOKEN_FILE")
    )
    if environment.get("AWS_ACCESS_KEY_ID") or not (arn and token_file):
        return None
    endpoint = role_endpoint(environment.get("AWS_ENDPOINT_URL_STS"), region)
    return Role(arn=arn, token_file=token_file, endpoint=endpoint)


def _keys(environment: Mapping[str, str]) -> tuple[str, str, str | None]:
    access_key = environment.get("AWS_ACCESS_KEY_ID")
    secret_key = environment.get("AWS_SECRET_ACCESS_KEY")
    if access_key and secret_key:
        return access_key, secret_key, environment.get("AWS_SESSION_TOKEN") or None
    if access_key or secret_key:
        missing = "AWS_SECRET_ACCESS_KEY" if access_key else "AWS_ACCESS_KEY_ID"
        raise StorageError(f"{missing} is not set, but the other half of the credentials is")
    return _keys_of_file(environment)


def _keys_of_file(environment: Mapping[str, str]) -> tuple[str, str, str | None]:
    home = Path(environment.get("HOME") or "/")
    named = environment.get("AWS_SHARED_CREDENTIALS_FILE")
    path = Path(named) if named else home / ".aws" / "credentials"
    profile = environment.get("AWS_PROFILE") or "default"
    file = configparser.RawConfigParser()
    try:
        found = file.read(path, encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError, OSError) as error:
        # the parser's message repeats the offending line, which may hold a key
        raise StorageError(
            f"{path}: cannot be read as a credentials file ({type(error).__name__})"
        ) from None
    if not found:
        raise StorageError(
            f"no S3 credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or write {path}"
        )
    try:
        section = file[profile]
        keys = section["aws_access_key_id"], section["aws_secret_access_key"]
    except KeyError as error:
        raise StorageError(
            f"{path}: no {error} for the profile {profile}; set AWS_PROFILE to one that has it"
        ) from None
    return *keys, section.get("aws_session_token")
