"""Suites by name: their tasks, environments and digest.

A suite of [evaluation.suites] is a public file or folder in its family's format, or the family's
own held-out tasks. If the profile has no suite of a name, the name of a family means the latter.
"""

from __future__ import annotations

import difflib
import hashlib
import tomllib
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from pydantic import ValidationError

from espalier.chain import STAGES, provenance
from espalier.config import (
    HELDOUT,
    EvaluationConfig,
    Profile,
    RewardConfig,
    SuiteConfig,
    family_code_digest,
    family_names,
)
from espalier.config.faults import fault_lines
from espalier.environments import (
    Environment,
    Environments,
    Family,
    Opening,
    Step,
    family_of,
)
from espalier.environments.contract import waited
from espalier.environments.funnel import Funnel
from espalier.environments.mixins import HasBenchmarks, MakesQuestions, no_public_format
from espalier.evaluation.suite import VIEW
from espalier.records import (
    Action,
    DataError,
    Malformed,
    NullTracker,
    ProfileError,
    Task,
    ToolCalls,
    json_digest,
    open_artifact,
    publishing,
    read_tasks,
    tree_digest,
)

KnowledgeOf = Callable[[Profile], Path]
"""Profile of a suite -> folder of the knowledge artifact that its environments use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedSuite:
    """An open suite, whose environments are ready to be played in."""

    name: str
    config: SuiteConfig
    profile: Profile
    """Profile of the run, with the suite's environment and limits."""
    family: Family[Any]
    tasks: Sequence[Task]
    available: int
    """Number of tasks before the limit was applied."""
    seen: Sequence[Task]
    """Training and dev tasks of the same draw; names that also occur in held-out tasks are hubs,
    which all splits share."""
    environments: Environments
    knowledge: str
    """Content digest of the knowledge artifact."""
    digest: str

    @property
    def is_public(self) -> bool:
        """Whether its tasks come from a public file or folder."""
        return self.config.tasks is not None

    @property
    def source(self) -> str:
        """Origin of its tasks, in words."""
        if self.config.tasks is not None:
            return str(self.config.tasks)
        return f"held-out tasks that {self.family.name} makes"

    def facts(self) -> dict[str, Any]:
        """Entry of the suite in results."""
        return {
            "digest": self.digest,
            "family": self.family.name,
            "source": self.source,
            "n": len(self.tasks),
            "available": self.available,
            "attempts": self.config.attempts,
            "temperature": self.config.temperature,
            "headline": self.family.headline,
        }


def parsed_names(text: str) -> list[str]:
    """Parse the value of `--suite NAME[,NAME]`.

    Raises:
        ProfileError: a name is empty, or occurs twice.
    """
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise ProfileError(f"--suite {text!r}: write it as NAME or NAME,NAME")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ProfileError(f"--suite names {', '.join(twice)} twice; name each suite once")
    return names


def suite_config(
    name: str, profile: Profile, profiles: Sequence[Path], *, of_run: bool = False
) -> tuple[SuiteConfig, Profile]:
    """Settings of a named suite, and the profile it is evaluated under.

    Args:
        name: a key of [evaluation.suites], a family, or `heldout` for a finished run.
        profile: profile of the run, or the one given by the user.
        profiles: files of the profiles that ship with espalier, which have a family's own limits.
        of_run: whether the profile is that of a finished run.

    Raises:
        ProfileError: there is no such suite; the message suggests the nearest name.
    """
    if name in profile.evaluation.suites:
        found = profile.evaluation.suites[name]
        return found, suite_profile(name, found, profile)
    if name == HELDOUT and of_run:
        own = SuiteConfig(environment=profile.environment)
        return own, suite_profile(name, own, profile)
    if name in family_names():
        base = profile
        if profile.environment.name != name:
            base = _profile_of_family(name, profiles) or profile
        environment: object = base.environment if base.environment.name == name else name
        built_in = SuiteConfig.model_validate({"environment": environment})
        merged = base.model_copy(update={"evaluation": profile.evaluation, "seed": profile.seed})
        return built_in, suite_profile(name, built_in, merged)
    names = {*profile.evaluation.suites, *family_names()}
    known = sorted(names | {HELDOUT} if of_run else names)
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)};"
    if name == HELDOUT:
        hint = "it is the suite of a run: name that with --run RUN;"
    raise ProfileError(
        f"no suite is named {name!r}; {hint} define your own as a table [evaluation.suites.{name}]"
    )


