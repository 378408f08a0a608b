"""Labels of steps by completions, heads that are fitted to them, and the rewards of those."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from espalier.algorithms.shaping import TermContext
from espalier.config import OutcomeModelConfig, ProcessRewardConfig, RewardModelConfig
from espalier.records import ArtifactError, NullTracker
from espalier.records.trajectory import FinishReason, Turn
from espalier.rollout.roller import start_after
from espalier.training.parallel import Processes
from espalier.training.reward_models.head import (
    RewardModel,
    area_under_curve,
    load_reward_model,
    outcome_figures,
)
from espalier.training.reward_models.labels import label_outcomes, label_steps
from espalier.training.rl.models import Critic, build_layout
from espalier.training.rl.reward_functions import (
    OutcomeModelRewards,
    ProcessRewards,
    ProfileRewards,
    TermRewards,
)
from tests.factories.training import (
    CPU,
    PROFILE,
    TASKS,
    make_task,
    make_trajectory,
    warm_policy,
    warm_roller,
)


@pytest.fixture
def roller(warm):
    return warm_roller(warm_policy(warm))


def layout(policy):
    return build_layout(policy.model, PROFILE, CPU, Processes())


def attempt(task, outcome):
    spans = [Turn(action_start=n, action_end=n + 1, observation_end=n + 2) for n in (0, 2, 4)]
    return make_trajectory(
        task,
        outcome,
        token_ids=tuple(range(5, 11)),
        action_mask=(1, 0) * 3,
        behavior_logprobs=(-1.0, 0.0) * 3,
        turns=tuple(spans),
    )


class ScriptedEnds:
    """Ends the n-th begun episode as the script says; None is a lost one."""

    def __init__(self, *ends):
        self.ends, self.starts = ends, []

    def complete(self, starts, *, samples, temperature, seed):
        self.starts = list(starts)
        assert len(self.ends) == len(starts) * samples
        ended = [make_trajectory(make_task("lyon"), end or 0) for end in self.ends]
        lost = FinishReason.SANDBOX_LOST
        pairs = zip(ended, self.ends, strict=True)
        return [replace(t, finish_reason=lost) if end is None else t for t, end in pairs]


def labelled_steps(trajectory, *ends):
    roller, tasks = ScriptedEnds(*ends), {trajectory.task_id: make_task("lyon")}
    how = {"completions": 2, "temperature": 1.0, "seed": 0}
    [found] = label_steps([trajectory], tasks, roller, **how)
    return found, roller


def test_a_step_is_worth_the_share_of_its_right_ends():
    found, roller = labelled_steps(attempt(make_task("lyon"), 0), 1, 1, 0, 1)
    assert found.turns == (0, 1, 2)
    assert found.targets("soft") == (1.0, 0.5, 0.0), "the last step is the outcome itself"
    assert found.targets("hard") == (1.0, 1.0, 0.0)
    assert [len(begun) for _, begun in roller.starts] == [1, 2]
    assert found.positions == (0, 2, 4)


def test_what_was_lost_has_no_label():
    found, _ = labelled_steps(attempt(make_task("lyon"), 1), None, None, None, 1)
    assert (found.turns, found.shares) == ((1, 2), (1.0, 1.0))
    lost = replace(attempt(make_task("lyon"), 0), finish_reason=FinishReason.TIMEOUT, reward={})
    assert label_outcomes([lost]) == []


def test_an_episode_goes_on_from_its_first_messages(roller):
    [first] = roller.roll_out(TASKS[:1], samples=1, temperature=1.0, seed=4)
    assert len(first.turns) >= 2, "it searches before it answers"
    start = start_after(TASKS[0], first, 1)
    ends = roller.complete([start], samples=3, temperature=1.0, seed=9)
    seen = first.turns[0].observation_end
    for end in ends:
        assert end.token_ids[:seen] == first.token_ids[:seen]
        assert end.behavior_logprobs[:seen] == first.behavior_logprobs[:seen]
        assert end.tool_results[0] == first.tool_results[0]
        assert end.reward


def test_a_head_tells_right_attempts_from_wrong_ones(roller, warm, tmp_path):
    policy = warm_policy(warm)
    attempts = roller.roll_out(TASKS, samples=24, temperature=1.0, seed=1)
    assert 0.1 < sum(t.is_right for t in attempts) / len(attempts) < 0.9
    model = RewardModel("outcome", Critic(policy.model), layout(policy))
    assert outcome_figures(model, attempts)["auc"] == 0.5, "a new head knows nothing"
    config = RewardModelConfig(steps=90, attempts_per_step=32, learning_rate=5e-3)
    losses = model.fit(label_outcomes(attempts), config, 0, NullTracker())
    assert losses[-1] < losses[0]
    others = roller.roll_out(TASKS, samples=8, temperature=1.0, seed=2)
    assert outcome_figures(model, others)["auc"] > 0.8

    model.save(policy, tmp_path / "model")
    again = load_reward_model(tmp_path / "model", "outcome", layout(policy))
    for one, other in zip(model.scores(others), again.scores(others), strict=True):
        assert one == pytest.approx(other, abs=1e-6)
    with pytest.raises(ArtifactError, match=r"outcome.*process"):
        load_reward_model(tmp_path / "model", "process", layout(policy))
    with pytest.raises(ArtifactError, match=tmp_path.name):
        load_reward_model(tmp_path, "process", layout(policy))


def scored(*scores):
    return SimpleNamespace(scores=lambda group: [list(scores) for _ in group])


@pytest.mark.parametrize(
    ("reduce", "term", "by_turn"),
    [
        ("progress", {"turns": 0.15}, [0.1, -0.05, 0.1]),
        ("mean", {"process": 0.5 * (0.2 + 0.1 + 0.3) / 3}, [0, 0, 0]),
        ("min", {"process": 0.05}, [0, 0, 0]),
    ],
)
def test_steps_are_paid_as_the_profile_says(tmp_path, reduce, term, by_turn):
    config = ProcessRewardConfig(model=tmp_path, weight=0.5, reduce=reduce)
    [rewarded] = ProcessRewards(scored(0.2, 0.1, 0.3), config)([attempt(make_task("lyon"), 1)])
    assert rewarded.reward == pytest.approx({"outcome": 1.0, "format": 0.0} | term)
    assert [turn.reward for turn in rewarded.turns] == pytest.approx(by_turn)


def test_an_outcome_model_takes_the_rules_place(tmp_path):
    context = TermContext(64, outcome_low=-1.0, outcome_high=1.0)
    judge = OutcomeModelRewards(scored(0.1, 0.2, 0.7), OutcomeModelConfig(model=tmp_path), context)
    reward_function = ProfileRewards(TermRewards([], context), outcome=judge)
    rewarded = reward_function([attempt(make_task("lyon"), 1), attempt(make_task("lyon"), 0)])
    assert [t.reward["outcome"] for t in rewarded] == [1.0, 1.0]
    wrong = [attempt(make_task("lyon"), 0)]
    assert reward_function.judged(wrong)[0].is_right, "trials of self-play are judged alike"
    assert ProfileRewards(TermRewards([], context)).judged(wrong) == wrong
    assert reward_function.judged([]) == []
    assert reward_function.figures() == {"outcome_model/agreement": pytest.approx(1 / 3)}


def test_the_area_counts_pairs_in_order():
    assert area_under_curve([0.9, 0.2, 0.5, 0.2], [True, True, False, False]) == 0.625
    assert area_under_curve([0.9, 0.8, 0.1], [True, True, False]) == 1.0
