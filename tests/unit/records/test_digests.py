import hashlib
import os

from hypothesis import given
from hypothesis import strategies as st

from espalier.records import (
    Provenance,
    content_digest,
    file_digest,
    json_digest,
    publishing,
    tree_digest,
)

NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\t\n"), min_size=1, max_size=12)
TREES = st.dictionaries(NAMES, st.sampled_from(["ab", "cd", "ef"]), max_size=6)


def _published(directory, text, seconds):
    with publishing(directory, Provenance(producer="x", config_digest="c", seed=0)) as draft:
        (draft.path / "triples").write_text(text)
        (draft.path / "run.json").write_text(f'{{"seconds": {seconds}}}')
        (draft.path / "timings.parquet").write_bytes(str(seconds).encode())
    return draft.published


def test_content_is_the_payload_without_measured_times(tmp_path):
    first = _published(tmp_path / "first", "a b c", 1.0)
    second = _published(tmp_path / "second", "a b c", 2.0)
    assert first.content == second.content
    assert first.integrity != second.integrity
    assert first.content != _published(tmp_path / "third", "a b d", 1.0).content


@given(TREES)
def test_content_does_not_depend_on_the_order_of_the_files(digests):
    assert content_digest(dict(reversed(digests.items()))) == content_digest(digests)


@given(TREES, st.sampled_from(["", "nested/deep/"]))
def test_run_json_is_no_content_wherever_it_lies(digests, folder):
    with_times = digests | {f"{folder}run.json": "0f"}
    without = {name: value for name, value in digests.items() if name != f"{folder}run.json"}
    assert content_digest(with_times) == content_digest(without)


@given(TREES, NAMES)
def test_a_file_more_is_other_content(digests, name):
    smaller = {key: value for key, value in digests.items() if key != f"{name}.data"}
    assert content_digest(smaller | {f"{name}.data": "ab"}) != content_digest(smaller)


def test_a_file_is_digested_whole_however_long(tmp_path):
    payload = bytes(range(256)) * 8192 + b"tail"
    (tmp_path / "big").write_bytes(payload)
    assert file_digest(tmp_path / "big") == hashlib.sha256(payload).hexdigest()


def test_a_file_name_in_another_encoding_is_digested(tmp_path):
    empty = tree_digest(tmp_path)
    first = tmp_path / os.fsdecode(b"caf\xe9")
    first.write_text("a")
    digest = tree_digest(tmp_path)
    first.rename(tmp_path / os.fsdecode(b"caf\xe8"))
    assert len({empty, digest, tree_digest(tmp_path)}) == 3


def test_json_digest_ignores_key_order_but_not_list_order():
    assert json_digest({"a": 1, "b": [1, 2]}) == json_digest({"b": [1, 2], "a": 1})
    assert json_digest([1, 2]) != json_digest([2, 1])
