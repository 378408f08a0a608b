"""What does imitation alone reach in the minutes that warm start and RL took?

    python -m tests.benchmarks.sft_control --run runs/demo

The control of a finished run: the same base model imitates the same demonstrations, by the run's
[warm_start], for as many minutes as the stages `warm_start` and `train` took together. Minutes
become steps by the pace of the run's own warm start, its looks at dev questions included, so that
a machine which is busy now does not shorten the control; the schedule of the learning rate is
stretched over all steps. The best weights by dev questions are kept, as there. Attempts that
[warm_start.hindsight] relabels are left out: they are no demonstrations.

Then it answers the run's held-out questions. The table has all four policies, and the last line is
one JSON object. A killed run goes on from its last checkpoint; a finished one is printed again,
with the commit that it came from.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import sys
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from espalier.records import NullTracker, json_digest
from tests.benchmarks.finished_run import add_run_options, profile_of_run
from tests.benchmarks.keeping import commit, keep, kept, provenance

if TYPE_CHECKING:
    from espalier.config import Profile
    from espalier.records import Manifest, Progress

STAGES_OF_BUDGET = ("warm_start", "train")
INPUTS = ("knowledge", "accepted", "pretrained_policy")
"""Folders of the run that a warm start reads."""
POLICY = "control_policy"


class Budget(NamedTuple):
    """How long the control may train."""

    seconds: float
    steps: int


def main() -> None:
    """Train and judge the control, unless that is done, then print."""
    from espalier.determinism import prepare_environment, prepare_torch

    options = _options()
    prepare_environment()
    profile = profile_of_run(options)
    prepare_torch(profile.threads)
    options.out.mkdir(parents=True, exist_ok=True)
    report(control_of(options.run, profile, options.out, minutes=options.minutes))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add_run_options(parser)
    parser.add_argument("--minutes", type=float, help="default: those of the run's two stages")
    parser.add_argument("--out", type=Path, help="default: runs/benchmarks/sft_control/NAME_OF_RUN")
    options = parser.parse_args()
    name = options.run.resolve().name
    options.out = options.out or Path("runs/benchmarks/sft_control") / name
    return options


def control_of(
    run: Path, profile: Profile, out: Path, *, minutes: float | None = None
) -> dict[str, Any]:
    """The result of a run's control, from `out` where it is finished.

    Raises:
        SystemExit: the run has not finished its evaluation, or is of another suite.
    """
    manifests = _manifests(run)
    budget = budget_of(run, minutes)
    control = control_profile(profile, budget.steps)
    asked = {
        "profile": json_digest(control.model_dump(mode="json")),
        "inputs": {name: manifest.content for name, manifest in manifests.items()},
    }
    path = out / "result.json"
    if found := kept(path, asked):
        return found[0]
    taken_s = _trained(control, run, manifests, out)
    result = {
        "run": run.resolve().name,
        "seed": profile.seed,
        "commit": commit(),
        "minutes": {"given": round(budget.seconds / 60, 2), "taken": round(taken_s / 60, 2)},
        "steps": budget.steps,
        "best_step": json.loads((out / POLICY / "run.json").read_bytes())["best_step"],
        **_judged(control, run, manifests, out / POLICY / "policy"),
    }
    keep(path, asked, [result], provenance(profile.threads))
    return result


def _manifests(run: Path) -> dict[str, Manifest]:
    from espalier.records import ArtifactError, open_artifact

    try:
        return {name: open_artifact(run / name) for name in (*INPUTS, "warm_policy", "evaluation")}
    except ArtifactError as error:
        sys.exit(f"{error}. The control is that of a finished run: finish this one first")


def budget_of(run: Path, minutes: float | None = None) -> Budget:
    """Seconds of the run's two stages, and the steps that its warm start makes in so many.

    Raises:
        SystemExit: the run has no times of them.
    """
    import pyarrow.parquet as pq

    path = run / "timings.json"
    timings = json.loads(path.read_bytes()) if path.is_file() else {}
    if missing := [name for name in STAGES_OF_BUDGET if not timings.get(name, {}).get("seconds")]:
        sys.exit(
            f"{path}: has no seconds of {', '.join(missing)}; name a run of `espalier run` that "
            "finished these stages"
        )
    took = {name: timings[name]["seconds"] for name in STAGES_OF_BUDGET}
    steps = pq.read_metadata(run / "warm_policy" / "history.parquet").num_rows
    seconds = sum(took.values()) if minutes is None else 60 * minutes
    return Budget(seconds, max(1, round(steps * seconds / took["warm_start"])))


def control_profile(profile: Profile, steps: int) -> Profile:
    """The run's profile with so many steps of imitation, and one sampled answer in all."""
    values = profile.model_dump(mode="json")
    warm = values["warm_start"]
    # else a small source of one's own would end the control early
    epochs = math.ceil(profile.warm_start.max_epochs * steps / profile.warm_start.steps)
    warm |= {"steps": steps, "max_epochs": max(profile.warm_start.max_epochs, epochs)}
    warm.pop("hindsight", None)
    values["evaluation"] |= {"sampled_questions": 1, "samples_per_task": 1, "suites": {}}
    return type(profile).model_validate(values)


