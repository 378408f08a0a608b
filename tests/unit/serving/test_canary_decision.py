"""The way of a canary: one step after the other, and back where it falls short."""

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier.cluster.objects.serving import canary_replicas
from espalier.config import CanaryConfig
from espalier.serving.decision import (
    NO_CANARY,
    CanaryTrack,
    CheckHealth,
    EndCanary,
    EnterStep,
    Fail,
    Judging,
    Mark,
    Measure,
    Refuse,
    Retreat,
    Roll,
    RolloutMemory,
    RolloutProgress,
    RolloutState,
    Told,
    Wait,
    Weigh,
    decide,
)
from espalier.serving.score import ServedScore
from tests.unit.serving.test_decision import champion

CONFIG = CanaryConfig(
    steps=(0.1, 0.5, 1.0), min_requests=10, step_s=60, max_step_s=600, max_error_share=0.1,
)  # fmt: skip
NOON = datetime(2026, 3, 4, 12, 0, tzinfo=UTC)
GOOD = ServedScore(
    requests=10, errors=0, invalid=0, former_invalid=0, p99_s=0.1, former_p99_s=0.1,
    graded=0, right=0, former_right=0, lost=0, won=0,
)  # fmt: skip
BAD = replace(GOOD, errors=2)
SHORT = replace(GOOD, requests=9)

READY, ROLLING, STUCK = RolloutProgress.READY, RolloutProgress.ROLLING, RolloutProgress.STUCK


def state(asked="1", track=NO_CANARY, progress=READY, **memory):
    return RolloutState(
        uid="u",
        resource_version="1",
        asked=asked,
        progress=progress,
        reason="slow",
        memory=RolloutMemory(**{"last_good": "1", **memory}),
        canary=track,
    )


def canary(asked="2", weight=0.1, progress=READY, share=None, **given):
    given = {"has_pods": True, "is_routed": True, "has_traffic": weight > 0, **given}
    share = weight if share is None else share
    return CanaryTrack(
        asked=asked, weight=weight, progress=progress, reason="no room", share=share, **given
    )


def judging(score=None, *, late_s=0.0, config=CONFIG, graded=0):
    return Judging(config=config, now=NOON + timedelta(seconds=late_s), score=score, graded=graded)


def at(step, *, is_reached=True):
    memory = {"canary": "2@t1", "step": step, "entered": NOON.isoformat()}
    return memory | ({"since": NOON.isoformat()} if is_reached else {})


SERVED = champion(told=Told("served", "passed"))
WENT_BACK = champion(told=Told("failed", "slow"))


IDLE = CanaryTrack()
HALF = canary(weight=0.5)
ALL = canary(weight=1.0)


