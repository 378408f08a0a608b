"""The loop over groups made by hand: what it judges, keeps, says, counts and takes up again."""

from __future__ import annotations

import asyncio
import math
import random
import re
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from espalier.config import EpisodeConfig, Profile
from espalier.curriculum.pool import TaskPool
from espalier.dialects import SYNTAXES
from espalier.dialects.dialect import Dialect
from espalier.records import NullTracker, ToolCall, ToolCalls
from espalier.rollout.engines.engine import Sampling
from espalier.rollout.episode import EpisodeContext, ToolRunner, run_episode
from espalier.training.checkpoint import CheckpointStore
from espalier.training.parallel import Processes
from espalier.training.rl.ledger import PromptLedger
from espalier.training.rl.loop import HISTORY_COLUMNS, LoopParts, RlLoop
from espalier.training.rl.models import build_models
from espalier.training.rl.rows import Group
from espalier.training.rl.sampling import StepRollouts
from espalier.training.supervised import DevScore
from tests.factories.byte_tokenizer import byte_tokenizer
from tests.factories.records import make_task as make_record_task
from tests.factories.tiny import TOOLS, lookup_environments, tiny_policy
from tests.factories.training import SEARCH, TASKS
from tests.factories.training_episodes import CPU, episode, layout
from tests.fakes.scripted_engine import ScriptedEngine
from tests.unit.dialects.test_drift import STEADY


def profile(*, curriculum=None, **training):
    values = {
        "steps": 5,
        "tasks_per_step": 2,
        "group_size": 2,
        "minibatches": 1,
        "evaluate_every": 2,
        "max_mismatch_kl": 1e6,
    }
    return Profile.model_validate(
        {
            "episode": {"max_turns": 4, "max_tokens": 64, "max_turn_tokens": 14},
            "curriculum": {"refresh_every": 2, "screening_rollouts": 0} | (curriculum or {}),
            "training": values | training,
        }
    )


REWARDS = {"mixed": [(0, 1)], "equal": [(1, 1)], "wrong": [(0, 0)], "split": [(0, 0), (1, 1)]}
"""Of the two episodes of each group, which take turns."""


class Sampler:
    """Groups of two made-up episodes each, by step; the default is one right and one wrong."""

    def __init__(self, kinds):
        self._kinds = dict(enumerate(kinds))
        self.asked = []
        self.closed = 0
        self.ledger, self.left_out = PromptLedger(), set()

    def sample(self, step, *, groups):
        self.asked.append((step, groups))
        kind = self._kinds.get(step, "mixed")
        if kind == "nothing":
            return StepRollouts(lost=3)
        rng, made = random.Random(step), []
        for number in range(groups):
            rewards = REWARDS[kind][number % len(REWARDS[kind])]
            episodes = [
                episode(n, reward, rng=rng, group=f"lyon{number}", version=step)
                for n, reward in enumerate(rewards)
            ]
            made.append(Group(trajectories=tuple(replace(one, messages=()) for one in episodes)))
        sampled = [t for group in made for t in group.trajectories]
        return StepRollouts(made, sampled, len(made), 0 if kind == "mixed" else len(made), lost=1)

    def close(self):
        self.closed += 1


class RecordingTracker(NullTracker):
    def __init__(self, ends_after=99):
        self.notes, self.rows, self.bar = [], {}, []
        self._steps, self._ends_after = 0, ends_after

    def note(self, line):
        self.notes.append(line)

    def metrics(self, values, *, step=None):
        self.rows[step] = values

    @contextmanager
    def progress(self, description, total):
        self.bar.append((description, total))
        yield self

    def advance(self, count=1, **shown):
        self.bar.append((count, shown))
        self._steps += bool(shown)
        if self._steps > self._ends_after:
            raise KeyboardInterrupt


