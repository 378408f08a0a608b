"""An S3 server on loopback, in this process: signatures, checksums, multipart, faults on demand.

It speaks as much of the protocol as espalier does, by Amazon's API reference: path-style addresses,
Signature Version 4 in the header, ListObjectsV2, multipart uploads with parts of 5 MiB at least,
writes on the condition of an ETag. tests/unit/storage/test_conformance.py asks it and a real server
the same questions. `InMemoryPool` answers a client in the same process, without a socket.
"""

import base64
import hashlib
import hmac
import io
import re
import threading
import time
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import format_datetime
from http.client import HTTPMessage
from typing import NamedTuple
from urllib.parse import parse_qsl, quote, unquote, urlsplit
from xml.sax.saxutils import escape

import urllib3

from tests.fakes.loopback import Handler, Server, serving

ACCESS_KEY, SECRET_KEY, REGION, BUCKET = "reader", "not-for-any-log", "us-east-1", "espalier"
MIN_PART_BYTES = 5 << 20


@dataclass
class Fault:
    """What becomes of the next `times` requests that `method` and `pattern` of the path match."""

    method: str
    pattern: str
    kind: str
    """error: HTTP 500; slow: one second of silence; drop: no answer; half: half of the body;
    lost: done, but not answered; other bytes: the body damaged."""
    times: int = 1


class Object(NamedTuple):
    content: bytes
    etag: str
    modified: datetime = datetime(2026, 3, 4, 12, tzinfo=UTC)


class Upload(NamedTuple):
    key: str
    parts: dict  # part number -> content
    begun: datetime


@dataclass
class Bucket:
    objects: dict = field(default_factory=dict)  # key -> Object
    uploads: dict = field(default_factory=dict)  # upload id -> Upload
    num_uploads: int = 0


class Refusal(Exception):
    def __init__(self, status, code, message=""):
        super().__init__(code)
        self.status, self.code, self.message = status, code, message

    def answer(self, method):
        text = f"<Code>{self.code}</Code><Message>{escape(self.message)}</Message>"
        content = b"" if method == "HEAD" else f"<Error>{text}</Error>".encode()
        return self.status, {"Content-Type": "application/xml"}, content


class S3StandIn:
    def __init__(self):
        self.buckets = {BUCKET: Bucket()}
        self.faults = []
        self.answer = lambda *asked: _handled(*asked)
        self.requests = []  # "PUT /espalier/key?query"
        self.lock = threading.Lock()
        self.page = 3  # objects of a listing, few so that paging is met
        self.now = lambda: datetime.now(UTC)
        self.dates_uploads = True  # SeaweedFS lists them without the time of their begin
        self.endpoint = "http://in.memory"

    @property
    def environment(self):
        return {
            "AWS_ENDPOINT_URL_S3": self.endpoint,
            "AWS_REGION": REGION,
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        }

    @property
    def objects(self):
        return self.buckets[BUCKET].objects

    def fail(self, method, pattern, kind, times=1):
        self.faults.append(Fault(method, pattern, kind, times))

    def counted(self, method, pattern=""):
        return sum(
            line.startswith(f"{method} ") and bool(re.search(pattern, line))
            for line in self.requests
        )

    def methods(self):
        return Counter(line.split()[0] for line in self.requests)

    def take_fault(self, method, path):
        with self.lock:
            for fault in self.faults:
                if fault.times and fault.method == method and re.search(fault.pattern, path):
                    fault.times -= 1
                    return fault.kind
        return None


@contextmanager
def s3_stand_in():
    stand_in = S3StandIn()
    server = Server(_Handler)
    server.stand_in = stand_in
    stand_in.endpoint = server.address
    with serving(server):
        yield stand_in


class _Asked(NamedTuple):
    command: str
    path: str
    headers: HTTPMessage


class InMemoryPool(urllib3.PoolManager):
    """Answers requests in this process; `before` and `after` may raise instead."""

    def __init__(self, stand_in, before=None, after=None):
        super().__init__()
        self._stand_in = stand_in
        self._before, self._after = before or _nothing, after or _nothing

    def urlopen(self, method, url, **given):
        body = given.get("body") or b""
        headers = HTTPMessage()
        parts = urlsplit(url)
        for name, value in {"Host": parts.netloc, **given["headers"]}.items():
            headers[name] = value
        path = f"{parts.path}?{parts.query}" if parts.query else parts.path
        line = f"{method} {path}"
        self._before(line)
        try:
            _check_signature(method, path, headers, body)
            with self._stand_in.lock:
                status, said, content = self._stand_in.answer(
                    self._stand_in, _Asked(method, path, headers), body
                )
        except Refusal as refusal:
            status, said, content = refusal.answer(method)
        self._after(line)
        length = said.pop("X-Length", len(content))
        return urllib3.HTTPResponse(
            body=io.BytesIO(b"" if method == "HEAD" else content),
            headers={**said, "Content-Length": str(length)},
            status=status,
            preload_content=given.get("preload_content", True),
            request_method=method,
        )


def _nothing(_):
    pass


