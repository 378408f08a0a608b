"""The warm start with hindsight on real artifacts: what fails is used or counted, kills or not."""

import json

import pytest

from espalier.config import Profile
from espalier.records import NullTracker, Provenance, publishing, read_tasks
from espalier.records.trajectory import read_trajectories
from espalier.stages import warm_start
from espalier.stages.train import keep_what_was_shown
from tests.factories.chains import inputs_of
from tests.factories.tracking import KillingTracker
from tests.factories.training import Interrupted

SECTIONS = {
    "name": "hindsight",
    "threads": 1,
    "environment": {
        "name": "web",
        "sites": 40,
        "kinds": ["vote"],
        "site": {
            "products": 2, "threads": 4, "issues": 2, "users": 2, "page_size": 4,
            "menu": [], "filters": False,
        },
    },
    "synthesis": {"train_tasks": 90, "dev_tasks": 4, "heldout_tasks": 4, "trajectories": 2},
    "validation": {"min_action_share": 0.01},
    "policy": {
        "dialect": "hermes", "vocab_size": 512, "hidden_size": 32, "attention_heads": 2,
        "feed_forward_size": 32, "layers": ["conv", "attention"],
        "prestage": {"steps": 2, "tokens_per_step": 256},
    },
    "episode": {"max_turns": 4, "max_tokens": 240, "max_turn_tokens": 40},
    "warm_start": {
        "steps": 60, "trajectories_per_step": 2, "evaluate_every": 60, "dev_questions": 2,
        "optimizer": {"learning_rate": 1e-2},
    },
    "curriculum": {"candidates": 4},
    "training": {"dev_questions": 4},
}  # fmt: skip
"""Two demonstrations, learned by heart: on other pages the policy votes for something else."""
HINDSIGHT = {"tasks": 40, "attempts": 1, "temperature": 0.3, "steps": 4}


def profile_with(hindsight):
    section = SECTIONS["warm_start"] | ({} if hindsight is None else {"hindsight": hindsight})
    return Profile.model_validate(SECTIONS | {"warm_start": section})


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory):
    """Everything that the warm start reads; hindsight changes none of it."""
    return inputs_of("warm_start", profile_with(None), tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def unbroken(artifacts, tmp_path_factory):
    out = tmp_path_factory.mktemp("unbroken") / "warm_policy"
    return warm_start.run(profile_with(HINDSIGHT), artifacts, out, NullTracker()), out


def test_failures_become_demonstrations_and_the_rest_is_counted(artifacts, unbroken):
    manifest, out = unbroken
    counts = json.loads((out / "hindsight" / "counts.json").read_text())
    tasks = {task.task_id: task for task in read_tasks(out / "hindsight" / "tasks.jsonl")}
    shown = read_trajectories(out / "hindsight" / "trajectories.parquet")
    assert manifest.rows["relabelled"] == counts["relabelled"] == len(shown) == len(tasks) > 0
    assert counts["relabelled"] + sum(counts["unused"].values()) == HINDSIGHT["tasks"]
    assert all(one.is_right and one.task_id in tasks for one in shown)
    folder = artifacts["accepted"] / "tasks"
    judged = [t for name in ("dev", "heldout") for t in read_tasks(folder / f"{name}.jsonl")]
    own = {name for task in judged for name in task.extra["entities"]}
    assert not own & {name for task in tasks.values() for name in task.extra["entities"]}


@pytest.mark.parametrize("steps", [59, 62])
def test_killed_warm_start_with_hindsight_ends_the_same(artifacts, unbroken, tmp_path, steps):
    with pytest.raises(Interrupted):
        warm_start.run(profile_with(HINDSIGHT), artifacts, tmp_path / "warm", KillingTracker(steps))
    resumed = warm_start.run(profile_with(HINDSIGHT), artifacts, tmp_path / "warm", NullTracker())
    assert resumed.content == unbroken[0].content


def test_relabelled_share_is_bounded(artifacts, tmp_path):
    few = {**HINDSIGHT, "max_share": 0.34}
    made = warm_start.run(profile_with(few), artifacts, tmp_path / "warm", NullTracker())
    assert made.rows["relabelled"] == 1
    counts = json.loads((tmp_path / "warm" / "hindsight" / "counts.json").read_text())
    assert counts["unused"]["above_max_share"] > 0


def test_what_is_trained_further_keeps_the_relabelled_tasks(unbroken, tmp_path):
    _, warm = unbroken
    origin = Provenance(producer="train", config_digest="c", seed=0)
    with publishing(tmp_path / "trained", origin) as draft:
        keep_what_was_shown(draft, warm)
    kept = tmp_path / "trained" / "hindsight" / "tasks.jsonl"
    assert kept.read_bytes() == (warm / "hindsight" / "tasks.jsonl").read_bytes()
