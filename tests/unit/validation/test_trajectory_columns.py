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


def encoded(mask, logprobs):
    """Five tokens: prompt, action, action, observation, action."""
    turns = (
        Turn(action_start=1, action_end=3, observation_end=4),
        Turn(action_start=4, action_end=5, observation_end=5),
    )
    return a_trajectory(
        "t1", token_ids=(9,) * 5, action_mask=mask, behavior_logprobs=logprobs, turns=turns
    )


def test_a_sound_demonstration_has_no_faults():
    found = row(a_trajectory("t1"))
    assert found["turns"] == 2
    faults = ["order_faults", "call_faults", "mask_faults", "grammar_faults"]
    assert [found[name] for name in faults] == [0, 0, 0, 0]
    assert found["is_train_task"]
    assert found["is_solved"]
    assert found["is_answer_in_evidence"]


def test_action_share_is_counted_in_characters_after_the_prompt():
    episode = (search("q"), saw("x" * 100), answer("x"))
    written = len('looksearch{"query": "q"}') + len("foundx")
    found = row(a_trajectory("t1", *episode))
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


def test_a_tool_call_missing_in_the_messages_is_a_fault():
    assert row(a_trajectory("t1", calls=()))["call_faults"] == 2
    other = a_trajectory("t1", calls=(("rhone", "another result"),))
    assert row(other)["call_faults"] == 1


def test_a_mask_over_exactly_the_actions_is_sound():
    sound = encoded((0, 1, 1, 0, 1), (0.0, -1.0, -1.0, 0.0, -1.0))
    assert row(sound)["mask_faults"] == 0


def test_an_observation_token_in_the_mask_is_a_fault():
    leaking = encoded((0, 1, 1, 1, 1), (0.0, -1.0, -1.0, -1.0, -1.0))
    assert row(leaking)["mask_faults"] == 1


def test_a_log_prob_outside_the_mask_is_a_fault():
    leaking = encoded((0, 1, 1, 0, 1), (0.0, -1.0, -1.0, -0.5, -1.0))
    assert row(leaking)["mask_faults"] == 1


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
        ("Lyon", None, False),
    ],
)
def test_evidence_shows_the_answer_word_by_word(observation, final, shown):
    episode = (search("q"), saw(observation), answer("x"))
    found = row(a_trajectory("t1", *episode, final=final))
    assert found["is_answer_in_evidence"] == shown


def test_demonstrations_of_unknown_or_unsolved_tasks_are_found():
    found = row(a_trajectory("another", reward=0.0))
    assert not found["is_train_task"]
    assert not found["is_solved"]


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


def test_the_result_of_an_ending_call_is_not_shown():
    calls = (("q", "x"), ("r", "bought"))
    found = row(a_trajectory("t1", search("q"), saw("x"), search("r"), calls=calls))
    assert found["call_faults"] == 0