def _profile_of_family(name: str, profiles: Sequence[Path]) -> Profile | None:
    """Profile that trains a family: the one of its name, else preferably not a smoke profile."""
    from espalier.config import load_profile

    named = sorted(profiles, key=lambda path: (path.stem != name, "smoke" in path.stem, path.stem))
    for path in named:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
        if tables.get("environment", {}).get("name", "search_qa") == name:
            return load_profile(path)
    return None


def suite_profile(name: str, config: SuiteConfig, profile: Profile) -> Profile:
    """`profile` with the suite's environment and limits.

    If the suite is of another family, settings that belong to the profile's own family (rewards,
    agent texts, self-play, continued pretraining) are the defaults.

    Raises:
        ProfileError: the suite's family refuses the profile.
    """
    own = config.environment.name == profile.environment.name
    fields = {key: getattr(profile, key) for key in Profile.model_fields}
    fields |= {"environment": config.environment, "episode": config.episode or profile.episode}
    for key in () if own else ("agent_texts", "self_play", "continued_pretraining"):
        fields[key] = Profile.model_fields[key].get_default(call_default_factory=True)
    if not own:
        fields["reward"] = RewardConfig()
    try:
        return Profile(**fields)
    except ValidationError as error:
        faults = "; ".join(fault_lines(error, Profile))
        raise ProfileError(f"evaluation.suites.{name}: {faults}") from error


def ingested(profile: Profile, folder: Path) -> Path:
    """Knowledge artifact of the profile's family, below `folder`; made if missing.

    Raises:
        KnowledgeError: the source cannot be read.
        ArtifactError: an existing artifact is damaged.
    """
    stage = STAGES["ingest"]
    key = json_digest([stage.digest(profile), stage.external_inputs(profile)])
    path = folder / f"knowledge-{key[:12]}"
    if path.is_dir():
        open_artifact(path)
        return path
    with publishing(path, provenance("ingest", profile, {})) as draft:
        family_of(profile).ingest(draft, NullTracker())
    return path


@contextmanager
def opened_suite(
    name: str,
    config: SuiteConfig,
    profile: Profile,
    knowledge_of: KnowledgeOf,
    accepted: Path | None = None,
) -> Generator[NamedSuite]:
    """Open a suite with its environments; their sandboxes are closed at the end.

    Args:
        name: name of the suite.
        config: its settings.
        profile: its own profile, see `suite_profile`.
        knowledge_of: finds or makes its knowledge artifact.
        accepted: artifact with the tasks of the run, if it is that run's held-out suite.

    Raises:
        DataError: its file is not readable as tasks; the message names the row.
        ProfileError: the family refuses the profile.
    """
    family = family_of(profile)
    knowledge = knowledge_of(profile)
    if config.tasks is not None:
        if not isinstance(family, HasBenchmarks):
            raise DataError(no_public_format(config.tasks, family.name))
        available: list[Task] = list(family.read_benchmark(config.tasks))
        seen: list[Task] = []
        opening = family.benchmark_environments(config.tasks, knowledge)
    else:
        available, seen = (
            _tasks_of_run(accepted) if accepted else _own_tasks(family, knowledge, config.limit)
        )
        opening = _own_environments(family, knowledge)
    tasks = chosen_tasks(available, config.limit)
    content = open_artifact(knowledge).content
    with opening as environments:
        if config.scaffold == "answer":
            environments = _without_tools(environments)
        yield NamedSuite(
            name=name,
            config=config,
            profile=profile,
            family=family,
            tasks=tasks,
            available=len(available),
            seen=seen,
            environments=environments,
            knowledge=content,
            digest=_digest(config, profile, family, tasks, content),
        )


