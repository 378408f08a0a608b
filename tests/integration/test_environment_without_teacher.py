"""The two smallest environments of the docs: from a given model through RL, without a teacher."""

import importlib
import json
import sys

import pytest
from pydantic import ValidationError

from espalier.config import Profile
from espalier.environments import family_of
from espalier.policy.loading import save_policy
from espalier.records import read_tasks
from espalier.records.trajectory import read_trajectories
from tests.factories.chains import SMALL_CHAIN, chain_run
from tests.factories.sums_run import untaught_policy
from tests.unit.docs.fences import FENCES


@pytest.fixture
def pages(tmp_path, monkeypatch):
    """The environments that docs/add-environment.md writes, importable."""
    found = {f.about: f.text for f in FENCES if f.says == "file"}
    for name in ("word_problems.py", "bank.py"):
        (tmp_path / name).write_text(found[name])
        monkeypatch.delitem(sys.modules, name.removesuffix(".py"), raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()


@pytest.fixture
def problems(tmp_path):
    """GSM8K's form, with sums."""
    rows = [{"question": f"What is {n} + {n}?", "answer": f"#### {2 * n}"} for n in range(60)]
    path = tmp_path / "problems.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def profile_of(environment, model):
    return Profile.model_validate(
        SMALL_CHAIN | {"environment": environment, "policy": {"model": str(model)}}
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["word_problems:WordProblems", "bank:Bank"])
def test_a_given_model_is_trained_without_demonstrations(pages, problems, tmp_path, name):
    environment = {"name": name} | ({"file": str(problems)} if "word" in name else {})
    model, run = tmp_path / "model", tmp_path / "run"
    profile = profile_of(environment, model)
    words = "What is 1 + 1 ? transfer 0 1 2 3 4 5 6 7 8 9 cash"
    save_policy(untaught_policy(family_of(profile), words), model)
    chain_run(profile, run)
    assert read_tasks(run / "accepted" / "tasks" / "train.jsonl")
    assert read_trajectories(run / "accepted" / "trajectories.parquet") == []
    weights = [run / one / "policy" / "model.safetensors" for one in ("base_policy", "warm_policy")]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    assert read_trajectories(run / "trained_policy" / "trajectories.parquet")
    assert (run / "evaluation" / "results.json").is_file()


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"policy": {}}, r"policy\.model"),
        ({"episode": {"memory": {}}}, "teacher"),
        ({"warm_start": {"hindsight": {}}}, "RelabelsFailures"),
        ({"agent_texts": {"negatives": 5}}, "WritesAgentTexts"),
        ({"self_play": {"name": "webrl"}}, "poses no tasks"),
    ],
)
def test_keys_that_need_a_mixin_are_refused(pages, tmp_path, section, said):
    own = {"environment": {"name": "bank:Bank"}, "policy": {"model": str(tmp_path)}}
    with pytest.raises(ValidationError, match=said):
        Profile.model_validate(own | section)
