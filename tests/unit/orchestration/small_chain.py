"""Three small stages with the names of real ones, wired as data: what the runner's tests run."""

import sys
import time
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

from espalier.chain import Link
from espalier.config import Profile
from espalier.orchestration.in_process import ChainRun
from espalier.orchestration.run_directory import locked_run
from espalier.orchestration.run_state import RunState
from espalier.records import NullTracker, Provenance, open_artifact, publishing, work_dir

CHAIN = (
    Link(name="ingest", module="small_chain_ingest", folder="knowledge"),
    Link(
        name="synthesize",
        module="small_chain_synthesize",
        folder="synthetic",
        inputs={"knowledge": "knowledge"},
    ),
    Link(
        name="validate",
        module="small_chain_validate",
        folder="accepted",
        inputs={"knowledge": "knowledge", "synthetic": "synthetic"},
    ),
)


class Stages:
    """Registers the modules of CHAIN; counts calls, and fails or waits where it is told to."""

    def __init__(self):
        self.calls = []
        self.faults = {}
        self.waits_s = {}
        for link in CHAIN:
            module = SimpleNamespace(Inputs=lambda **paths: paths, run=self._stage(link))
            sys.modules[link.module] = module

    def _stage(self, link):
        def run(profile, inputs, output_dir, tracker):
            self.calls.append(link.name)
            digests = {name: open_artifact(path).content for name, path in inputs.items()}
            count_checkpoint(output_dir)
            time.sleep(self.waits_s.get(link.name, 0.0))
            if link.name in self.faults:
                raise self.faults[link.name]
            provenance = Provenance(
                producer=link.name,
                config_digest=profile.stage_digest(link.name),
                seed=profile.seed,
                inputs=digests,
            )
            with publishing(output_dir, provenance) as draft:
                (draft.path / "rows.txt").write_text(f"{link.name} {profile.seed} {digests}")
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
