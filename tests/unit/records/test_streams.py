import json
import random

import pytest

from espalier.records import ArtifactError
from espalier.records.streams import (
    StreamRecord,
    StreamWriter,
    link_streams,
    read_index,
    read_line,
    read_stream,
    segments,
)


def record(step, text="x"):
    return StreamRecord(step, {"text": text}, {"shown": text})


def written(folder, steps, segment_bytes=1 << 20):
    writer = StreamWriter(folder, "episodes", segment_bytes=segment_bytes)
    writer.keep_until(-1)
    for step in steps:
        writer.append([record(step, f"{step}a"), record(step, f"{step}b")])
    return writer


def texts(folder):
    return [one["text"] for one in read_stream(folder, "episodes")]


def test_records_are_read_in_order_from_several_segments(tmp_path):
    written(tmp_path, range(5), segment_bytes=60)
    assert texts(tmp_path) == [f"{step}{end}" for step in range(5) for end in "ab"]
    found = segments(tmp_path, "episodes")
    assert [segment.number for segment in found] == list(range(len(found)))
    assert len(found) > 1
    assert all(segment.is_finished for segment in found[:-1])


def test_index_gives_places_and_summaries(tmp_path):
    written(tmp_path, range(3))
    (segment,) = segments(tmp_path, "episodes")
    for entry in read_index(segment):
        content = read_line(segment, entry.offset)
        assert content is not None
        assert (content["step"], content["text"]) == (entry.step, entry.summary["shown"])
    assert read_line(segment, 1) is None
    assert read_line(segment, 1 << 70) is None


def test_a_torn_last_line_is_not_read(tmp_path):
    written(tmp_path, range(2))
    (segment,) = segments(tmp_path, "episodes")
    content = segment.path.read_bytes()
    segment.index_path.unlink()
    for end in range(len(content) - 1, content.rindex(b'{"step":1')):
        segment.path.write_bytes(content[:end])
        assert texts(tmp_path) == ["0a", "0b", "1a"]


def test_without_an_index_records_are_read_whole(tmp_path):
    written(tmp_path, range(3))
    (segment,) = segments(tmp_path, "episodes")
    places = [entry[:3] for entry in read_index(segment)]
    lines = segment.index_path.read_bytes().splitlines(keepends=True)
    for kept in range(len(lines)):
        segment.index_path.write_bytes(b"".join(lines[:kept]) + b"[torn")
        assert [entry[:3] for entry in read_index(segment)] == places


@pytest.mark.parametrize("kept_step", [-1, 0, 2, 3, 4, 9])
@pytest.mark.parametrize("segment_bytes", [30, 80, 1 << 20])
def test_a_resumed_writer_repeats_no_record(tmp_path, kept_step, segment_bytes):
    written(tmp_path, range(5), segment_bytes)
    writer = StreamWriter(tmp_path, "episodes", segment_bytes=segment_bytes)
    assert writer.keep_until(kept_step) == min(kept_step, 4)
    for step in range(kept_step + 1, 7):
        writer.append([record(step, f"{step}a"), record(step, f"{step}b")])
    steps = [*range(min(kept_step, 4) + 1), *range(kept_step + 1, 7)]
    assert texts(tmp_path) == [f"{step}{end}" for step in steps for end in "ab"]
    entries = [entry for one in segments(tmp_path, "episodes") for entry in read_index(one)]
    assert all(entry.summary for entry in entries)


def test_a_finished_segment_is_never_changed(tmp_path):
    written(tmp_path / "stream", range(5)).finish_segment()
    (segment,) = segments(tmp_path / "stream", "episodes")
    link_streams(tmp_path / "stream", tmp_path / "copy")
    before = (tmp_path / "copy" / segment.path.name).read_bytes()
    StreamWriter(tmp_path / "stream", "episodes").keep_until(2)
    assert (tmp_path / "copy" / segment.path.name).read_bytes() == before
    assert texts(tmp_path / "copy")[-1] == "4b"
    assert texts(tmp_path / "stream")[-1] == "2b"


def test_text_that_has_no_encoding_is_written(tmp_path):
    writer = StreamWriter(tmp_path, "episodes")
    writer.keep_until(0)
    writer.append([record(0, "a\ud800\x00\u202e\n")])
    assert texts(tmp_path) == ["a?\x00\u202e\n"]


def test_a_full_disk_is_an_error_that_says_so(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ArtifactError, match="cannot be written"):
        StreamWriter(tmp_path / "file", "episodes").keep_until(0)


@pytest.mark.parametrize("seed", range(40))
def test_damaged_files_never_raise_and_lose_nothing_before(tmp_path, seed):
    dice = random.Random(seed)
    written(tmp_path, range(6), segment_bytes=120)
    whole = texts(tmp_path)
    first = list(read_index(segments(tmp_path, "episodes")[0]))
    path = dice.choice(sorted(tmp_path.iterdir()))
    content = bytearray(path.read_bytes())
    place = dice.randrange(len(content))
    match dice.randrange(3):
        case 0:
            content[place] = dice.randrange(256)
        case 1:
            del content[place:]
        case 2:
            content[place:place] = json.dumps({"step": dice.choice([0, -1, True, "1"])}).encode()
    path.write_bytes(content)
    found = texts(tmp_path)
    assert len(found) <= len(whole) + 1
    if not path.name.startswith(("episodes-000000", ".episodes-000000")):
        assert found[: len(first)] == whole[: len(first)]
    writer = StreamWriter(tmp_path, "episodes")
    last = writer.keep_until(5)
    writer.append([record(max(last, 5) + 1, "new")])
    assert texts(tmp_path)[-1] == "new"
