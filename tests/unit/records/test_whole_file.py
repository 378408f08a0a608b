import pytest

from espalier.records import ArtifactError, whole_file, write_whole


def test_a_file_that_is_replaced_leaves_no_draft(tmp_path):
    write_whole(tmp_path / "new" / "state.json", "1")
    write_whole(tmp_path / "new" / "state.json", "2")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["state.json"]
    assert (tmp_path / "new" / "state.json").read_text() == "2"


def test_a_block_that_fails_leaves_the_former_file(tmp_path):
    def write(text):
        with whole_file(tmp_path / "rows") as draft:
            draft.write_text(text)
            int(text)

    write("1")
    with pytest.raises(ValueError, match="half"):
        write("half")
    assert [path.name for path in tmp_path.iterdir()] == ["rows"]
    assert (tmp_path / "rows").read_text() == "1"


def test_a_folder_that_cannot_be_written_is_one_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ArtifactError, match="rows: "):
        write_whole(tmp_path / "file" / "rows", "x")
