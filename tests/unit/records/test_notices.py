import pytest

from espalier.records.notices import NOTICES, Notice, read_notices
from espalier.records.streams import StreamRecord, StreamWriter, segments


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


def written(folder, *notices):
    writer = StreamWriter(folder, NOTICES)
    writer.keep_until(9)
    writer.append([one.record() for one in notices])
    return writer


def segment(folder):
    (found,) = segments(folder, NOTICES)
    return found.path


def test_notices_are_read_as_they_were_written(tmp_path):
    assert read_notices(tmp_path) == []
    written(tmp_path, notice(3))
    written(tmp_path, notice(4, action="stopped", severity="info"))
    assert read_notices(tmp_path) == [notice(3), notice(4, action="stopped", severity="info")]


@pytest.mark.parametrize("end", [b'{"step": 9', b"\xff\xfe", b"[1]\n", b'{"step": 9}\n'])
def test_a_cut_or_misshapen_line_is_left_out(tmp_path, end):
    written(tmp_path, notice(3))
    segment(tmp_path).write_bytes(segment(tmp_path).read_bytes() + end)
    assert read_notices(tmp_path) == [notice(3)]


def test_lines_of_the_log_are_no_notices(tmp_path):
    writer = written(tmp_path, notice(3))
    writer.append([StreamRecord(3, {"time": 1.0, "level": "note", "source": "log", "text": "x"})])
    assert read_notices(tmp_path) == [notice(3)]


def test_keys_of_a_later_version_are_ignored(tmp_path):
    content = dict(notice(3).record().content)
    written(tmp_path).append([StreamRecord(3, {"more": 1, **content})])
    assert read_notices(tmp_path) == [notice(3)]