@pytest.mark.parametrize(
    ("found", "judged", "step"),
    [
        (state(track=IDLE), judging(), EnterStep(champion(), 0, 0.0)),
        (state(track=IDLE, **at(0)), judging(), Weigh(champion(), 0.0)),
        (
            state(track=canary(weight=0.0), **at(0)),
            judging(),
            CheckHealth(champion(), of_canary=True),
        ),
        (state(track=canary(weight=0.0), **at(1)), judging(), Weigh(champion(), 0.1)),
        (state(track=canary(progress=ROLLING), **at(1)), judging(), Wait),
        (state(track=canary(progress=STUCK), **at(1)), judging(), Fail(champion(), "no room")),
        (state(track=canary(is_routed=False), **at(1)), judging(), Weigh(champion(), 0.1)),
        (
            state(track=canary(), **at(1, is_reached=False)),
            judging(),
            EnterStep(champion(), 1, 0.1, is_reached=True),
        ),
        (state(track=canary(), **at(1)), judging(), Measure(champion(), 1, 0.1)),
        (state(track=canary(), **at(1)), judging(SHORT, late_s=99), Measure(champion(), 1, 0.1)),
        (state(track=canary(), **at(1)), judging(GOOD, late_s=59), Measure(champion(), 1, 0.1)),
        (
            state(track=canary(), **at(1)),
            judging(GOOD, late_s=60),
            EnterStep(champion(), 2, 0.5),
        ),
        (state(track=canary(), **at(1)), judging(BAD), Fail),
        (state(track=HALF, **at(2)), judging(GOOD, late_s=60), EnterStep(champion(), 3, 1.0)),
        (state(track=ALL, **at(3)), judging(GOOD, late_s=60), Roll),
        (state(track=canary("9"), **at(1)), judging(), Weigh(champion(), 0.1)),
        (state(track=HALF, **(at(2) | {"canary": "1@t0"})), judging(), Retreat),
        (
            state(track=canary(weight=0.0), **(at(2) | {"canary": "1@t0"})),
            judging(),
            EndCanary,
        ),
        # all traffic is with the canary: nobody answers in the place of pods that are missing
        (state(track=canary(weight=1.0, progress=ROLLING), **at(3)), judging(), Measure),
        (
            state(track=canary(weight=1.0, progress=ROLLING), **at(3, is_reached=False)),
            judging(),
            Wait,
        ),
        # its time of entry was lost: it begins anew
        (state(track=HALF, canary="2@t1", step=2), judging(), EnterStep(champion(), 2, 0.5)),
        (state("2", ALL, ROLLING, **at(3)), judging(), EnterStep(champion(), 4, 1.0)),
        (state("2", ALL, ROLLING, **at(4)), judging(late_s=599), Wait),
        (state("2", ALL, ROLLING, **at(4)), judging(late_s=600), Fail),
        (state("2", ALL, STUCK, **at(4)), judging(), Fail),
        (state("2", ALL, **at(4)), judging(late_s=600), CheckHealth(champion())),
        (state("2", ALL, STUCK, **at(3)), judging(), Fail),
        (state("2", ALL, **at(3)), judging(), CheckHealth(champion())),
        (state("2", ALL, last_good="2"), judging(), Retreat),
        (state("2", ALL, ROLLING, last_good="2"), judging(), Wait),
        (state("2", canary(weight=0.0), last_good="2"), judging(), EndCanary),
        (
            state("2", IDLE, last_good="2"),
            judging(),
            Mark(champion(), Told("served", "passed")),
        ),
        (state("1", HALF, failed="2@t1"), judging(), Retreat),
        (state("1", HALF, ROLLING, failed="2@t1"), judging(), Retreat),
        (state("2", ALL, STUCK, failed="2@t1"), judging(), Roll),
        (state("1", ALL, ROLLING, failed="2@t1"), judging(), Wait),
        (state("1", ALL, READY, failed="2@t1"), judging(), Retreat),
        # some pods of the former version are missing: the others answer better than the canary
        (replace(state("1", ALL, ROLLING, failed="2@t1"), can_answer=True), judging(), Retreat),
        (state("1", canary(weight=0.0), failed="2@t1"), judging(), EndCanary),
        (
            state("1", IDLE, failed="2@t1", failed_reason="slow"),
            judging(),
            Mark(champion(), Told("failed", "slow")),
        ),
        # without a version that was good there is nothing to compare with, or to go back to
        (state(None, IDLE, last_good=None), judging(), Roll),
        (state("1", IDLE, last_good=None), judging(), Roll),
        (state(track=IDLE), judging(config=CanaryConfig(steps=())), Roll),
    ],
)
def test_each_situation_of_a_canary_has_one_step(found, judged, step):
    decided = decide(champion(), found, judged)
    assert decided == step if not isinstance(step, type) else type(decided) is step


def test_a_version_that_is_marked_is_not_marked_again():
    assert isinstance(decide(SERVED, state("2", IDLE, last_good="2"), judging()), Wait)
    back = state("1", IDLE, failed="2@t1", failed_reason="slow")
    assert isinstance(decide(WENT_BACK, back, judging()), Wait)


FEW = replace(SHORT, former_errors=7, last_former_error="HTTP 503")
UNREACHED = at(1, is_reached=False)


@pytest.mark.parametrize(
    ("found", "judged", "missing"),
    [
        (state(track=IDLE, **at(0)), judging(), "its number of pods was not the share's"),
        (state(track=replace(canary(), weight=None), **at(1)), judging(), "number of pods was not"),
        (state(track=canary(weight=0.0, progress=ROLLING), **at(0)), judging(), "not all ready"),
        (state(track=canary(weight=0.0), **at(0)), judging(), "it gave no token"),
        (state(track=canary(progress=ROLLING), **UNREACHED), judging(), "not all ready"),
        (state(track=canary(progress=ROLLING), **at(1)), judging(GOOD), "not all ready"),
        (state(track=canary(is_routed=False), **UNREACHED), judging(), "a share of 0.1 was not"),
        (state(track=canary(), **UNREACHED), judging(), "its pods were ready too late"),
        (state(track=canary(), **at(1)), judging(), "no question was asked since"),
        (state(track=canary(), **at(1)), judging(SHORT), "9 of the serving.canary.min_requests=10"),
        (state(track=canary(), **at(1)), judging(FEW), "left 7 without an answer (HTTP 503)"),
        (
            state(track=canary(), **at(1)),
            judging(GOOD, graded=3),
            "answered 0 of the 3 questions with accepted answers",
        ),
        (
            state(
                track=canary(), **(at(1) | {"since": (NOON + timedelta(seconds=570)).isoformat()})
            ),
            judging(GOOD),
            "it had its share for",
        ),
    ],
)
def test_a_step_that_is_not_decided_in_time_fails(found, judged, missing):
    in_time = replace(judged, now=NOON + timedelta(seconds=599))
    assert not isinstance(decide(champion(), found, in_time), Fail)
    late = decide(champion(), found, replace(judged, now=NOON + timedelta(seconds=600)))
    assert isinstance(late, Fail)
    assert "was not decided within serving.canary.max_step_s=600 s: " in late.reason
    assert missing in late.reason


