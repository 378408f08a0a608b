"""One run from profile to report, on either local runner, tracked in MLflow."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from espalier.chain import CHAIN
from espalier.config import Profile, reads_knowledge
from espalier.determinism import prepare_torch
from espalier.orchestration.endpoints import check_endpoints
from espalier.orchestration.in_process import ChainRun
from espalier.orchestration.run_directory import (
    PROFILE_NAME,
    RunState,
    locked_run,
)
from espalier.records import (
    CompositeTracker,
    KnowledgeError,
    Tracker,
    expect_replaceable,
    json_digest,
    write_whole,
)
from espalier.registry.connection import DATABASE_NAME, tracking_target
from espalier.registry.model import RegisteredModel
from espalier.registry.tracking import ParentRun, ending, mlflow_run, open_parent_run, viewer_tags
from espalier.steps.console import ConsoleTracker
from espalier.steps.given_model import check_given_model, with_starting_policy
from espalier.steps.profiles import changed_settings, stage_settings
from espalier.steps.stopping import before_forced_end

RUN_DIR_TAG = "espalier.run_dir"
_UNSENT_NAME = ".unsent"


@contextmanager
def tracked_run(profile: Profile, run_dir: Path, state: RunState) -> Iterator[ParentRun]:
    """Open a run's parent run in MLflow, new or of an earlier attempt; it ends with the block.

    Within the block, environment variables name tracking server and parent, for stages in other
    processes and for the registry. Without MLFLOW_TRACKING_URI the server is a sqlite database next
    to `run_dir`.

    Raises:
        RegistryError: the server cannot be reached.
    """
    database = run_dir.resolve().parent / DATABASE_NAME
    target = tracking_target(database, profile.registry.experiment)
    whole = run_dir.resolve()
    tags = {"espalier.profile": profile.name, RUN_DIR_TAG: str(whole)}
    tags |= viewer_tags(profile, whole)
    parent = open_parent_run(
        target, run_dir.name, tags, state.tracking_run_id, unsent=run_dir / _UNSENT_NAME
    )
    parent.tracker.describe(run_description(profile, run_dir))
    state.tracking_run_id = parent.run_id
    state.save(run_dir)
    with (
        ending(parent.finish),
        _environment(parent.environment),
        before_forced_end(parent.mark_killed),
    ):
        yield parent


def run_description(
    profile: Profile, run_dir: Path, summary: Mapping[str, Any] | None = None
) -> str:
    """Description of a run, and of its results once it has finished, in Markdown.

    Args:
        profile: the run's profile.
        run_dir: the run's folder.
        summary: content of RUN/summary.json; None before the run's end.
    """
    played = profile.environment.name
    if reads_knowledge(profile.environment):
        source = profile.knowledge.path or profile.knowledge.database or profile.knowledge.source
        played = f"{played} over `{source}`"
    lines = [
        f"Profile `{profile.name}`, seed {profile.seed}: {played}, into `{run_dir}`. All settings "
        "are in the artifact profile.json."
    ]
    for link in viewer_tags(profile, run_dir.resolve()).values():
        lines.append(f"[Look into it]({link}) with `espalier ui`.")
    figures = summary["eval"] if summary else {}
    if figures.get("trained") and figures.get("warm_start") and figures.get("gain"):
        before, after, gain = (figures[name] for name in ("warm_start", "trained", "gain"))
        low, high = gain["ci95"]
        lines.append(
            f"**Held-out EM {100 * before['em']:.1f} -> {100 * after['em']:.1f} %**, gain "
            f"{100 * gain['em']:+.1f} points [{100 * low:+.1f}, {100 * high:+.1f}] on "
            f"{after['n']:,} questions."
        )
    registered = summary["registry"] if summary else {}
    if registered.get("name"):
        name, version = registered["name"], registered["version"]
        lines.append(f"Registered as [{name}/{version}](#/models/{name}/versions/{version}).")
    return "\n\n".join(lines)


def stage_trackers(
    parent: ParentRun, profile: Profile
) -> Callable[[str], AbstractContextManager[Tracker]]:
    """A function that opens a stage's tracker: the terminal, and an MLflow run below `parent`."""

    @contextmanager
    def listeners(stage: str) -> Iterator[Tracker]:
        with parent.stage(stage) as tracked:
            tracked.params(stage_settings(profile, stage))
            yield CompositeTracker(ConsoleTracker(stage), tracked)

    return listeners


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class OpenRun:
    """A run folder that this process has locked, and its parent run in MLflow."""

    state: RunState
    parent: ParentRun