class _Handler(Handler):
    def _answer(self):
        with suppress(ConnectionError):  # the other side may have given up waiting
            self._answer_or_fail()

    def _answer_or_fail(self):
        stand_in = self.server.stand_in
        body = self.read_body()
        stand_in.requests.append(f"{self.command} {self.path}")
        kind = stand_in.take_fault(self.command, self.path)
        if kind == "slow":
            time.sleep(1.0)
        try:
            if kind == "error":
                raise Refusal(500, "InternalError", "a fault that the test asked for")
            if kind == "drop":
                return self._hang_up()
            _check_signature(self.command, self.path, self.headers, body)
            with stand_in.lock:
                status, headers, content = stand_in.answer(stand_in, self, body)
        except Refusal as refusal:
            status, headers, content = refusal.answer(self.command)
        if kind == "lost":
            return self._hang_up()
        if kind == "other bytes":
            content = bytes(byte ^ 1 for byte in content)
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", headers.get("X-Length", len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content[: len(content) // 2] if kind == "half" else content)
        return self._hang_up() if kind == "half" else None

    def _hang_up(self):
        self.close_connection = True

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _answer


def _handled(stand_in, request, body):
    parts = urlsplit(request.path)
    name, _, key = unquote(parts.path).removeprefix("/").partition("/")
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    if not key and request.command == "PUT":
        stand_in.buckets.setdefault(name, Bucket())
        return 200, {}, b""
    bucket = stand_in.buckets.get(name)
    if bucket is None:
        raise Refusal(404, "NoSuchBucket", f"no bucket {name}")
    sent_md5 = request.headers.get("Content-MD5")
    if sent_md5 and base64.b64decode(sent_md5) != hashlib.md5(body).digest():
        raise Refusal(400, "BadDigest", "Content-MD5 is of other bytes")
    if not key:
        return 200, {"Content-Type": "application/xml"}, _listing(stand_in, name, bucket, query)
    if "uploads" in query or "uploadId" in query:
        return _multipart(bucket, request.command, key, query, body, stand_in.now())
    return _object(bucket, request, key, body, stand_in.now())


def _expect_condition(headers, present):
    """As Amazon's "conditional writes": a write that it forbids changes nothing."""
    if headers.get("If-None-Match") == "*" and present is not None:
        raise Refusal(412, "PreconditionFailed", "there is an object")
    wanted = headers.get("If-Match")
    if wanted and present is None:
        raise Refusal(404, "NoSuchKey", "no such key")
    if wanted and wanted.strip('"') != present.etag:
        raise Refusal(412, "PreconditionFailed", "another object is there")


def _object(bucket, request, key, body, now):
    if request.command == "PUT":
        _expect_condition(request.headers, bucket.objects.get(key))
        etag = hashlib.md5(body).hexdigest()
        bucket.objects[key] = Object(body, etag, now)
        return 200, {"ETag": f'"{etag}"'}, b""
    if request.command == "DELETE":
        bucket.objects.pop(key, None)
        return 204, {}, b""
    if key not in bucket.objects:
        if request.command == "HEAD":
            return 404, {}, b""
        raise Refusal(404, "NoSuchKey", "no such key")
    content, etag, modified = Object(*bucket.objects[key])
    headers = {"ETag": f'"{etag}"', "Last-Modified": format_datetime(modified, usegmt=True)}
    if request.command == "HEAD":
        return 200, headers | {"X-Length": len(content)}, b""
    if wanted := request.headers.get("Range"):
        start, last = re.fullmatch(r"bytes=(\d+)-(\d*)", wanted).groups()
        start, end = int(start), int(last or len(content)) + 1
        if start >= len(content):
            raise Refusal(416, "InvalidRange", "beyond the end")
        part = content[start:end]
        headers["Content-Range"] = f"bytes {start}-{start + len(part) - 1}/{len(content)}"
        return 206, headers, part
    return 200, headers, content


def _multipart(bucket, command, key, query, body, now):
    xml = {"Content-Type": "application/xml"}
    if command == "POST" and "uploads" in query:
        upload_id = f"upload-{bucket.num_uploads}"
        bucket.num_uploads += 1
        bucket.uploads[upload_id] = Upload(key, {}, now)
        return 200, xml, f"<R><UploadId>{upload_id}</UploadId></R>".encode()
    upload_id = query["uploadId"]
    if upload_id not in bucket.uploads or bucket.uploads[upload_id].key != key:
        raise Refusal(404, "NoSuchUpload", "no such upload")
    parts = bucket.uploads[upload_id].parts
    if command == "PUT":
        parts[int(query["partNumber"])] = body
        return 200, {"ETag": f'"{hashlib.md5(body).hexdigest()}"'}, b""
    if command == "GET":
        after = int(query.get("part-number-marker", 0))
        rest = sorted(number for number in parts if number > after)
        shown = rest[:2]  # few, so that paging is met
        rows = "".join(
            f"<Part><PartNumber>{n}</PartNumber><ETag>&quot;{hashlib.md5(parts[n]).hexdigest()}"
            f"&quot;</ETag><Size>{len(parts[n])}</Size></Part>"
            for n in shown
        )
        more = len(rest) > len(shown)
        marker = f"<NextPartNumberMarker>{shown[-1]}</NextPartNumberMarker>" if shown else ""
        text = f"<R>{marker}<IsTruncated>{str(more).lower()}</IsTruncated>{rows}</R>"
        return 200, xml, text.encode()
    if command == "POST":
        whole = Object(*_assembled(parts, body.decode()), now)
        bucket.objects[key] = whole
        del bucket.uploads[upload_id]
        return 200, xml, f"<R><Bucket>b</Bucket><ETag>{whole.etag}</ETag></R>".encode()
    del bucket.uploads[upload_id]
    return 204, {}, b""


