import json

import pytest

from espalier.records import ArtifactError
from espalier.reporting import RunSummary, write_summary
from tests.factories.sample_run import make_run, publish, refuse


def test_summary_of_a_finished_run_has_the_documented_shape(tmp_path):
    run = make_run(tmp_path / "run")

    returned = write_summary(run, None)

    assert json.loads((run / "summary.json").read_text()) == returned
    assert set(returned) == {"eval", "stages", "throughput", "registry", "digests"}
    assert returned["eval"]["gain"] == {"em": 0.272, "ci95": [0.231, 0.313]}
    for policy in ("untrained", "warm_start", "trained"):
        assert set(returned["eval"][policy]) == {
            "em", "f1", "n", "ci95", "pass_at_k", "pass_hat_k",
            "lost_episodes", "broke_sandbox_episodes", "closed_book_em", "closed_book_em_ci95",
            "grounded", "grounded_ci95", "grounded_right", "added_lines_em",
            "added_lines_em_ci95", "as_written_em", "as_written_em_ci95", "as_written_n",
        }  # fmt: skip
    assert returned["stages"]["train"] == {"seconds": 311.0, "peak_rss_mb": 1211.0}
    assert returned["throughput"] == {
        "sft_tokens_per_s": 10400.0, "rollout_tokens_per_s": 15900.0,
        "update_tokens_per_s": 21300.0, "update_matmul_share": 0.314,
    }  # fmt: skip
    assert returned["registry"] == {
        "name": "espalier-search-agent", "version": 3, "policy_digest": "9d" * 32,
    }  # fmt: skip


def test_summary_has_each_k_that_was_measured(tmp_path):
    trained = write_summary(make_run(tmp_path / "run"), None)["eval"]["trained"]

    assert trained["pass_at_k"] == pytest.approx({"1": 0.634, "4": 0.804})
    assert trained["pass_hat_k"] == {}


def test_summary_lists_stages_in_the_order_in_which_they_run(tmp_path):
    summary = write_summary(make_run(tmp_path / "run", last_stage="warm_start"), None)

    assert list(summary["stages"]) == [
        "ingest", "synthesize", "validate", "prepare_policy", "continue_pretraining", "warm_start",
    ]  # fmt: skip


def test_digests_are_the_content_digests_by_artifact_folder(tmp_path):
    run = make_run(tmp_path / "run", last_stage="synthesize")

    digests = write_summary(run, None)["digests"]

    manifests = {f: json.loads((run / f / "manifest.json").read_text()) for f in digests}
    assert digests == {folder: manifest["content"] for folder, manifest in manifests.items()}
    assert set(digests) == {"knowledge", "synthetic"}


def test_summary_of_a_stopped_run_has_null_for_missing_figures(tmp_path):
    summary = write_summary(make_run(tmp_path / "run", last_stage="ingest"), None)

    assert summary["eval"] == {"untrained": None, "warm_start": None, "trained": None, "gain": None}
    assert set(summary["throughput"].values()) == {None}
    assert summary["registry"] == {"name": None, "version": None, "policy_digest": None}


def test_a_given_registry_entry_overrides_the_recorded_one(tmp_path):
    run = make_run(tmp_path / "run")

    summary = write_summary(run, {"name": "mine", "version": "12", "alias": "challenger"})

    assert summary["registry"] == {"name": "mine", "version": 12, "policy_digest": None}


def test_drafts_and_work_folders_are_not_taken_for_artifacts(tmp_path):
    run = make_run(tmp_path / "run", last_stage="ingest")
    (run / "knowledge").rename(run / ".knowledge.draft")

    assert write_summary(run, None)["digests"] == {}


def test_summary_refuses_an_edited_result_and_names_it(tmp_path):
    run = make_run(tmp_path / "run")
    (run / "evaluation" / "results.json").write_text('{"eval": {}}')

    with pytest.raises(ArtifactError, match=r"evaluation/results\.json"):
        write_summary(run, None)


def test_summary_of_no_run_names_the_folder(tmp_path):
    with pytest.raises(ArtifactError, match="nowhere"):
        write_summary(tmp_path / "nowhere", None)


def test_the_model_reads_back_what_was_written(tmp_path):
    run = make_run(tmp_path / "run")
    written = write_summary(run, None)

    read = RunSummary.model_validate_json((run / "summary.json").read_bytes())

    assert read.model_dump(mode="json") == written


def test_figures_of_the_runner_override_those_of_the_stage(tmp_path):
    run = make_run(tmp_path / "run", last_stage="ingest")
    (run / "timings.json").write_text('{"ingest": {"seconds": 99.5, "peak_rss_mb": 1500.0}}')

    assert write_summary(run, None)["stages"] == {
        "ingest": {"seconds": 99.5, "peak_rss_mb": 1500.0}
    }


def test_data_that_stopped_the_run_is_no_artifact_of_it(tmp_path):
    run = make_run(tmp_path / "run", last_stage="synthesize")
    publish(run, "validation_failed", "validate", refuse)

    summary = write_summary(run, None)

    assert "validation_failed" not in summary["digests"]
    assert "validate" not in summary["stages"]
