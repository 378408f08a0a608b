"""The stage's suites: policies of a run asked tasks of public files, with what they trained on."""

import json

import pytest

from espalier.config import Profile
from espalier.environments import family_of
from espalier.evaluation.contamination import Prints, Training
from espalier.evaluation.lineage import policy_files_digest
from espalier.evaluation.run_suites import EvaluatedPolicy, judge_suite
from espalier.evaluation.suite_results import read_suite_rows, write_rows
from espalier.evaluation.suites import ingested
from espalier.orchestration.finished_run import FinishedRun, suite_judge_of
from espalier.policy.loading import save_policy
from espalier.records import (
    DataError,
    NullTracker,
    Provenance,
    RegistryError,
    publishing,
    write_tasks,
)
from espalier.registry.registration import write_scores
from tests.factories.sums import Sums
from tests.factories.tiny import tiny_policy

ORIGIN = Provenance(producer="validate", config_digest="c", seed=0)


@pytest.fixture
def profile(tmp_path):
    rows = tmp_path / "sums.jsonl"
    lines = [{"question": f"what is {n} + {n}?", "answer": str(2 * n)} for n in range(6)]
    rows.write_text("".join(json.dumps(line) + "\n" for line in lines))
    suite = {"environment": Sums.name, "tasks": str(rows)}
    evaluation = {"suites": {"sums": suite}, "bootstrap_resamples": 100}
    return Profile.model_validate(
        {
            "environment": {"name": Sums.name},
            "evaluation": evaluation,
            "rollout": {"max_replays": 0},
        }
    )


@pytest.fixture
def policies(tmp_path, profile):
    save_policy(tiny_policy(), tmp_path / "policy")
    family = family_of(profile)
    prints = Prints.of(family, family.tasks("train", 2), 8)  # 0 + 0 and 1 + 1
    training = Training(data=("d",), prints=(prints,))
    one = EvaluatedPolicy(tmp_path / "policy", policy_files_digest(tmp_path / "policy"), training)
    return {"warm_start": one, "trained": one}


def judged(profile, policies, tmp_path):
    knowledge = ingested(profile, tmp_path / "ingested")
    artifacts = {"knowledge": knowledge, "accepted": tmp_path / "accepted"}
    return judge_suite("sums", profile, policies, artifacts, tmp_path / "work")


def test_contaminated_tasks_are_asked_and_left_out(profile, policies, tmp_path):
    found = judged(profile, policies, tmp_path)
    trained = found.figures["policies"]["trained"]
    assert (trained["n"], trained["excluded"]) == (4, 2)
    assert trained["contamination"]["by"] == {"question": 2}
    assert found.figures["gain"]["n"] == 4
    assert found.figures["gain"]["mean"] == 0.0, "equal weights answer alike"
    rows = [row for rows in found.rows.values() for row in rows]
    assert write_rows(tmp_path / "rows.parquet", rows) == 12
    assert read_suite_rows(tmp_path / "rows.parquet") == rows


def test_a_profile_that_refuses_contamination_asks_nothing(profile, policies, tmp_path):
    strict = profile.evaluation.contamination.model_copy(update={"contaminated": "refuse"})
    evaluation = profile.evaluation.model_copy(update={"contamination": strict})
    refusing = profile.model_copy(update={"evaluation": evaluation})
    with pytest.raises(DataError, match="2 of 6"):
        judged(refusing, policies, tmp_path)
    assert not list((tmp_path / "work").rglob("*.jsonl"))


@pytest.fixture
def run(profile, tmp_path):
    """A run with its tasks, as the gate asks a champion by it."""
    with publishing(tmp_path / "run" / "knowledge", ORIGIN) as draft:
        family_of(profile).ingest(draft, NullTracker())
    with publishing(tmp_path / "run" / "accepted", ORIGIN) as draft:
        (draft.path / "tasks").mkdir()
        for split in ("train", "dev", "heldout"):
            tasks = family_of(profile).tasks(split, 3)
            write_tasks(draft.path / "tasks" / f"{split}.jsonl", tasks)
    return FinishedRun(tmp_path / "run", profile)


def test_what_the_gate_asks_a_champion_can_be_stored(run, policies, tmp_path):
    policy, _, training = policies["trained"]
    digest = judged(run.profile, policies, tmp_path).figures["digest"]
    scores = suite_judge_of(run, training)(policy, "sums", digest)
    stored = write_scores(tmp_path / "stored", scores.assign(policy="trained", suite="sums"))
    assert [row.contaminated for row in read_suite_rows(stored)][:3] == ["question", "question", ""]


def test_a_suite_that_was_changed_since_is_not_compared(run, policies, tmp_path):
    policy, _, training = policies["trained"]
    digest = judged(run.profile, policies, tmp_path).figures["digest"]
    rows = tmp_path / "sums.jsonl"
    rows.write_text(rows.read_text().replace("what is 5 + 5?", "say 5 + 5"))
    with pytest.raises(RegistryError, match="sums"):
        suite_judge_of(run, training)(policy, "sums", digest)
