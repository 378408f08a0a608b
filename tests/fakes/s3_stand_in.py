"""An S3 server on loopback, in this process: signatures, checksums, multipart, faults on demand.

It speaks as much of the protocol as espalier does, by Amazon's API reference: path-style addresses,
Signature Version 4 in the header, ListObjectsV2, multipart uploads with parts of 5 MiB at least.
"""

import base64
import hashlib
import hmac
import re
import threading
import time
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, quote, unquote, urlsplit
from xml.sax.saxutils import escape

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


@dataclass
class Bucket:
    objects: dict = field(default_factory=dict)  # key -> (content, etag)
    uploads: dict = field(default_factory=dict)  # upload id -> (key, {part number: content})


class Refusal(Exception):
    def __init__(self, status, code, message=""):
        super().__init__(code)
        self.status, self.code, self.message = status, code, message


class S3StandIn:
    def __init__(self):
        self.buckets = {BUCKET: Bucket()}
        self.faults = []
        self.answer = lambda *asked: _handled(*asked)
        self.requests = []  # "PUT /espalier/key?query"
        self.lock = threading.Lock()
        self.server = Server(_Handler)
        self.server.stand_in = self

    @property
    def endpoint(self):
        return self.server.address

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
    with serving(stand_in.server):
        yield stand_in


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
            text = f"<Code>{refusal.code}</Code><Message>{escape(refusal.message)}</Message>"
            status, content = refusal.status, f"<Error>{text}</Error>".encode()
            headers = {"Content-Type": "application/xml"}
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
    bucket = stand_in.buckets.get(name)
    if bucket is None:
        raise Refusal(404, "NoSuchBucket", f"no bucket {name}")
    sent_md5 = request.headers.get("Content-MD5")
    if sent_md5 and base64.b64decode(sent_md5) != hashlib.md5(body).digest():
        raise Refusal(400, "BadDigest", "Content-MD5 is of other bytes")
    if not key:
        return 200, {"Content-Type": "application/xml"}, _listing(name, bucket, query)
    if "uploads" in query or "uploadId" in query:
        return _multipart(bucket, request.command, key, query, body)
    return _object(bucket, request, key, body)


def _object(bucket, request, key, body):
    if request.command == "PUT":
        etag = hashlib.md5(body).hexdigest()
        bucket.objects[key] = (body, etag)
        return 200, {"ETag": f'"{etag}"'}, b""
    if request.command == "DELETE":
        bucket.objects.pop(key, None)
        return 204, {}, b""
    if key not in bucket.objects:
        if request.command == "HEAD":
            return 404, {}, b""
        raise Refusal(404, "NoSuchKey", "no such key")
    content, etag = bucket.objects[key]
    headers = {"ETag": f'"{etag}"', "Last-Modified": "Wed, 04 Mar 2026 12:00:00 GMT"}
    if request.command == "HEAD":
        return 200, headers | {"X-Length": len(content)}, b""
    if wanted := request.headers.get("Range"):
        start = int(re.fullmatch(r"bytes=(\d+)-", wanted)[1])
        if start >= len(content):
            raise Refusal(416, "InvalidRange", "beyond the end")
        headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        return 206, headers, content[start:]
    return 200, headers, content


def _multipart(bucket, command, key, query, body):
    xml = {"Content-Type": "application/xml"}
    if command == "POST" and "uploads" in query:
        upload_id = f"upload-{len(bucket.uploads)}"
        bucket.uploads[upload_id] = (key, {})
        return 200, xml, f"<R><UploadId>{upload_id}</UploadId></R>".encode()
    upload_id = query["uploadId"]
    if upload_id not in bucket.uploads or bucket.uploads[upload_id][0] != key:
        raise Refusal(404, "NoSuchUpload", "no such upload")
    parts = bucket.uploads[upload_id][1]
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
    del bucket.uploads[upload_id]
    if command == "POST":
        bucket.objects[key] = _assembled(parts, body.decode())
    return (200, xml, b"<R><Bucket>b</Bucket></R>") if command == "POST" else (204, {}, b"")


def _assembled(parts, wanted):
    named = re.findall(r"<PartNumber>(\d+)</PartNumber><ETag>\"?(?:&quot;)?(\w+)", wanted)
    contents = [parts[int(number)] for number, _ in named]
    digests = [hashlib.md5(content) for content in contents]
    if [digest.hexdigest() for digest in digests] != [etag for _, etag in named]:
        raise Refusal(400, "InvalidPart", "other parts than were sent")
    if any(len(content) < MIN_PART_BYTES for content in contents[:-1]):
        raise Refusal(400, "EntityTooSmall", "parts have 5 MiB at least")
    whole = hashlib.md5(b"".join(digest.digest() for digest in digests)).hexdigest()
    return b"".join(contents), f"{whole}-{len(contents)}"


def _listing(name, bucket, query):
    prefix = query.get("prefix", "")
    if "uploads" in query:
        rows = "".join(
            f"<Upload><Key>{quote(key)}</Key><UploadId>{upload_id}</UploadId></Upload>"
            for upload_id, (key, _) in bucket.uploads.items()
            if key.startswith(prefix)
        )
        return f"<R><EncodingType>url</EncodingType><Bucket>{name}</Bucket>{rows}</R>".encode()
    after = unquote(query.get("continuation-token", ""))
    found = [key for key in sorted(bucket.objects) if key.startswith(prefix) and key > after]
    shown = found[:3]
    rows = "".join(
        f"<Contents><Key>{quote(key)}</Key><Size>{len(bucket.objects[key][0])}</Size></Contents>"
        for key in shown
    )
    more = len(found) > len(shown)
    token = f"<NextContinuationToken>{quote(shown[-1])}</NextContinuationToken>" if more else ""
    return (
        f"<ListBucketResult><Name>{name}</Name><EncodingType>url</EncodingType>"
        f"<IsTruncated>{str(more).lower()}</IsTruncated>{token}{rows}</ListBucketResult>"
    ).encode()


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