class Run:
    """A loop over a fresh tiny policy, in `directory`."""

    def __init__(self, directory, *, kinds=(), scores=(), config=None, sampler=None, dialect=None):
        self.profile = config or profile()
        self.sampler, self.versions = sampler or Sampler(kinds), []
        self.told = RecordingTracker()
        self.model = tiny_policy().model
        self.weights_when_judged = []
        self._scores = iter(scores)
        self.pool = TaskPool(TASKS, self.profile.curriculum)
        parts = LoopParts(
            models=build_models(self.model, self.profile.training, CPU, Processes()),
            layout=layout(),
            sampler=self.sampler,
            pool=self.pool,
            dev_score=self._judge,
            publisher=SimpleNamespace(publish=self.versions.append),
            dialect=dialect,
        )
        self.loop = RlLoop(self.profile, parts, CheckpointStore(directory, "run"))

    def _judge(self):
        self.weights_when_judged.append(self.weights())
        return DevScore(next(self._scores, 0.0))

    def weights(self):
        return torch.cat([p.detach().reshape(-1) for p in self.model.parameters()])

    def run(self):
        self.loop.run(self.told)
        return self


def test_a_run_is_judged_at_intervals_and_at_its_end(tmp_path):
    run = Run(tmp_path, scores=(0.1, 0.2, 0.3, 0.4)).run()
    history = run.loop.progress.history
    judged = {int(row["step"]): row["dev_em"] for row in history if "dev_em" in row}
    assert judged == {2: 0.2, 4: 0.3, 5: 0.4}
    assert run.versions == [0, 1, 2, 3, 4, 5, 5]
    assert run.sampler.closed == 1
    assert run.told.bar[:2] == [("train", 5), (0, {})]
    assert [count for count, _ in run.told.bar[2:]] == [1] * 5
    again = Run(tmp_path).run()
    assert again.sampler.asked == [], "a finished run is not trained again"
    assert torch.equal(again.weights(), run.weights())
    assert len(again.loop.progress.last_step) == 4


@pytest.mark.parametrize(
    ("scores", "best"),
    [
        ((0.5, 0.4, 0.4, 0.4), 0),
        ((0.5, 0.5, 0.4, 0.4), 2),
        ((0.1, 0.3, 0.3, 0.2), 4),
        ((0.1, 0.2, 0.3, 0.3), 5),
    ],
)
def test_the_last_of_the_best_weights_are_kept(tmp_path, scores, best):
    run = Run(tmp_path, scores=scores).run()
    kept = run.weights_when_judged[[0, 2, 4, 5].index(best)]
    assert run.loop.progress.best_step == best
    assert run.versions[-1] == best
    assert torch.equal(run.weights(), kept)


def test_every_step_says_what_was_sampled(tmp_path):
    config = profile(temperature_schedule={"shape": "linear", "final": 0.5})
    run = Run(tmp_path, kinds=("mixed", "equal", "nothing"), config=config).run()
    history = run.loop.progress.history
    assert [row["temperature"] for row in history] == [1.0, 0.875, 0.75, 0.625, 0.5]
    assert all(math.isfinite(row.get("loss", 0)) for row in history)
    mixed, equal, nothing = history[:3]
    assert set(HISTORY_COLUMNS) - {"dev_em", "clipped_share"} <= mixed.keys()
    assert (mixed["pass_rate"], equal["pass_rate"], nothing["pass_rate"]) == (0.5, 1.0, 0.0)
    assert (mixed["reward"], equal["reward"]) == (0.5, 1.0)
    assert (mixed["zero_variance_share"], equal["zero_variance_share"]) == (0.0, 1.0)
    assert (mixed["lost_episodes"], nothing["lost_episodes"]) == (1, 3)
    assert mixed["broke_sandbox_episodes"] == 0
    first = Sampler(()).sample(0, groups=2).sampled
    assert mixed["action_tokens"] == sum(sum(t.action_mask) for t in first) / 4
    assert (mixed["tool_calls"], nothing["action_tokens"]) == (0, 0)
    assert [row["kept_tasks"] for row in history] == [5] * 5
    assert [row["rollouts"] for row in history] == [4, 8, 8, 12, 16]
    assert [row["idle_steps"] for row in history] == [0, 1, 1, 0, 0]
    assert (mixed["credited_share"], mixed["staleness_max"]) == (1.0, 0)
    assert "loss" not in nothing
    assert len(run.loop.progress.last_step) == 4


