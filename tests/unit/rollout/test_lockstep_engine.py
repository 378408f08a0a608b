import pytest
import torch

from espalier.config import Profile
from espalier.rollout.engines import HfDecoder, Lfm2Decoder
from espalier.rollout.roller import Roller
from espalier.tasks import Message, Task, TaskMetadata, Verifier
from espalier.training.packing import TrainingSequence, pack
from espalier.training.scoring import score
from tests.unit.tiny import LookupSearch, tiny_policy

SEARCH = LookupSearch(("Lyon | country: France", "France | currency: Euro"))


def _task(number, question):
    return Task(
        task_id=f"t{number}",
        prompt=(Message(role="user", content=question),),
        verifier=Verifier(gold=("Euro",)),
        metadata=TaskMetadata(family="chain", split="train", hops=2, source="test"),
    )


TASKS = [
    _task(0, "What is the currency of the country of Lyon?"),
    _task(1, "currency of France"),
    _task(2, "What is the time zone of the country of the country of Lyon and Italy?"),
]


def _roll(samples=4, **overrides):
    profile = Profile.model_validate(overrides)
    return Roller(tiny_policy(), SEARCH, profile).roll_out(
        TASKS, samples=samples, temperature=1.0, seed=7
    )


@pytest.mark.parametrize("decoder_class", [Lfm2Decoder, HfDecoder])
def test_decoder_gives_the_logits_of_a_plain_forward(decoder_class):
    model = tiny_policy().model
    ids = torch.randint(20, 300, (4, 18))
    with torch.no_grad():
        expected = model(ids).logits
    decoder = decoder_class(model)
    hidden = decoder.start(ids[:, :5], rows=torch.arange(4), max_tokens=18)
    kept = torch.arange(4)
    for column in range(5, 18):
        got = decoder.logits(hidden)
        torch.testing.assert_close(got, expected[kept, column - 1], rtol=1e-4, atol=1e-5)
        if column == 9:
            kept = torch.tensor([3, 1])
            decoder.keep(kept)
        hidden = decoder.advance(ids[kept, column])


def test_logprobs_recorded_at_sampling_equal_those_of_the_trainer():
    for trajectory in _roll():
        sequence = TrainingSequence(
            token_ids=trajectory.token_ids,
            loss_mask=trajectory.action_mask,
            behavior_logprobs=trajectory.behavior_logprobs,
        )
        batch = pack([sequence], row_tokens=256, gap=2)
        with torch.no_grad():
            again = score(tiny_policy().model, batch).logprobs_N
        torch.testing.assert_close(again, batch.behavior_logprobs_N, rtol=1e-4, atol=2e-5)


def test_same_seed_gives_the_same_trajectories():
    assert _roll() == _roll()


def test_greedy_rows_do_not_depend_on_who_shares_the_wave():
    profile = Profile()
    together = Roller(tiny_policy(), SEARCH, profile).roll_out(
        TASKS, samples=1, temperature=0.0, seed=0
    )
    for task, trajectory in zip(TASKS, together, strict=True):
        alone = Roller(tiny_policy(), SEARCH, profile).roll_out(
            [task], samples=1, temperature=0.0, seed=0
        )
        assert alone[0].token_ids == trajectory.token_ids


def test_trajectories_stay_within_their_limits():
    limits = {"max_turns": 2, "max_tokens": 40, "max_turn_tokens": 6}
    for trajectory in _roll(episode=limits, rollout={"max_rows": 5}):
        assert len(trajectory.token_ids) <= 40
        assert len(trajectory.tool_calls) <= 2
        assert all(turn.action_end - turn.action_start <= 6 for turn in trajectory.turns)
        assert len(trajectory.token_ids) == len(trajectory.action_mask)


def test_turn_spans_cover_exactly_the_action_mask():
    for trajectory in _roll():
        spans = [0] * len(trajectory.token_ids)
        for turn in trajectory.turns:
            spans[turn.action_start : turn.action_end] = [1] * (turn.action_end - turn.action_start)
        assert tuple(spans) == trajectory.action_mask
