"""Attempts: a plan carried out through the real search tool, to whatever end."""

from __future__ import annotations

from espalier.knowledge.folding import folded_name
from espalier.knowledge.search import SearchTool
from espalier.records import Task
from espalier.records.trajectory import Trajectory
from espalier.rewards import exact_match
from espalier.synthesis import plans
from espalier.synthesis.episode import TeacherEpisode
from espalier.synthesis.fas.calls import Plan
from espalier.synthesis.observations import VALUE_SEPARATOR, hits

MAX_SEARCHES = 6
"""A plan that names more lines is carried out so far and then answered."""

NOTHING_READ = "unknown"


def carried_out(task: Task, plan: Plan, search: SearchTool) -> Trajectory:
    """Search as planned, follow each line that is read into the next search, answer the last.

    The plan alone is followed: where a line is not shown, the attempt answers what it read before.
    The outcome in the trajectory's reward is real, 1.0 or 0.0.
    """
    episode = TeacherEpisode(task, search)
    labels = plan.analysis.split(plans.LABEL_SEPARATOR)[:MAX_SEARCHES]
    query, answer = plan.query, NOTHING_READ
    for number, label in enumerate(labels):
        observation = episode.search(plans.remaining_hops(labels[number:]), query)
        found = line_values(observation, label)
        if not found:
            break
        answer = found[0]
        if number + 1 < len(labels):
            query = plans.search_query(answer, labels[number + 1])
    outcome = float(exact_match(answer, task.verifier.gold))
    return episode.answered(answer, outcome=outcome)


def line_values(observation: str, label: str) -> tuple[str, ...]:
    """What the first line of that label lists, in whichever hit, however the label is spelled."""
    wanted = folded_name(label)
    for hit in hits(observation):
        for line in hit.lines:
            shown, separator, listed = line.partition(": ")
            if separator and folded_name(shown) == wanted:
                return tuple(listed.split(VALUE_SEPARATOR))
    return ()
