"""A profile: the TOML file that describes a run, parsed and cross-checked."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, Self, cast

from pydantic import (
    BaseModel,
    BeforeValidator,
    Field,
    SerializeAsAny,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from espalier.algorithms.batch import AlgorithmRule
from espalier.algorithms.presets import fill_elsewhere
from espalier.config.agent import AgentConfig
from espalier.config.cluster import KubernetesConfig, require_places
from espalier.config.data import (
    CurationConfig,
    SearchConfig,
    Section,
    SplitsConfig,
    SynthesisConfig,
    ValidationConfig,
)
from espalier.config.environment import (
    EnvironmentConfig,
    OwnSandboxConfig,
    family_class,
    family_code_digest,
    parsed_environment,
    reads_knowledge,
)
from espalier.config.evaluation import EvaluatedEndpointConfig, EvaluationConfig
from espalier.config.faults import explained
from espalier.config.inference import RolloutConfig, ServingConfig
from espalier.config.knowledge import KnowledgeConfig
from espalier.config.learning import (
    CurriculumConfig,
    EpisodeConfig,
    PolicyConfig,
    RegistryConfig,
    WarmStartConfig,
)
from espalier.config.reward import RewardConfig, require_composition, require_weighted_terms
from espalier.config.reward_models import RewardModelConfig
from espalier.config.self_play import NoSelfPlayConfig, SelfPlayConfig, require_means
from espalier.config.teacher import (
    AgentTextsConfig,
    ContinuedPretrainingConfig,
    TeacherConfig,
)
from espalier.config.training import HardwareConfig, TrainingConfig
from espalier.dialects import syntax_of
from espalier.named_classes import is_class_path, package_digest
from espalier.records.artifact import json_digest
from espalier.records.errors import ProfileError

DEFAULT_MODEL_NAME = "espalier-search-agent"
"""The registered model of an agent that searches GeoNames."""


def _environment(content: object, info: ValidationInfo) -> EnvironmentConfig:
    """Parse `environment`; the context may ignore removed keys (`steps.profiles.saved_profile`)."""
    context: dict[str, Any] | None = info.context
    return parsed_environment(content, extra=context.get("extra") if context else None)


class Profile(Section):
    """All settings of a run except its output folder."""

    name: str = Field(default="unnamed", min_length=1)
    """Name of the run in MLflow and in reports; also the default output folder, runs/NAME."""
    seed: int = Field(default=0, ge=0, lt=1 << 63)
    """Seed of every random choice: equal seeds and settings give equal artifacts."""
    threads: int = Field(default=2, ge=1)
    """CPU threads of torch; a run repeats bit for bit only with the same number."""
    environment: Annotated[SerializeAsAny[EnvironmentConfig], BeforeValidator(_environment)] = (
        Field(default_factory=lambda: parsed_environment({}))
    )
    knowledge: KnowledgeConfig = KnowledgeConfig()
    splits: SplitsConfig = SplitsConfig()
    search: SearchConfig = SearchConfig()
    synthesis: SynthesisConfig = SynthesisConfig()
    agent_texts: AgentTextsConfig = AgentTextsConfig()
    teacher: TeacherConfig = TeacherConfig()
    validation: ValidationConfig = ValidationConfig()
    curation: CurationConfig = CurationConfig()
    policy: PolicyConfig = PolicyConfig()
    episode: EpisodeConfig = EpisodeConfig()
    reward: RewardConfig = RewardConfig()
    reward_model: RewardModelConfig = RewardModelConfig()
    agent: AgentConfig = AgentConfig()
    hardware: HardwareConfig = HardwareConfig()
    rollout: RolloutConfig = RolloutConfig()
    continued_pretraining: ContinuedPretrainingConfig = ContinuedPretrainingConfig()
    warm_start: WarmStartConfig = WarmStartConfig()
    curriculum: CurriculumConfig = CurriculumConfig()
    self_play: SelfPlayConfig = NoSelfPlayConfig()
    training: TrainingConfig = TrainingConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    endpoints: dict[str, EvaluatedEndpointConfig] = Field(default={}, exclude_if=lambda it: not it)
    """Models behind servers that `espalier evaluate` may judge, by name: [endpoints.NAME]."""
    registry: RegistryConfig = RegistryConfig()
    kubernetes: KubernetesConfig = Field(default=KubernetesConfig(), validate_default=True)
    serving: ServingConfig = ServingConfig()

    @property
    def asks_own_knowledge(self) -> bool:
        """Whether tasks are about the user's own documents, of which there may be few."""
        return reads_knowledge(self.environment) and self.knowledge.is_own

    @property
    def model_name(self) -> str:
        """Name of the registered model: `registry.model_name`, or one after what it is about."""
        if self.registry.model_name is not None:
            return self.registry.model_name
        own = self.named_after
        if own is None and not reads_knowledge(self.environment):
            own = self.environment.name
        if own is None:
            return DEFAULT_MODEL_NAME
        words = re.findall("[a-z0-9]+", Path(own).name.partition(".")[0].lower())
        return "-".join(["espalier", *(words or ["agent"])])

    @property
    def named_after(self) -> str | None:
        """Absolute path or database that the model's default name is after; None without one.

        Two folders may have the same name: the registry tells their models apart by this.
        """
        if self.registry.model_name is not None:
            return None
        own: Path | str | None = self.knowledge.path or self.knowledge.database
        if not reads_knowledge(self.environment):
            files = self.environment.external_files().values()
            own = next((path for path in files if path), None)
        if isinstance(own, Path):
            return str(own.absolute())
        return own or None

    @property
    def renamed_training_share(self) -> float:
        """Share of the names that RL's episodes replace by invented ones."""
        if not self.asks_own_knowledge:
            return 0.0
        share = self.training.renamed_share
        return share if share is not None else (1.0 if self.knowledge.has_triples else 0.6)

    @model_validator(mode="before")
    @classmethod
    def _fill_from_preset(cls, values: Any) -> Any:  # noqa: ANN401 (whatever the profile holds)
        if not isinstance(values, dict):
            return values
        return fill_elsewhere(cast("dict[str, Any]", values))

    @field_validator("kubernetes")
    @classmethod
    def _label_the_run(cls, kubernetes: KubernetesConfig, info: ValidationInfo) -> KubernetesConfig:
        """Label objects with the profile's name, by which cost tools group them."""
        return kubernetes.named(info.data["name"]) if "name" in info.data else kubernetes

    @model_validator(mode="after")
    def _sections_agree(self) -> Self:
        if self.curriculum.candidates > self.synthesis.train_tasks:
            raise ValueError(
                f"curriculum.candidates={self.curriculum.candidates} exceeds synthesis.train_tasks="
                f"{self.synthesis.train_tasks}; lower the first or raise the second"
            )
        if self.training.dev_questions > self.synthesis.dev_tasks:
            raise ValueError(
                f"training.dev_questions={self.training.dev_questions} exceeds "
                f"synthesis.dev_tasks={self.synthesis.dev_tasks}"
            )
        if self.warm_start.dev_questions > self.synthesis.dev_tasks:
            raise ValueError(
                f"warm_start.dev_questions={self.warm_start.dev_questions} exceeds "
                f"synthesis.dev_tasks={self.synthesis.dev_tasks}"
            )
        if self.continued_pretraining.enabled and not self.agent_texts.pretraining_texts:
            raise ValueError(
                "continued_pretraining.enabled=true has no texts to train on: set "
                "agent_texts.memories, .reasoning_tasks or .decisions"
            )
        if self.episode.max_turn_tokens >= self.episode.max_tokens:
            raise ValueError("episode.max_turn_tokens must be smaller than episode.max_tokens")
        if self.curriculum.active_screening not in (0, *range(2, self.training.group_size)):
            raise ValueError(
                f"curriculum.screening_rollouts={self.curriculum.screening_rollouts} must be 0, or "
                f"at least 2 and below training.group_size={self.training.group_size}"
            )
        return self

    @model_validator(mode="after")
    def _an_adapter_can_be_trained(self) -> Self:
        if self.policy.lora is None:
            return self
        if self.training.sharded:
            raise ValueError(
                "training.sharded splits weights that policy.lora does not train, and an adapter "
                "is small: leave training.sharded out, or train all weights without policy.lora"
            )
        optimizers = {
            "warm_start.optimizer": self.warm_start.optimizer,
            "training.optimizer": self.training.optimizer,
        }
        for name, optimizer in optimizers.items():
            if optimizer.kind == "muon":
                raise ValueError(
                    f'{name}.kind = "muon" orthogonalizes whole matrices, but policy.lora trains '
                    f'two thin factors of each: set {name}.kind = "adamw", or leave policy.lora out'
                )
        return self

    @model_validator(mode="after")
    def _an_exchanged_adapter_is_trained(self) -> Self:
        rollout = self.rollout
        exchanged = rollout.vllm.exchange if rollout.engine == "vllm" else "weights"
        if exchanged == "adapter" and self.policy.lora is None:
            raise ValueError(
                'rollout.vllm.exchange = "adapter" gives the servers the adapter of policy.lora, '
                'which is unset: set policy.lora = {}, or exchange = "weights"'
            )
        return self

    @model_validator(mode="after")
    def _rollout_workers_have_the_policy(self) -> Self:
        workers = self.training.rollout_workers
        if workers and self.rollout.engine != "lockstep":
            raise ValueError(
                f"training.rollout_workers={workers} sample from a policy in their own memory, but "
                f'rollout.engine = "{self.rollout.engine}" has it on servers: set rollout.engine = '
                '"lockstep", or training.rollout_workers = 0'
            )
        return self

    @model_validator(mode="after")
    def _processes_have_places(self) -> Self:
        require_places(self.training, self.hardware, self.kubernetes)
        return self

    @model_validator(mode="after")
    def _grown_questions_fit_an_episode(self) -> Self:
        expansion = self.synthesis.expansion
        if expansion.share and expansion.max_searches >= self.episode.max_turns:
            raise ValueError(
                f"synthesis.expansion.max_searches={expansion.max_searches} leaves no turn for the "
                f"answer within episode.max_turns={self.episode.max_turns}; lower the first or "
                "raise the second"
            )
        return self

    @model_validator(mode="after")
    def _inverted_questions_fit_an_episode(self) -> Self:
        inverted = self.synthesis.inverted
        if inverted.share and inverted.max_lines >= self.episode.max_turns:
            raise ValueError(
                f"synthesis.inverted.max_lines={inverted.max_lines} leaves no turn for the answer "
                f"within episode.max_turns={self.episode.max_turns}; lower the first or raise the "
                "second"
            )
        return self

    @model_validator(mode="after")
    def _retries_make_sense(self) -> Self:
        retry = self.episode.retry
        if retry is None:
            return self
        if retry.reflection_tokens + self.episode.max_turn_tokens >= self.episode.max_tokens:
            raise ValueError(
                f"episode.retry.reflection_tokens={retry.reflection_tokens} leaves no room for a "
                f"turn within episode.max_tokens={self.episode.max_tokens}; lower the first or "
                "raise the second"
            )
        if self.agent.plays:
            raise ValueError(
                "episode.retry belongs to the built-in loop, which agent.command replaces: let the "
                "agent retry by itself, or leave the section out"
            )
        if self.self_play.name == "absolute_zero":
            raise ValueError(
                'episode.retry repeats wrong attempts, but with self_play.name = "absolute_zero" '
                "the policy proposes tasks, which are neither right nor wrong. Leave one of them "
                "out"
            )
        return self

    @model_validator(mode="after")
    def _memory_makes_sense(self) -> Self:
        memory, episode = self.episode.memory, self.episode
        if memory is None:
            return self
        if memory.max_tokens + episode.max_turn_tokens >= episode.max_tokens:
            raise ValueError(
                f"episode.memory.max_tokens={memory.max_tokens} leaves no room for a turn within "
                f"episode.max_tokens={episode.max_tokens}; lower the first or raise the second"
            )
        if self.agent.plays:
            raise ValueError(
                "episode.memory belongs to the built-in loop, but the program of agent.command "
                "writes its prompts itself; leave the section out"
            )
        return self

    @model_validator(mode="after")
    def _failures_can_be_relabelled(self) -> Self:
        if self.warm_start.hindsight is None:
            return self
        if self.agent.plays:
            raise ValueError(
                "warm_start.hindsight replays the calls of failed attempts, but cannot know what "
                "the program of agent.command does besides them; leave the section out"
            )
        return self

    @model_validator(mode="after")
    def _family_can_be_played(self) -> Self:
        family_class(self.environment.name).check_options(self)
        return self

    @model_validator(mode="after")
    def _outcome_is_half_of_the_reward(self) -> Self:
        require_composition(self)
        require_weighted_terms(self)
        return self

    @model_validator(mode="after")
    def _an_answer_says_what_the_agent_did(self) -> Self:
        family = family_class(self.environment.name)
        judges = self.agent.plays and self.agent.score == "verifier"
        if judges and (family.ends_by_call or family.converses):
            raise ValueError(
                f'environment.name = "{self.environment.name}" judges calls of its own tools, '
                "which an agent program does not make; let the agent post its reward and set "
                'agent.score = "posted"'
            )
        return self

    @model_validator(mode="after")
    def _gate_names_suites_there_are(self) -> Self:
        suites = self.evaluation.suites
        if unknown := sorted(set(self.registry.must_not_fall) - suites.keys()):
            known = ", ".join(sorted(suites)) or "none"
            raise ValueError(
                f"registry.must_not_fall names {', '.join(unknown)}, but [evaluation.suites] has "
                f"{known}; add the suite, or leave it out"
            )
        return self

    @model_validator(mode="after")
    def _posed_tasks_can_be_proven_and_judged(self) -> Self:
        require_means(self.self_play, self.training, self.teacher)
        return self

    def digest(self, sections: Sequence[str]) -> str:
        """Digest of seed, threads, and these sections or keys of sections (`policy.dialect`)."""
        tables = self.model_dump(mode="json")
        content: dict[str, object] = {}
        for name in sections:
            section, _, key = name.partition(".")
            if isinstance(getattr(self, section), NoSelfPlayConfig):
                continue  # it has only a name, which changes nothing
            if section == "agent" and not self.agent.plays:
                continue  # the built-in loop plays, and ignores the section
            content[name] = tables[section][key] if key else tables[section]
            if name == "registry":
                # the viewer's address is a link, and changes no version
                kept = {key: value for key, value in tables[name].items() if key != "viewer"}
                content[name] = kept | {"model_name": self.model_name}
            if name == "self_play" and tables[name].get("proposer") == "teacher":
                content["teacher"] = tables["teacher"]
            if name == "warm_start" and self.warm_start.hindsight is not None:
                # relabelled tasks depend on these sections as all other tasks do
                content |= {one: tables[one] for one in ("splits", "validation")}
        return json_digest({"seed": self.seed, "threads": self.threads, "sections": content})

    def code_digests(self, sections: Sequence[str]) -> dict[str, str]:
        """Digests of the packages of others whose classes these sections name, by their keys.

        What such a class computes decides what an artifact holds, as a key of the profile does.
        """
        owners: dict[str, type] = {
            f"{key}.code": type(part)
            for section in sections
            for key, part in _parts(attrgetter(section)(self), section)
            if isinstance(part, AlgorithmRule | OwnSandboxConfig)
        }
        if is_class_path(self.policy.dialect) and {"policy", "policy.dialect"} & {*sections}:
            owners["policy.dialect.code"] = type(syntax_of(self.policy.dialect))
        found = {key: package_digest(owner) for key, owner in owners.items()}
        if "environment" in sections:
            found["environment.name"] = family_code_digest(self.environment)
        return {key: digest for key, digest in found.items() if digest is not None}


