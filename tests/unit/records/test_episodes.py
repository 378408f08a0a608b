import math
from dataclasses import replace

import numpy as np
import pytest

from espalier.records import ArtifactError
from espalier.records.episodes import (
    EPISODES,
    EpisodePlace,
    UpdateView,
    episode_record,
    episode_summary,
    is_lost,
    mask_of,
    mask_runs,
    read_episodes,
    unpacked,
)
from espalier.records.streams import StreamRecord, StreamWriter
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


def written(folder, records):
    writer = StreamWriter(folder, EPISODES)
    writer.keep_until(0)
    writer.append(records)
    return folder


def test_attempts_are_read_as_they_were_written(tmp_path):
    attempts = [made_attempt(seed, f"t{seed}") for seed in range(20)]
    written(tmp_path, [episode_record(one, PLACE) for one in attempts])
    for episode, attempt in zip(read_episodes(tmp_path), attempts, strict=True):
        assert episode.place == PLACE
        logprobs = np.float32(attempt.behavior_logprobs).tolist()
        assert episode.trajectory == replace(attempt, behavior_logprobs=tuple(logprobs))


def test_measured_times_are_read_where_there_are_any(tmp_path):
    bare = episode_record(made_attempt(1), PLACE)
    timed = StreamRecord(3, {**bare.content, "spans": [["tools", 0.5, 1.25, 0]]})
    written(tmp_path, [bare, timed])
    assert [episode.trajectory.spans for episode in read_episodes(tmp_path)] == [
        (), (("tools", 0.5, 1.25, 0),),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "change", [{"mask_runs": [1]}, {"token_ids": "?"}, {"turns": [[1]]}, {"finish_reason": "no"}]
)
def test_a_damaged_attempt_is_named(tmp_path, change):
    good = episode_record(made_attempt(1), PLACE)
    bad = StreamRecord(3, {**good.content, **change})
    written(tmp_path, [good, bad])
    with pytest.raises(ArtifactError, match="record 1 of the attempts: damaged"):
        list(read_episodes(tmp_path))


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
