"""The environments that a profile names, opened for as long as a stage plays in them."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from espalier.config import Profile, PythonMathConfig, SearchQAConfig
from espalier.environments import search_qa
from espalier.environments.actions import ParsesActions
from espalier.environments.environment import Environments
from espalier.environments.search_qa import SEARCH_GRAMMAR, Searcher, SearchQAs
from espalier.knowledge.search import SearchTool
from espalier.knowledge.views import View
from espalier.policy.grammar import Grammar

EnvironmentsOver = Callable[[View], Environments]
"""The environments of a view of the knowledge; those without knowledge are the same for all."""


@contextmanager
def opened_environments(profile: Profile, knowledge: Path) -> Generator[EnvironmentsOver]:
    """The environments of `profile.environment`; what they run in is closed at the end.

    Args:
        profile: names them, their limits and their rewards.
        knowledge: the artifact that a search tool searches.

    Raises:
        ArtifactError: that artifact lacks a view.
        SandboxError: the profile asks for sandboxes, and none can be had.
    """
    match profile.environment:
        case SearchQAConfig():
            search = partial(SearchTool.open, knowledge, config=profile.search)
            yield lambda view: search_environments(search(view), profile)
        case PythonMathConfig() as config:
            with _python_maths(config, profile) as environments:
                yield lambda _: environments


def search_environments(search: Searcher, profile: Profile) -> SearchQAs:
    """Question answering over `search`, with the limits and the reward of the profile."""
    return SearchQAs(
        search=search, max_turns=profile.episode.max_turns, reward=profile.training.reward
    )


def grammar_of(profile: Profile) -> Grammar:
    """The grammar of `profile.environment`, whose environments need not be open for it."""
    match profile.environment:
        case SearchQAConfig():
            return SEARCH_GRAMMAR
        case PythonMathConfig():
            from espalier.environments.python_math import PYTHON_GRAMMAR

            return PYTHON_GRAMMAR


def parser_of(profile: Profile) -> ParsesActions:
    """How the environments of `profile.environment` read an action."""
    match profile.environment:
        case SearchQAConfig():
            return search_qa.parse_action
        case PythonMathConfig():
            from espalier.environments import python_math

            return python_math.parse_action


@contextmanager
def _python_maths(config: PythonMathConfig, profile: Profile) -> Generator[Environments]:
    # the sandboxes' clients are imported where there are sandboxes, and nowhere else
    from espalier.environments.python_math import PythonMaths
    from espalier.sandbox.choice import sandbox_pool

    with sandbox_pool(config.sandbox, profile.kubernetes) as sandboxes:
        yield PythonMaths(
            sandboxes=sandboxes,
            config=config,
            max_turns=profile.episode.max_turns,
            reward=profile.training.reward,
        )
