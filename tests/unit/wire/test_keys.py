"""API keys: made once, kept as digests, read again when their file changes."""

import hashlib
import logging
import os
import re
from pathlib import Path

import pytest

from espalier.records import ServingError
from espalier.wire.keys import KEYS_VARIABLE, ApiKeys, bearer, new_key


@pytest.fixture
def path(tmp_path):
    return tmp_path / "keys"


def test_a_key_is_known_by_its_digest_alone(path):
    alice, bob = new_key("alice", path), new_key("bob@example.org", path)
    keys = ApiKeys.open(path, {})
    assert keys.names == ("alice", "bob@example.org")
    assert (keys.owner(alice), keys.owner(bob)) == ("alice", "bob@example.org")
    for other in (alice[:-1], "", "\xff\x00\udcff"):
        assert keys.owner(other) is None
    assert all(re.fullmatch(r"esp-[A-Za-z0-9_-]{43}", key) for key in (alice, bob))
    assert alice != bob
    text = path.read_text()
    assert alice not in text
    assert hashlib.sha256(alice.encode()).hexdigest() in text
    assert path.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("name", ["", "a b", "-a", "a\nb", "x" * 65, "\u00e9"])
def test_a_name_that_no_line_can_hold_is_refused(path, name):
    with pytest.raises(ServingError, match="name"):
        new_key(name, path)
    assert not path.exists()


def test_a_file_without_a_last_line_break_goes_on(path):
    first = new_key("alice", path)
    path.write_text("# keys of the team\n\n" + path.read_text().rstrip("\n"))
    second = new_key("bob", path)
    with pytest.raises(ServingError, match="a key of that name"):
        new_key("alice", path)
    keys = ApiKeys.open(path, {})
    assert (keys.owner(first), keys.owner(second)) == ("alice", "bob")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("# none yet\n", "no key"),
        ("alice esp-plain-key-by-mistake\n", "line 1: "),
        ("alice sha256:abc\n", "line 1: "),
        (f"a sha256:{'0' * 64}\na sha256:{'1' * 64}\n", "line 2: "),
    ],
)
def test_a_file_that_is_none_of_keys_is_refused_unquoted(path, text, message):
    with pytest.raises(ServingError, match=path.name):
        ApiKeys.open(path, {})
    path.write_text(text)
    with pytest.raises(ServingError, match=message) as refused:
        ApiKeys.open(path, {})
    assert "mistake" not in str(refused.value)


def test_a_variable_holds_the_lines_of_a_file(path):
    key = new_key("alice", path)
    assert ApiKeys.open(None, {KEYS_VARIABLE: path.read_text()}).owner(key) == "alice"
    with pytest.raises(ServingError, match="no key"):
        ApiKeys.open(None, {KEYS_VARIABLE: ""})
    assert ApiKeys.open(None, {}) is None


def test_a_changed_file_is_read_again(path):
    alice = new_key("alice", path)
    keys = ApiKeys.open(path, {})
    bob = new_key("bob", path)
    assert keys.owner(bob) is None
    keys.refresh()
    assert (keys.owner(alice), keys.owner(bob)) == ("alice", "bob")
    # as a Secret changes: another file in its place
    kept = "".join(line for line in path.read_text().splitlines(keepends=True) if "bob" in line)
    path.with_suffix(".new").write_text(kept)
    os.replace(path.with_suffix(".new"), path)
    keys.refresh()
    assert (keys.owner(alice), keys.owner(bob)) == (None, "bob")


def test_a_key_revoked_during_the_first_read_is_revoked(path, monkeypatch):
    alice = new_key("alice", path)
    bob = new_key("bob", path)
    read_text = Path.read_text

    def changed_after(file, **options):
        text = read_text(file, **options)
        file.write_text(next(line for line in text.splitlines() if "bob" in line))
        return text

    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_text", changed_after)
        keys = ApiKeys.open(path, {})
    assert keys.owner(alice) == "alice"
    keys.refresh()
    assert (keys.owner(alice), keys.owner(bob)) == (None, "bob")


def test_a_broken_file_changes_nothing_and_is_told_once(path, caplog):
    alice = new_key("alice", path)
    keys = ApiKeys.open(path, {})
    with caplog.at_level(logging.ERROR):
        for broken in ("", "alice " + alice):
            path.write_text(broken)
            keys.refresh()
            keys.refresh()
            assert keys.owner(alice) == "alice"
        path.unlink()
        keys.refresh()
    assert keys.owner(alice) == "alice"
    assert len(caplog.records) == 3
    assert alice not in caplog.text


def test_a_key_is_what_follows_bearer():
    assert bearer("Bearer x") == bearer("bearer   x ") == "x"
    for header in ("Bearer ", "Basic x", "x", ""):
        assert bearer(header) is None