def test_a_step_that_is_decided_late_still_goes_on():
    late = judging(GOOD, late_s=700)
    assert decide(champion(), state(track=canary(), **at(1)), late) == EnterStep(champion(), 2, 0.5)
    assert isinstance(decide(champion(), state(track=ALL, **at(3)), late), Roll)


def test_a_step_may_not_end_before_it_is_over():
    with pytest.raises(ValueError, match=r"max_step_s=60 must be above step_s=60"):
        CanaryConfig(step_s=60, max_step_s=60)


def test_a_promotion_that_is_over_ends_its_canary():
    gone = champion(may_lead=False)
    assert isinstance(decide(gone, state(track=HALF, **at(2)), judging()), Retreat)
    assert isinstance(decide(gone, state(track=IDLE), judging()), Refuse)


def test_an_alias_that_was_removed_ends_the_canary():
    assert isinstance(decide(None, state(track=HALF, **at(2)), judging()), Retreat)
    without_traffic = state(track=canary(weight=0.0), **at(2))
    assert isinstance(decide(None, without_traffic, judging()), EndCanary)
    assert isinstance(decide(None, state(track=IDLE), judging()), Wait)


@pytest.mark.parametrize("wanted", [None, champion(may_lead=False)])
def test_a_promotion_that_is_over_takes_its_roll_back(wanted):
    rolled = state("2", ALL, ROLLING, **at(4))
    assert decide(wanted, rolled, judging()).version == "1"
    assert isinstance(decide(wanted, state("1", ALL, ROLLING, **at(4)), judging()), Wait)
    assert isinstance(decide(wanted, state("1", ALL, **at(4)), judging()), Retreat)


def test_rolling_the_alias_back_ends_the_canary():
    back = champion("1", since="t2")
    assert isinstance(decide(back, state(track=HALF, **at(2)), judging()), Retreat)
    rolled = state("2", ALL, ROLLING, **at(3))
    assert decide(back, rolled, judging()) == Roll("1", "champion is version 1 now")


def test_another_promotion_first_restores_the_good_version():
    third = champion("3", since="t3")
    assert isinstance(decide(third, state("2", ALL, **at(3)), judging()), Roll)
    assert decide(third, state("2", ALL, **at(3)), judging()).version == "1"
    assert isinstance(decide(third, state("1", HALF, **at(2)), judging()), Retreat)


def test_a_share_of_zero_may_be_the_first_step():
    dark = CONFIG.model_copy(update={"steps": (0.0, 1.0)})
    found = state(track=canary(weight=0.0), **at(1))
    assert decide(champion(), found, judging(config=dark)) == Measure(champion(), 1, 0.0)


def test_steps_that_were_cut_short_end_with_all():
    short = CONFIG.model_copy(update={"steps": (1.0,)})
    assert isinstance(
        decide(champion(), state(track=ALL, **at(3)), judging(GOOD, late_s=60, config=short)),
        Roll,
    )


@dataclass
class World:
    """Both tracks and the alias, as a cluster plays them; each look is 25 s after the last."""

    config: CanaryConfig = CONFIG
    wanted: object = field(default_factory=champion)
    found: RolloutState = field(default_factory=lambda: state(track=IDLE))
    now: datetime = NOON
    score: ServedScore | None = None
    weights: list = field(default_factory=list)
    """Shares that version "2" was given, in their order, each once."""

    def step(self, scored, *, restarts=False, progress=READY):
        self.now += timedelta(seconds=25)
        if restarts:
            self.score = None
        judged = Judging(config=self.config, now=self.now, score=self.score, graded=0)
        decision = decide(self.wanted, self.found, judged)
        self._act(decision, scored)
        self._pods(progress)
        return decision

    def _act(self, decision, scored):
        memory, track = self.found.memory, self.found.canary
        match decision:
            case EnterStep(is_reached=True):
                self._change(memory=memory.with_share(self.now))
            case EnterStep(promoted, step, _):
                self._change(memory=memory.with_canary(promoted.promotion, step, self.now))
                self.score = None
            case Weigh(promoted, weight) if track.weight == weight and track.has_pods:
                self._route(weight)
            case Weigh(promoted, weight):
                given = {"asked": promoted.version, "weight": weight, "has_pods": True}
                self._canary(**given, is_routed=False, progress=ROLLING)
            case CheckHealth(promoted, of_canary=True):
                self._change(memory=memory.with_canary(promoted.promotion, 1, self.now))
            case CheckHealth(promoted):
                self._change(memory=memory.with_success(promoted.version))
            case Measure():
                self.score = scored
            case _:
                self._act_on_stable(decision)

    def _act_on_stable(self, decision):
        memory = self.found.memory
        match decision:
            case Fail(promoted, why):
                self._change(memory=memory.with_failure(promoted.promotion, why))
            case Roll(version, _):
                self._change(asked=version, progress=ROLLING)
            case Retreat():
                self._route(0.0)
            case EndCanary():
                self._change(canary=IDLE, memory=self.found.memory.without_canary())
            case Mark(promoted, told):
                self.wanted = replace(promoted, told=told)

    def _route(self, weight):
        self._canary(share=weight, has_traffic=weight > 0, is_routed=True, weight=weight)
        if self.found.canary.asked == "2" and self.weights[-1:] != [weight]:
            self.weights.append(weight)

    def _canary(self, **changes):
        self._change(canary=replace(self.found.canary, **changes))

    def _change(self, **changes):
        self.found = replace(self.found, **changes)

    def _pods(self, progress):
        if self.found.progress is not READY:
            self._change(progress=progress)
        if self.found.canary.has_pods and self.found.canary.progress is not READY:
            self._canary(progress=progress)


