"""prepare_policy: makes the base policy, which comparisons call untrained.

Inputs: knowledge (its train view), accepted training tasks (for the tokenizer's vocabulary).
Output: policy/ - a given model (or the champion) unchanged, or the tiny policy with its own
tokenizer, trained to read in a browsing pre-stage; history.parquet of that pre-stage; run.json with
model type, dialect and the first prompt, which the log says as well.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from espalier.chain import opened, provenance
from espalier.config import OptimizerConfig, PrestageConfig, Profile
from espalier.dialects import Syntax, dialect_source, syntax_of
from espalier.dialects.dialect import Dialect
from espalier.environments import Family, ReadingMaterial, family_of, policy_dialect
from espalier.environments.mixins import TeachesReading
from espalier.policy.embedded import build_policy, train_tokenizer
from espalier.policy.hardware import Hardware
from espalier.policy.loading import Policy, load_policy, save_policy
from espalier.records import (
    Manifest,
    Message,
    PolicyError,
    Task,
    Tracker,
    json_digest,
    publishing,
    read_tasks,
    work_dir,
)
from espalier.records.adapter import ADAPTER_FOLDER
from espalier.rollout.engines.shared_weights import share_base
from espalier.training.checkpoint import CheckpointStore, write_history
from espalier.training.demonstrations import encode_pieces
from espalier.training.packing import TrainingSequence
from espalier.training.supervised import HISTORY_COLUMNS, SupervisedLoop, SupervisedPlan

_CHECKPOINT_STEPS = 50
_MAX_TOO_LONG = 1000
_READING_TOKENS = 1_000_000
"""Tokens of logs after which the tiny policy copies 38 of 40 unseen names of a small source."""
_STEP_TOKENS = 1536
"""Smallest step, in tokens, for a small source: more steps teach more than larger steps."""
_DIALECT_LOGS = 200
"""Number of logs whose calls train the tokenizer; all calls have the same framing."""


def run(
    profile: Profile,
    inputs: Mapping[str, Path],
    output_dir: Path,
    tracker: Tracker,
    *,
    external_digests: Mapping[str, str] | None = None,
) -> Manifest:
    """Build or load the base policy and publish it."""
    origin = provenance("prepare_policy", profile, opened(inputs), external_digests)
    family = family_of(profile)
    train = read_tasks(inputs["accepted"] / "tasks" / "train.jsonl")
    history: list[dict[str, float]] = []
    run_figures: dict[str, object] = {}
    given = profile.policy.directory
    if given is not None:
        policy = load_policy(given)
        # raises PolicyError for a tokenizer without a chat template
        dialect = policy_dialect(family, policy.tokenizer)
    else:
        assert isinstance(family, TeachesReading), "or the profile is refused"
        reading = family.reading_material(inputs["knowledge"], train)
        policy = _fresh_policy(family, reading, train)
        dialect = policy_dialect(family, policy.tokenizer)
        store = CheckpointStore(work_dir(output_dir), json_digest(origin.model_dump()))
        plan = _browsing_plan(family, reading, policy)
        result = SupervisedLoop(policy.model, plan, store).run(tracker)
        history = result.history
        run_figures = {"prestage_tokens_per_s": result.tokens_per_s}
    first = dialect.with_tools(family.specs_of(train[0]))
    said = described(policy, first, train[0], setting=profile.policy.dialect)
    for line in said.lines():
        tracker.note(line)
    with publishing(output_dir, origin) as draft:
        save_policy(policy, draft.path / "policy")
        if given is not None and (given / ADAPTER_FOLDER).is_dir():
            # the weights have it merged in; it is copied so that training can continue it
            shutil.copytree(given / ADAPTER_FOLDER, draft.path / "policy" / ADAPTER_FOLDER)
        write_history(draft.path / "history.parquet", history, HISTORY_COLUMNS)
        (draft.path / "run.json").write_text(json.dumps(run_figures | asdict(said), indent=1))
        draft.rows["parameters"] = policy.model.num_parameters()
        share_base(draft.path / "policy", profile)
    return draft.published


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """What a reader of a run's log checks before the policy is trained."""

    model_type: str
    """`model_type` of config.json."""
    parameters: int
    dialect: str
    dialect_source: str
    """What decided on the dialect."""
    first_task: str
    first_prompt: str
    """The prompt of that task as the policy reads it; a long one is cut in the middle."""
    prompt_tokens: int

    def lines(self) -> tuple[str, str]:
        """Return two lines for the log."""
        return (
            f"model {self.model_type}, {self.parameters / 1e6:.1f} million parameters, dialect "
            f"{self.dialect} ({self.dialect_source})",
            f"first prompt, of {self.first_task}, {self.prompt_tokens} tokens: {self.first_prompt}",
        )


