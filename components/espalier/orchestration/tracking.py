"""The run's parent in MLflow, and the listeners of each stage."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from espalier.config import Profile, family_class
from espalier.orchestration.run_state import RunState
from espalier.records import Tracker
from espalier.registry.connection import DATABASE_NAME, tracking_target
from espalier.registry.tracking import ParentRun, open_parent_run
from espalier.steps.console import ConsoleTracker
from espalier.steps.profiles import stage_settings
from espalier.steps.stopping import before_forced_end
from espalier.steps.trackers import CompositeTracker

RUN_DIR_TAG = "espalier.run_dir"


@contextmanager
def tracked_run(profile: Profile, run_dir: Path, state: RunState) -> Iterator[ParentRun]:
    """Open the run's parent in MLflow, or the one of an earlier attempt, and end it with the block.

    Inside, the environment names tracking server and parent, for stages in other processes and for
    the registry. Without MLFLOW_TRACKING_URI the server is a sqlite database beside `run_dir`.

    Raises:
        RegistryError: the server is away; nothing has run yet.
    """
    database = run_dir.resolve().parent / DATABASE_NAME
    target = tracking_target(database, profile.registry.experiment)
    tags = {"espalier.profile": profile.name, RUN_DIR_TAG: str(run_dir.resolve())}
    parent = open_parent_run(target, run_dir.name, tags, state.tracking_run_id)
    parent.tracker.describe(run_description(profile, run_dir))
    state.tracking_run_id = parent.run_id
    state.save(run_dir)
    status = "FAILED"
    try:
        with _environment(parent.environment), before_forced_end(parent.mark_killed):
            yield parent
        status = "FINISHED"
    except KeyboardInterrupt:
        status = "KILLED"
        raise
    finally:
        parent.finish(status)


def run_description(
    profile: Profile, run_dir: Path, summary: Mapping[str, Any] | None = None
) -> str:
    """What a run does, and once it has finished what came out, in Markdown.

    Args:
        profile: what is run.
        run_dir: its folder.
        summary: as in RUN/summary.json; None while the run goes on.
    """
    played = profile.environment.name
    if family_class(played).reads_knowledge:
        source = profile.knowledge.path or profile.knowledge.database or profile.knowledge.source
        played = f"{played} over `{source}`"
    lines = [
        f"Profile `{profile.name}`, seed {profile.seed}: {played}, into `{run_dir}`. All settings "
        "are in the artifact profile.json."
    ]
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


def stage_listeners(
    parent: ParentRun, profile: Profile
) -> Callable[[str], AbstractContextManager[Tracker]]:
    """What opens a stage's listeners: the terminal, and a run nested in `parent`."""

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
