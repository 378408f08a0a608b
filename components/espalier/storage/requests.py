"""The S3 client: time-outs, retries while the server is unreachable, errors with a remedy.

Logs and errors name server, bucket and key but no header, because headers carry the signature.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar
from urllib.parse import urlunsplit
from xml.etree.ElementTree import ParseError

import tenacity
import urllib3
from minio import Minio
from minio.credentials.providers import Provider, StaticProvider
from minio.datatypes import ListMultipartUploadsResult
from minio.error import InvalidResponseError, MinioException, S3Error, ServerError
from minio.helpers import BaseURL, DictType, md5sum_hash, sha256_hash
from minio.signer import sign_v4_s3
from minio.time import to_amz_date, utcnow
from urllib3.exceptions import HTTPError, SSLError

from espalier.records import StorageAwayError, StorageError
from espalier.storage.role import RoleProvider

if TYPE_CHECKING:
    from espalier.storage.settings import S3Settings

Answer = TypeVar("Answer")

TRANSFERS = 4
"""Parallel transfers; one connection to S3 gives about a tenth of a node's bandwidth."""
_CONNECT_TIMEOUT_S = 10.0
_TRANSIENT = frozenset(
    {
        "BadDigest", "IncompleteBody", "InternalError", "OperationAborted", "RequestTimeout",
        "ServiceUnavailable", "SlowDown", "XAmzContentSHA256Mismatch", "XMinioServerNotInitialized",
    }
)  # fmt: skip
"""Error codes worth a retry, including those of a body damaged in transit."""
_CREDENTIALS = frozenset(
    {"ExpiredToken", "InvalidAccessKeyId", "InvalidToken", "SignatureDoesNotMatch"}
)
_MISSING = frozenset({"NoSuchKey", "NoSuchUpload"})
_OVERTAKEN = _MISSING | {"ConditionalRequestConflict", "PreconditionFailed"}
"""Error codes of a conditional write that lost to another one, or that was done already and whose
answer was lost."""

_log = logging.getLogger(__name__)


class Upload(NamedTuple):
    """An incomplete upload."""

    key: str
    upload_id: str
    begun: datetime
    """When it began; `UNKNOWN_TIME` where the server does not say (SeaweedFS)."""


UNKNOWN_TIME = datetime.max.replace(tzinfo=UTC)
"""Stands for the begin of an upload that the server does not tell. It is later than any other time,
so that such an upload is never old enough to be deleted."""


def while_etag(etag: str | None) -> Mapping[str, str]:
    """Headers of the condition that the object has this ETag; for None, that it is absent."""
    return {"If-None-Match": "*"} if etag is None else {"If-Match": f'"{etag}"'}


def etag_of(response: urllib3.BaseHTTPResponse) -> str:
    """The ETag in a response, without its quotes; "" if there is none."""
    return response.headers.get("ETag", "").strip('"')


class TransferAbandoned(Exception):
    """The transfer is no longer needed: the event `given_up` of `S3Requests` is set."""