def described(policy: Policy, dialect: Dialect, task: Task, *, setting: str) -> Described:
    """Describe a policy, and render the prompt of a task.

    Args:
        policy: the base policy.
        dialect: its dialect, with the tools of the task.
        task: the first training task.
        setting: `policy.dialect` of the profile.
    """
    token_ids = dialect.prompt_ids(task.prompt)
    return Described(
        model_type=str(policy.model.config.model_type),
        parameters=policy.model.num_parameters(),
        dialect=dialect.syntax.name,
        dialect_source="its own, trained from scratch"
        if dialect.is_embedded
        else dialect_source(setting, str(policy.tokenizer.chat_template)),
        first_task=task.task_id,
        first_prompt=_one_line(dialect.text(token_ids)),
        prompt_tokens=len(token_ids),
    )


_PROMPT_START, _PROMPT_END = 400, 300
"""Characters of a long prompt that are shown: the tools or instructions, and the question."""


def _one_line(text: str) -> str:
    text = "".join(
        one if one.isprintable() else one.encode("unicode_escape").decode() for one in text
    )
    left_out = len(text) - _PROMPT_START - _PROMPT_END
    if left_out <= 0:
        return text
    cut = f" [... {left_out} characters left out ...] "
    return text[:_PROMPT_START] + cut + text[-_PROMPT_END:]


def _fresh_policy(family: Family[Any], reading: ReadingMaterial, train: Sequence[Task]) -> Policy:
    profile = family.profile
    syntax = syntax_of(profile.policy.model_dialect)
    tokenizer = train_tokenizer(
        _tokenizer_texts(family, reading, train, syntax),
        profile.policy.vocab_size,
        syntax,
        family.specs,
        splits_digits=isinstance(family, TeachesReading) and family.splits_digits,
    )
    model = build_policy(
        profile.policy,
        tokenizer,
        syntax.stop_texts(family.specs),
        max_tokens=profile.episode.max_tokens,
        seed=profile.seed,
    )
    return Policy(model, tokenizer)


def _tokenizer_texts(
    family: Family[Any], reading: ReadingMaterial, train: Sequence[Task], syntax: Syntax
) -> Iterator[str]:
    """Reading material and training questions, which contain no held-out names."""
    rng = random.Random(f"tokenizer:{family.profile.seed}")
    yield from reading.texts(rng)
    for task in train:
        yield task.question
    if not syntax.inline_results:
        # quotes, braces and names that frame every call in the dialect
        known = (*syntax.markers(family.specs), *syntax.frames(family.specs))
        for _ in range(_DIALECT_LOGS):
            for piece in reading.write(rng).pieces:
                if isinstance(piece, str):
                    continue
                text = syntax.write(piece, family.specs)
                for marker in known:
                    text = text.replace(marker, "")
                yield text


def _browsing_plan(family: Family[Any], reading: ReadingMaterial, policy: Policy) -> SupervisedPlan:
    profile = family.profile
    config = profile.policy.prestage
    if profile.asks_own_knowledge:
        num_words = sum(len(text.split()) for text in reading.texts(random.Random(0)))
        config = fitted_prestage(config, num_words)
    dialect = policy_dialect(family, policy.tokenizer)

    def sequences_at(step: int) -> list[TrainingSequence]:
        rng = random.Random(f"browsing:{profile.seed}:{step}")
        sequences: list[TrainingSequence] = []
        tokens, too_long = 0, 0
        while tokens < config.tokens_per_step:
            # the tools' results in a log are made up, so that no fact can be memorized from them
            log = reading.write(rng)
            asked = (Message(role="user", content=log.prompt),)
            sequence = encode_pieces(asked, log.pieces, dialect)
            if len(sequence.token_ids) <= profile.episode.max_tokens:
                sequences.append(sequence)
                tokens += len(sequence.token_ids)
            else:
                too_long += 1
            if too_long > _MAX_TOO_LONG + len(sequences):
                raise PolicyError(
                    f"browsing logs do not fit episode.max_tokens={profile.episode.max_tokens}: "
                    f"{too_long} of {too_long + len(sequences)} are longer. Raise it, or lower "
                    "search.max_observation_words."
                )
        return sequences

    return SupervisedPlan(
        name="browsing pre-stage",
        sequences_at=sequences_at,
        steps=config.steps,
        optimizer=OptimizerConfig(kind=config.optimizer, learning_rate=config.learning_rate),
        row_tokens=profile.episode.max_tokens,
        micro_batch_tokens=profile.hardware.micro_batch_tokens,
        checkpoint_every=_CHECKPOINT_STEPS,
        hardware=Hardware.from_config(profile.hardware),
    )


def fitted_prestage(config: PrestageConfig, num_words: int) -> PrestageConfig:
    """The pre-stage for a source of `num_words` words, shortened to `max_passes` over it."""
    budget = max(_READING_TOKENS, config.max_passes * num_words)
    if config.steps * config.tokens_per_step <= budget:
        return config
    smallest = min(_STEP_TOKENS, config.tokens_per_step)
    tokens = max(smallest, min(config.tokens_per_step, budget // config.steps))
    steps = max(1, min(config.steps, budget // tokens))
    return config.model_copy(update={"tokens_per_step": tokens, "steps": steps})
