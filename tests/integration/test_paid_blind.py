"""What answers earn that are given without reading the task, in every family that is installed.

None may earn more than its most frequent answer is right, and two points for chance.
"""

import asyncio
from collections import Counter

import pytest

from espalier.config import Profile, family_names, outcome_scale
from espalier.config.environment import family_class
from espalier.environments import family_of
from espalier.environments.funnel import Funnel
from espalier.environments.mixins import TeachesReading
from espalier.environments.teaching import GaveUp, Observed, play_script
from espalier.records import DataError, FinalAnswer, NullTracker, ProfileError
from espalier.stages import ingest
from espalier_environments.procedural.config import GENERATORS, UNFIT
from espalier_environments.procedural.generators import generators_of
from espalier_environments.procedural.packages import own_python
from tests.unit.environments.procedural import NEEDS_GENERATORS

OWN = ("espalier_environments.", "espalier_search.")
FAMILIES = [name for name in family_names() if family_class(name).__module__.startswith(OWN)]
COUNT = 24
SETTINGS = {name: {} for name in FAMILIES} | {
    "software_repair, swe_rl": {"outcome": "swe_rl", "shell": False},
    "procedural, coin_flip": {"generators": [{"name": "coin_flip"}]},
}
"""Name of a case, which begins with its family -> settings besides the defaults."""
CHANCE = 0.02
SOLVES_OTHERS = {"graph_color": 0.25, "jugs": 0.125, "n_queens": 0.125, "sokoban": 0.1}
"""Generator -> share of COUNT tasks that the answer to one may solve (see its README)."""

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("local_sandboxes")]


def profile_of(case):
    """The profile of a case, with few tasks."""
    name = case.partition(",")[0]
    given = {"environment": {"name": name, **SETTINGS[case]}, "knowledge": {"max_cities": 3000}}
    if not issubclass(family_class(name), TeachesReading):
        given["policy"] = {"model": "smollm2"}
    profile = Profile.model_validate(given)
    counts = {"train_tasks": COUNT, "dev_tasks": COUNT, "heldout_tasks": COUNT}
    synthesis = profile.synthesis.model_copy(update=counts)
    return profile.model_copy(update={"synthesis": synthesis})


def answers_of(family, task):
    """The texts that solve a task: what its gold script says to the user, and its gold answer."""
    script = family.gold_script(task)
    said = [task.verifier.gold[0]]
    try:
        action = next(script)
        for _ in range(40):
            if isinstance(action, FinalAnswer):
                said.append(action.text)
                break
            action = script.send(Observed(""))
    except (GaveUp, StopIteration):
        pass
    return said


def blind(texts):
    """Text -> its name; each is the answer to every task."""
    distinct = list(dict.fromkeys(texts))
    (frequent, _), *_ = Counter(texts).most_common(1)
    return {
        frequent: "constant",
        "": "empty",
        " , ".join(distinct): "everything in a line",
        "\n".join(distinct): "everything in lines",
        max(distinct, key=len): "the longest",
        "0": "zero",
    }


def earned(family, environments, tasks, text):
    """The mean outcome of an answer, from 0 for the worst possible to 1 for right ones."""
    low, high = family.outcome_span(family.settings)
    paid = family.profile.reward.outcome * outcome_scale(family.profile)

    def script():
        while True:
            yield FinalAnswer(text)

    outcomes = []
    for task in tasks:
        try:
            played = asyncio.run(play_script(environments, task, script()))
            outcomes.append((played.reward["outcome"] / paid - low) / (high - low))
        except GaveUp:
            outcomes.append(0.0)
    return sum(outcomes) / len(outcomes)


@pytest.mark.parametrize("case", SETTINGS)
def test_an_answer_without_the_task_earns_no_more_than_chance(case, tmp_path):
    profile = profile_of(case)
    family = family_of(profile)
    knowledge = tmp_path / "knowledge"
    try:
        ingest.run(profile, {}, knowledge, NullTracker())
        questions = family.questions(knowledge, Funnel(), NullTracker())
    except (DataError, ProfileError) as error:
        pytest.skip(str(error))
    tasks = [question.task for question in questions["heldout"]][:COUNT]
    said = [answers_of(family, task) for task in tasks]
    share = max(Counter(task.verifier.gold[0] for task in tasks).values()) / len(tasks)
    texts = {**blind([texts[-1] for texts in said]), **blind([texts[0] for texts in said])}
    with family.environments(knowledge) as over:
        environments = over("full")
        paid = [(earned(family, environments, tasks, text), name) for text, name in texts.items()]
    most, name = max(paid)
    assert most <= share + CHANCE, f"{name} earns {most:.3f}, the most frequent gold is {share:.3f}"


@NEEDS_GENERATORS
def test_no_generator_pays_a_constant():
    generators = generators_of(own_python())
    overpaid = {}
    for name in [name for name in GENERATORS if name not in UNFIT]:
        items = generators.items(name, {}, range(COUNT if name in SOLVES_OTHERS else 8))
        golds = [item.gold for item in items]
        share = max(Counter(golds).values()) / len(items)
        most = max(share, SOLVES_OTHERS.get(name, 0)) + CHANCE
        for text in {*golds, *blind(golds)}:  # each gold is asked of the other tasks as well
            right = [
                generators.score(name, {}, place, item.question, text).right
                for place, item in enumerate(items)
            ]
            if sum(right) > most * len(items):
                overpaid[name] = f"{text[:80]!r} solves {sum(right)} of {len(items)}"
    assert not overpaid