EVENTS = st.lists(
    st.tuples(
        st.sampled_from([GOOD, GOOD, GOOD, GOOD, SHORT, BAD]),
        st.booleans(),
        st.sampled_from([READY, READY, READY, ROLLING, STUCK]),
    ),
    min_size=5,
    max_size=60,
)
WAY = [0.0, *CONFIG.steps]


@given(EVENTS)
def test_weights_rise_by_steps_and_end_in_none_or_all(events):
    world = World()
    for scored, restarts, progress in events:
        world.step(scored, restarts=restarts, progress=progress)
    for _ in range(80):  # nothing goes wrong any more
        decision = world.step(GOOD)
    rising = world.weights[: len(world.weights) - (world.weights[-1:] == [0.0])]
    assert rising == WAY[: len(rising)] or world.weights == [0.0]
    assert isinstance(decision, Wait), decision
    assert world.found.canary == IDLE
    failed = world.found.memory.failed == "2@t1"
    assert world.found.asked == ("1" if failed else "2")


@given(EVENTS, st.sampled_from([ROLLING, READY]), st.sampled_from([SHORT, GOOD]))
def test_whatever_lasts_a_canary_comes_to_its_end(events, progress, scored):
    world = World()
    for given_score, restarts, found in events:
        world.step(given_score, restarts=restarts, progress=found)
    for _ in range(250):  # 25 s each: four steps of ten minutes, and the way back
        world.step(scored, progress=progress)
    assert world.found.memory.canary is None
    assert world.found.memory.failed == "2@t1" or world.found.memory.last_good == "2"


@given(EVENTS)
def test_a_version_that_went_back_stays_back(events):
    world = World()
    went_back = False
    for scored, restarts, progress in events:
        decision = world.step(scored, restarts=restarts, progress=progress)
        assert not (went_back and isinstance(decision, Weigh | EnterStep | Measure)), decision
        went_back = went_back or isinstance(decision, Fail)


@given(EVENTS)
def test_somebody_can_answer_at_every_moment(events):
    world = World()
    for scored, restarts, progress in events:
        world.step(scored, restarts=restarts, progress=progress)
        if world.found.canary.share == 1:
            assert world.found.canary.has_pods
        elif world.found.asked != "1":
            assert world.found.memory.last_good == world.found.asked


@given(st.sets(st.integers(0, 60), max_size=8))
def test_restarts_in_the_middle_change_no_outcome(moments):
    def outcome(moments):
        world = World()
        for moment in range(120):
            world.step(GOOD, restarts=moment in moments)
        return world.found.asked, world.found.memory.last_good, world.weights

    assert outcome(moments) == outcome(set()) == ("2", "2", [*WAY, 0.0])


@pytest.mark.parametrize("steps", [(0.5,), (0.5, 0.1, 1.0), (0.5, 0.5, 1.0), (-0.1, 1.0), (1.0, 2)])
def test_steps_that_do_not_rise_to_all_are_refused(steps):
    with pytest.raises(ValueError, match="must rise to 1"):
        CanaryConfig(steps=steps)


@pytest.mark.parametrize(
    ("weight", "stable", "pods"),
    [(0.0, 9, 1), (0.1, 9, 1), (0.1, 2, 1), (0.1, 1, 1), (0.1, 18, 2), (0.5, 4, 4), (0.9, 4, 4),
     (1.0, 4, 4), (1.0, 0, 1)],
)  # fmt: skip
def test_a_share_has_the_nearest_number_of_pods(weight, stable, pods):
    assert canary_replicas(weight, stable) == pods
