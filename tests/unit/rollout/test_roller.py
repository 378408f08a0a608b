from dataclasses import replace

import pytest
import torch

from espalier.config import Profile
from espalier.environments import EnvironmentLostError, ToolEnvironment
from espalier.environments.search_qa import SearchQA
from espalier.environments.search_qa.family import search_tool
from espalier.policy.loading import save_policy
from espalier.records import PolicyError
from espalier.records.trajectory import FinishReason
from espalier.rollout.engines.lockstep import lockstep_engine
from espalier.rollout.roller import Roller
from tests.factories.records import make_task
from tests.factories.tiny import LookupSearch, lookup_environments, tiny_dialect, tiny_policy
from tests.unit.rollout.play import plain_logprobs

SEARCH = LookupSearch(("Lyon | country: France", "France | currency: Euro"))


def _task(number, question):
    return make_task(f"t{number}", question, gold=("Euro",), hops=2)


TASKS = [
    _task(0, "What is the currency of the country of Lyon?"),
    _task(1, "currency of France"),
    _task(2, "What is the time zone of the country of the country of Lyon and Italy?"),
]


def _roll(samples=4, **overrides):
    profile = Profile.model_validate(overrides)
    return Roller.local(tiny_policy(), lookup_environments(SEARCH, profile), profile).roll_out(
        TASKS, samples=samples, temperature=1.0, seed=7
    )


@pytest.mark.slow
def test_recorded_logprobs_equal_a_plain_forward_pass():
    model = tiny_policy().model
    for trajectory in _roll():
        sampled = torch.tensor(trajectory.action_mask[1:], dtype=torch.bool)
        recorded = torch.tensor(trajectory.behavior_logprobs[1:])
        expected = plain_logprobs(model, trajectory.token_ids, trajectory.action_mask)
        torch.testing.assert_close(recorded[sampled], expected, rtol=1e-4, atol=1e-4)
        assert not recorded[~sampled].any()


def test_some_sampled_text_would_be_tokenised_otherwise_and_is_not():
    dialect = tiny_dialect()
    changed = [
        trajectory
        for trajectory in _roll()
        for turn in trajectory.turns
        for ids in [trajectory.token_ids[turn.action_start : turn.action_end]]
        if dialect.text_ids(dialect.text(ids)) != ids
    ]
    # the plain forward of the test above is over these very ids
    assert changed


def test_trajectories_come_task_by_task():
    assert [t.group_id for t in _roll(samples=2)] == ["t0", "t0", "t1", "t1", "t2", "t2"]


def test_same_seed_gives_the_same_trajectories():
    assert _roll() == _roll()


@pytest.mark.slow
def test_the_number_of_rows_changes_nothing():
    few = _roll(rollout={"max_rows": 2})
    assert [t.token_ids for t in few] == [t.token_ids for t in _roll()]


def test_attempts_at_one_task_differ():
    assert len({t.token_ids for t in _roll(samples=4)[:4]}) > 1


@pytest.mark.slow
def test_greedy_rows_do_not_depend_on_other_rows():
    together = Roller.local(tiny_policy(), lookup_environments(SEARCH), Profile()).roll_out(
        TASKS, samples=1, temperature=0.0, seed=0
    )
    for task, trajectory in zip(TASKS, together, strict=True):
        alone = Roller.local(tiny_policy(), lookup_environments(SEARCH), Profile()).roll_out(
            [task], samples=1, temperature=0.0, seed=0
        )
        assert alone[0].token_ids == trajectory.token_ids


@pytest.mark.parametrize("overflow", ["stop", "truncate", "summarise"])
def test_trajectories_stay_within_their_limits(overflow):
    limits = {"max_turns": 2, "max_tokens": 40, "max_turn_tokens": 6, "overflow": overflow}
    for trajectory in _roll(episode=limits, rollout={"max_rows": 5}):
        assert all(w.stop - w.start <= 40 for w in trajectory.windows)
        assert len(trajectory.tool_results) <= 2
        assert all(turn.action_end - turn.action_start <= 6 for turn in trajectory.turns)
        assert len(trajectory.token_ids) == len(trajectory.action_mask)


def test_turn_spans_cover_exactly_the_action_mask():
    for trajectory in _roll():
        spans = [0] * len(trajectory.token_ids)
        for turn in trajectory.turns:
            spans[turn.action_start : turn.action_end] = [1] * (turn.action_end - turn.action_start)
        assert tuple(spans) == trajectory.action_mask


def test_a_roller_counts_its_tokens_and_its_time():
    roller = Roller.local(tiny_policy(), lookup_environments(SEARCH), Profile())
    trajectories = roller.roll_out(TASKS, samples=3, temperature=1.0, seed=0)
    assert roller.action_tokens == sum(sum(t.action_mask) for t in trajectories)
    prompts = sum(len(roller.dialect.prompt_ids(task.prompt)) for task in TASKS)
    read = sum(len(t.token_ids) - t.action_mask.index(1) for t in trajectories)
    assert roller.total_tokens == prompts + read
    assert roller.forwarded_tokens < roller.total_tokens
    assert roller.seconds > 0


