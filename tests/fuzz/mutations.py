"""Changes of valid messages: of JSON values, of HTTP framing, of bytes."""

import copy
import json
from collections.abc import Callable

ODD_VALUES = (
    None, True, False, 0, -1, 1, 1 << 31, 1 << 63, -(1 << 63), 1 << 200, 0.5, -0.0, 1e308, 1e-308,
    float("nan"), float("inf"), "", " ", "0", "null", "\x00", "\ud800", "\U0001f600" * 50,
    "x" * 5000, "{{ 7 * 7 }}", "<|im_end|>", "../../etc/passwd", [], {}, [[]], [None] * 300,
    {"": ""}, {"a": {}},
)  # fmt: skip
_MAX_TEXT = 1 << 18
"""Characters of a value: more takes longer to read, and finds nothing else."""
_TOKENS = (
    b"\r\n", b"\n", b"\r", b"\0", b"\r\n\r\n", b":", b" ", b"\t", b"{", b"}", b"[", b"]", b'"',
    b"\\", b"\xff", b"\xf0\x9f", b"0", b"-1", b"99999999999999999999", b"chunked", b"HTTP/1.1",
    b"data: ",
    b"\xef\xbb\xbf", b"\\ud800", b"1e999", b"NaN",
)  # fmt: skip


def odd_value(dice):
    """A value that seldom belongs anywhere; a copy, which later changes may change."""
    return copy.deepcopy(dice.choice(ODD_VALUES))


def changed_json(dice, value, *, times=None):
    """A copy of a JSON value with some of its parts replaced, removed, doubled or nested."""
    value = json.loads(json.dumps(value))
    for _ in range(dice.choice((1, 1, 1, 2, 3, 6)) if times is None else times):
        value = _changed_once(dice, value)
    return value


def _changed_once(dice, value):
    if isinstance(value, dict) and value and dice.random() < 0.85:
        return _changed_object(dice, value)
    if isinstance(value, list) and value and dice.random() < 0.8:
        return _changed_list(dice, value)
    match dice.randrange(4):
        case 0:
            return nested(dice, value)
        case 1 if isinstance(value, str):
            return changed_text(dice, value)
        case 2 if isinstance(value, int | float):
            return value * dice.choice((-1, 2, 1000, 10**18, 0.5)) + dice.choice((-1, 0, 1))
        case _:
            return odd_value(dice)


def _changed_object(dice, value):
    key = dice.choice(list(value))
    match dice.randrange(8):
        case 0:
            del value[key]
        case 1:
            value[dice.choice(("", "x", key + "x", key.upper(), "\ud800"))] = value.pop(key)
        case 2:
            value[dice.choice(("extra", "n", "tools", "stdin"))] = odd_value(dice)
        case _:
            value[key] = _changed_once(dice, value[key])
    return value


def _changed_list(dice, value):
    place = dice.randrange(len(value))
    match dice.randrange(5):
        case 0:
            del value[place]
        case 1 if len(repr(value)) < 4000:
            value *= dice.choice((2, 3, 20))
        case _:
            value[place] = _changed_once(dice, value[place])
    return value


def nested(dice, value):
    """The value inside of many lists or objects."""
    for _ in range(dice.choice((1, 3, 60, 70, 300))):
        value = [value] if dice.random() < 0.5 else {"a": value}
    return value


def changed_text(dice, text):
    """A text with a piece cut out, doubled, or with something odd put in."""
    start, end = sorted(dice.choices(range(len(text) + 1), k=2))
    odd = dice.choice([one for one in ODD_VALUES if isinstance(one, str)])
    return text[:start] + dice.choice(("", odd, text[start:end] * 3)) + text[end:]


def written_json(dice, value):
    """Bytes of a JSON value, now and then with a key twice, or as no sane writer puts it."""
    try:
        text = json.dumps(value, ensure_ascii=dice.random() < 0.7)
    except (ValueError, RecursionError):
        text = "[" * 2000 + "]" * 2000
    if dice.random() < 0.05 and text.startswith("{") and len(text) > 2:
        text = "{" + text[1:-1] + ", " + text[1:]
    if dice.random() < 0.03:
        text = dice.choice(("\ufeff", " " * 1000, "\n")) + text
    return text[:_MAX_TEXT].encode("utf-8", "surrogatepass")


def changed_bytes(dice, content):
    """Bytes of which some are flipped, cut out, doubled, or replaced by a token of some grammar."""
    content = bytearray(content)
    for _ in range(dice.choice((1, 1, 2, 4, 10))):
        start = dice.randrange(len(content) + 1)
        end = min(len(content), start + dice.choice((0, 1, 1, 4, 40, 400)))
        change: Callable[[], bytes] = dice.choice(
            (
                lambda: b"",
                lambda: dice.randbytes(dice.randrange(1, 8)),
                lambda: dice.choice(_TOKENS),
                lambda piece=bytes(content[start:end]): piece * 2,
                lambda: dice.choice(_TOKENS) * 50,
            )
        )
        content[start:end] = change()
    if dice.random() < 0.1:
        del content[dice.randrange(len(content) + 1) :]
    return bytes(content)


def chunked(dice, body):
    """A body in chunks, whose sizes are sometimes wrong."""
    written, place = b"", 0
    while place < len(body):
        size = dice.randrange(1, 200)
        part = body[place : place + size]
        told = f"{len(part):x}".encode()
        if dice.random() < 0.03:
            told = dice.choice((b"", b"-1", b"zz", b"ffffffffffffffffff", b"0", told + b";x=y"))
        written += told + b"\r\n" + part + b"\r\n"
        place += size
    return written + dice.choice((b"0\r\n\r\n",) * 12 + (b"", b"0\r\n", b"0\r\nx: y\r\n\r\n"))


def request_bytes(dice, method, target, body, headers=()):
    """A request, framed well most of the time."""
    lines = [("host", "x"), ("content-type", "application/json"), *headers]
    framed = body
    match dice.randrange(12):
        case 0 | 1:
            lines.append(("transfer-encoding", "chunked"))
            framed = chunked(dice, body)
        case 2:
            lines.append(("content-length", dice.choice(("0", "-1", "x", "", str(1 << 70)))))
        case 3:
            lines.append(("content-length", str(max(0, len(body) + dice.choice((-3, 1, 50))))))
        case _:
            lines.append(("content-length", str(len(body))))
    if dice.random() < 0.12:
        lines.append(dice.choice(_ODD_HEADERS))
    if dice.random() < 0.03:
        del lines[dice.randrange(len(lines))]
    if dice.random() < 0.05:
        dice.shuffle(lines)
    version = "HTTP/1.1" if dice.random() < 0.96 else dice.choice(("HTTP/1.0", "HTTP/2.0", "HTTX"))
    end = "\r\n" if dice.random() < 0.98 else "\n"
    head = end.join([f"{method} {target} {version}", *(f"{k}: {v}" for k, v in lines), "", ""])
    return head.encode("utf-8", "surrogatepass") + framed


_ODD_HEADERS = (
    ("expect", "100-continue"), ("connection", "close"), ("connection", "upgrade"),
    ("upgrade", "websocket"), ("transfer-encoding", "gzip"), ("content-length", "5"),
    ("x", "y" * 20_000), ("\ud800", "y"), ("authorization", "Bearer " + "z" * 100),
    ("content-type", "text/plain"), ("x y", "z"), ("", "z"), ("host", "[::"), ("x", "\x00"),
    ("x-forwarded-for", "1.2.3.4"), ("content-encoding", "gzip"), ("accept-encoding", "gzip"),
)  # fmt: skip
