"""The stage's suites: policies of a run asked tasks of public files, with what they trained on."""

import json

import pytest

from espalier.config import Profile
from espalier.environments import family_of
from espalier.evaluation.contamination import Prints, Training
from espalier.evaluation.lineage import policy_files_digest
from espalier.evaluation.run_suites import AskedPolicy, judge_suite
from espalier.evaluation.suite_results import read_suite_rows, write_rows
from espalier.policy.loading import save_policy
from espalier.records import DataError
from tests.factories.sums import Sums
from tests.factories.tiny import tiny_policy


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
    one = AskedPolicy(tmp_path / "policy", policy_files_digest(tmp_path / "policy"), training)
    return {"warm_start": one, "trained": one}


def judged(profile, policies, tmp_path):
    family = family_of(profile)
    from espalier.evaluation.suites import ingested

    knowledge = ingested(profile, tmp_path / "ingested")
    assert family.name == Sums.name
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
    with pytest.raises(DataError, match="trained on 2 of 6 tasks"):
        judged(refusing, policies, tmp_path)
    assert not list((tmp_path / "work").rglob("*.jsonl"))
