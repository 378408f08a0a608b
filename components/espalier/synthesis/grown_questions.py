"""Questions that the expander grows, with the teacher of the profile, from seeds that are tried."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from espalier.completions import Ledger, Model, opened_model
from espalier.config import Profile
from espalier.knowledge.search import SearchTool
from espalier.synthesis.detours import KINDS
from espalier.synthesis.funnel import Funnel
from espalier.synthesis.rejection import Rejected
from espalier.synthesis.task_making import INDEX_OF_SPLIT, Split, formal_question
from espalier.synthesis.teacher import RouteTeacher
from espalier.synthesis.webshaper.candidate import Candidate, World
from espalier.synthesis.webshaper.expansion import EmbeddedExpander, Growing
from espalier.synthesis.webshaper.generator import Generator
from espalier.synthesis.webshaper.steps import Steps

_EMBEDDED_IN_FLIGHT = 1
"""The embedded expander never waits: more at a time would only take memory."""


class GrownQuestions:
    """Draws grown questions; `generator` remembers what is drawn, grown or not."""

    def __init__(self, profile: Profile, knowledge: Path, generator: Generator) -> None:
        self._profile = profile
        self._knowledge = knowledge
        self._generator = generator

    def draw(self, split: Split, count: int, world: World, funnel: Funnel) -> list[Candidate]:
        """Up to `count` questions of a split; fewer where walks give nothing new.

        Raises:
            EngineError: the teacher's model cannot be used.
        """
        return asyncio.run(self._drawn(split, count, world, funnel)) if count else []

    async def _drawn(
        self, split: Split, count: int, world: World, funnel: Funnel
    ) -> list[Candidate]:
        found: list[Candidate] = []
        async with _opened(self._profile) as (model, in_flight, ledger):
            growing = Growing(
                model,
                self._generator,
                self._profile.synthesis.expansion,
                seed=self._profile.seed,
                in_flight=in_flight,
            )
            steps = Steps(world.graph, split)
            rollouts = _Rollouts(self._profile, self._knowledge, split)
            questions = growing.questions(steps, world, rollouts.some_right, funnel)
            async for candidate in questions:
                found.append(candidate)
                if len(found) == count:
                    break
            await questions.aclose()
            if ledger:
                for call, usage in ledger.as_dict().items():
                    funnel.remark(f"{split}: {call}: {usage}")
        return found


class _Rollouts:
    """Attempts of the embedded teacher at a seed question, each after a mistake of another kind."""

    def __init__(self, profile: Profile, knowledge: Path, split: Split) -> None:
        search = SearchTool.open(knowledge, INDEX_OF_SPLIT[split], profile.search)
        self._teacher = RouteTeacher(search, profile.search.max_observation_words, profile.seed)
        self._attempts = ("", *KINDS * profile.synthesis.expansion.seed_rollouts)[
            : profile.synthesis.expansion.seed_rollouts
        ]
        self._seed = profile.seed
        self._split: Split = split

    def some_right(self, candidate: Candidate) -> bool:
        """Whether one attempt, at least, ends with the right answer."""
        question = formal_question(candidate, self._split, self._seed)
        assert question.route is not None, "a formal question has a route"
        return any(
            not isinstance(self._teacher.demonstrate(question.task, question.route, kind), Rejected)
            for kind in self._attempts
        )


@asynccontextmanager
async def _opened(profile: Profile) -> AsyncGenerator[tuple[Model, int, Ledger | None]]:
    config = profile.teacher
    if config.model is not None:
        async with opened_model(config.model) as opened:
            yield opened
    else:
        yield EmbeddedExpander(profile.seed), _EMBEDDED_IN_FLIGHT, None
