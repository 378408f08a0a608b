"""Self-play inside the loop: tasks are tried by the policy that trains, and trained on."""

import math
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest
import torch

from espalier.config import Profile
from espalier.curriculum.pool import TaskPool
from espalier.environments import family_of
from espalier.environments.proposals import ProposalRequest, ProposedTasks
from espalier.policy.hardware import Hardware
from espalier.records import NullTracker, ProfileError
from espalier.records.trajectory import FinishReason
from espalier.rollout.roller import Roller
from espalier.training.checkpoint import CheckpointStore
from espalier.training.parallel import Processes
from espalier.training.rl.loop import LoopParts, RlLoop
from espalier.training.rl.models import build_layout, build_models, initial_values
from espalier.training.rl.publishing import MemoryPublisher
from espalier.training.rl.sampling import GroupSampler
from espalier.training.rl.self_play import (
    JudgedRoller,
    PolicyTrials,
    build_self_play,
    shared_proposer,
)
from espalier.training.supervised import dev_exact_match
from espalier_search.search_qa import SearchQA
from tests.factories.rl_loops import same_weights
from tests.factories.tiny import lookup_environments
from tests.factories.tracking import Notes
from tests.factories.training import (
    FACTS,
    PROFILE,
    SEARCH,
    TASKS,
    Interrupted,
    InterruptingTracker,
    make_task,
    make_trajectory,
    warm_policy,
    warm_roller,
)


def with_self_play(**changes):
    values = PROFILE.model_dump()
    values["self_play"] = {"name": "webrl", "posed_tasks": 3, "value_band": (0.0, 1.0)} | changes
    if changes.get("value") == "critic":
        values["training"]["algorithm"] = {"preset": "ppo"}
    return Profile.model_validate(values)


class RepeatingProposer:
    """Asks failed questions again, under another id; the same order gets the same tasks."""

    def __init__(self):
        self.orders = []

    def propose(self, order):
        self.orders.append(order)
        names = [task.task_id.partition("-")[0] for task in order.failed]
        ids = {task.task_id for task in order.known}
        posed = [make_task(name, number) for number in range(1, 9) for name in names]
        fresh = [task for task in posed if task.task_id not in ids]
        return ProposedTasks(fresh[: order.num_tasks], {"asked_before": len(posed) - len(fresh)})


def models_of(policy, profile):
    hardware = Hardware.from_config(profile.hardware)
    models = build_models(policy.model, profile.training, hardware, Processes())
    return models, build_layout(policy.model, profile, hardware, Processes())


def run(warm, directory, profile=None, tracker=None):
    profile, proposer, policy = profile or with_self_play(), RepeatingProposer(), warm_policy(warm)
    roller = Roller.local(policy, lookup_environments(SEARCH, profile), profile)
    models, layout = models_of(policy, profile)
    pool = TaskPool(TASKS, profile.curriculum)
    screening = profile.curriculum.active_screening
    parts = LoopParts(
        models=models,
        layout=layout,
        sampler=GroupSampler(roller, pool, profile.training, seed=0, screening=screening),
        pool=pool,
        dev_score=lambda: dev_exact_match(roller, TASKS),
        publisher=MemoryPublisher(models.policy.model, policy, [roller]),
        self_play=build_self_play(proposer, profile, pool, roller, models, layout),
    )
    loop = RlLoop(profile, parts, CheckpointStore(directory, "run"))
    loop.run(tracker or NullTracker())
    return loop, policy.model, proposer


@pytest.mark.slow
def test_every_refresh_but_the_last_proposes_tasks_from_failures(warm, tmp_path):
    listener = Notes()
    loop, _, proposer = run(warm, tmp_path, tracker=listener)
    phases = loop.parts.self_play.phases
    assert [phase.step for phase in phases] == [2, 4]
    assert sum(phase.kept for phase in phases) == len(loop.parts.self_play.tasks) > 0
    assert listener.lines == [phase.line() for phase in phases]
    rows = {row["step"]: row for row in loop.progress.history}
    assert rows[2]["posed_tasks"] == phases[0].posed
    assert rows[4]["kept_posed_tasks"] == phases[1].kept
    assert "posed_tasks" not in rows[3]
    assert [order.seed for order in proposer.orders] == ["posed:0:2", "posed:0:4"]


@pytest.mark.slow
@pytest.mark.parametrize("killed_after", [1, 3])
def test_a_resumed_self_play_run_equals_an_unbroken_one(warm, tmp_path, killed_after):
    unbroken, unbroken_model, _ = run(warm, tmp_path / "unbroken")
    with pytest.raises(Interrupted):
        run(warm, tmp_path / "broken", tracker=InterruptingTracker(killed_after))
    resumed, resumed_model, _ = run(warm, tmp_path / "broken")
    assert resumed.progress.history == unbroken.progress.history
    assert resumed.parts.self_play.state() == unbroken.parts.self_play.state()
    assert same_weights(resumed_model, unbroken_model)


@pytest.mark.slow
def test_the_critic_gives_the_value_of_a_proposed_task(warm, tmp_path):
    profile = with_self_play(value="critic", value_band=(-9.0, 9.0))
    loop, *_ = run(warm, tmp_path, profile)
    assert loop.parts.self_play.tasks
    refused = with_self_play(value="critic", value_band=(8.0, 9.0))
    loop, *_ = run(warm, tmp_path / "refused", refused)
    assert loop.parts.self_play.tasks == []
    assert sum(phase.refused.get("too_hard", 0) for phase in loop.parts.self_play.phases) > 0