@pytest.mark.slow
def test_lost_environments_are_counted_and_cost_no_other_episode():
    class LostOnLyon(ToolEnvironment):
        def step(self, action):
            if self.task.task_id == "t0":
                raise EnvironmentLostError("the sandbox is gone")
            return super().step(action)

    roller = _roller_over(LostOnLyon, for_training=True)
    heard = []
    trajectories = roller.roll_out(TASKS, samples=6, temperature=1.0, seed=0, on_lost=heard.append)
    lost = [t for t in trajectories if t.is_lost]
    assert lost
    assert sorted(map(id, heard)) == sorted(map(id, lost))
    assert roller.losses == {FinishReason.SANDBOX_LOST: len(lost)}
    assert (roller.replays, {t.task_id for t in lost}) == (0, {"t0"})


def _roller_over(environment_class, **settings):
    policy, dialect = tiny_policy(), tiny_dialect()
    rules = SearchQA(Profile()).rules((search_tool(SEARCH),))
    return Roller(
        lockstep_engine(policy.model, dialect, max_rows=4),
        dialect,
        replace(lookup_environments(SEARCH), make=lambda task: environment_class(rules)),
        Profile.model_validate({"episode": {"max_turn_tokens": 200, "max_tokens": 224}}),
        **settings,
    )


class LostAtFirst(ToolEnvironment):
    """Every environment is lost until as many were as are listed."""

    losses = 0

    def reset(self, task):
        if type(self).losses > 0:
            type(self).losses -= 1
            raise EnvironmentLostError("the node was drained")
        return super().reset(task)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_an_episode_lost_from_outside_is_played_again(temperature, monkeypatch):
    asked = {"samples": 1, "temperature": temperature, "seed": 0}
    unbroken = _roller_over(LostAtFirst).roll_out(TASKS, **asked)
    monkeypatch.setattr(LostAtFirst, "losses", 2)
    roller = _roller_over(LostAtFirst)
    played = roller.roll_out(TASKS, **asked)
    assert not any(t.is_lost for t in played)
    assert (roller.replays, roller.losses.total()) == (2, 2)
    same = [one.token_ids == other.token_ids for one, other in zip(unbroken, played, strict=True)]
    assert same[-1], "an episode that lost nothing is the same"
    assert all(same) is (temperature == 0), "greedy replays decode the same, others draw anew"


def test_an_episode_lost_every_time_is_returned_as_lost(monkeypatch):
    monkeypatch.setattr(LostAtFirst, "losses", 99)
    roller = _roller_over(LostAtFirst)
    (trajectory,) = roller.roll_out(TASKS[:1], samples=1, temperature=0.0, seed=0)
    assert trajectory.is_lost
    assert (roller.replays, roller.losses.total()) == (2, 3)


def test_a_listener_to_losses_may_end_the_rollout(monkeypatch):
    monkeypatch.setattr(LostAtFirst, "losses", 99)

    def refuse(lost):
        raise EnvironmentLostError(f"{lost.task_id} was one too many")

    with pytest.raises(EnvironmentLostError, match="one too many"):
        _roller_over(LostAtFirst).roll_out(
            TASKS, samples=2, temperature=1.0, seed=0, on_lost=refuse
        )


def test_a_roller_loads_one_policy_directory_after_another(tmp_path):
    save_policy(tiny_policy(), tmp_path / "0")
    save_policy(tiny_policy(seed=1), tmp_path / "1")
    roller = Roller.open(tmp_path / "0", lookup_environments(SEARCH), Profile())
    first = roller.roll_out(TASKS, samples=1, temperature=0.0, seed=0)
    roller.load_weights(tmp_path / "1", version=4)
    second = roller.roll_out(TASKS, samples=1, temperature=0.0, seed=0)
    assert [t.policy_version for t in first + second] == [0] * 3 + [4] * 3
    assert first[0].behavior_logprobs != second[0].behavior_logprobs


@pytest.mark.slow
def test_a_policy_changed_in_memory_samples_with_new_weights():
    policy = tiny_policy()
    profile = Profile.model_validate({"rollout": {"speculation": "off"}})  # log-probs to the bit
    roller = Roller.local(policy, lookup_environments(SEARCH), profile)
    roller.roll_out(TASKS, samples=1, temperature=0.0, seed=0)
    policy.model.load_state_dict(tiny_policy(seed=1).model.state_dict())
    roller.policy_version = 1
    changed = roller.roll_out(TASKS, samples=1, temperature=0.0, seed=0)
    fresh = Roller.local(tiny_policy(seed=1), lookup_environments(SEARCH), Profile())
    fresh.policy_version = 1
    assert changed == fresh.roll_out(TASKS, samples=1, temperature=0.0, seed=0)


def test_a_task_of_an_unknown_environment_is_refused():
    strange = TASKS[0].model_copy(update={"environment": "chess"})
    with pytest.raises(PolicyError, match="'chess'"):
        Roller.local(tiny_policy(), lookup_environments(SEARCH), Profile()).roll_out(
            [strange], samples=1, temperature=0.0, seed=0
        )
