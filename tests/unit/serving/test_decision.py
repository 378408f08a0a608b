import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier.serving.decision import (
    Champion,
    CheckHealth,
    Fail,
    Mark,
    Refuse,
    Roll,
    RollBack,
    RolloutMemory,
    RolloutProgress,
    RolloutState,
    VersionTags,
    Wait,
    decide,
)

NOT_TOLD = VersionTags()


def champion(version="2", *, since="t1", may_lead=True, told=NOT_TOLD):
    return Champion(
        model="m",
        version=version,
        policy_digest="d" * 64,
        may_lead=may_lead,
        gate="passed",
        since=since,
        told=told,
    )


def state(asked="1", progress=RolloutProgress.READY, **memory):
    return RolloutState(
        uid="u",
        resource_version="1",
        asked=asked,
        progress=progress,
        reason="slow" if progress is RolloutProgress.STUCK else "",
        memory=RolloutMemory(**memory),
    )


FAILED = {"failed": "2@t1", "failed_reason": "why", "last_good": "1"}


@pytest.mark.parametrize(
    ("wanted", "found", "step"),
    [
        (None, state(), Wait),
        (champion(may_lead=False), state(last_good="1"), Refuse),
        (champion(may_lead=False), state(asked="2", last_good="1"), Refuse),
        (champion(), state(asked=None), Roll),
        (champion(), state(asked="1", last_good="1"), Roll),
        (champion(), state(asked="1", progress=RolloutProgress.ROLLING), Roll),
        (champion(), state(asked="2", progress=RolloutProgress.ROLLING), Wait),
        (champion(), state(asked="2", last_good="1"), CheckHealth),
        (champion(), state(asked="2", last_good="2"), Mark),
        (champion(), state(asked="2", progress=RolloutProgress.STUCK, last_good="1"), Fail),
        (champion(), state(asked="2", progress=RolloutProgress.STUCK, last_good="2"), Wait),
        (champion(), state(asked="2", progress=RolloutProgress.STUCK, **FAILED), RollBack),
        (champion(), state(asked="1", **FAILED), Mark),
        (champion(), state(asked="2", failed="2@t1"), Mark),
        (champion(since="t2"), state(asked="1", **FAILED), Roll),
        (champion("1"), state(asked="1", **FAILED), CheckHealth),
        (champion("3"), state(asked="1", **FAILED), Roll),
    ],
)
def test_each_situation_has_one_next_step(wanted, found, step):
    assert type(decide(wanted, found)) is step


def test_after_a_failure_the_last_good_version_is_rolled_to():
    step = decide(champion(), state(asked="2", progress=RolloutProgress.STUCK, **FAILED))
    assert isinstance(step, RollBack)
    assert (step.version, "why" in step.why) == ("1", True)


def test_a_version_that_is_marked_is_not_marked_again():
    served = champion(told=VersionTags("served", "passed"))
    assert isinstance(decide(served, state(asked="2", last_good="2")), Wait)
    went_back = champion(told=VersionTags("failed", "why"))
    assert isinstance(decide(went_back, state(asked="1", **FAILED)), Wait)


VERSIONS = st.sampled_from(["1", "2", "3"])


@given(
    VERSIONS,
    st.booleans(),
    st.none() | VERSIONS,
    st.sampled_from(RolloutProgress),
    st.none() | VERSIONS,
    st.none() | VERSIONS,
)
def test_only_champion_and_last_good_version_are_rolled_to(
    wanted, may_lead, asked, progress, good, failed
):
    found = state(asked, progress, last_good=good, failed=failed and f"{failed}@t1")
    step = decide(champion(wanted, may_lead=may_lead), found)
    if isinstance(step, Roll | RollBack):
        assert may_lead
        assert step.version == (wanted if isinstance(step, Roll) else good)
        assert step.version != asked
        assert step.version != failed or failed == good