def test_the_tracker_hears_every_figure_but_the_step(tmp_path):
    run = Run(tmp_path, scores=(0.1, 0.2, 0.3, 0.4)).run()
    assert list(run.told.rows) == [1, 2, 3, 4, 5]
    told, row = run.told.rows[2], run.loop.progress.history[1]
    timings = {"step_s", "rollout_s", "update_s", "tokens_per_s", "update_tokens_per_s",
               "checkpoint_step"}  # fmt: skip
    heard = {name: value for name, value in told.items() if name not in timings}
    assert heard == {name: value for name, value in row.items() if name != "step"}
    assert told["step_s"] > told["rollout_s"] > 0
    assert told["update_tokens_per_s"] > row["update_tokens"] / told["step_s"]
    assert told["tokens_per_s"] * told["step_s"] == pytest.approx(row["action_tokens"] * 4)
    saved = [run.told.rows[step].get("checkpoint_step") for step in range(1, 6)]
    assert saved == [None, 2, 2, 4, 5]
    assert not timings & row.keys()
    shown = run.told.bar[3][1]
    assert (shown["dev_em"], "loss" in shown) == (0.2, False)
    assert run.told.notes == []


@pytest.mark.parametrize("after", [0, 1, 3])
def test_a_killed_run_ends_as_an_unbroken_one(tmp_path, after):
    kinds = ("mixed", "equal", "equal")  # idle for two steps, before and after a checkpoint
    scores = {0: 0.3, 2: 0.3, 4: 0.2, 5: 0.25}
    unbroken = Run(tmp_path / "whole", kinds=kinds, scores=scores.values()).run()
    killed = Run(tmp_path / "broken", kinds=kinds, scores=scores.values())
    killed.told = RecordingTracker(ends_after=after)
    with pytest.raises(KeyboardInterrupt):
        killed.run()
    assert killed.sampler.closed == 1
    done = after + 1 - (after + 1) % 2
    left = [score for step, score in scores.items() if step > done or not done]
    resumed = Run(tmp_path / "broken", kinds=kinds, scores=left).run()
    assert torch.equal(resumed.weights(), unbroken.weights())
    assert resumed.loop.progress.history == unbroken.loop.progress.history
    assert resumed.loop.progress.best_step == unbroken.loop.progress.best_step == 2
    assert resumed.told.bar[1] == (done, {})
    assert resumed.sampler.asked[0] == (done, 2)


def test_the_ledger_says_which_groups_a_step_learned_from(tmp_path):
    config = profile(algorithm={"preset": "rft"}, steps=2)
    run = Run(tmp_path, kinds=("split", "split"), config=config)
    sample, ledger = run.sampler.sample, run.sampler.ledger

    def numbered(step, *, groups):
        rollouts = sample(step, groups=groups)
        numbers = ledger.draw([g.trajectories[0].task_id for g in rollouts.groups])
        pairs = zip(rollouts.groups, numbers, strict=True)
        rollouts.groups = [replace(group, draw=number) for group, number in pairs]
        return rollouts

    run.sampler.sample = numbered
    run.run()
    assert ledger.counts == {"trained": 2, "no_material": 2}
    assert [row[0] for row in ledger.state()["newest"]] == [1, 0, 3, 2]


@pytest.mark.parametrize(
    ("kinds", "allowed", "stopped_after"),
    [
        (("mixed", "equal", "equal", "equal"), 2, 3),
        (("equal", "nothing", "equal"), 2, 3),
        (("equal", "mixed", "equal", "mixed", "equal"), 2, 5),
        (("nothing",) * 5, 2, 5),
        (("equal",) * 5, 0, 5),
    ],
)
def test_a_run_stops_after_steps_in_a_row_without_credit(tmp_path, kinds, allowed, stopped_after):
    config = profile(stop_after_idle_steps=allowed)
    run = Run(tmp_path, kinds=kinds, scores=(0.2, 0.1), config=config).run()
    assert len(run.loop.progress.history) == stopped_after
    assert "dev_em" in run.loop.progress.history[-1]
    told = [note for note in run.told.notes if "got credit" in note]
    assert len(told) == (stopped_after < 5)
    resumed = Run(tmp_path, kinds=kinds, config=config).run()
    assert resumed.sampler.asked == []
    assert [n for n in resumed.told.notes if "got credit" in n] == told


@pytest.mark.parametrize(
    ("kind", "pass_rate", "remedy"),
    [("equal", "100%", "mastered"), ("split", "50%", "always"), ("wrong", "0%", "out of reach")],
)
def test_an_idle_run_says_what_would_let_it_learn(tmp_path, kind, pass_rate, remedy):
    config = profile(stop_after_idle_steps=3, evaluate_every=9)
    kinds = ("mixed", kind, "nothing", kind, kind)
    run = Run(tmp_path, kinds=kinds, scores=(0.2, 0.1), config=config).run()
    (line,) = run.told.notes
    assert re.search(rf"step 5 of 5.* 3 steps.*{pass_rate}, 100%.*{remedy}.*step 0", line)


