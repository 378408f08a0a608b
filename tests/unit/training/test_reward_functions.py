import json
from dataclasses import replace

import pytest

from espalier.algorithms.shaping import CallShaping, Majority, Overlong, TermContext
from espalier.config import JudgesConfig
from espalier.records import DataError, Message, ToolCall
from espalier.records.trajectory import (
    FinishReason,
    ToolResult,
    Turn,
    read_trajectories,
    write_trajectories,
)
from espalier.training.rl.reward_functions import (
    GraderRewards,
    ProfileRewards,
    TermRewards,
    episode_facts,
)
from tests.factories.training import make_task, make_trajectory
from tests.fakes.endpoint_double import completion, running_double

CONTEXT = TermContext(max_tokens=10)
CALL = ToolCall(name="search", arguments={"query": "lyon"})
MISSPELT = ToolCall(name="lookup", arguments={"query": "lyon"})


def two_calls_and_an_answer(outcome=1.0, answer="france"):
    task = make_task("lyon")
    tokens = tuple(range(9))
    return replace(
        make_trajectory(
            task,
            outcome,
            token_ids=tokens,
            action_mask=(0, 0, 1, 0, 1, 0, 1, 1, 1),
            behavior_logprobs=(0.0, 0.0, -1.0, 0.0, -1.0, 0.0, -1.0, -1.0, -1.0),
            turns=(
                Turn(action_start=2, action_end=3, observation_end=4),
                Turn(action_start=4, action_end=5, observation_end=6),
                Turn(action_start=6, action_end=9, observation_end=9),
            ),
        ),
        messages=(
            *task.prompt,
            Message(role="assistant", thought="look", tool_calls=(CALL,)),
            Message(role="tool", content="lyon | country: france"),
            Message(role="assistant", tool_calls=(MISSPELT,)),
            Message(role="tool", content="error: no tool is named lookup"),
            Message(role="assistant", thought=" ", content=answer),
        ),
        tool_results=(
            ToolResult(call=CALL, content="lyon | country: france", succeeded=True),
            ToolResult(call=MISSPELT, content="error", succeeded=False, exists=False),
        ),
        answer=answer,
    )


def test_facts_give_each_turn_its_calls(tmp_path):
    write_trajectories(tmp_path / "trajectories.parquet", [two_calls_and_an_answer()])
    [read] = read_trajectories(tmp_path / "trajectories.parquet")
    facts = episode_facts(two_calls_and_an_answer())
    assert [[call.name for call in turn] for turn in facts.turns] == [["search"], ["lookup"], []]
    assert [call.exists for call in facts.calls] == [True, False]
    assert [result.exists for result in read.tool_results] == [True, False], "also after reading"
    assert facts.thoughts == (True, False, False)
    assert facts.last_text == "france"
    assert len(facts.action_token_ids) == len(facts.action_logprobs) == 5


def test_terms_are_kept_by_name_and_turns_where_they_fell():
    reward_function = TermRewards([Overlong(), CallShaping(), Majority()], CONTEXT)
    rewarded = reward_function([two_calls_and_an_answer() for _ in range(2)])[0]
    assert rewarded.reward == pytest.approx(
        {"outcome": 1.0, "format": 0.0, "overlong": -0.25, "majority": 0.1, "turns": -0.2}
    )
    assert [turn.reward for turn in rewarded.turns] == pytest.approx([0.1, -0.3, 0.0])
    cut = replace(two_calls_and_an_answer(), finish_reason=FinishReason.MAX_TOKENS)
    assert reward_function([cut])[0].reward["overlong"] == -0.5, "the whole penalty"


@pytest.mark.parametrize(
    ("reward", "said"),
    [
        ({"format": 0.1}, "no outcome"),
        ({"outcome": float("nan")}, "number"),
        ({"outcome": 1.0, "majority": 0.5}, "majority"),  # two terms of one name
    ],
)
def test_a_reward_that_is_missing_broken_or_double_is_refused(reward, said):
    with pytest.raises(DataError, match=said):
        TermRewards([Majority()], CONTEXT)([replace(two_calls_and_an_answer(), reward=reward)])


def test_judges_pay_their_score_and_see_no_reward():
    says_yes = completion(json.dumps({"reasoning": "r", "holds_success": True}))
    with running_double() as double:
        double.respond = lambda _body: says_yes
        models = [{"url": double.url, "model": name} for name in "abc"]
        rubric = [{"name": "success", "question": "Right?"}]
        config = JudgesConfig.model_validate({"models": models, "rubric": rubric, "weight": 0.3})
        grader = GraderRewards("judges", config)
        reward_function = ProfileRewards(TermRewards([Majority()], CONTEXT), [grader])
        rewarded = reward_function([two_calls_and_an_answer(), two_calls_and_an_answer(0.0)])
        grader.close()
        told = json.loads(double.seen[0][1]["messages"][1]["content"])
    assert [t.reward["judges"] for t in rewarded] == [0.3, 0.3]
    assert [t.is_right for t in rewarded] == [True, False], "the rule decides"
    assert reward_function.figures()["judges/kappa_with_rule"] == 0.0
    assert [m["role"] for m in told["messages"]][-3:] == ["assistant", "tool", "assistant"]
    assert set(told) == {"messages", "finish_reason", "criteria", "reference"}
    assert told["reference"] == ""
