"""The text web (WebArena, Zhou et al. 2023, arXiv:2307.13854).

The policy is on a page of a site, shown as text. It clicks, types, selects, goes back or to an
address, and ends with an answer. An episode is solved if the answer, the last open page and the
state of the site satisfy the task's checks.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from espalier.config import Profile, WebRLConfig
from espalier.environments.contract import EnvironmentsOver
from espalier.environments.episode import EpisodeRules, TurnResults
from espalier.environments.evolution import TaskEvolution, refuse_teacher_proposals
from espalier.environments.family import SimpleFamily
from espalier.environments.hindsight import Hindsight
from espalier.environments.mixins import HasBenchmarks, ProposesTasks, RelabelsFailures
from espalier.environments.proposals import TaskProposer
from espalier.environments.reading import ReadingMaterial
from espalier.environments.teaching import GaveUp, Script
from espalier.environments.tools import Tool
from espalier.records import FinalAnswer, Split, Task, ToolCall, ToolCalls
from espalier.records.trajectory import Trajectory
from espalier.sandbox.choice import PoolThread, sandbox_pool
from espalier_environments.web.browser import Browser
from espalier_environments.web.catalogue import made_site
from espalier_environments.web.config import WebConfig
from espalier_environments.web.evaluators import Ending, score
from espalier_environments.web.evolution import WebVariations
from espalier_environments.web.hindsight import WebHindsight
from espalier_environments.web.hosting import ProcessSite, SandboxSite, Site
from espalier_environments.web.reading_logs import BrowsingLogs
from espalier_environments.web.tasks import DONE, PlanError, Step, all_tasks, planned_calls
from espalier_environments.web.tools import WebTools
from espalier_environments.web.webarena import read_webarena
from espalier_environments.web.website import HOST, Website

INSTRUCTIONS = (
    "You use a website through a text browser, one call at a time. Each page lists its elements "
    "with their ids; a form is sent by clicking its button. When the task is done, or the question "
    "can be answered, write the answer alone, without a call; write done where nothing was asked.\n"
)


class Web(SimpleFamily[WebConfig], HasBenchmarks, ProposesTasks, RelabelsFailures):
    """The family of tasks on text web sites."""

    name = "web"
    config = WebConfig
    instructions = INSTRUCTIONS
    answers_from_evidence = False
    headline = "success"
    self_play = frozenset({"webrl"})

    @classmethod
    def check(cls, profile: Profile) -> None:
        """Check that no teacher varies failed tasks, which are varied by rule."""
        refuse_teacher_proposals(profile, "sites")

    def __init__(self, profile: Profile) -> None:
        super().__init__(profile)
        self._initial: dict[tuple[int, Split], str] = {}
        """Number and split of a site -> its initial records."""

    def tools(self) -> Sequence[Tool]:
        """Return the schemas of the browser's tools; `environments` binds them to a page."""
        return WebTools.schemas()

    def tasks(self, split: Split, count: int) -> Sequence[Task]:
        """Return questions about, and changes to, the split's sites."""
        return all_tasks(self.settings, self.profile.splits, split, count, self.name)

    # ------------------------------------------------------------------------------ playing

    @contextmanager
    def environments(self, knowledge: Path) -> Generator[EnvironmentsOver]:
        """Open environments whose sites run in this process or in sandboxes."""
        del knowledge
        with ExitStack() as opened:
            sandboxes = None
            if self.settings.served == "sandbox":
                pool = sandbox_pool(self.settings.sandbox, self.profile.kubernetes)
                sandboxes = opened.enter_context(pool)
            environments = self.environments_by(
                self.tools(), lambda task: self._rules_of(task, sandboxes)
            )
            yield lambda _view: environments

    def _rules_of(self, task: Task, sandboxes: PoolThread | None) -> EpisodeRules:
        """Return the rules of one episode, with its own site and browser."""
        initial = self.initial_state(task)
        site: Site = (
            ProcessSite(initial)
            if sandboxes is None
            else SandboxSite(initial, sandboxes, self.settings.page_timeout_s)
        )
        browser = Browser(self.settings.observation, self.settings.max_observation_characters)
        start = str(task.arguments["start"])
        tools = WebTools(browser, site, start)

        def judged(of: Task, answer: str | None, _turns: TurnResults) -> float:
            return self._score(of, answer, browser.url or start, site.state)

        return replace(self.rules(tools.bound()), verify=judged, on_end=site.end)

    def initial_state(self, task: Task) -> str:
        """Return the initial records of an episode, as JSON."""
        number = cast("int", task.arguments["site"])
        place = (number, task.metadata.split)
        if place not in self._initial:
            site = made_site(self.settings.site, *place, self.profile.splits)
            self._initial[place] = Website(site).state()
        return self._initial[place]

    def _score(self, task: Task, answer: str | None, url: str, state: str) -> float:
        checks = cast("dict[str, Any]", task.arguments["eval"])
        if answer is None and "final_state" in checks["eval_types"]:
            # Our tasks only: WebArena judges an episode that was cut off as an empty answer.
            return 0.0
        return score(checks, Ending(answer or "", url, state), self.initial_state(task))

    def has_text_answer(self, task: Task) -> bool:
        """Return False: the pages of an episode are scored as well."""
        del task
        return False

    def verify(self, task: Task, answer: str | None) -> float:
        """Return the score of an answer that is given at once, before any click."""
        return self._score(task, answer, str(task.arguments["start"]), self.initial_state(task))

    # ------------------------------------------------------------------------------ teaching

    def demonstrate(self, task: Task) -> Script:
        """Find the record by its name, page by page, fill in the form, and answer."""
        for action in self._walk(task):
            if not isinstance(action, str):
                yield action

    def _walk(self, task: Task) -> list[ToolCalls | FinalAnswer | str]:
        """Return the teacher's actions and what they show.

        Raises:
            GaveUp: the plan cannot be followed.
        """
        steps = cast("Sequence[Step]", task.extra.get("steps", []))
        site = json.loads(self.initial_state(task))
        walk: list[ToolCalls | FinalAnswer | str] = []
        try:
            for call in planned_calls(steps, str(task.arguments["start"]), site, self.settings):
                arguments = cast("dict[str, Any]", call.arguments)
                made = (ToolCall(name=call.tool, arguments=arguments),)
                thought = self._thought(f"{call.element} {arguments.get('id', '')}".strip())
                walk += [ToolCalls(made, thought), call.shown]
        except PlanError as error:
            raise GaveUp(str(error)) from error
        checks = cast("dict[str, Any]", task.arguments["eval"])
        said = checks.get("reference_answers", {}).get("exact_match")
        if not said:
            return [*walk, FinalAnswer(DONE)]

        # the fact after its label, as on a line of the page
        fact, kind = str(said), str(task.extra["kind"])
        stated = [line for line in str(walk[-1]).splitlines() if line.endswith(f" {fact}")]
        lines = [line.split(maxsplit=1)[-1] for line in stated]
        asked = [line for line in lines if line.startswith(f"{kind} ")]
        thought = self._thought((asked or lines or [fact])[-1])
        return [*walk, FinalAnswer(fact, thought)]

    def _thought(self, words: str) -> str | None:
        """Return a thought about what is used next, for pages in the form "words", else None.

        A small policy copies what follows the words that it has just thought, and repeats it in its
        call or its answer.
        """
        return words if self.settings.observation == "words" else None

    def reading_material(self, knowledge: Path, train: Sequence[Task]) -> ReadingMaterial:
        """Return walks over the pages of training sites, without questions."""
        del knowledge
        return BrowsingLogs(train, self._walk, words_share=0.0)

    def proposer(self, knowledge: Path, accepted: Path) -> TaskProposer:
        """Return WebRL's evolution of failed instructions, if `[self_play]` names it."""
        if not isinstance(self.profile.self_play, WebRLConfig):
            return super().proposer(knowledge, accepted)
        variations = WebVariations(self.settings, self.profile.splits, self.name)
        return TaskEvolution(variations.varied)

    def hindsight(self, knowledge: Path, accepted: Path) -> Hindsight:
        """Return what turns a stated fact, or a submitted form, into the task it solves."""
        del knowledge, accepted
        return WebHindsight(
            self.settings, self.profile.splits, self.initial_state, family=self.name
        )

    # ------------------------------------------------------------------------------ benchmarks

    def read_benchmark(self, path: Path) -> Sequence[Task]:
        """Return tasks in WebArena's format, played on the first held-out site."""
        return read_webarena(path, self.settings, self.profile.splits, self.name)

    def official_scores(self, task: Task, trajectory: Trajectory) -> Mapping[str, float]:
        """Return WebArena's success rate."""
        del task
        return {"success": float(trajectory.is_right)}

    def gold_script(self, task: Task) -> Script:
        """Yield the plan of a generated task; for WebArena's, the reference URL and answers."""
        if "steps" in task.extra:
            yield from self.demonstrate(task)
            return
        checks = cast("dict[str, Any]", task.arguments["eval"])
        if url := checks.get("reference_url"):
            path = url.split(" |OR| ")[0].removeprefix(HOST) or "/"
            yield ToolCalls((ToolCall(name="goto", arguments={"path": path}),))
        yield FinalAnswer(task.verifier.gold[0])
