import pytest

from espalier.config import Profile
from espalier.records import Message, ToolCalls
from espalier.records.trajectory import Turn
from espalier.validation import trajectory_columns
from espalier_search.search_qa import SearchQA
from tests.factories.validation import FAMILY, a_task, a_trajectory, answer, saw, search

USER = Message(role="user", content="the blue one")
TWO_SEARCHES = ToolCalls(search("q").tool_calls + search("r").tool_calls, "look").message()


def row(trajectory, family=FAMILY):
    return trajectory_columns([trajectory], {"t1": a_task("t1", "train")}, family).iloc[0]


def test_a_sound_demonstration_has_no_faults():
    found = row(a_trajectory("t1"))
    assert found["turns"] == 2
    faults = ["order_faults", "call_faults", "mask_faults", "grammar_faults"]
    assert [found[name] for name in faults] == [0, 0, 0, 0]
    truths = ["is_train_task", "is_solved", "is_answer_in_evidence"]
    assert all(found[name] for name in truths)
    other = row(a_trajectory("another", reward=0.0))
    assert not other["is_train_task"]
    assert not other["is_solved"]


def test_action_share_is_counted_in_characters_after_the_prompt():
    found = row(a_trajectory("t1", search("q"), saw("x" * 100), answer("x")))
    written = len('looksearch{"query": "q"}') + len("foundx")
    assert found["action_share"] == pytest.approx(written / (written + 100))


@pytest.mark.parametrize(
    ("episode", "faults"),
    [
        ((search("q"), saw("x")), 1),
        ((search("q"), search("r"), answer("x")), 2),
        ((saw("x"), search("q"), answer("x")), 2),
        ((search("q"), Message(role="user", content="go on"), answer("x")), 2),
        ((TWO_SEARCHES, saw("x"), saw("y"), answer("x")), 0),
        ((TWO_SEARCHES, saw("x"), answer("x")), 1),
        ((search("q"), saw("x"), saw("y"), answer("x")), 1),
    ],
)
def test_calls_without_results_and_results_without_calls_are_faults(episode, faults):
    assert row(a_trajectory("t1", *episode))["order_faults"] == faults


@pytest.mark.parametrize(
    ("episode", "calls", "faults"),
    [
        ((), (), 2),
        ((), (("rhone", "another result"),), 1),
        # the result of an ending call is not shown
        ((search("q"), saw("x"), search("r")), (("q", "x"), ("r", "bought")), 0),
    ],
)
def test_tool_calls_that_the_messages_lack_are_faults(episode, calls, faults):
    assert row(a_trajectory("t1", *episode, calls=calls))["call_faults"] == faults


@pytest.mark.parametrize(
    ("mask", "logprob", "faults"),
    [((0, 1, 1, 0, 1), 0.0, 0), ((0, 1, 1, 1, 1), -1.0, 1), ((0, 1, 1, 0, 1), -0.5, 1)],
)
def test_only_actions_have_mask_and_log_probs(mask, logprob, faults):
    """Five tokens: prompt, action, action, observation, action."""
    turns = (
        Turn(action_start=1, action_end=3, observation_end=4),
        Turn(action_start=4, action_end=5, observation_end=5),
    )
    logprobs = (0.0, -1.0, -1.0, logprob, -1.0)
    encoded = {"token_ids": (9,) * 5, "action_mask": mask, "behavior_logprobs": logprobs}
    assert row(a_trajectory("t1", **encoded, turns=turns))["mask_faults"] == faults


@pytest.mark.parametrize(
    "episode",
    [
        (Message(role="assistant", thought="nothing follows"),),
        (answer("x"), saw("x"), answer("x")),
        (search("q"),),
        (search("q"), saw("x"), search("r"), saw("x")),
        (search("q"), saw("x"), Message(role="assistant")),
    ],
)
def test_actions_that_the_environment_would_refuse_are_faults(episode):
    assert row(a_trajectory("t1", *episode))["grammar_faults"] == 1


@pytest.mark.parametrize(
    ("observation", "final", "shown"),
    [
        ("Rhône | city: LYON", "lyon", True),
        ("city: Saint-Étienne; Lyon", "saint etienne", True),
        ("city: Lyonnais", "Lyon", False),
        ("saint | etienne", "Etienne Saint", False),
        ("Lyon", "", False),
    ],
)
def test_evidence_shows_the_answer_word_by_word(observation, final, shown):
    episode = (search("q"), saw(observation), answer("x"))
    found = row(a_trajectory("t1", *episode, final=final))
    assert found["is_answer_in_evidence"] == shown


class Talks(SearchQA):
    """Its user replies, and a call may be the end."""

    converses = True
    ends_by_call = True
    answers_from_evidence = False


@pytest.mark.parametrize(
    ("episode", "faults"),
    [
        ((answer("which?"), USER, search("q"), saw("x"), answer("x")), (0, 0)),
        ((answer("which?"), USER, USER, answer("x")), (1, 0)),
        ((search("q"), saw("x"), search("r")), (0, 0)),
    ],
)
def test_a_family_says_what_form_its_episodes_have(episode, faults):
    trajectory = a_trajectory("t1", *episode)
    found = row(trajectory, Talks(Profile()))
    assert (found["order_faults"], found["grammar_faults"]) == faults
    assert found["is_answer_in_evidence"]
    strict = row(trajectory)
    assert strict["order_faults"] + strict["grammar_faults"] > sum(faults)
