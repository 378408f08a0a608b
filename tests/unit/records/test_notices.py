import pytest

from espalier.records.notices import Notice, append_notices, keep_notices_until, read_notices


def notice(step, **fields):
    return Notice(
        **{
            "step": step,
            "time": 0.5,
            "detector": "entropy",
            "severity": "warning",
            "since_step": step,
            "message": "entropy is 0.1, ä in the first steps",
            "attempts": ("3/a/0",),
            **fields,
        }
    )


def test_notices_are_read_as_they_were_written(tmp_path):
    path = tmp_path / "notices.jsonl"
    assert read_notices(path) == []
    append_notices(path, [notice(3)])
    append_notices(path, [notice(4, action="stopped", severity="info")])
    assert read_notices(path) == [notice(3), notice(4, action="stopped", severity="info")]


@pytest.mark.parametrize("end", [b'{"step": 9', b"\xff\xfe", b"[1]\n", b'{"step": 9}\n'])
def test_a_cut_or_misshapen_line_is_left_out(tmp_path, end):
    path = tmp_path / "notices.jsonl"
    append_notices(path, [notice(3)])
    path.write_bytes(path.read_bytes() + end)
    assert read_notices(path) == [notice(3)]


def test_keys_of_a_later_version_are_ignored(tmp_path):
    path = tmp_path / "notices.jsonl"
    append_notices(path, [notice(3)])
    path.write_text(path.read_text().replace('"step"', '"more": 1, "step"'))
    assert read_notices(path) == [notice(3)]


def test_notices_after_a_checkpoint_are_dropped(tmp_path):
    path = tmp_path / "notices.jsonl"
    append_notices(path, [notice(3), notice(4), notice(5)])
    assert keep_notices_until(path, 4) == [notice(3), notice(4)] == read_notices(path)
