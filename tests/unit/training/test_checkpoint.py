import pytest
import torch
from torch import nn

from espalier.config import Profile
from espalier.policy.loading import load_policy_to_train, save_policy
from espalier.records import NEWEST_CHECKPOINT, PolicyError, TrainingError
from espalier.training.checkpoint import (
    Checkpoint,
    CheckpointStore,
    checkpointed_policy,
    cloned_weights,
)
from espalier.training.parallel import whole_weights
from tests.factories.tiny import tiny_policy
from tests.unit.policy.test_lora import LFM2_TARGET


def _checkpoint(step):
    model = nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    return Checkpoint(
        step=step,
        model=cloned_weights(model),
        optimizer=optimizer.state_dict(),
        history=[{"step": 1.0, "loss": 0.5}],
        extra={"best_weights": cloned_weights(model), "pool": {"t1": [4.0, 2.0]}, "kept": ["t1"]},
    )


def test_what_was_saved_last_comes_back_to_its_own_run(tmp_path):
    store = CheckpointStore(tmp_path / "work", "run")
    assert store.load() is None
    store.save(_checkpoint(6))
    saved = _checkpoint(7)
    store.save(saved)
    loaded = CheckpointStore(tmp_path / "work", "run").load()
    assert loaded.step == 7
    assert loaded.history == saved.history
    assert loaded.extra["pool"] == saved.extra["pool"]
    assert torch.equal(loaded.model["weight"], saved.model["weight"])
    moments = loaded.optimizer["state"][0]
    assert torch.equal(moments["exp_avg"], saved.optimizer["state"][0]["exp_avg"])
    assert CheckpointStore(tmp_path / "work", "other").load() is None


def test_a_failed_or_killed_save_leaves_the_former_checkpoint(tmp_path):
    store = CheckpointStore(tmp_path, "run")
    store.save(_checkpoint(7))
    broken = _checkpoint(9)
    broken.extra["unpicklable"] = (number for number in range(3))
    with pytest.raises(TypeError):
        store.save(broken)
    assert store.load().step == 7
    (tmp_path / ".latest.pt.partial").write_bytes((tmp_path / "latest.pt").read_bytes()[:99])
    assert store.load().step == 7
    store.save(_checkpoint(8))
    assert [path.name for path in tmp_path.iterdir()] == ["latest.pt"]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("name", ["weight", "bias"])
def test_weights_that_are_not_finite_leave_the_former_checkpoint(tmp_path, name, value):
    store = CheckpointStore(tmp_path, "run")
    store.save(_checkpoint(7))
    broken = _checkpoint(9)
    broken.model[name].view(-1)[-1] = value
    with pytest.raises(TrainingError, match=rf"step 9: 1 of 2 .*\b{name}\b"):
        store.save(broken)
    assert store.load().step == 7


@pytest.mark.parametrize("lora", [None, {"rank": 4, "target": LFM2_TARGET}])
def test_the_policy_of_a_checkpoint_is_that_in_training(tmp_path, lora):
    profile = Profile.model_validate({"policy": {"lora": lora}})
    save_policy(tiny_policy(), tmp_path / "start")
    trained = load_policy_to_train(tmp_path / "start", profile, digest="d").model
    with torch.no_grad():
        for parameter in filter(lambda it: it.requires_grad, trained.parameters()):
            parameter.add_(0.1)
    store = CheckpointStore(tmp_path / "work", "run")
    store.save(Checkpoint(step=3, model=whole_weights(trained), optimizer={}))
    path = tmp_path / "work" / NEWEST_CHECKPOINT
    found, step = checkpointed_policy(path, tmp_path / "start", profile)
    assert step == 3
    expected = trained.state_dict()
    assert found.model.state_dict().keys() == expected.keys()
    assert all(torch.equal(it, expected[name]) for name, it in found.model.state_dict().items())


def test_a_checkpoint_of_another_model_is_refused(tmp_path):
    save_policy(tiny_policy(), tmp_path / "start")
    path = tmp_path / "work" / NEWEST_CHECKPOINT
    with pytest.raises(TrainingError, match="has published since"):
        checkpointed_policy(path, tmp_path / "start", Profile())
    CheckpointStore(tmp_path / "work", "run").save(_checkpoint(7))
    with pytest.raises(PolicyError, match="not weights of"):
        checkpointed_policy(path, tmp_path / "start", Profile())