def test_replayed_groups_take_the_place_of_sampled_ones(tmp_path):
    config = profile(replay={"capacity": 4, "share": 0.5, "max_staleness": 9})
    run = Run(tmp_path, config=config).run()
    history = run.loop.progress.history
    assert run.sampler.asked == [(0, 2), (1, 1), (2, 1), (3, 1), (4, 1)]
    assert [row["rollouts"] for row in history] == [4, 6, 8, 10, 12]
    assert history[0]["staleness_max"] == 0
    assert any(row["staleness_max"] > 0 for row in history)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "last_step.parquet", "latest.pt", "replay-5.parquet",
    ]  # fmt: skip


def test_the_band_is_drawn_anew_at_its_interval(tmp_path):
    run = Run(tmp_path, config=profile(curriculum={"pass_rate_band": [0.6, 1.0]}))
    run.pool.observe(TASKS[0].task_id, attempts=4, successes=0)
    run.pool.observe(TASKS[1].task_id, attempts=4, successes=4)
    first, second, *_ = run.run().loop.progress.history
    assert first["kept_tasks"] == 5 > second["kept_tasks"]


def test_engine_and_trainer_that_disagree_are_said(tmp_path):
    run = Run(tmp_path, config=profile(max_mismatch_kl=1e-3, steps=1)).run()
    (note,) = run.told.notes
    assert re.match("warning: step 1: .*disagree", note)


# ------------------------------------------------------------- calls that nobody could read

CALL = ToolCalls((ToolCall(name="search", arguments={"query": "lyon"}),), "country")
ASKED = make_record_task(question="country of lyon?", gold=("France",))


def in_dialect(name):
    """Of a given model, whose template teaches the calls of hermes."""
    tokenizer = byte_tokenizer(STEADY, ("<|im_start|>", "<|im_end|>"))
    return Dialect(tokenizer, TOOLS, name=name)


def written(name, action=CALL):
    return SYNTAXES[name].write(action, TOOLS)


class Played:
    """Groups of attempts that are really played: each writes one text after another."""

    def __init__(self, dialect, attempts, *, groups=2):
        self.ledger, self.left_out = PromptLedger(), set()
        context = EpisodeContext(
            engine=ScriptedEngine(dialect, [dialect.text_ids(t) for one in attempts for t in one]),
            dialect=dialect,
            environments=lookup_environments(SEARCH),
            tools=ToolRunner(workers=0, timeout_s=5.0),
            limits=EpisodeConfig(max_tokens=4096, max_turn_tokens=256),
        )
        played = [
            asyncio.run(run_episode(ASKED, Sampling(temperature=1.0, seed=0), context)).trajectory
            for _ in attempts
        ]
        assert not context.engine.actions, "every text was written"
        self.sampled = [replace(one, policy_version=0) for one in played]
        self._size = len(played) // groups

    def sample(self, step, *, groups):
        starts = range(0, len(self.sampled), self._size)
        made = [Group(trajectories=tuple(self.sampled[n : n + self._size])) for n in starts]
        return StepRollouts(made, self.sampled, len(made))

    def close(self):
        pass