class S3Requests:
    """Sends requests to one server and retries transient failures."""

    def __init__(
        self,
        settings: S3Settings,
        pool: urllib3.PoolManager | None = None,
        *,
        given_up: threading.Event | None = None,
    ) -> None:
        """Create the client; no request is sent yet.

        Args:
            settings: endpoint and credentials of the server.
            pool: sends the requests; None makes one with the time-outs of `settings`.
            given_up: once it is set, the next request raises `TransferAbandoned`, so that a
                transfer in another thread ends after the part that it is sending.
        """
        retries = settings.retries
        self._settings = settings
        self._given_up = given_up
        pool = pool or urllib3.PoolManager(
            timeout=urllib3.Timeout(connect=_CONNECT_TIMEOUT_S, read=retries.timeout_s),
            maxsize=TRANSFERS,
            retries=False,  # `send` retries, also when a connection breaks inside a body
            ca_certs=settings.ca_bundle or os.environ.get("SSL_CERT_FILE"),
        )
        self._pool = pool
        if settings.role is not None:
            self._credentials: Provider = RoleProvider(settings.role, pool)
        else:
            self._credentials = StaticProvider(
                settings.access_key, settings.secret_key, settings.session_token
            )
        self._addresses = BaseURL(settings.endpoint, settings.region)
        self.client = Minio(
            settings.host,
            credentials=self._credentials,
            secure=settings.is_encrypted,
            region=settings.region,  # else minio requests the bucket's region first
            http_client=pool,
        )

    def send(self, what: str, request: Callable[[], Answer]) -> Answer:
        """The result of `request`, retried while the server is unreachable.

        Args:
            what: the action, for messages: "read s3://bucket/key".
            request: called once per attempt.

        Raises:
            StorageAwayError: no valid answer for `retries.total_s`.
            StorageError: the server refuses.
            TransferAbandoned: `given_up` is set.
        """
        given_up = self._given_up

        def attempt() -> Answer:
            if given_up is not None and given_up.is_set():
                raise TransferAbandoned(what)
            return request()

        def pause(seconds: float) -> None:
            if given_up is None:
                tenacity.nap.sleep(seconds)
            else:
                given_up.wait(seconds)

        retries = self._settings.retries
        repeating = tenacity.Retrying(
            retry=tenacity.retry_if_exception(_is_transient),
            wait=tenacity.wait_exponential(
                multiplier=retries.first_pause_s, max=retries.longest_pause_s
            ),
            stop=_LongAfterTheFirstFault(retries.total_s),
            before_sleep=partial(self._log_pause, what),
            sleep=pause,
            reraise=True,
        )
        try:
            return repeating(attempt)
        except (HTTPError, MinioException, ParseError) as error:
            if not _is_transient(error):
                raise self._refusal(what, error) from error
            raise StorageAwayError(
                f"{self._settings.endpoint}: could not {what} for "
                f"{retries.total_s:g} s, last because of {_named(error)}. Check the "
                "S3 server, or correct AWS_ENDPOINT_URL_S3; then run the same command again"
            ) from error

    def send_or_none(self, what: str, request: Callable[[], Answer]) -> Answer | None:
        """`send`, but None if the object or the upload does not exist."""
        return self.send(what, _none_where(_MISSING, request))

    def send_if(self, what: str, request: Callable[[], Answer]) -> Answer | None:
        """`send` a conditional write, but None if its condition does not hold.

        A write whose answer was lost is sent again and then fails on the object that it wrote
        itself. So after None the caller has to read the object.
        """
        return self.send(what, _none_where(_OVERTAKEN, request))

    def ask(
        self,
        method: str,
        bucket: str,
        key: str | None = None,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> urllib3.BaseHTTPResponse:
        """Send one request that `client` has no method for: a conditional one, or one of an upload.

        The server compares the body with the signed SHA-256 and with the MD5, which a bucket with
        Object Lock requires.

        Raises:
            HTTPError: the server is unreachable.
            MinioException: the server refuses.
        """
        region = self._settings.region
        url = self._addresses.build(
            method=method, region=region, bucket_name=bucket, object_name=key,
            query_params=dict(query or {}),
        )  # fmt: skip
        keys, date, digest = self._credentials.retrieve(), utcnow(), sha256_hash(body)
        sent: DictType = {
            "Host": url.netloc, "x-amz-date": to_amz_date(date), "x-amz-content-sha256": digest,
        }  # fmt: skip
        if keys.session_token:
            sent["x-amz-security-token"] = keys.session_token
        if body is not None:
            sent["Content-MD5"] = md5sum_hash(body) or ""
        signed = sign_v4_s3(
            method=method, url=url, region=region, headers=sent | dict(headers or {}),
            credentials=keys, content_sha256=digest, date=date,
        )  # fmt: skip
        response = self._pool.urlopen(method, urlunsplit(url), body=body, headers=signed)
        if response.status < 300:
            return response
        kind = response.headers.get("Content-Type", "")
        if "xml" not in kind:
            raise InvalidResponseError(
                response.status, kind, response.data.decode(errors="replace")
            )
        raise S3Error.fromxml(response)

    def put(
        self, bucket: str, key: str, content: bytes, condition: Mapping[str, str] | None = None
    ) -> str | None:
        """Write an object in one request, on a condition (`while_etag`) or without one.

        Returns:
            Its ETag; None if the condition does not hold.

        Raises:
            StorageError: the server refuses or is unreachable.
        """
        send = self.send if condition is None else self.send_if
        return send(
            f"write s3://{bucket}/{key}",
            lambda: etag_of(self.ask("PUT", bucket, key, body=content, headers=condition)),
        )

    def uploads_below(self, bucket: str, prefix: str) -> list[Upload]:
        """Incomplete uploads of all objects whose key begins with `prefix`.

        MinIO answers this for whole keys only; it deletes uploads of over a day itself.

        Raises:
            StorageError: the server refuses or is unreachable.
        """
        found: list[Upload] = []
        query = {"uploads": "", "prefix": prefix, "encoding-type": "url"}
        while True:
            page = self.send(
                f"list uploads below s3://{bucket}/{prefix}",
                lambda: ListMultipartUploadsResult(self.ask("GET", bucket, query=query)),
            )
            found += [
                Upload(upload.object_name, upload.upload_id, upload.initiated_time or UNKNOWN_TIME)
                for upload in page.uploads
                if upload.object_name and upload.upload_id
            ]
            if not (page.is_truncated and page.next_key_marker):
                return found
            query["key-marker"] = page.next_key_marker

    def forget_upload(self, bucket: str, key: str, upload_id: str) -> None:
        """Delete an incomplete upload and its parts, if it still exists.

        Raises:
            StorageError: the server refuses or is unreachable.
        """
        self.send_or_none(
            f"delete an upload of s3://{bucket}/{key}",
            lambda: self.ask("DELETE", bucket, key, query={"uploadId": upload_id}),
        )

    def _log_pause(self, what: str, state: tenacity.RetryCallState) -> None:
        fault = state.outcome.exception() if state.outcome else None
        assert fault is not None, "a pause follows a failed attempt"
        _log.warning(
            "%s: could not %s (%s), next attempt in %g s",
            self._settings.endpoint, what, _named(fault), state.upcoming_sleep,
        )  # fmt: skip

    def _refusal(self, what: str, error: Exception) -> StorageError:
        code = error.code if isinstance(error, S3Error) else None
        if code == "NoSuchBucket":
            remedy = "There is no such bucket: create it, or correct the URI"
        elif code in _MISSING:
            remedy = "There is no such object"
        elif code == "AccessDenied":
            remedy = "The credentials do not allow it"
        elif code in _CREDENTIALS:
            remedy = (
                "The server does not accept the credentials: correct AWS_ACCESS_KEY_ID and "
                "AWS_SECRET_ACCESS_KEY, or the credentials file"
            )
        elif code in ("NotImplemented", "MethodNotAllowed"):
            remedy = "Artifacts need a server with conditional writes (If-None-Match, If-Match)"
        elif code == "RequestTimeTooSkewed":
            remedy = "The clocks of this machine and of the server differ: set them"
        else:
            remedy = "Is AWS_ENDPOINT_URL_S3 an S3 server?"
        return StorageError(
            f"{self._settings.endpoint}: could not {what} ({_named(error)}). {remedy}"
        )


def _none_where(
    codes: frozenset[str], request: Callable[[], Answer]
) -> Callable[[], Answer | None]:
    """The request, with None as the result of a refusal with one of the codes."""

    def attempt() -> Answer | None:
        try:
            return request()
        except S3Error as error:
            if error.code in codes:
                return None
            raise

    return attempt


class _LongAfterTheFirstFault:
    """Stop if the next attempt would start over `total_s` after the first failure.

    tenacity's own stop rules count from the start of the first attempt, but the transfer of a large
    body may take longer than `total_s` before its connection breaks.
    """

    def __init__(self, total_s: float) -> None:
        self._total_s = total_s
        self._first_fault_s: float | None = None

    def __call__(self, state: tenacity.RetryCallState) -> bool:
        now_s = state.outcome_timestamp
        assert now_s is not None, "an attempt has ended before this"
        if self._first_fault_s is None:
            self._first_fault_s = now_s
        return now_s + state.upcoming_sleep > self._first_fault_s + self._total_s


def _is_transient(error: BaseException) -> bool:
    if isinstance(error, S3Error):
        return error.code in _TRANSIENT or error.response.status in (408, 429, 500, 502, 503, 504)
    if isinstance(error, ServerError):
        return error.status_code >= 500
    if isinstance(error, InvalidResponseError):
        # it has no public attribute for its status; the server's own text comes after that
        return str(error).partition("Response code: ")[2].startswith("5")
    return isinstance(error, HTTPError | ParseError) and not isinstance(error, SSLError)


def _named(error: BaseException) -> str:
    if isinstance(error, S3Error):
        return f"{error.code}: {error.message}" if error.message else f"{error.code}"
    return f"{type(error).__name__}: {error}"
