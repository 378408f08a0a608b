"""The file of finished attempts: what a kill leaves, and what others did to it."""

import errno

import pytest

from espalier.evaluation.attempts import Attempt, AttemptFile
from espalier.records import ArtifactError, Message

MADE_OF = {"suite": "s", "model": "m"}


def attempt(task_id, number=0, **fields):
    return Attempt(
        task_id=task_id, attempt=number, scores={"accuracy": 1.0}, solved=True, answer="x",
        finish_reason="answered", **fields,
    )  # fmt: skip


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "suite" / "attempts.jsonl"
    with AttemptFile.opened(path, MADE_OF) as kept:
        kept.add(attempt("a"))
        kept.add(attempt("b", 1))
    return path


def kept_in(path, made_of=MADE_OF):
    with AttemptFile.opened(path, made_of) as kept:
        return dict(kept.kept)


def test_finished_attempts_are_there_again(path):
    assert kept_in(path) == {("a", 0): attempt("a"), ("b", 1): attempt("b", 1)}


@pytest.mark.parametrize(
    "cut", [attempt("c").model_dump_json()[:40].encode(), '{"answer": "\u00e9'.encode()[:-1]]
)
def test_a_half_written_line_is_cut_off_and_written_anew(path, cut):
    whole = path.read_bytes()
    path.write_bytes(whole + cut)
    with AttemptFile.opened(path, MADE_OF) as kept:
        assert len(kept.kept) == 2
        kept.add(attempt("c"))
    assert len(kept_in(path)) == 3
    assert path.read_bytes().startswith(whole)


def test_half_a_surrogate_pair_is_kept_as_a_question_mark(path):
    said = Message(role="assistant", content="a \ud800 b")
    with AttemptFile.opened(path, MADE_OF) as kept:
        kept.add(attempt("c", messages=(said,)))
    assert kept_in(path)["c", 0].messages[0].content == "a ? b"


def test_a_full_disk_is_said_with_the_file(path, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with AttemptFile.opened(path, MADE_OF) as kept:
        monkeypatch.setattr("os.fsync", full)
        with pytest.raises(ArtifactError, match=r"attempts\.jsonl: .*No space left"):
            kept.add(attempt("c"))
        assert ("c", 0) not in kept.kept


def test_a_file_whose_first_line_was_cut_begins_anew(path):
    path.write_text('{"schema"')
    assert kept_in(path) == {}


NO_SCORE = attempt("c").model_dump_json().replace('"accuracy":1.0', '"accuracy":NaN')


@pytest.mark.parametrize("line", ["{}", "no JSON", "[" * 3000, NO_SCORE])
def test_a_broken_line_is_named(path, line):
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(ArtifactError, match="line 4"):
        kept_in(path)


def test_attempts_of_another_model_are_refused(path):
    with pytest.raises(ArtifactError, match=path.name):
        kept_in(path, MADE_OF | {"model": "other"})


def test_one_process_writes_at_a_time(path):
    with (
        AttemptFile.opened(path, MADE_OF),
        pytest.raises(ArtifactError, match="process"),
        AttemptFile.opened(path, MADE_OF),
    ):
        pass