def _assembled(parts, wanted):
    named = re.findall(r"<PartNumber>(\d+)</PartNumber><ETag>\"?(?:&quot;)?(\w+)", wanted)
    if any(int(number) not in parts for number, _ in named):
        raise Refusal(400, "InvalidPart", "a part was not sent")
    contents = [parts[int(number)] for number, _ in named]
    digests = [hashlib.md5(content) for content in contents]
    if [digest.hexdigest() for digest in digests] != [etag for _, etag in named]:
        raise Refusal(400, "InvalidPart", "other parts than were sent")
    if any(len(content) < MIN_PART_BYTES for content in contents[:-1]):
        raise Refusal(400, "EntityTooSmall", "parts have 5 MiB at least")
    whole = hashlib.md5(b"".join(digest.digest() for digest in digests)).hexdigest()
    return b"".join(contents), f"{whole}-{len(contents)}"


def _listing(stand_in, name, bucket, query):
    prefix = query.get("prefix", "")
    if "uploads" in query:
        after = unquote(query.get("key-marker", ""))
        rows = "".join(
            f"<Upload><Key>{quote(upload.key)}</Key><UploadId>{upload_id}</UploadId>"
            + (f"<Initiated>{_stamp(upload.begun)}</Initiated>" if stand_in.dates_uploads else "")
            + "</Upload>"
            for upload_id, upload in bucket.uploads.items()
            if upload.key.startswith(prefix) and upload.key > after
        )
        return f"<R><EncodingType>url</EncodingType><Bucket>{name}</Bucket>{rows}</R>".encode()
    after = unquote(query.get("continuation-token", ""))
    found = [key for key in sorted(bucket.objects) if key.startswith(prefix) and key > after]
    shown = found[: stand_in.page]
    rows = "".join(
        f"<Contents><Key>{quote(key)}</Key><ETag>&quot;{etag}&quot;</ETag>"
        f"<LastModified>{_stamp(modified)}</LastModified><Size>{len(content)}</Size></Contents>"
        for key, (content, etag, modified) in ((key, Object(*bucket.objects[key])) for key in shown)
    )
    more = len(found) > len(shown)
    token = f"<NextContinuationToken>{quote(shown[-1])}</NextContinuationToken>" if more else ""
    return (
        f"<ListBucketResult><Name>{name}</Name><EncodingType>url</EncodingType>"
        f"<IsTruncated>{str(more).lower()}</IsTruncated>{token}{rows}</ListBucketResult>"
    ).encode()


def _stamp(moment):
    return moment.strftime("%Y-%m-%dT%H:%M:%S.000Z")


def _check_signature(method, path, headers, body):
    """Signature Version 4, computed anew (Amazon S3 API reference, "Authenticating Requests")."""
    given = re.fullmatch(
        r"AWS4-HMAC-SHA256 Credential=([^/]+)/(\d{8})/([^/]+)/s3/aws4_request, ?"
        r"SignedHeaders=([a-z0-9;-]+), ?Signature=([0-9a-f]{64})",
        headers.get("Authorization", ""),
    )
    if given is None:
        raise Refusal(403, "AccessDenied", "the request is not signed")
    access_key, day, region, signed, signature = given.groups()
    if access_key != ACCESS_KEY:
        raise Refusal(403, "InvalidAccessKeyId", "no such key")
    if headers["x-amz-content-sha256"] != hashlib.sha256(body).hexdigest():
        raise Refusal(400, "XAmzContentSHA256Mismatch", "the payload was signed otherwise")
    parts = urlsplit(path)
    query = sorted(parse_qsl(parts.query, keep_blank_values=True))
    canonical = "\n".join(
        [
            method,
            quote(unquote(parts.path), safe="/-_.~"),
            "&".join(f"{quote(k, safe='-_.~')}={quote(v, safe='-_.~')}" for k, v in query),
            *(f"{name}:{' '.join(headers[name].split())}" for name in signed.split(";")),
            "",
            signed,
            headers["x-amz-content-sha256"],
        ]
    )
    scope = f"{day}/{region}/s3/aws4_request"
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    text = f"AWS4-HMAC-SHA256\n{headers['x-amz-date']}\n{scope}\n{digest}"
    key = f"AWS4{SECRET_KEY}".encode()
    for word in (day, region, "s3", "aws4_request"):
        key = hmac.digest(key, word.encode(), "sha256")
    if not hmac.compare_digest(hmac.new(key, text.encode(), "sha256").hexdigest(), signature):
        raise Refusal(403, "SignatureDoesNotMatch", "the signature is another")