def chosen_tasks(tasks: Sequence[Task], limit: int | None) -> list[Task]:
    """`limit` of the tasks, in their order; a smaller limit chooses a subset of a larger one's."""
    if limit is None or limit >= len(tasks):
        return list(tasks)
    by_digest = sorted(tasks, key=lambda task: hashlib.sha256(task.task_id.encode()).digest())
    kept = {task.task_id for task in by_digest[:limit]}
    return [task for task in tasks if task.task_id in kept]


def _tasks_of_run(accepted: Path) -> tuple[list[Task], list[Task]]:
    heldout, *others = (
        read_tasks(accepted / "tasks" / f"{split}.jsonl") for split in ("heldout", "train", "dev")
    )
    return heldout, [task for tasks in others for task in tasks]


def _own_tasks(
    family: Family[Any], knowledge: Path, limit: int | None
) -> tuple[list[Task], list[Task]]:
    if not isinstance(family, MakesQuestions):
        count = max(limit or 0, family.profile.synthesis.heldout_tasks)
        found = list(family.tasks("heldout", count))
        if not found:
            raise DataError(f"{family.name}: it makes no held-out task under this profile")
        return found, []
    drawn = family.questions(knowledge, Funnel(), NullTracker())
    seen = [question.task for split in ("train", "dev") for question in drawn[split]]
    return [question.task for question in drawn["heldout"]], seen


@contextmanager
def _own_environments(family: Family[Any], knowledge: Path) -> Generator[Environments]:
    with family.environments(knowledge) as environments_over:
        yield environments_over(VIEW)


def settings_of(config: SuiteConfig, profile: Profile, family: Family[Any]) -> dict[str, object]:
    """Settings that answers depend on, besides the tasks."""
    settings: dict[str, object] = {
        "name": family.name,
        "view": VIEW,
        "scaffold": config.scaffold,
        "episode": profile.episode.model_dump(mode="json"),
        "attempts": config.attempts,
        "temperature": config.temperature,
        "headline": family.headline,
        **family.answer_settings(),
    }
    if profile.agent.plays:
        settings["agent"] = list(profile.agent.program)
    if code := family_code_digest(profile.environment):
        settings["code"] = code
    return settings


def _digest(
    config: SuiteConfig,
    profile: Profile,
    family: Family[Any],
    tasks: Sequence[Task],
    knowledge: str,
) -> str:
    content = {
        "tasks": [task.model_dump(mode="json") for task in tasks],
        "file": tree_digest(config.tasks) if config.tasks else "",
        "knowledge": knowledge,
        "settings": settings_of(config, profile, family),
    }
    return json_digest(content)


def _without_tools(environments: Environments) -> Environments:
    make = environments.make
    return replace(
        environments,
        tools=(),
        make=lambda task: cast("Environment", _ToolFreeEnvironment(make(task))),
    )


class _ToolFreeEnvironment:
    """An environment that offers no tools, and treats a call as a malformed answer."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment

    async def reset(self, task: Task) -> Opening:
        """Begin an episode that offers no tools."""
        opening = await waited(self._environment.reset(task))
        return Opening(opening.messages, ())

    async def step(self, action: Action) -> Step:
        """Continue the episode; a tool call counts as malformed."""
        if isinstance(action, ToolCalls):
            action = Malformed("a call, and no tool is offered")
        return await waited(self._environment.step(action))

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 (whatever the environment has)
        return getattr(self._environment, name)


def bootstrap_settings(config: EvaluationConfig, seed: int) -> Mapping[str, object]:
    """Settings of the bootstrap, as results state them."""
    return {
        "resamples": config.bootstrap_resamples,
        "confidence": config.confidence,
        "seed": seed,
    }
