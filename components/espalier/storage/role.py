"""Temporary S3 keys for the pod's service account, renewed while the process runs.

A platform that gives pods an identity writes a token into a file and sets AWS_ROLE_ARN and
AWS_WEB_IDENTITY_TOKEN_FILE (EKS does for an annotated service account). STS exchanges the token for
keys that expire after an hour (AssumeRoleWithWebIdentity, docs.aws.amazon.com/STS). minio-py sends
the token in the URL, and its errors and those of urllib3 repeat the URL, so none of these errors
leaves this module.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import urllib3
from minio.credentials.credentials import Credentials
from minio.credentials.providers import Provider, WebIdentityProvider
from urllib3.exceptions import HTTPError

from espalier.records import StorageError

_STS = "https://sts.{region}.amazonaws.com"
_SESSION = "espalier"


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """An IAM role, the file of the pod's token, and the STS server that exchanges it."""

    arn: str
    token_file: str
    endpoint: str
    """URL of the STS server."""


def role_endpoint(named: str | None, region: str) -> str:
    """The address of STS: AWS_ENDPOINT_URL_STS, or Amazon's in `region`.

    Raises:
        StorageError: `named` is not a URL of a server.
    """
    endpoint = (named or _STS.format(region=region)).rstrip("/")
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
        raise StorageError(
            "AWS_ENDPOINT_URL_STS is not the address of a server: write it as https://HOST"
        )
    return endpoint


class RoleProvider(Provider):
    """Keys of a role, requested again with the current token shortly before they expire."""

    def __init__(self, role: Role, pool: urllib3.PoolManager) -> None:
        self._role = role
        self._lock = threading.Lock()
        self._provider = WebIdentityProvider(
            jwt_provider_func=self._token,
            sts_endpoint=role.endpoint,
            role_arn=role.arn,
            role_session_name=_SESSION,
            http_client=pool,
        )

    def retrieve(self) -> Credentials:
        """The current keys.

        Raises:
            HTTPError: STS is unreachable.
            StorageError: STS refuses the token, or there is no token.
        """
        where = f"{self._role.endpoint} (role {self._role.arn})"
        with self._lock:  # transfers of several threads request them at once
            try:
                return self._provider.retrieve()
            except HTTPError as error:
                raise HTTPError(f"{where} is unreachable: {type(error).__name__}") from None
            except ValueError:
                raise StorageError(
                    f"{where} refuses the token of {self._role.token_file}. Does the role trust "
                    "this cluster's issuer and the pod's service account?"
                ) from None

    def _token(self) -> dict[str, str]:
        try:
            return {"access_token": Path(self._role.token_file).read_text(encoding="utf-8").strip()}
        except OSError as error:
            raise StorageError(
                f"{self._role.token_file}: no token of the role {self._role.arn} "
                f"({type(error).__name__}); is the pod's service account annotated?"
            ) from None