def critic_of(warm, profile):
    policy = warm_policy(warm)
    models, layout = models_of(policy, profile)
    torch.nn.init.normal_(models.critic.head.weight, generator=torch.Generator().manual_seed(1))
    return policy, models.critic, layout


def test_the_initial_value_depends_only_on_the_question(warm):
    policy, critic, layout = critic_of(warm, with_self_play(value="critic"))
    roller = warm_roller(policy)
    played = roller.roll_out(TASKS, samples=3, temperature=1.0, seed=1)
    values_B3 = initial_values(played, critic, layout).reshape(-1, 3)
    alike_B3 = values_B3[:, :1].expand(-1, 3)
    torch.testing.assert_close(values_B3, alike_B3, atol=1e-5, rtol=1e-5)
    firsts = values_B3[:, 0].tolist()
    assert len({round(value, 4) for value in firsts}) == len(FACTS)
    trials = PolicyTrials(roller, layout, critic, PROFILE.training, samples=3, seed=1)(TASKS, 1)
    assert [trial.value for trial in trials] == pytest.approx(firsts, abs=1e-5)


class LosingRoller:
    """The first attempt at a task is lost, the second solves it, the third never acts."""

    def roll_out(self, tasks, *, samples, temperature, seed):
        assert samples == 3
        lost = {"finish_reason": FinishReason.SANDBOX_LOST}
        ends = ((0, lost), (1, {}), (0, {}))
        return [replace(make_trajectory(t, right), **end) for t in tasks for right, end in ends]


def test_lost_attempts_do_not_count_for_a_task(warm):
    _, critic, layout = critic_of(warm, with_self_play(value="critic"))
    asked = PolicyTrials(LosingRoller(), layout, critic, PROFILE.training, samples=3, seed=1)
    trials = asked(TASKS[:2], 1)
    counts = [(trial.task, trial.attempts, trial.successes) for trial in trials]
    assert counts == [(TASKS[0], 2, 1), (TASKS[1], 2, 1)]
    assert all(math.isnan(trial.value) for trial in trials)


def test_proposed_tasks_are_judged_as_training_judges():
    def reversed_(group):
        return [replace(one, reward={"outcome": 1.0 - one.reward["outcome"]}) for one in group]

    roller = JudgedRoller(LosingRoller(), reversed_)
    sampled = roller.roll_out(TASKS[:2], samples=3, temperature=1.0, seed=1)
    found = [(one.is_lost, one.is_right) for one in sampled]
    assert found == 2 * [(True, False), (False, False), (False, True)]
    asked = PolicyTrials(roller, None, None, PROFILE.training, samples=3, seed=1)
    assert [trial.successes for trial in asked(TASKS[:2], 1)] == [1, 1]


class AskedAgain(SearchQA):
    """Question answering whose failed questions are asked again."""

    asked: ClassVar[list] = []

    def proposer(self, knowledge, accepted):
        self.asked.append((knowledge, accepted))
        return RepeatingProposer()


def test_only_rank_zero_makes_a_proposer_whose_tasks_all_get():
    inputs = {name: Path(name) for name in ("knowledge", "accepted", "curriculum")}
    own = {"environment": {"name": f"{__name__}:AskedAgain"}}
    off = Profile.model_validate(PROFILE.model_dump() | own)
    on = Profile.model_validate(with_self_play().model_dump() | own)
    assert shared_proposer(off, inputs, Processes()) is None
    posed = ProposedTasks(TASKS[:1], {"not_unique": 2})

    class Second(Processes):
        def broadcast(self, item):
            assert item == ((), {})
            return posed

    order = ProposalRequest(2, TASKS[:1], TASKS, "a")
    assert shared_proposer(on, inputs, Second(1, 2)).propose(order) == posed
    assert AskedAgain.asked == []
    proposer = shared_proposer(on, inputs, Processes())
    assert AskedAgain.asked == [(Path("knowledge"), Path("accepted"))]
    assert proposer.propose(order) == RepeatingProposer().propose(order)


def test_attempts_have_the_temperature_of_the_next_step():
    class Listening:
        def roll_out(self, tasks, *, samples, temperature, seed):
            received.append((temperature, seed))
            return [make_trajectory(task, 1) for task in tasks for _ in range(samples)]

    values, received = PROFILE.model_dump(), []
    values["training"]["temperature_schedule"] = {"shape": "linear", "final": 0.5}
    config = Profile.model_validate(values).training
    trials = PolicyTrials(Listening(), None, None, config, samples=2, seed=1)
    found = [trials(TASKS[:1], step) for step in (0, config.steps - 1, 0)]
    first, last, again = received
    assert (first[0], last[0]) == (1.0, 0.5)
    assert first == again
    assert first[1] != last[1]
    assert found[0] == [(TASKS[0], 2, 2, pytest.approx(math.nan, nan_ok=True))]


def test_a_family_without_a_proposer_refuses_self_play(tmp_path):
    with pytest.raises(ProfileError, match="self_play"):
        family_of(PROFILE).proposer(tmp_path, tmp_path)