def first_step(tmp_path, dialect, attempts):
    """The figures of one step over the attempts, and what was said of it."""
    config = profile(steps=1, group_size=len(attempts) // 2)
    run = Run(tmp_path, config=config, sampler=Played(dialect, attempts), dialect=dialect).run()
    [row] = run.loop.progress.history
    return row, "\n".join(run.told.notes)


def unread(row):
    return {name.partition("/")[2]: v for name, v in row.items() if "unread_calls" in name}


RIGHT = ("france",)


def test_a_parser_of_another_dialect_is_told_after_one_step(tmp_path):
    # agentcore-rl-toolkit#97: reward rose to 0.93 in a run without one tool call
    row, notes = first_step(
        tmp_path, in_dialect("qwen3_coder"), [(written("hermes"),)] * 24 + [RIGHT] * 8
    )
    assert (row["pass_rate"], row["tool_calls"]) == (0.25, 0)
    assert unread(row) == {"hermes": 0.75}
    assert "no tool was called in the first 32 attempts, although tools are offered" in notes
    assert "75% hermes" in notes
    assert "policy.dialect" in notes


def test_two_dialects_in_one_batch_are_told_apart(tmp_path):
    # Qwen3.8#125: under one template a small model wrote JSON, a large one XML
    json_call, xml_call = written("hermes"), written("qwen3_coder")
    attempts = [(json_call, "france")] * 16 + [(xml_call,)] * 12 + [(written("llama3"),)] * 4
    row, notes = first_step(tmp_path, in_dialect("hermes"), attempts)
    assert row["tool_calls"] == 0.5
    assert unread(row) == {"llama3": 4 / 32, "qwen3_coder": 12 / 32}
    assert "38% qwen3_coder" in notes
    assert "12% llama3" in notes


def test_three_ways_to_miss_a_call_are_counted_apart(tmp_path):
    # software-agent-sdk#2512: calls within the reasoning, control characters, a letter missing
    block = written("hermes").split("</think>")[1].strip()
    spread = block.replace('{"name"', '{\n\t"name"').replace(', "arg', ',\r\n"arg')
    near = block.replace('"search"', '"searc"')
    attempts = [
        *[(f"<think>\ncountry {block}\n</think>",)] * 6,
        *[(f"<think>\ncountry {block}\n</think>\n\nfrance",)] * 2,
        *[(f"<think>\ncountry {block}",)] * 2,
        *[(block.replace("lyon", "ly\non"),)] * 4,
        *[(near, "france")] * 3,
        *[(spread, "france")] * 14,
        (written("hermes"), "france"),
    ]
    dialect = in_dialect("hermes")
    row, notes = first_step(tmp_path, dialect, attempts)
    assert unread(row) == {"in_thought": 10 / 32, "broken": 4 / 32, "unknown_tool": 3 / 32}
    assert row["tool_calls"] == 18 / 32, "white space of JSON is none of a string"
    assert "31% in_thought" in notes
    assert "broken" not in notes, "RL cures these"
    told = Played(dialect, attempts[14:16]).sampled[0].tool_results[0].content
    assert "searc" in told
    assert "search" in told.replace("searc ", "")


def test_attempts_that_answer_have_no_unread_call(tmp_path):
    musing = "<think>\nI could search for lyon.\n</think>\n\nfrance"
    attempts = [RIGHT, (musing,), ('{"answer": "france"}',), ("[france]",)] * 4
    row, notes = first_step(tmp_path, in_dialect("hermes"), attempts)
    assert unread(row) == {}
    assert notes == ""


# ------------------------------------------------------------- means over attempts


class OfEightLengths(Sampler):
    """Two tasks of eight attempts each, with 1 to 8 turns; the shorter ones are right."""

    def sample(self, step, *, groups):
        made = [
            Group(
                trajectories=tuple(
                    replace(episode(n, right, turns=n + 1, group=name, version=step), messages=())
                    for n, right in enumerate([1] * count + [0] * (8 - count))
                )
            )
            for name, count in (("lyon", 3), ("paris", 1))
        ]
        return StepRollouts(made, [t for group in made for t in group.trajectories], 2, lost=4)


def test_a_mean_counts_each_attempt_once_however_long(tmp_path):
    # labs-molt#64: a mean over turns showed 0.28 for 0.4487, as failing attempts were long
    run = Run(tmp_path, config=profile(steps=1, group_size=8), sampler=OfEightLengths(())).run()
    [row] = run.loop.progress.history
    of_turns = (1 + 2 + 3 + 1) / (2 * sum(range(1, 9)))
    assert row["reward"] == row["pass_rate"] == row["reward/outcome"] == 4 / 16 != of_turns
    attempts = [
        t for group in OfEightLengths(()).sample(0, groups=2).groups for t in group.trajectories
    ]
    assert row["action_tokens"] == sum(sum(t.action_mask) for t in attempts) / 16
    assert row["rollouts"] == 16, "what the means are over"
    # prime-rl#3182: what was not scored was left out of one mean, and a 0 of another
    assert row["lost_episodes"] == 4
    told = run.told.rows[1]
    assert (told["reward"], told["lost_episodes"]) == (row["reward"], 4)
