"""Self-play is off unless it is named, and goes with what its tasks are proven and judged by."""

import pytest

from espalier.chain import CHAIN
from espalier.config import AbsoluteZeroConfig, NoSelfPlayConfig, Profile, RZeroConfig, WebRLConfig
from espalier.records import ProfileError

WEBRL = 'self_play.name="webrl"'
R_ZERO = 'self_play.name="r_zero"'
TRIPLES = 'self_play.name="absolute_zero"'
MATH = 'environment.name="python_math"'
ENDPOINT = [
    'teacher.kind="endpoint"',
    'teacher.endpoint.url="http://localhost/v1"',
    'teacher.endpoint.model="m"',
]


def test_self_play_is_off_unless_it_is_named(load):
    assert load().self_play == NoSelfPlayConfig()
    assert load(WEBRL).self_play == WebRLConfig()
    assert load(R_ZERO).self_play == RZeroConfig()
    assert load(TRIPLES, MATH).self_play == AbsoluteZeroConfig()
    teacher = [*ENDPOINT, 'self_play.proposer="teacher"']
    assert load(TRIPLES, MATH, *teacher).self_play.proposer == "teacher"
    assert load(WEBRL, *teacher).self_play.proposer == "teacher"
    critic = ['training.algorithm.preset="ppo"', 'self_play.value="critic"']
    assert load(WEBRL, *critic).self_play.value == "critic"


@pytest.mark.parametrize(
    ("overrides", "complaint"),
    [
        ([WEBRL, "self_play.posed=3"], r"self_play\.posed_tasks"),
        ([WEBRL, "self_play.value_band=[0.5, 0.1]"], "value_band"),
        ([WEBRL, MATH], "python_math"),
        ([TRIPLES], "search_qa"),
        ([TRIPLES, MATH, "self_play.asked=[]"], "asked"),
        ([R_ZERO, "self_play.max_distance=0.6"], "max_distance"),
        ([WEBRL, 'self_play.value="critic"'], "default"),
        ([WEBRL, 'self_play.proposer="teacher"'], r"teacher\.kind"),
    ],
)
def test_settings_that_do_not_fit_are_refused_by_name(load, overrides, complaint):
    with pytest.raises(ProfileError, match=complaint):
        load(*overrides)


def test_only_training_depends_on_self_play_and_its_teacher(load):
    def changed(before, after):
        return {stage.name for stage in CHAIN if stage.digest(before) != stage.digest(after)}

    off, on = Profile(), load(WEBRL)
    assert changed(off, on) == {"train"}
    asked, other = load(*ENDPOINT), load(*ENDPOINT, "teacher.endpoint.max_tokens=7")
    assert changed(asked, other) == {"synthesize"}
    posing = [*ENDPOINT, WEBRL, 'self_play.proposer="teacher"']
    assert changed(load(*posing), load(*posing, "teacher.endpoint.max_tokens=7")) == {
        "synthesize",
        "train",
    }
