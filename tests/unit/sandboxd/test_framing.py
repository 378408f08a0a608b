"""A request whose length can be read in two ways is none."""

import pytest

from sandboxd.framing import is_ambiguous

ENCODED, TEN = "Transfer-Encoding: chunked", "Content-Length: 10"
AMBIGUOUS = {
    "both": [TEN, ENCODED],
    "both, the other way round": [ENCODED, TEN],
    "both, in other letters": ["content-LENGTH: 10", "tRANSFER-eNCODING: chunked"],
    "both, the encoding folded": [TEN, "Transfer-Encoding:\r\n chunked"],
    "both, with other headers between": [TEN, "X: y", "Content-Type: a/b", ENCODED],
    "both, no known encoding": [TEN, "Transfer-Encoding: xchunked"],
    "both, no length of it": ["Content-Length: 0", ENCODED],
    "two lengths": [TEN, "Content-Length: 11"],
    "one length twice": [TEN, TEN],
    "a list": ["Content-Length: 10, 10"],
    "a folded list": ["Content-Length: 10\r\n , 10"],
    "a folded length": ["Content-Length:\r\n 10"],
    "three": [TEN, TEN, TEN],
    "a sign": ["Content-Length: +10"],
    "a negative one": ["Content-Length: -10"],
    "hexadecimal": ["Content-Length: 0x10"],
    "an underscore": ["Content-Length: 1_0"],
    "a fraction": ["Content-Length: 10.0"],
    "empty": ["Content-Length:"],
    "other digits": ["Content-Length: \u0661\u0660"],
    "a blank before the colon": ["Content-Length : 10", TEN],
}
PLAIN = {
    "no body": ["X: y"],
    "a length": [TEN],
    "a length with blanks": ["Content-Length:  \t10 \t"],
    "an encoding": [ENCODED],
    "a length in another header": ["X-Content-Length: 10", TEN],
    "a length in a value": ["X: Content-Length: 10", TEN],
    "a length in a folded value": ["X: y\r\n Content-Length: 10", TEN],
}


def head(lines, version="1.1", end="\r\n"):
    whole = end.join([f"POST /run HTTP/{version}", "Host: x", *lines, "", ""])
    return whole.encode()


@pytest.mark.parametrize("end", ["\r\n", "\n"])
@pytest.mark.parametrize("kind", AMBIGUOUS)
def test_no_request_has_two_lengths(kind, end):
    said = head([line.replace("\r\n", end) for line in AMBIGUOUS[kind]], end=end)
    assert is_ambiguous(said)
    assert is_ambiguous(said + b"0\r\n\r\n")
    assert not is_ambiguous(said[: -len(end) - 1]), "before the head is whole, nobody knows"


@pytest.mark.parametrize("kind", PLAIN)
def test_what_has_one_length_or_none_is_read(kind):
    body = b"\n\nContent-Length: 1\nContent-Length: 2\n\n"
    assert not is_ambiguous(head(PLAIN[kind]) + body)


def test_requests_before_encodings_have_none():
    assert is_ambiguous(head([ENCODED], version="1.0"))
    assert not is_ambiguous(head([TEN], version="1.0"))
