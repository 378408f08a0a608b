"""Episodes of the text web, played by hand."""

import asyncio
import json
from pathlib import Path

from espalier.config import Profile
from espalier.environments import family_of
from espalier.environments.teaching import play_script
from espalier.records import FinalAnswer, ToolCalls

NOWHERE = Path("no-knowledge")
SMALL = {"products": 6, "threads": 6, "issues": 6, "users": 5, "page_size": 4}


def web(**settings):
    """The family, over small sites unless told otherwise."""
    section = {"name": "web", "sites": 3, "site": SMALL, **settings}
    return family_of(Profile.model_validate({"environment": section, "episode": {"max_turns": 12}}))


def task_of(family, kind, *, place=0, split="train"):
    """A task of that kind."""
    found = [one for one in family.tasks(split, 5000) if one.extra["kind"] == kind]
    return found[place]


def call(name, **arguments):
    """One call of a tool."""
    return ToolCalls.one(name, arguments)


def played(family, task, actions):
    """The attempt of these actions; `actions` may be a script."""
    with family.environments(NOWHERE) as over:
        return asyncio.run(play_script(over("full"), task, (one for one in actions)))


def plan(family, task):
    """What the teacher does."""
    return list(family.demonstrate(task))


def outcome(family, task, *actions):
    """1 or 0."""
    return played(family, task, actions).reward["outcome"]


def site_of(family, task):
    """The records that an episode begins with."""
    return json.loads(family.initial_state(task))


DONE = FinalAnswer("done")
