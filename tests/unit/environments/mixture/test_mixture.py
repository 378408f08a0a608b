"""Several families in one run: made, taught, played and judged each by its own."""

import asyncio
import random
from collections import Counter

import pytest
from pydantic import ValidationError

from espalier.config import Profile, family_code_digest, reads_knowledge
from espalier.environments import Renames, family_of
from espalier.environments.contract import waited
from espalier.environments.funnel import Funnel
from espalier.records import DataError, Draft, FinalAnswer, NullTracker
from espalier.records.trajectory import Trajectory
from tests.factories.records import make_task

SUMS = "tests.factories.sums:Sums"
MEMBERS = [
    {"environment": SUMS, "weight": 2.0, "max_turns": 2},
    {"environment": {"name": "function_calling"}, "weight": 1.0},
    {"environment": "customer_service", "weight": 1.0, "max_turns": 9},
]


def profile(members=MEMBERS):
    counts = {"train_tasks": 402, "dev_tasks": 41, "heldout_tasks": 43}
    return Profile.model_validate(
        {
            "environment": {"name": "mixture", "members": members},
            "synthesis": {**counts, "detour_share": 0.0},
            "curriculum": {"candidates": 40},
            "training": {"dev_questions": 8},
            "warm_start": {"dev_questions": 8},
            "policy": {"dialect": "hermes"},
        }
    )


@pytest.fixture(scope="module")
def mixture():
    return family_of(profile())


@pytest.fixture(scope="module")
def knowledge(mixture, tmp_path_factory):
    draft = Draft(tmp_path_factory.mktemp("knowledge"))
    mixture.ingest(draft, NullTracker())
    return draft.path


@pytest.fixture(scope="module")
def questions(mixture, knowledge):
    return mixture.questions(knowledge, Funnel(), NullTracker())


def test_shares_of_every_split_add_up_and_follow_the_weights(questions):
    sizes = {split: len(asked) for split, asked in questions.items()}
    assert sizes == {"train": 402, "dev": 41, "heldout": 43}
    of_train = [question.task.environment for question in questions["train"]]
    assert Counter(of_train) == {SUMS: 201, "function_calling": 101, "customer_service": 100}
    assert len(set(of_train[:20])) == 3, "they are shuffled"
    ids = {question.task.task_id for asked in questions.values() for question in asked}
    assert len(ids) == 402 + 41 + 43


def test_every_teacher_is_the_members_own(mixture, knowledge, questions):
    with mixture.teacher(knowledge, Funnel()) as demonstrate:
        shown = [demonstrate(question, "") for question in questions["train"][:30]]
    assert all(isinstance(one, Trajectory) and one.is_right for one in shown)
    assert {one.messages[-1].content for one in shown if not one.tool_results}  # sums answer


def test_an_episode_has_the_members_own_tools_limits_and_verifier(mixture, knowledge, questions):
    task = next(q.task for q in questions["train"] if q.task.environment == SUMS)

    async def play(environment):
        opening = await waited(environment.reset(task))
        await waited(environment.step(FinalAnswer(task.verifier.gold[0])))
        return opening, await waited(environment.score())

    with mixture.environments(knowledge) as environments_over:
        opening, reward = asyncio.run(play(environments_over("train")(task)))
    assert [tool.name for tool in opening.tools] == ["add"]
    assert reward["outcome"] == 1.0
    assert mixture.specs_of(task) == opening.tools
    assert mixture.verify(task, "no number") == 0.0
    turns = {name: member.profile.episode.max_turns for name, member in mixture.members.items()}
    assert turns == {SUMS: 2, "function_calling": 6, "customer_service": 9}
    with pytest.raises(DataError, match="task t "):
        mixture.of(make_task("t"))


@pytest.mark.parametrize(
    ("members", "fault"),
    [
        (MEMBERS[:1], "members"),
        ([MEMBERS[0], MEMBERS[0]], "twice"),
        ([MEMBERS[0], {"environment": {"name": "mixture", "members": MEMBERS}}], "be a member"),
        ([MEMBERS[0], {"environment": "no_such"}], "no_such"),
        ([MEMBERS[0], {"environment": "shop", "weight": 0}], "weight"),
        (
            [MEMBERS[0], {"environment": {"name": "shop", "score_reward": 2.0}}],
            r"environment\.members: shop: .*score_reward",
        ),
    ],
)
def test_members_that_are_none_are_refused(members, fault):
    with pytest.raises(ValidationError, match=fault):
        profile(members)


def test_a_member_of_another_package_counts_by_its_code():
    environment = profile().environment
    alone = profile([MEMBERS[1], MEMBERS[2]]).environment
    assert family_code_digest(environment) is not None
    assert family_code_digest(alone) is None
    assert not reads_knowledge(environment)
    assert reads_knowledge(profile([MEMBERS[0], {"environment": "search_qa"}]).environment)


def test_of_two_equal_names_each_task_has_its_own_tool():
    both = family_of(profile([{"environment": "shop"}, {"environment": "web"}]))
    shop, web = both.members.values()
    shared = {spec.name for spec in shop.specs} & {spec.name for spec in web.specs}
    assert shared == {"click"}
    assert Counter(spec.name for spec in both.specs)["click"] == 1
    assert both.specs_of(make_task("t", environment="web")) == web.specs


def test_demonstrations_are_renamed_by_their_member(mixture, monkeypatch, tmp_path):
    assert mixture.renaming(tmp_path, 0.6) is None
    asked = []

    class Renaming(type(mixture.members["function_calling"]), Renames):
        task_renaming = None

        def renaming(self, knowledge, share):
            asked.append((knowledge, share))
            return lambda task, trajectory, rng: ("renamed", trajectory)

    member = Renaming(mixture.members["function_calling"].profile)
    monkeypatch.setitem(mixture.members, "function_calling", member)
    exchange = mixture.renaming(tmp_path, 0.6)
    assert asked == [(tmp_path / "function_calling", 0.6)]
    for environment, expected in (("function_calling", "renamed"), ("customer_service", None)):
        task = make_task("t", environment=environment)
        assert exchange(task, None, random.Random(0))[0] == (expected or task)