def _parts(value: object, key: str) -> Iterator[tuple[str, object]]:
    """A section and everything in it, by key; items of a list are numbered."""
    yield key, value
    if isinstance(value, BaseModel):
        for name in type(value).model_fields:
            yield from _parts(getattr(value, name), f"{key}.{name}")
    elif isinstance(value, tuple):
        for number, item in enumerate(cast("tuple[object, ...]", value)):
            yield from _parts(item, f"{key}.{number}")


def load_profile(path: Path, overrides: Sequence[str] = ()) -> Profile:
    """Read a TOML profile and apply `--set section.key=value` overrides.

    Raises:
        ProfileError: the file is missing or not TOML, a key is unknown (the message has the nearest
            valid one), a value is out of range, or sections contradict each other.
    """
    tables = read_toml_profile(path)
    return parse_profile(tables, [parsed_override(override) for override in overrides], path)


def read_toml_profile(path: Path) -> dict[str, Any]:
    """Tables of a TOML profile, unchecked.

    Raises:
        ProfileError: the file is missing or not TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ProfileError(f"{path}: no such profile") from error
    except OSError as error:
        raise ProfileError(f"{path}: cannot be read as a profile ({error.strerror})") from error
    except (ValueError, RecursionError) as error:  # TOML's own error is a ValueError
        raise ProfileError(f"{path}: not TOML: {error}") from error


def parse_profile(
    tables: dict[str, Any], overrides: Sequence[tuple[str, object]], source: Path
) -> Profile:
    """Apply overrides to `tables`, in place and in order, and check the whole profile.

    Args:
        tables: sections of a profile.
        overrides: pairs of a dotted key and a value.
        source: name of the profile in messages.

    Raises:
        ProfileError: a key is unknown (the message has the nearest valid one), a value is out of
            range, or sections contradict each other.
    """
    override_tables(tables, overrides)
    try:
        return Profile.model_validate_json(json.dumps(tables, default=str))
    except RecursionError as error:
        raise ProfileError(f"{source}: its tables are nested too deeply") from error
    except ValidationError as error:
        keys = [key for key, _ in overrides]
        raise ProfileError(explained(source, error, Profile, keys)) from error


def override_tables(tables: dict[str, Any], overrides: Sequence[tuple[str, object]]) -> None:
    """Set dotted keys in place and in order; missing sections are made.

    Raises:
        ProfileError: a parent of the key is a value, not a section.
    """
    for key, value in overrides:
        *parents, leaf = key.split(".")
        table = tables
        for parent in parents:
            child = table.setdefault(parent, {})
            if not isinstance(child, dict):
                raise ProfileError(f"--set {key}: {parent} is a value, not a section")
            table = cast("dict[str, Any]", child)
        table[leaf] = value


def parsed_override(text: str) -> tuple[str, object]:
    """Key and value of `section.key=value`; the value is in TOML, or a bare string.

    Raises:
        ProfileError: the text has no key or no `=`, or the value is nested too deeply.
    """
    key, separator, value = text.partition("=")
    if not separator or not key.strip():
        raise ProfileError(f"--set {text[:_SHOWN]}: write it as section.key=value")
    parsed: object = value.strip()
    try:
        parsed = tomllib.loads(f"value = {parsed}")["value"]
    except RecursionError as error:
        raise ProfileError(f"--set {text[:_SHOWN]}: its value is nested too deeply") from error
    except ValueError:  # not TOML, or an integer of thousands of digits
        pass
    return key.strip(), parsed


_SHOWN = 100
"""Characters of an override that a message repeats."""
