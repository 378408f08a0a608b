"""Outcomes of tasks that no rule can decide: the majority of an ensemble of judges.

Such a task has a verifier of kind "rubric", whose gold answer describes a good answer. All other
tasks keep their rule, which takes precedence over judges.
"""

from __future__ import annotations

from dataclasses import replace

from espalier.config import JudgesConfig
from espalier.environments.contract import EnvironmentLostError
from espalier.environments.episode import EpisodeRules, TurnResults
from espalier.judging import JudgeEnsemble, JudgementMissingError, Transcript, TranscriptMessage
from espalier.judging.rubric import criteria_of
from espalier.records import Task

RUBRIC = "rubric"
"""Kind of verifier for tasks without a rule."""


class JudgedOutcomes:
    """Makes judges the verifier of episodes whose tasks have no rule."""

    def __init__(self, config: JudgesConfig) -> None:
        self._config = config
        self._ensemble = JudgeEnsemble(config)

    def applied(self, rules: EpisodeRules, task: Task) -> EpisodeRules:
        """Return `rules` unchanged if the task has a rule, else with the judges' majority."""
        if task.verifier.kind != RUBRIC:
            return rules
        low, high = rules.outcome_span

        async def majority(task: Task, answer: str | None, turns: TurnResults) -> float:
            if answer is None:
                return low
            try:
                verdict = await self._ensemble.verdict(self._transcript(task, answer, turns))
            except JudgementMissingError as error:
                raise EnvironmentLostError(f"task {task.task_id}: {error}") from error
            return high if verdict.passes else low

        return replace(rules, verify=majority)

    def _transcript(self, task: Task, answer: str, turns: TurnResults) -> Transcript:
        most = self._config.max_observation_characters
        said = [
            TranscriptMessage(role=message.role, text=message.content) for message in task.prompt
        ]
        for results in turns:
            calls = tuple(result.call.model_dump_json(exclude={"call_id"}) for result in results)
            said.append(TranscriptMessage(role="assistant", calls=calls))
            said += [
                TranscriptMessage(role="tool", text=result.content[:most]) for result in results
            ]
        said.append(TranscriptMessage(role="assistant", text=answer))
        return Transcript(
            messages=tuple(said),
            finish_reason="answered",
            criteria=criteria_of(self._config.rubric),
            reference=task.verifier.gold[0],
        )
