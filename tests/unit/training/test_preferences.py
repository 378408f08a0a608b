"""The preference phase: DPO on given pairs, against the policy that it began with."""

import math

import pytest
import torch

from espalier.algorithms.losses.dpo import Dpo
from espalier.config import PreferencesConfig
from espalier.records import FinalAnswer, NullTracker
from espalier.training.checkpoint import CheckpointStore, cloned_weights
from espalier.training.demonstrations import encode_pieces
from espalier.training.preferences import PreferenceLoop, pairs_at
from espalier.training.supervised import DevScore
from espalier_search.synthesis.search_wording import search_call
from tests.factories.rl_loops import same_weights
from tests.factories.tiny import tiny_dialect, tiny_policy
from tests.factories.training import (
    FACTS,
    SEARCH,
    TASKS,
    Interrupted,
    InterruptingTracker,
    supervised_plan,
    warm_policy,
)

CONFIG = PreferencesConfig(path="pairs.jsonl")


def answering(task, answer):
    """A search, and an answer to what it finds."""
    name = task.task_id.partition("-")[0]
    pieces = (search_call("country", name), SEARCH.observation(name), FinalAnswer(answer, "answer"))
    return encode_pieces(task.prompt, pieces, tiny_dialect())


def pair(task):
    right = FACTS[task.task_id.partition("-")[0]]
    return [answering(task, right), answering(task, "paris" if right != "paris" else "euro")]


SEQUENCES = [one for task in TASKS for one in pair(task)]


def phase(policy, directory, *, identity="run", sequences=SEQUENCES, **changes):
    settings = {
        "sequences_at": pairs_at(sequences, CONFIG.pairs_per_step, 0),
        "steps": 8,
        "optimizer": CONFIG.optimizer,
        "micro_batch_tokens": 10_000,
        "checkpoint_every": 3,
        "steps_before": 5,
    }
    store = CheckpointStore(directory, identity)
    plan = supervised_plan(**(settings | changes))
    return PreferenceLoop(policy.model, plan, store, sequences, Dpo(beta=CONFIG.beta))


def trained(directory, warm, tracker=None, **changes):
    policy = warm_policy(warm)
    result = phase(policy, directory, **changes).run(tracker or NullTracker())
    return policy.model, result


def test_the_defaults_raise_the_margin_of_every_pair(tmp_path, warm):
    policy = warm_policy(warm)
    loop = phase(policy, tmp_path, steps=CONFIG.steps, checkpoint_every=CONFIG.steps)
    before = loop.reference_margins()
    result = loop.run(NullTracker())
    after = phase(policy, tmp_path / "after").reference_margins()
    assert all(later > earlier + 1 for earlier, later in zip(before, after, strict=True))
    first, last = result.history[0], result.history[-1]
    assert first["preference_loss"] == pytest.approx(math.log(2), abs=1e-4)
    assert last["preference_loss"] < first["preference_loss"]
    assert last["pair_accuracy"] == 1
    assert [row["step"] for row in result.history] == list(range(6, 66))


@pytest.mark.parametrize("killed_after", [1, 4, 8])
def test_a_resumed_phase_equals_an_unbroken_one(tmp_path, warm, killed_after):
    unbroken, whole = trained(tmp_path / "unbroken", warm)
    with pytest.raises(Interrupted):
        trained(tmp_path / "broken", warm, InterruptingTracker(killed_after))
    resumed, rest = trained(tmp_path / "broken", warm)
    assert same_weights(resumed, unbroken)
    assert rest.history == whole.history


def test_the_reference_is_scored_once_and_kept(tmp_path, warm):
    first = phase(warm_policy(warm), tmp_path).reference_margins()
    assert phase(tiny_policy(), tmp_path).reference_margins() == first
    assert phase(tiny_policy(), tmp_path, identity="other pairs").reference_margins() != first


def test_micro_batches_of_pairs_change_nothing_but_rounding(tmp_path, warm):
    _, whole = trained(tmp_path / "a", warm, steps=2)
    _, parts = trained(tmp_path / "b", warm, steps=2, micro_batch_tokens=70)
    for name in ("preference_loss", "pair_accuracy", "pair_margin", "tokens"):
        assert [row[name] for row in parts.history] == pytest.approx(
            [row[name] for row in whole.history], rel=1e-3, abs=1e-4
        )


@pytest.mark.parametrize(("scores", "best"), [([0.5, 0.5, 0.4], 11), ([0.4, 0.3, 0.2], 5)])
def test_later_weights_stay_if_they_answer_as_many(tmp_path, warm, scores, best):
    remaining, seen = iter(scores), []

    def judge():
        seen.append(cloned_weights(policy.model))
        return DevScore(next(remaining))

    policy = warm_policy(warm)
    begun = cloned_weights(policy.model)
    loop = phase(policy, tmp_path, dev_score=judge, score_before=0.5)
    assert loop.run(NullTracker()).best_step == best
    kept = begun if best == 5 else seen[1]
    assert all(torch.equal(kept[name], t) for name, t in policy.model.state_dict().items())
