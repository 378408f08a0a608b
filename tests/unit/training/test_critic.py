import pytest
import torch

from espalier.algorithms.losses.value import CriticSettings
from espalier.training.optimization import learning_rate
from espalier.training.packing import pack
from espalier.training.rl.models import Critic
from espalier.training.rl.rows import dense_rows
from tests.factories.tiny import tiny_policy
from tests.factories.training_episodes import make_update, mixed_groups, profile_of, step_of


def _step(update, profile, groups, number=0):
    rows = dense_rows(groups, with_observations=False)
    return update.apply(rows, [(row,) for row in range(len(rows))], step_of(profile, number))


def _weights(model):
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def _moved(before, model):
    return any(not torch.equal(before[name], p) for name, p in model.named_parameters())


def test_values_start_at_zero_and_gradients_reach_its_own_body():
    policy = tiny_policy().model
    critic, rows = Critic(policy), dense_rows(mixed_groups(), with_observations=False)
    batch = pack(rows.sequences, row_tokens=64, gap=2)
    assert not critic(batch).any()
    torch.nn.init.normal_(critic.head.weight)
    critic(batch).sum().backward()
    assert all(p.grad is not None for p in critic.body.layers.parameters())
    assert not {p.data_ptr() for p in policy.parameters()} & {
        p.data_ptr() for p in critic.parameters()
    }


@pytest.mark.slow
def test_the_critic_learns_what_the_episodes_return():
    profile = profile_of({"preset": "ppo", "critic": {"learning_rate": 3e-3}}, steps=40)
    update, _ = make_update(tiny_policy().model, profile)
    groups = mixed_groups()
    losses = [_step(update, profile, groups, number)["value_loss"] for number in range(30)]
    assert losses[-1] < 0.5 * losses[0]


def test_in_its_warm_up_the_critic_alone_is_trained():
    profile = profile_of({"preset": "vapo", "critic": {"warmup_steps": 2}})
    update, models = make_update(tiny_policy().model, profile)
    before, values_before = _weights(models.policy), _weights(models.critic)
    groups = mixed_groups()
    for number in range(2):
        figures = _step(update, profile, groups, number)
        assert "loss" not in figures
    assert not _moved(before, models.policy)
    assert _moved(values_before, models.critic)
    assert "loss" in _step(update, profile, groups, 2)
    assert _moved(before, models.policy)


def test_a_critic_warms_up_for_a_sixth_of_the_steps():
    assert [CriticSettings().warmup_of(steps) for steps in (2, 40, 900)] == [0, 6, 50]
    assert CriticSettings(warmup_steps=9).warmup_of(40) == 9


@pytest.mark.parametrize(
    "narrowing",
    [
        {"filters": [{"name": "high_entropy_tokens", "share": 0.2}]},
        {"off_policy": [{"name": "rejection", "upper": 1.01}]},
    ],
    ids=["token filter", "rejection"],
)
def test_what_the_policy_drops_the_critic_still_learns(narrowing):
    """Credit reads the value of every sampled token, also of those that train no policy."""
    fitted = []
    for algorithm in ({"preset": "ppo"}, {"preset": "ppo"} | narrowing):
        profile = profile_of(algorithm)
        update, models = make_update(tiny_policy().model, profile)
        loss = _step(update, profile, mixed_groups())["value_loss"]
        fitted.append((loss, _weights(models.critic)))
    (loss, weights), (narrowed_loss, narrowed) = fitted
    assert narrowed_loss == loss
    assert all(torch.equal(weights[name], narrowed[name]) for name in weights)


@pytest.mark.slow
def test_the_policys_schedule_starts_after_the_critics_warm_up():
    profile = profile_of({"preset": "vapo", "critic": {"warmup_steps": 2}}, steps=10)
    update, _ = make_update(tiny_policy().model, profile)
    rates = []
    for number in range(10):
        _step(update, profile, mixed_groups(), number)
        rates.append(update.updater.optimizer.param_groups[0]["lr"])
    config = profile.training.optimizer
    assert rates[2:] == [learning_rate(config, step, 8) for step in range(8)]


def test_a_resumed_critic_goes_on_where_it_stood():
    profile, groups = profile_of({"preset": "ppo"}), mixed_groups()
    update, models = make_update(tiny_policy().model, profile)
    _step(update, profile, groups)
    other, resumed = make_update(tiny_policy(seed=3).model, profile)
    other.restore(update.state())
    assert not _moved(_weights(models.critic), resumed.critic)