def _trained(profile: Profile, run: Path, manifests: Mapping[str, Manifest], out: Path) -> float:
    """Seconds that training took; those of a killed attempt count up to its last checkpoint."""
    from espalier.chain import STAGES
    from espalier.records import MANIFEST_NAME, read_manifest

    stage, policy = STAGES["warm_start"], out / POLICY
    contents = {name: manifests[name].content for name in INPUTS}
    clock = TrainingClock(out / "clock.json", json_digest([stage.digest(profile), contents]))
    if (policy / MANIFEST_NAME).is_file():
        if stage.is_current(read_manifest(policy), profile, contents):
            return clock.before_s
        shutil.rmtree(policy)
    print(f"{time.strftime('%H:%M:%S')} {profile.warm_start.steps} steps of imitation", flush=True)
    stage.run(profile, {name: run / name for name in INPUTS}, policy, clock)
    return clock.save()


class TrainingClock(NullTracker):
    """Keeps the seconds of training with each checkpoint, so that a kill counts none twice.

    They are those of steps and looks at dev questions, without what is loaded before.
    """

    def __init__(self, path: Path, identity: str) -> None:
        self._path = path
        self._identity = identity
        self._started_s = time.monotonic()
        kept_s = json.loads(path.read_bytes()) if path.is_file() else {}
        self.before_s: float = kept_s.get(identity, 0.0)
        """Of earlier attempts at the same training."""

    @contextmanager
    def progress(self, description: str, total: int) -> Generator[Progress]:
        """Training begins."""
        self._started_s = time.monotonic()
        with super().progress(description, total) as progress:
            yield progress

    def metrics(self, values: Mapping[str, float], *, step: int | None = None) -> None:
        """Save at a checkpoint, and say how training goes where dev questions were asked."""
        if "dev_em" in values:
            said = f"{time.strftime('%H:%M:%S')} step {step}: dev EM {values['dev_em']:.3f}"
            print(said, flush=True)
            self.save()

    def save(self) -> float:
        """Write the seconds so far, and return them."""
        seconds = self.before_s + time.monotonic() - self._started_s
        partial = self._path.with_suffix(".partial")
        partial.write_text(json.dumps({self._identity: seconds}))
        partial.replace(self._path)
        return seconds


def _judged(
    profile: Profile, run: Path, manifests: Mapping[str, Manifest], policy: Path
) -> dict[str, Any]:
    """The figures of the control beside those of the run's policies, on the same questions."""
    from espalier.environments.memory import remembering
    from espalier.evaluation import gain, summarize
    from espalier.evaluation.policies import evaluate_policy
    from espalier.evaluation.questions import read_questions
    from espalier.evaluation.suite import VIEW
    from espalier.records import read_tasks

    tasks = read_tasks(run / "accepted" / "tasks" / "heldout.jsonl")
    others = read_questions(run / "evaluation" / "questions.parquet")
    family = remembering(profile, run / "accepted")
    with family.environments(run / "knowledge") as environments_over:
        rows = evaluate_policy(policy, tasks, environments_over(VIEW), profile)
    config, seed = profile.evaluation, profile.seed
    figures = json.loads((run / "evaluation" / "results.json").read_bytes())["eval"]
    return {
        "n": len(rows),
        "policies": {
            **{name: figures[name] for name in ("untrained", "warm_start")},
            "control": summarize(rows, config, seed),
            "trained": figures["trained"],
        },
        "trained_minus_control": gain(others["trained"], rows, config, seed),
        "control_minus_warm_start": gain(rows, others["warm_start"], config, seed),
    }


def report(result: Mapping[str, Any]) -> None:
    """A line a policy, the paired differences, and the JSON line."""
    from espalier.evaluation.results import knowledge_columns
    from espalier.orchestration.results import aligned

    policies: Mapping[str, Any] = result["policies"]
    rows = [
        {
            "policy": name.replace("_", " "),
            "EM %": f"{100 * figures['em']:.1f}",
            "interval": " to ".join(f"{100 * end:.1f}" for end in figures["ci95"]),
            **knowledge_columns(figures, list(policies.values())),
        }
        for name, figures in policies.items()
    ]
    print(aligned(rows))
    for name in ("trained_minus_control", "control_minus_warm_start"):
        low, high = result[name]["ci95"]
        print(
            f"{name.replace('_', ' ')}: {100 * result[name]['em']:+.1f} "
            f"[{100 * low:+.1f}, {100 * high:+.1f}], paired by question"
        )
    minutes = result["minutes"]
    print(
        f"control: best of {result['steps']} steps at {result['best_step']}, "
        f"{minutes['taken']:.1f} minutes of {minutes['given']:.1f}"
    )
    print(json.dumps(result))


if __name__ == "__main__":
    main()
