"""Whole runs on a GPU, from the policy's first weights to its evaluation.

TEST_GPU_RUN=FOLDER begins from a run of the profile smoke that has come to `validate`: the chain
then needs no source of facts.
"""

import json
import math
import os
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch

from espalier.config import load_profile
from espalier.records import NullTracker
from tests.benchmarks.chain_runs import run_chain
from tests.factories import tiny_training
from tests.factories.training import Interrupted, InterruptingTracker

SMOKE = Path("pipelines/profiles/smoke.toml")
SHORTER = (
    "curriculum.candidates=100",
    "training.steps=8",
    "training.evaluate_every=4",
    "training.dev_questions=30",
    "evaluation.sampled_questions=10",
)
"""The first weights and the warm start stay as they are: a policy that never answers right has no
group to learn from."""


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_chain_runs_from_the_first_weights_to_the_evaluation(precision, device, tmp_path):
    if given := os.environ.get("TEST_GPU_RUN"):
        shutil.copytree(given, tmp_path / "run")
    on_it = (f"hardware.device={device}", f"hardware.precision={precision}")
    profile = load_profile(SMOKE, [*SHORTER, *on_it])
    run_chain(profile, tmp_path / "run", "evaluate")
    history = pq.read_table(tmp_path / "run" / "trained_policy" / "history.parquet").to_pylist()
    mismatches = [row["mismatch_kl"] for row in history if row["mismatch_kl"] is not None]
    assert mismatches, "no group was learned from"
    print(f"mismatch {precision}: {max(mismatches):.1e}")
    assert all(math.isfinite(one) for one in mismatches)
    assert max(mismatches) <= profile.training.max_mismatch_kl
    results = json.loads((tmp_path / "run" / "evaluation" / "results.json").read_text())
    assert results["suite"]["n"] == 200
    assert 0 <= results["eval"]["trained"]["em"] <= 1


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    tiny_training.write_inputs(folder)
    return folder


def profile_on(device, *, max_staleness):
    hardware = {"device": device.type, "precision": "float32"}
    return tiny_training.profile_of(max_staleness=max_staleness, hardware=hardware)


def test_one_model_is_trained_and_sampled(inputs, device, tmp_path):
    run = tiny_training.tiny_run(inputs, tmp_path, profile_on(device, max_staleness=0))
    assert run.loop.parts.models.policy.model is run.policy.model
    assert run.policy.model.device.type == device.type


def test_a_killed_training_goes_on_as_an_unbroken_one(inputs, device, tmp_path):
    profile = profile_on(device, max_staleness=0)
    unbroken = tiny_training.tiny_run(inputs, tmp_path / "unbroken", profile)
    unbroken.loop.run(NullTracker())
    with pytest.raises(Interrupted):
        tiny_training.tiny_run(inputs, tmp_path / "killed", profile).loop.run(
            InterruptingTracker(5)
        )
    resumed = tiny_training.tiny_run(inputs, tmp_path / "killed", profile)
    resumed.loop.run(NullTracker())
    assert resumed.loop.progress.history == unbroken.loop.progress.history
    expected = unbroken.policy.model.state_dict()
    for name, weights in resumed.policy.model.state_dict().items():
        assert torch.equal(weights, expected[name]), name


def test_sampling_ahead_of_the_learner_ends_with_finite_weights(inputs, device, tmp_path):
    run = tiny_training.tiny_run(inputs, tmp_path, profile_on(device, max_staleness=2))
    run.loop.run(NullTracker())
    assert len(run.loop.progress.history) == tiny_training.STEPS
    assert all(torch.isfinite(weights).all() for weights in run.policy.model.parameters())
