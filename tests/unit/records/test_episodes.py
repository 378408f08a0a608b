import math

import numpy as np
import pytest

from espalier.records.episodes import (
    EpisodePlace,
    UpdateView,
    episode_record,
    episode_summary,
    is_lost,
    mask_of,
    mask_runs,
    unpacked,
)
from espalier.records.trajectory import FinishReason
from tests.factories.attempts import made_attempt

PLACE = EpisodePlace(step=3, sample=1, time=5.0)


@pytest.mark.parametrize("seed", range(20))
def test_tokens_and_masks_come_back_as_they_were(seed):
    attempt = made_attempt(seed)
    content = episode_record(attempt, PLACE).content
    assert tuple(unpacked(content["token_ids"], "<i4")) == attempt.token_ids
    mask = mask_of(content["mask_runs"])
    assert tuple(mask) == attempt.action_mask
    sampled = [
        v for v, on in zip(attempt.behavior_logprobs, attempt.action_mask, strict=True) if on
    ]
    assert unpacked(content["behavior_logprobs"], "<f4").tolist() == np.float32(sampled).tolist()


def test_summary_counts_calls_and_sampled_tokens():
    attempt = made_attempt(4)
    summary = episode_record(attempt, PLACE, is_trained=True).summary
    assert summary["calls"] == len(attempt.tool_results)
    assert summary["sampled_tokens"] == sum(attempt.action_mask)
    assert summary["tokens"] == len(attempt.token_ids)
    assert summary["right"] is attempt.is_right
    assert summary["trained"] is True


def test_update_has_values_for_sampled_tokens_alone():
    attempt = made_attempt(5)
    count = len(attempt.token_ids)
    update = UpdateView([0.5] * count, attempt.action_mask, [-1.0] * (count - 1) + [math.nan])
    record = episode_record(attempt, PLACE, update=update)
    sampled = sum(attempt.action_mask)
    assert unpacked(record.content["advantages"], "<f4").tolist() == [0.5] * sampled
    assert len(unpacked(record.content["trainer_logprobs"], "<f4")) == sampled
    assert record.summary["advantage"] == 0.5


def test_an_attempt_without_tokens_has_no_mean_of_them():
    attempt = made_attempt(6)
    bare = type(attempt)(**{
        **{name: getattr(attempt, name) for name in attempt.__dataclass_fields__},
        "token_ids": (), "action_mask": (), "behavior_logprobs": (), "turns": (),
    })  # fmt: skip
    summary = episode_record(bare, PLACE).summary
    assert summary["mean_logprob"] is None
    assert summary["turns"] == sum(message.role == "assistant" for message in bare.messages)


@pytest.mark.parametrize("mask", [[], [0], [1], [0, 1, 1, 0], [1, 0, 1]])
def test_runs_of_a_mask_give_the_mask(mask):
    assert mask_of(mask_runs(mask)).tolist() == mask


@pytest.mark.parametrize("content", [{}, {"reward": 1}, {"reward": {"a": "x"}}])
def test_something_else_is_no_summary(content):
    with pytest.raises((ValueError, TypeError, KeyError, AttributeError)):
        episode_summary(content)


def test_every_finish_reason_is_lost_or_scored():
    assert {reason for reason in FinishReason if is_lost(reason.value)} >= {FinishReason.TIMEOUT}
    assert not is_lost("answered")
    assert not is_lost("made up")
