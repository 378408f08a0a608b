"""Tasks that come after validation are judged as it judges, behind all accepted ones."""

from espalier.validation import EntitySplits, SplitTask
from espalier.validation.relabelled import refused
from tests.factories.validation import FAMILY, a_task, a_trajectory


def verdicts(accepted, *tasks, entities=None):
    rows = [SplitTask(task.metadata.split, task) for task in accepted]
    known = EntitySplits({}, frozenset()) if entities is None else entities
    shown = [a_trajectory(task.task_id) for task in tasks]
    return refused(rows, tasks, shown, known, FAMILY)


def test_sound_tasks_are_kept_and_accepted_ones_not_judged_twice():
    known = a_task("known", question="Who?", query="k")
    held = a_task("held", "heldout", question="What?", query="h")
    assert verdicts([known, held], known, a_task("new", question="When?", query="n")) == {}


def test_long_tasks_and_those_of_judged_splits_are_refused():
    words = " ".join(["word"] * (FAMILY.profile.validation.max_question_words + 1))
    held = a_task("held", "heldout", question="Who is in Turin?", query="q", entities=("Turin",))
    train = a_task("train", question="Who?", query="t")
    found = verdicts(
        [train, held],
        a_task("same words", question="who is in TURIN", query="1"),
        a_task("same query", question="Who lives there?", query="q"),
        a_task("same entity", question="Where is Turin?", query="2", entities=("Turin",)),
        a_task("long", question=words, query="l"),
        a_task("apart", question="Where is Lyon?", query="3", entities=("Lyon",)),
    )
    assert found == {
        "same words": "questions_are_unique",
        "same query": "splits_share_no_query",
        "same entity": "splits_share_no_entity",
        "long": "question_length",
    }
