from dataclasses import replace

import pytest
import torch

from espalier.config import Profile
from espalier.dialects.dialect import Dialect
from espalier.environments import EnvironmentLostError, ToolEnvironment
from espalier.policy.loading import save_policy
from espalier.records import PolicyError
from espalier.records.trajectory import FinishReason
from espalier.rollout.engines.lockstep import lockstep_engine
from espalier.rollout.roller import Roller, kind_choice
from espalier_search.search_qa import SearchQA
from espalier_search.search_qa.family import search_tool
from tests.factories import tiny
from tests.factories.byte_tokenizer import byte_tokenizer
from tests.factories.records import make_task
from tests.unit.rollout.play import plain_logprobs

SEARCH = tiny.LookupSearch(("Lyon | country: France", "France | currency: Euro"))


TASKS = [
    make_task(f"t{number}", question, gold=("Euro",), hops=2)
    for number, question in enumerate(
        (
            "What is the currency of the country of Lyon?",
            "currency of France",
            "What is the time zone of the country of the country of Lyon and Italy?",
        )
    )
]


def _roller(**overrides):
    profile = Profile.model_validate(overrides)
    return Roller.local(tiny.tiny_policy(), tiny.lookup_environments(SEARCH, profile), profile)


def _roll(samples=4, **overrides):
    return _roller(**overrides).roll_out(TASKS, samples=samples, temperature=1.0, seed=7)


def _greedy(roller, tasks=TASKS):
    return roller.roll_out(tasks, samples=1, temperature=0.0, seed=0)


@pytest.mark.slow
def test_recorded_logprobs_equal_a_plain_forward_pass():
    model, dialect, changed = tiny.tiny_policy().model, tiny.tiny_dialect(), 0
    for trajectory in _roll():
        sampled = torch.tensor(trajectory.action_mask[1:], dtype=torch.bool)
        recorded = torch.tensor(trajectory.behavior_logprobs[1:])
        expected = plain_logprobs(model, trajectory.token_ids, trajectory.action_mask)
        torch.testing.assert_close(recorded[sampled], expected, rtol=1e-4, atol=1e-4)
        assert not recorded[~sampled].any()
        spans = [slice(turn.action_start, turn.action_end) for turn in trajectory.turns]
        actions = [trajectory.token_ids[span] for span in spans]
        changed += sum(dialect.text_ids(dialect.text(ids)) != ids for ids in actions)
    assert changed, "some text would be tokenised otherwise, and is not"


def test_same_seed_gives_the_same_trajectories_task_by_task():
    played = _roll()
    assert played == _roll()
    assert [t.group_id for t in played] == ["t0"] * 4 + ["t1"] * 4 + ["t2"] * 4
    assert len({t.token_ids for t in played[:4]}) > 1, "attempts at one task differ"


@pytest.mark.slow
def test_the_number_of_rows_changes_nothing():
    few = _roll(rollout={"max_rows": 2})
    assert [t.token_ids for t in few] == [t.token_ids for t in _roll()]


@pytest.mark.parametrize("overflow", ["stop", "truncate", "summarise"])
def test_trajectories_stay_within_their_limits(overflow):
    limits = {"max_turns": 2, "max_tokens": 40, "max_turn_tokens": 6, "overflow": overflow}
    for trajectory in _roll(episode=limits, rollout={"max_rows": 5}):
        assert all(w.stop - w.start <= 40 for w in trajectory.windows)
        assert len(trajectory.tool_results) <= 2
        spans = [0] * len(trajectory.token_ids)
        for turn in trajectory.turns:
            assert turn.action_end - turn.action_start <= 6
            spans[turn.action_start : turn.action_end] = [1] * (turn.action_end - turn.action_start)
        assert tuple(spans) == trajectory.action_mask


def test_a_roller_counts_its_tokens_and_its_time():
    roller = _roller()
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
    policy, dialect = tiny.tiny_policy(), tiny.tiny_dialect()
    rules = SearchQA(Profile()).rules((search_tool(SEARCH),))
    return Roller(
        lockstep_engine(policy.model, dialect, max_rows=4),
        dialect,
        replace(tiny.lookup_environments(SEARCH), make=lambda task: environment_class(rules)),
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
    (trajectory,) = _greedy(roller, TASKS[:1])
    assert trajectory.is_lost
    assert (roller.replays, roller.losses.total()) == (2, 3)


def test_a_roller_loads_one_policy_directory_after_another(tmp_path):
    save_policy(tiny.tiny_policy(), tmp_path / "0")
    save_policy(tiny.tiny_policy(seed=1), tmp_path / "1")
    roller = Roller.open(tmp_path / "0", tiny.lookup_environments(SEARCH), Profile())
    first = _greedy(roller)
    roller.load_weights(tmp_path / "1", version=4)
    second = _greedy(roller)
    assert [t.policy_version for t in first + second] == [0] * 3 + [4] * 3
    assert first[0].behavior_logprobs != second[0].behavior_logprobs


@pytest.mark.slow
def test_a_policy_changed_in_memory_samples_with_new_weights():
    policy = tiny.tiny_policy()
    profile = Profile.model_validate({"rollout": {"speculation": "off"}})  # log-probs to the bit
    roller = Roller.local(policy, tiny.lookup_environments(SEARCH), profile)
    _greedy(roller)
    policy.model.load_state_dict(tiny.tiny_policy(seed=1).model.state_dict())
    fresh = Roller.local(tiny.tiny_policy(seed=1), tiny.lookup_environments(SEARCH), Profile())
    roller.policy_version = fresh.policy_version = 1
    assert _greedy(roller) == _greedy(fresh)


def test_a_task_of_an_unknown_environment_is_refused():
    strange = TASKS[0].model_copy(update={"environment": "chess"})
    with pytest.raises(PolicyError, match="'chess'"):
        _greedy(_roller(), [strange])


def test_the_tag_after_the_thought_is_what_is_drawn():
    tokenizer = tiny.tiny_tokenizer()
    choice = kind_choice(tiny.tiny_dialect(), 0.1)
    assert tokenizer.convert_ids_to_tokens(choice.after_id) == "</think>"
    assert tokenizer.convert_ids_to_tokens(list(choice.kind_ids)) == ["<search>", "<answer>"]


def test_tags_of_several_tokens_cannot_be_drawn():
    dialect = Dialect(byte_tokenizer("{{ messages }}"), tiny.TOOLS)
    with pytest.raises(PolicyError, match="</think>, <search>, <answer>"):
        kind_choice(dialect, 0.1)
