"""How far is `espalier plan` from what runs need? Planned beside measured, by profile.

    python -m tests.benchmarks.plan --shortened --workers 2
    python -m tests.benchmarks.plan smoke function_calling --set training.steps=20

Each profile is run twice, in processes of their own: a probe as `plan --probe` makes it, and the
run itself, which is planned from the probe. --shortened gives the five profiles of SHORTENED, or
those of them that are named, fewer steps and questions: about 25 minutes of one core for all five.

Ratios are planned / measured: of the peak of resident memory, of all seconds, of seconds by stage,
and of the tokens that were trained on and written, which do not depend on what else the machine
did. A stage that a run has stopped early counts as it was. A finished run is kept with the digest
of its profile; a killed one goes on. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.benchmarks.arms import add_settings, asked, run_all
from tests.benchmarks.chain_runs import run_chain
from tests.benchmarks.keeping import keep, kept, provenance

if TYPE_CHECKING:
    from espalier.config import Profile

PROFILES = Path("pipelines/profiles")
MEMORY_TOLERANCE = 0.15
TIME_TOLERANCE = 0.25
KINDS = ("probe", "run")
"""In this order: what is short shows faults first."""
SHORTENED: Mapping[str, Sequence[str]] = {
    "smoke": (),
    "tiny": (
        "synthesis.heldout_tasks=200",
        "policy.prestage.steps=300",
        "warm_start.steps=120",
        "warm_start.evaluate_every=60",
        "training.steps=14",
        "training.evaluate_every=14",
        "training.dev_questions=100",
        "evaluation.sampled_questions=50",
    ),
    "customer_service": (
        "synthesis.heldout_tasks=200",
        "policy.prestage.steps=600",
        "training.steps=20",
        "training.evaluate_every=20",
    ),
    "function_calling": (
        "synthesis.heldout_tasks=200",
        "training.steps=40",
        "training.evaluate_every=40",
    ),
    "shop": (
        "synthesis.heldout_tasks=200",
        "policy.prestage.steps=700",
        "warm_start.steps=160",
        "training.steps=14",
        "training.evaluate_every=14",
    ),
}
"""Profiles of five environments or sizes, each cut to about four minutes of one core; the policy
still learns to act, so that its episodes are those of a run."""


class Comparison(NamedTuple):
    """One run, planned from its probe."""

    run: str
    ratios: dict[str, float]
    """Name of what was measured -> planned / measured."""
    planned: dict[str, float]
    measured: dict[str, float]


def main() -> None:
    """Run what is missing, compare, and print."""
    options = _options()
    if options.arm:
        name, _, kind = options.arm.rpartition(":")
        run_arm(name, kind, options)
        return
    report(list(comparisons(options)))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("profiles", nargs="*", help=f"names of profiles in {PROFILES}")
    parser.add_argument("--shortened", action="store_true", help="the profiles of SHORTENED")
    add_settings(parser)
    parser.add_argument("--workers", type=int, default=1, help="processes at one time")
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks/plan"))
    parser.add_argument("--arm", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.shortened:
        options.profiles = options.profiles or list(SHORTENED)
        if unknown := set(options.profiles) - set(SHORTENED):
            parser.error(f"not among those that --shortened shortens: {', '.join(sorted(unknown))}")
    if not options.profiles:
        parser.error("name profiles to run, or --shortened")
    return options


def comparisons(options: argparse.Namespace) -> Iterator[Comparison]:
    """Probe and run each profile, as far as that is not kept, and plan each run from its probe."""
    commands = {
        f"{name}:{kind}": _command(name, kind, options)
        for kind in KINDS
        for name in options.profiles
        if kept(_result(name, kind, options), _asked(name, kind, options)) is None
    }
    run_all(commands, options.out, workers=options.workers)
    for name in options.profiles:
        probe, run = (_kept_run(name, kind, options) for kind in KINDS)
        yield compared(run, probe)


def _command(name: str, kind: str, options: argparse.Namespace) -> list[str]:
    command = ["tests.benchmarks.plan", name, "--arm", f"{name}:{kind}"]
    shortened = ["--shortened"] if options.shortened else []
    return [*command, *shortened, "--out", str(options.out), "--set", *options.set]


def _profile(name: str, kind: str, options: argparse.Namespace) -> Profile:
    from espalier.config import load_profile
    from espalier.planning.probe import probe_profile

    settings = ["threads=1", *(SHORTENED[name] if options.shortened else ()), *options.set]
    profile = load_profile(PROFILES / f"{name}.toml", settings)
    return probe_profile(profile) if kind == "probe" else profile


def _asked(name: str, kind: str, options: argparse.Namespace) -> dict[str, str]:
    return asked(_profile(name, kind, options))


def _folder(name: str, kind: str, options: argparse.Namespace) -> Path:
    return options.out / name / kind


def _result(name: str, kind: str, options: argparse.Namespace) -> Path:
    return options.out / f"{name}-{kind}.json"


def run_arm(name: str, kind: str, options: argparse.Namespace) -> None:
    """A probe or a run in this process, up to `evaluate`."""
    from espalier.determinism import prepare_environment, prepare_torch

    prepare_environment()
    profile = _profile(name, kind, options)
    prepare_torch(profile.threads)
    run_chain(profile, _folder(name, kind, options), "evaluate")
    timings = json.loads((_folder(name, kind, options) / "timings.json").read_bytes())
    keep(_result(name, kind, options), asked(profile), [timings], provenance(profile.threads))


def _kept_run(name: str, kind: str, options: argparse.Namespace) -> Run:
    return Run(f"{name} {kind}", _profile(name, kind, options), _folder(name, kind, options))


@dataclass(frozen=True, eq=False)
class Run:
    """A finished run, with the profile that it was made with."""

    name: str
    profile: Profile
    folder: Path


def compared(run: Run, probe: Run) -> Comparison:
    """Plan `run` from its probe, and compare with what it measured."""
    from espalier.planning import Limits, PlanOrder, make_plan, this_machine
    from espalier.planning.probe_figures import probe_figures

    order = PlanOrder(
        profile=run.profile,
        machine=this_machine(run.folder),
        limits=Limits(),
        measured=probe_figures(probe.profile, probe.folder),
    )
    needs = make_plan(order).needs
    measured = measured_of(run)
    planned = {
        "peak MiB": needs.peak_mib,
        "imitated tokens": needs.work["warm_start"].trained_tokens,
        "tokens written in train": needs.work["train"].rollout_tokens,
        "tokens written in evaluate": needs.work["evaluate"].judged_tokens,
        **{f"s {stage}": seconds for stage, seconds in needs.seconds.items()},
    }
    planned = {name: value for name, value in planned.items() if measured.get(name)}
    planned["seconds"] = sum(value for name, value in planned.items() if name.startswith("s "))
    ratios = {name: value / measured[name] for name, value in planned.items()}
    return Comparison(run.name, ratios, planned, measured)


def measured_of(run: Run) -> dict[str, float]:
    """What a run measured, under the names of `compared`."""
    from espalier.reporting.run_directory import open_run

    opened = open_run(run.folder)
    found: dict[str, float] = {
        f"s {stage}": opened.measured(stage)["seconds"]
        for stage in opened.artifacts
        if "seconds" in opened.measured(stage)
    }
    found["seconds"] = sum(found.values())
    peaks = [opened.measured(stage).get("peak_rss_mb", 0.0) for stage in opened.artifacts]
    found["peak MiB"] = max(peaks)
    if (imitated := opened.table("warm_start", "history.parquet")) is not None:
        found["imitated tokens"] = float(imitated["tokens"].sum())
    if (history := opened.table("train", "history.parquet")) is not None:
        sampled = history["rollouts"].diff().fillna(history["rollouts"])
        found["tokens written in train"] = float((history["action_tokens"] * sampled).sum())
    policies = opened.measured("evaluate").get("policies", {})
    found["tokens written in evaluate"] = float(
        sum(one["action_tokens"] for one in policies.values())
    )
    return found


def report(found: Sequence[Comparison]) -> None:
    """A line for each comparison, what lies outside of the tolerances, and the JSON line."""
    columns = {
        "peak MiB": "memory",
        "tokens written in train": "train tok",
        "tokens written in evaluate": "eval tok",
        "imitated tokens": "sft tok",
        "seconds": "time",
    }
    titles = "  ".join(f"{title:>9}" for title in columns.values())
    print(f"{'run':<26} {'planned MiB':>11} {'MiB':>6}  {titles}")
    for one in found:
        shown = "  ".join(f"{one.ratios.get(name, float('nan')):>9.2f}" for name in columns)
        print(
            f"{one.run:<26} {one.planned.get('peak MiB', 0.0):>11,.0f} "
            f"{one.measured.get('peak MiB', 0.0):>6,.0f}  {shown}"
        )
        stages = [
            f"{name[2:]} {ratio:.2f}" for name, ratio in one.ratios.items() if name[:2] == "s "
        ]
        print(f"    time by stage: {', '.join(stages)}")
    made = headline(found)
    print(
        f"planned from probes: memory within {MEMORY_TOLERANCE:.0%} in {made['memory_within']} and "
        f"time within {TIME_TOLERANCE:.0%} in {made['time_within']} of {len(found)} runs"
    )
    print(json.dumps(made))


def headline(found: Sequence[Comparison]) -> dict[str, Any]:
    """How many comparisons lie within the tolerances, and all ratios."""
    return {
        "memory_within": _within(found, "peak MiB", MEMORY_TOLERANCE),
        "time_within": _within(found, "seconds", TIME_TOLERANCE),
        "rows": [
            {"run": one.run, **{name: round(ratio, 3) for name, ratio in one.ratios.items()}}
            for one in found
        ],
    }


def _within(found: Sequence[Comparison], name: str, tolerance: float) -> int:
    return sum(abs(one.ratios[name] - 1) <= tolerance for one in found if name in one.ratios)


if __name__ == "__main__":
    main()
