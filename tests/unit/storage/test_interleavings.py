"""Writers, readers and the collector in every order that a seeded scheduler draws.

A thousand orders: python -m tests.benchmarks.interleavings.
"""

import logging
import random
from datetime import timedelta

import pytest

from tests.benchmarks import interleavings
from tests.benchmarks.interleavings import (
    LONG_AGO,
    MANIFEST,
    PREFIX,
    Actor,
    Broken,
    Cast,
    Scheduler,
    World,
    play,
    small_parts,
    versions,
    weakened,
)

COUNT = 100


@pytest.fixture(autouse=True)
def _quick(caplog):
    caplog.set_level(logging.ERROR)  # lost answers are asked for again, which is logged
    with small_parts():
        yield


def play_all(folder):
    played = []
    for number in range(COUNT):
        (folder / str(number)).mkdir()
        played.append(play(number, 0, folder / str(number)))
    return played


def test_readers_find_whole_artifacts_in_every_order(tmp_path):
    played = play_all(tmp_path)
    # every kind of event has happened
    assert min(sum(vars(one)[key] for one in played) for key in ("killed", "conflicts", "read")) > 9
    assert {one.begin for one in played} > {"nothing", "present", "as before", "damaged"}


@pytest.mark.parametrize("rule", ["conditions", "sums"])
def test_a_protocol_without_one_rule_breaks(tmp_path, rule):
    """The control: the rarer ones are found by --weaken."""
    with weakened(rule), pytest.raises(Broken):
        play_all(tmp_path)


@pytest.mark.parametrize("is_there", [True, False])
@pytest.mark.parametrize("before", [True, False])
def test_a_writer_killed_at_any_request_harms_nobody(tmp_path, monkeypatch, is_there, before):
    monkeypatch.setattr(interleavings, "LOST_ANSWERS", 0.0)
    rng = random.Random(3)
    known = versions(tmp_path, rng)
    request, died = 0, True
    while died:
        request += 1
        world = World(known)
        if is_there:
            for name in known[0].manifest.files:
                world.put(f"{PREFIX}/{name}", (known[0].folder / name).read_bytes(), LONG_AGO)
            world.put(MANIFEST, known[0].content, timedelta())
        scheduler = Scheduler(rng, world)
        cast = Cast(world, scheduler, tmp_path)
        actor = Actor("writer", cast.writer(known[2]), dies_at=request, dies_before=before)
        scheduler.run([actor])
        died = actor.is_dead and actor.outcome is None
        again = Actor("writer", cast.writer(known[1]))
        scheduler.run([again])
        assert world.found() == known[1]
    assert request > 8, "manifest, listings and contents are requests each"