def run_in_process(profile: Profile, run_dir: Path, say: Say) -> dict[str, Any]:
    """Run the chain in this process; the same call resumes a killed run.

    Args:
        profile: the run's profile.
        run_dir: folder for artifacts, summary and report.
        say: takes one line for each stage that is kept, and warnings.

    Returns:
        The content of RUN/summary.json.

    Raises:
        EspalierError: a stage failed; no artifact is published in part.
    """
    _check_inputs(profile, say)
    with _opened(profile, run_dir) as run:
        prepare_torch(profile.threads)
        chain_run = ChainRun(
            profile=with_starting_policy(profile, run_dir),
            run_dir=run_dir,
            state=run.state,
            stage_tracker=stage_trackers(run.parent, profile),
            say=say,
        )
        chain_run.execute()
        return _finished(profile, run_dir, run.parent)


def run_kfp_local(profile: Profile, run_dir: Path, say: Say) -> dict[str, Any]:
    """Run the Kubeflow pipeline with kfp.local, one process per step, into the same folders.

    It never resumes: artifacts of an earlier run are replaced when all new ones are complete.

    Raises:
        EspalierError: a step failed (its last line is the reason), or the folder cannot be written.
    """
    from espalier.orchestration.kfp_local import run_pipeline

    _check_inputs(profile, say)
    with _opened(profile, run_dir) as run:
        run_pipeline(profile, run_dir)
        return _finished(profile, run_dir, run.parent)


def _check_inputs(profile: Profile, say: Say) -> None:
    """Check the user's model, files and servers, which a stage would refuse only much later."""
    folder = profile.knowledge.path if profile.asks_own_knowledge else None
    if folder and folder.is_dir() and not any(path.is_file() for path in folder.rglob("*")):
        raise KnowledgeError(f"knowledge.path = {folder}: no file in it")
    check_endpoints(profile)
    check_given_model(profile, say)
    if any(profile.warm_start.external_files().values()):
        from espalier.training.own_traces import check_own_traces  # it imports torch

        check_own_traces(profile.warm_start)


@contextmanager
def _opened(profile: Profile, run_dir: Path) -> Iterator[OpenRun]:
    for stage in CHAIN:
        expect_replaceable(run_dir / stage.output)
    with locked_run(run_dir):
        state = RunState.load(run_dir)
        profile_text = profile.model_dump_json(indent=2)
        state.follow_profile(json_digest(profile_text))
        write_whole(run_dir / PROFILE_NAME, profile_text + "\n")
        with tracked_run(profile, run_dir, state) as parent:
            parent.tracker.params(changed_settings(profile))
            parent.tracker.artifact(run_dir / PROFILE_NAME)
            if (handle := mlflow_run(parent.tracker)) is not None:  # `register` asks it again, late
                model = RegisteredModel(handle.client, handle.uri, profile.model_name)
                model.expect_named_after(profile.named_after)
            yield OpenRun(state, parent)


def _finished(profile: Profile, run_dir: Path, parent: ParentRun) -> dict[str, Any]:
    from espalier.reporting import write_report, write_summary

    summary = write_summary(run_dir, None)
    report = write_report(run_dir)
    # MLflow compares runs by these: EM of each policy, and the gain
    judged = {name: figures for name, figures in summary["eval"].items() if figures is not None}
    parent.tracker.metrics({f"eval.{name}.em": figures["em"] for name, figures in judged.items()})
    parent.tracker.describe(run_description(profile, run_dir, summary))
    parent.tracker.artifact(run_dir / "summary.json")
    if report is not None:
        parent.tracker.artifact(report)
    return summary
