"""prepare_policy: the policy that every comparison calls untrained.

Enters: knowledge (its train view), accepted training tasks (for the tokenizer's words).
Leaves: policy/ - a given model (or the champion) passed through, or the embedded policy with its
own tokenizer and the reading skill of a browsing pre-stage; history.parquet of that pre-stage.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

from espalier.artifacts import (
    Manifest,
    PolicyError,
    Provenance,
    Tracker,
    json_digest,
    open_artifact,
    publishing,
    work_dir,
)
from espalier.config import OptimizerConfig, Profile, PythonMathConfig, external_inputs
from espalier.environments import grammar_of
from espalier.knowledge.documents import load_documents
from espalier.knowledge.graph import KnowledgeGraph
from espalier.knowledge.search import SearchTool, documents_path
from espalier.policy.embedded import build_policy
from espalier.policy.loading import Policy, load_policy, save_policy
from espalier.policy.rendering import Rendering
from espalier.policy.tokenizer import train_tokenizer
from espalier.tasks import Message, read_tasks
from espalier.training.checkpoint import CheckpointStore
from espalier.training.demonstrations import encode_pieces
from espalier.training.hardware import Hardware
from espalier.training.history import write_history
from espalier.training.packing import TrainingSequence
from espalier.training.prepare_policy.browsing import Log, LogWriter
from espalier.training.prepare_policy.cloze import ClozeWriter
from espalier.training.prepare_policy.scratch import ScratchWriter
from espalier.training.supervised import HISTORY_COLUMNS, SupervisedLoop, SupervisedPlan

_CHECKPOINT_STEPS = 50
_MAX_TOO_LONG = 1000


class Inputs(NamedTuple):
    """Artifact directories that the stage reads."""

    knowledge: Path
    accepted: Path


class WritesLogs(Protocol):
    """What the pre-stage is read from."""

    def write(self, rng: random.Random) -> Log:
        """One log; a function of the generator's state alone."""
        ...


def run(profile: Profile, inputs: Inputs, output_dir: Path, tracker: Tracker) -> Manifest:
    """Make or fetch the base policy and publish it."""
    manifests = {name: open_artifact(path) for name, path in inputs._asdict().items()}
    provenance = Provenance(
        producer="prepare_policy",
        config_digest=profile.stage_digest("prepare_policy"),
        seed=profile.seed,
        inputs={name: manifest.content for name, manifest in manifests.items()}
        | external_inputs(profile, "prepare_policy"),
    )
    history: list[dict[str, float]] = []
    run_figures: dict[str, float] = {}
    if profile.policy.model is not None:
        policy = load_policy(profile.policy.model)
        # refuses a tokenizer without a chat template
        Rendering(policy.tokenizer, grammar_of(profile))
    else:
        policy = _fresh_policy(profile, inputs)
        store = CheckpointStore(work_dir(output_dir), json_digest(provenance.model_dump()))
        plan = _browsing_plan(profile, inputs, policy)
        result = SupervisedLoop(policy.model, plan, store).run(tracker)
        history = result.history
        run_figures = {"prestage_tokens_per_s": result.tokens_per_s}
    with publishing(output_dir, provenance) as draft:
        save_policy(policy, draft.path / "policy")
        write_history(draft.path / "history.parquet", history, HISTORY_COLUMNS)
        (draft.path / "run.json").write_text(json.dumps(run_figures))
        draft.rows["parameters"] = policy.model.num_parameters()
    return draft.published


def _fresh_policy(profile: Profile, inputs: Inputs) -> Policy:
    grammar = grammar_of(profile)
    texts = _tokenizer_texts(profile, inputs)
    tokenizer = train_tokenizer(texts, profile.policy.vocab_size, grammar)
    model = build_policy(
        profile.policy, tokenizer, grammar, max_tokens=profile.episode.max_tokens, seed=profile.seed
    )
    return Policy(model, tokenizer)


def _tokenizer_texts(profile: Profile, inputs: Inputs) -> Iterator[str]:
    """Train documents or programs, and train questions: no held-out name is among the words."""
    if isinstance(profile.environment, PythonMathConfig):
        rng = random.Random(f"tokenizer:{profile.seed}")
        yield from _scratch_writer(profile, inputs).texts(rng)
    else:
        for document in load_documents(documents_path(inputs.knowledge, "train")):
            yield document.title
            yield from document.lines
    for task in read_tasks(inputs.accepted / "tasks" / "train.jsonl"):
        yield task.question


def _browsing_plan(profile: Profile, inputs: Inputs, policy: Policy) -> SupervisedPlan:
    config = profile.policy.prestage
    writer = _log_writer(profile, inputs)
    rendering = Rendering(policy.tokenizer, grammar_of(profile))

    def sequences_at(step: int) -> list[TrainingSequence]:
        rng = random.Random(f"browsing:{profile.seed}:{step}")
        sequences: list[TrainingSequence] = []
        tokens, too_long = 0, 0
        while tokens < config.tokens_per_step:
            sequence = _encoded_log(writer, rendering, rng)
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
        optimizer=OptimizerConfig(learning_rate=config.learning_rate),
        row_tokens=profile.episode.max_tokens,
        micro_batch_tokens=profile.training.micro_batch_tokens,
        checkpoint_every=_CHECKPOINT_STEPS,
        hardware=Hardware.chosen(profile.training),
    )


def _scratch_writer(profile: Profile, inputs: Inputs) -> ScratchWriter:
    tasks = read_tasks(inputs.accepted / "tasks" / "train.jsonl")
    return ScratchWriter([task.question for task in tasks], grammar_of(profile))


def _log_writer(profile: Profile, inputs: Inputs) -> WritesLogs:
    """Calculations for mathematics; else walks along relations, or sentences with a gap."""
    if isinstance(profile.environment, PythonMathConfig):
        return _scratch_writer(profile, inputs)
    graph = KnowledgeGraph.load(inputs.knowledge)
    documents = load_documents(documents_path(inputs.knowledge, "train"))
    search = SearchTool.open(inputs.knowledge, "train", profile.search)
    share = profile.policy.prestage.substitution_share
    if not graph.relations:
        return ClozeWriter(documents, search, substitution_share=share)
    return LogWriter(
        documents,
        {e.document_id: e.kind for e in graph.entities.values() if e.document_id},
        {relation.label: relation.object_kind for relation in graph.relations.values()},
        search,
        substitution_share=share,
    )


def _encoded_log(writer: WritesLogs, rendering: Rendering, rng: random.Random) -> TrainingSequence:
    # what a search returns is invented here: there is nothing in it to learn by heart
    log = writer.write(rng)
    return encode_pieces((Message(role="user", content=log.prompt),), log.pieces, rendering)
