"""train: reinforcement learning over multi-turn episodes, from the warm-started policy.

Inputs: knowledge (train and dev views), accepted dev tasks, the curriculum, the warm policy.
Output: policy/ with the best weights by dev EM, history.parquet, ledger.jsonl with the outcome of
every prompt, trajectories.parquet of the last step, streams/ with every sampled attempt, every
step's figures and what the health detectors noticed, run.json with the layout and positions of the
updates, the throughput and the share of time spent waiting for groups to learn from; with self-play
posed/tasks.jsonl, the proposed tasks that were kept, and posed/phases.json, the number of proposals
and refusals by reason at each refresh; hindsight/tasks.jsonl and own_traces/questions.jsonl
where the warm start had some.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path

from espalier.chain import (
    OWN_QUESTIONS,
    POSED_FOLDER,
    RELABELLED_FOLDER,
    opened,
    provenance,
)
from espalier.config import Profile
from espalier.curriculum.self_play import SelfPlay
from espalier.policy.hardware import Hardware
from espalier.policy.loading import save_policy
from espalier.records import (
    Draft,
    Manifest,
    NullTracker,
    Tracker,
    json_digest,
    publishing,
    work_dir,
    write_tasks,
)
from espalier.records.streams import STREAMS_FOLDER, link_streams
from espalier.records.trajectory import write_trajectories
from espalier.training.checkpoint import CheckpointStore, write_history
from espalier.training.dev_questions import few_questions_line
from espalier.training.launch import WorkerLauncher, training_processes, worker_launcher
from espalier.training.parallel import Processes
from espalier.training.rl.loop import HISTORY_COLUMNS
from espalier.training.rl.speed import update_speed
from espalier.training.rl.step_streams import StepStreams
from espalier.training.rl.wiring import build_run, family_environments


def run(
    profile: Profile,
    inputs: Mapping[str, Path],
    output_dir: Path,
    tracker: Tracker,
    launcher: WorkerLauncher | None = None,
    *,
    external_digests: Mapping[str, str] | None = None,
) -> Manifest:
    """Train, and publish the weights with the highest dev EM.

    Args:
        profile: the run's profile.
        inputs: name -> artifact directory.
        output_dir: directory of the output artifact.
        tracker: takes the figures.
        launcher: starts the worker processes where the profile asks for several; None: on the nodes
            of a RayJob or TrainJob, else on this machine.
        external_digests: see `espalier.chain.Stage.run`.

    Raises:
        TrainingError: too few GPUs or nodes, a worker was lost, or too many consecutive updates
            had a gradient that is not finite.
    """
    manifests = opened(inputs)
    origin = provenance("train", profile, manifests, external_digests)
    identity = json_digest(origin.model_dump())
    store = CheckpointStore(work_dir(output_dir), identity)
    hardware = Hardware.from_config(profile.hardware)
    together = training_processes(
        profile.training.processes,
        device=hardware.device,
        worker_main=partial(run_worker, profile, inputs, store.directory, identity),
        launcher=launcher or worker_launcher(os.environ),
        timeout_s=profile.training.collective_timeout_s,
    )
    with together as processes, family_environments(profile, inputs) as environments_over:
        run_ = build_run(profile, inputs, store, processes, environments_over)
        run_.loop.parts.streams = StepStreams(
            store.directory / STREAMS_FOLDER, profile.training.streams
        )
        if line := few_questions_line(run_.dev_questions, "training.dev_questions"):
            tracker.note(line)
        run_.loop.run(tracker)
        measured = {**run_.figures, **update_speed(run_.loop, hardware, processes)}
    parts, progress = run_.loop.parts, run_.loop.progress
    with publishing(output_dir, origin) as draft:
        save_policy(run_.policy, draft.path / "policy")
        link_streams(store.directory / STREAMS_FOLDER, draft.path / STREAMS_FOLDER)
        write_history(draft.path / "history.parquet", progress.history, HISTORY_COLUMNS)
        parts.sampler.ledger.write(draft.path / "ledger.jsonl")
        draft.rows["trajectories"] = write_trajectories(
            draft.path / "trajectories.parquet", progress.last_step
        )
        keep_what_was_shown(draft, inputs["warm_policy"])
        if parts.self_play is not None:
            _write_posed(draft, parts.self_play)
        figures = {
            **measured,
            "best_step": progress.best_step,
            "start_dev_em": progress.start_dev_em,
            "layout": parts.layout.name,
        }
        (draft.path / "run.json").write_text(json.dumps(figures))
    tracker.metrics(measured)
    return draft.published


def keep_what_was_shown(draft: Draft, warm_policy: Path) -> None:
    """Copy what the warm start was shown beside the teacher's demonstrations.

    Later stages check by it that no policy is judged by what it was trained on.
    """
    for name in (f"{RELABELLED_FOLDER}/tasks.jsonl", OWN_QUESTIONS):
        if (warm_policy / name).is_file():
            (draft.path / name).parent.mkdir()
            shutil.copy(warm_policy / name, draft.path / name)


def _write_posed(draft: Draft, self_play: SelfPlay) -> None:
    folder = draft.path / POSED_FOLDER
    folder.mkdir()
    draft.rows["posed_tasks"] = write_tasks(folder / "tasks.jsonl", self_play.tasks)
    phases = [asdict(phase) for phase in self_play.phases]
    (folder / "phases.json").write_text(json.dumps(phases, indent=1) + "\n", encoding="utf-8")


def run_worker(
    profile: Profile,
    inputs: Mapping[str, Path],
    directory: Path,
    identity: str,
    processes: Processes,
) -> None:
    """Run the loop on ranks > 0 without a tracker."""
    store = CheckpointStore(directory, identity)
    with family_environments(profile, inputs) as environments_over:
        build_run(profile, inputs, store, processes, environments_over).loop.run(NullTracker())
