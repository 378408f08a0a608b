"""continue_pretraining: agentic continual pre-training, between base policy and warm start.

Next-token training on plans, reasoning and decisions (AgentFounder, Su et al. 2025,
arXiv:2509.13310), with the loss on every token of a text, questions and responses included. Whole
episodes are imitated later, in the warm start.

Inputs: accepted agent texts, the base policy.
Output: policy/, history.parquet, run.json with the throughput; where the profile turns the stage
off, the base policy's artifact unchanged.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from espalier.chain import opened, policy_digest, provenance
from espalier.config import Profile
from espalier.environments import family_of, policy_dialect
from espalier.policy.hardware import Hardware
from espalier.policy.loading import Policy, load_policy_to_train, save_policy
from espalier.records import (
    DataError,
    Manifest,
    Tracker,
    json_digest,
    publishing,
    read_agent_texts,
    work_dir,
)
from espalier.training.checkpoint import CheckpointStore, write_history
from espalier.training.demonstrations import encode_text
from espalier.training.packing import TrainingSequence
from espalier.training.supervised import HISTORY_COLUMNS, EpochOrder, SupervisedLoop, SupervisedPlan

_MEASURED = "run.json"


def run(
    profile: Profile,
    inputs: Mapping[str, Path],
    output_dir: Path,
    tracker: Tracker,
    *,
    external_digests: Mapping[str, str] | None = None,
) -> Manifest:
    """Train the base policy on the agent texts, or copy it where the stage is off.

    Raises:
        DataError: there are no texts, or none fits into `episode.max_tokens`.
    """
    manifests = opened(inputs)
    origin = provenance("continue_pretraining", profile, manifests, external_digests)
    if not profile.continued_pretraining.enabled:
        with publishing(output_dir, origin) as draft:
            for name in manifests["base_policy"].files:
                if name == _MEASURED:  # measurements would change the digest
                    continue
                (draft.path / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(inputs["base_policy"] / name, draft.path / name)
            draft.rows["texts"] = 0
        return draft.published
    policy = load_policy_to_train(
        inputs["base_policy"] / "policy", profile, digest=policy_digest(manifests["base_policy"])
    )
    sequences = _sequences(profile, inputs, policy, tracker)
    store = CheckpointStore(work_dir(output_dir), json_digest(origin.model_dump()))
    result = SupervisedLoop(policy.model, _plan(profile, sequences), store).run(tracker)
    with publishing(output_dir, origin) as draft:
        save_policy(policy, draft.path / "policy")
        write_history(draft.path / "history.parquet", result.history, HISTORY_COLUMNS)
        measured = {"pretraining_tokens_per_s": result.tokens_per_s}
        (draft.path / _MEASURED).write_text(json.dumps(measured))
        draft.rows["texts"] = len(sequences)
    return draft.published


def _sequences(
    profile: Profile, inputs: Mapping[str, Path], policy: Policy, tracker: Tracker
) -> list[TrainingSequence]:
    """Sequences of the texts that fit into `episode.max_tokens`, in their file's order."""
    dialect = policy_dialect(family_of(profile), policy.tokenizer)
    texts = read_agent_texts(inputs["accepted"] / "agent_texts.jsonl")
    encoded = [encode_text(text, dialect) for text in texts]
    fitting = [s for s in encoded if len(s.token_ids) <= profile.episode.max_tokens]
    if not fitting:
        raise DataError(
            f"continue_pretraining: none of {len(texts)} agent texts fits "
            f"episode.max_tokens={profile.episode.max_tokens}. Raise it, or set "
            "agent_texts.memories, whose plans are short."
        )
    if len(fitting) < len(texts):
        tracker.note(
            f"{len(texts) - len(fitting)} of {len(texts)} agent texts are longer than "
            f"episode.max_tokens={profile.episode.max_tokens} and left out"
        )
    return fitting


def _plan(profile: Profile, sequences: list[TrainingSequence]) -> SupervisedPlan:
    config = profile.continued_pretraining
    return SupervisedPlan(
        name="continued pre-training",
        sequences_at=EpochOrder(sequences, config.texts_per_step, profile.seed).at,
        steps=config.steps,
        optimizer=config.optimizer,
        row_tokens=profile.episode.max_tokens,
        micro_batch_tokens=profile.hardware.micro_batch_tokens,
        checkpoint_every=config.checkpoint_every,
        hardware=Hardware.from_config(profile.hardware),
    )
