"""Three small stages with the names of real ones, wired as data: what the runner's tests run."""

import time
from contextlib import contextmanager
from pathlib import Path

from espalier.chain import STAGES, Stage
from espalier.config import Profile
from espalier.orchestration.in_process import ChainRun
from espalier.orchestration.run_directory import RunState, locked_run
from espalier.records import NullTracker, Provenance, open_artifact, publishing, work_dir


class SmallStage(Stage):
    """A stage whose work is given when a test begins."""

    __slots__ = ("work",)

    def run(self, profile, inputs, output_dir, tracker, *, external_digests=None):
        return self.work(profile, inputs, output_dir, tracker)


def small_stage(name, output, *inputs):
    """A stage that reads the sections of the real one of its name."""
    return SmallStage(
        name=name,
        summary=name,
        inputs=inputs,
        output=output,
        output_summary=output,
        sections=STAGES[name].sections,
    )


CHAIN = (
    small_stage("ingest", "knowledge"),
    small_stage("synthesize", "synthetic", "knowledge"),
    small_stage("validate", "accepted", "knowledge", "synthetic"),
)


class Stages:
    """Runs the stages of CHAIN; counts calls, and fails or waits where it is told to."""

    def __init__(self):
        self.calls = []
        self.faults = {}
        self.waits_s = {}
        for stage in CHAIN:
            object.__setattr__(stage, "work", self._work_of(stage))  # stages are frozen

    def _work_of(self, stage):
        def run(profile, inputs, output_dir, tracker, *, external_digests=None):
            self.calls.append(stage.name)
            digests = {name: open_artifact(path).content for name, path in inputs.items()}
            count_checkpoint(output_dir)
            time.sleep(self.waits_s.get(stage.name, 0.0))
            if stage.name in self.faults:
                raise self.faults[stage.name]
            provenance = Provenance(
                producer=stage.name,
                config_digest=stage.digest(profile),
                seed=profile.seed,
                inputs=digests,
            )
            with publishing(output_dir, provenance) as draft:
                (draft.path / "rows.txt").write_text(f"{stage.name} {profile.seed} {digests}")
            return draft.published

        return run


def count_checkpoint(output_dir: Path):
    """Leave a line in the stage's work folder, as a stage leaves checkpoints."""
    work_dir(output_dir).mkdir(parents=True, exist_ok=True)
    with (work_dir(output_dir) / "attempts").open("a") as stream:
        stream.write("attempt\n")


def execute(run_dir, profile=None, said=None):
    """Run CHAIN as the runner does; returns the manifests."""

    @contextmanager
    def listeners(stage):
        yield NullTracker()

    with locked_run(run_dir):
        return ChainRun(
            profile=profile or Profile(),
            run_dir=run_dir,
            state=RunState.load(run_dir),
            stage_tracker=listeners,
            say=(said if said is not None else []).append,
        ).execute(CHAIN)
