from espalier.records import read_manifest
from espalier.records.notices import NOTICES, Notice
from espalier.records.streams import STREAMS_FOLDER, StreamWriter
from espalier.reporting.notices import notices_table
from espalier.reporting.run_directory import open_run
from espalier.reporting.step_views import step_page
from tests.factories import sample_run

HOSTILE = "<script>alert(1)</script>\u202e"


def noticed(path):
    notice = Notice(
        step=17,
        time=1.0,
        detector="grounding",
        severity="warning",
        since_step=13,
        message="grounded_share is 0.1, 0.8 in the first steps",
        attempts=(f"17/{HOSTILE}/0",),
        key="reward",
    )
    writer = StreamWriter(path / STREAMS_FOLDER, NOTICES)
    writer.keep_until(0)
    writer.append([notice.record()])
    writer.finish_segment()
    return sample_run.train(path)


def test_the_page_of_training_shows_notices_with_hostile_ids_escaped(tmp_path):
    run = sample_run.make_run(tmp_path / "run", last_stage="warm_start")
    sample_run.publish(run, "trained_policy", "train", noticed)
    html = step_page("train", open_run(run))
    assert "Health notices" in html
    assert "grounded_share is 0.1, 0.8 in the first steps" in html
    assert "<script>" not in html
    assert "\\u{202e}" in html


def test_a_run_without_notices_has_no_such_section(tmp_path):
    run = sample_run.make_run(tmp_path / "run", last_stage="train")
    assert notices_table(open_run(run)) is None
    assert "Health notices" not in step_page("train", open_run(run))


def test_notices_do_not_change_the_digest_of_an_artifacts_content(tmp_path):
    run = sample_run.make_run(tmp_path / "run", last_stage="warm_start")
    sample_run.publish(run, "plain", "train", sample_run.train)
    sample_run.publish(run, "noted", "train", noticed)
    plain, noted = (read_manifest(run / name) for name in ("plain", "noted"))
    assert plain.content == noted.content
    assert plain.integrity != noted.integrity
