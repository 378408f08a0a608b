"""Which rule chooses the step that is kept: replays dev EM, and says what held-out EM it gets.

    python -m tests.benchmarks.kept_step record --run runs/demo --seed 0 --out runs/kept_step
    python -m tests.benchmarks.kept_step replay runs/kept_step/*.json
    python -m tests.benchmarks.kept_step simulate --runs 300

`record` trains from the warm start of a finished run, one seed a call, and asks dev and held-out
questions at every look. `replay` reads such files and prints each rule's loss: the best held-out EM
of the run's looks less that of the look which the rule chooses by dev EM, points, as a mean over
the runs; with the interval of the difference from the earliest of the best, and in how many runs no
rule chose better. `simulate` makes the histories up, seeds 0 to --runs - 1 of each: a true curve
that rises, saturates, stays, rises and falls, or falls from the start; around it what truly differs
from look to look (standard deviation --jitter, points); the answers to --questions dev questions,
which are the same at every look, so that three quarters of a question's luck stay with it. The last
line is one JSON object.

The simulation decides by what truly differs from look to look. Where it is nothing, the mean of
neighbouring looks is best; from 1.5 points on nothing is better than the best with ties to the
later, over all curves together. One standard error gains where EM rises to the end, and loses up to
2 points where it falls. The one run that is known (README's demo elsewhere) has 78.5 and 83.3
held-out EM at two looks of equal dev EM.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from espalier.evaluation.estimates import paired_difference

RESAMPLES = 10_000
SHARED = 0.75
"""Share of a question's variance that is the same at every look."""
LOOKS = 10
"""The start, and one after each tenth of the training: the profile tiny's RL."""


class Look(NamedTuple):
    """One evaluation of a training, on all dev questions."""

    step: int
    dev_em: float
    """0-1."""
    questions: int


Rule = Callable[[Sequence[Look]], Look]
"""Looks of one training, in their order -> the one whose weights are kept."""


def earliest(looks: Sequence[Look]) -> Look:
    """The best, of equals the first."""
    return max(looks, key=lambda look: look.dev_em)


def later(looks: Sequence[Look]) -> Look:
    """The best, of equals the last: what the product does."""
    return max(looks, key=lambda look: (look.dev_em, look.step))


def neighbours(looks: Sequence[Look]) -> Look:
    """The best by the mean of a look, the one before it and the one behind it."""
    means = [
        statistics.fmean(look.dev_em for look in looks[max(0, n - 1) : n + 2])
        for n in range(len(looks))
    ]
    # rounded: sums of other terms may differ in the last bit where the means are equal
    return looks[max(range(len(looks)), key=lambda n: (round(means[n], 9), n))]


def one_error(looks: Sequence[Look]) -> Look:
    """The last that is within one binomial standard error of the best."""
    best = later(looks)
    error = math.sqrt(best.dev_em * (1 - best.dev_em) / best.questions)
    return [look for look in looks if look.dev_em >= best.dev_em - error - 1e-9][-1]


RULES: Mapping[str, Rule] = {
    "earliest": earliest,
    "later": later,
    "neighbours": neighbours,
    "one_error": one_error,
}


class History(NamedTuple):
    """Looks of one training, and the held-out EM (0-1) at each."""

    looks: Sequence[Look]
    heldout: Sequence[float]

    def lost(self, rule: Rule) -> float:
        """Held-out EM of the best look less that of the chosen one."""
        chosen = self.looks.index(rule(self.looks))
        return max(self.heldout) - self.heldout[chosen]


def replayed(histories: Sequence[History]) -> dict[str, dict[str, Any]]:
    """For each rule `lost` (points), `gain` over the earliest with its interval, `best_in` runs."""
    lost = {name: [history.lost(rule) for history in histories] for name, rule in RULES.items()}
    least = [min(each) for each in zip(*lost.values(), strict=True)]
    rows: dict[str, dict[str, Any]] = {}
    for name, values in lost.items():
        gain = paired_difference(
            lost["earliest"], values, resamples=RESAMPLES, confidence=0.95, seed=0
        )
        rows[name] = {
            "lost": round(100 * statistics.fmean(values), 2),
            "gain": [round(100 * value, 2) for value in gain],
            "best_in": sum(value <= low for value, low in zip(values, least, strict=True)),
        }
    return rows


def _saturating(low: float, high: float, pace: float) -> Callable[[float], float]:
    def curve(done: float) -> float:
        return low + (high - low) * (1 - math.exp(-pace * done)) / (1 - math.exp(-pace))

    return curve


CURVES: Mapping[str, Callable[[float], float]] = {
    "rises": _saturating(0.76, 0.88, 1.0),
    "rises from 5 %": _saturating(0.05, 0.40, 1.5),
    "saturates": _saturating(0.76, 0.87, 5.0),
    "stays": lambda done: 0.80,
    "rises, falls by 5": lambda done: (
        _saturating(0.76, 0.87, 5.0)(done) - 0.10 * max(0.0, done - 0.5)
    ),
    "rises, falls by 20": lambda done: (
        _saturating(0.50, 0.70, 5.0)(done) - 0.40 * max(0.0, done - 0.5)
    ),
    "falls by 10": lambda done: 0.80 - 0.10 * done,
}
"""Share of the training that is done -> true EM."""


def simulated(curve: Callable[[float], float], *, jitter: float, asked: int, seed: int) -> History:
    """A made-up training: true EM around a curve, and dev EM of `asked` questions."""
    rng = np.random.default_rng(seed)
    curve_L = np.array([curve(n / (LOOKS - 1)) for n in range(LOOKS)])
    true_L = np.clip(curve_L + rng.normal(0, jitter, LOOKS), 0.001, 0.999)
    normal = statistics.NormalDist()
    shared_N = rng.normal(size=asked)
    own_LN = rng.normal(size=(LOOKS, asked))
    luck_LN = math.sqrt(SHARED) * shared_N + math.sqrt(1 - SHARED) * own_LN
    bounds_L = np.array([normal.inv_cdf(float(em)) for em in true_L])
    dev_L = (luck_LN < bounds_L[:, None]).mean(axis=1)
    looks = [Look(step, float(em), asked) for step, em in enumerate(dev_L)]
    return History(looks, true_L.tolist())


def read_history(path: Path) -> History:
    """A file that `record` wrote."""
    kept = json.loads(path.read_bytes())
    rows = kept["rows"]
    looks = [Look(row["step"], row["dev_em"], kept["asked"]["dev_questions"]) for row in rows]
    return History(looks, [row["heldout_em"] for row in rows])


def main() -> None:
    """Record one run, or replay recorded or made-up ones."""
    options = _options()
    if options.command == "record":
        record(options)
        return
    if options.command == "replay":
        tables = {"recorded": replayed([read_history(path) for path in options.files])}
    else:
        made = {
            name: [
                simulated(curve, jitter=options.jitter / 100, asked=options.questions, seed=seed)
                for seed in range(options.runs)
            ]
            for name, curve in CURVES.items()
        }
        tables = {name: replayed(histories) for name, histories in made.items()}
        tables["all"] = replayed([one for histories in made.values() for one in histories])
    print(f"{'runs':<20}{'rule':<12}lost  gain [95%]             best in")
    for runs, rules in tables.items():
        for name, row in rules.items():
            mean, low, high = row["gain"]
            gain = f"{mean:+.2f} [{low:+.2f}, {high:+.2f}]"
            print(f"{runs:<20}{name:<12}{row['lost']:>4.2f}  {gain:<23}{row['best_in']:>7}")
    print(json.dumps(tables))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    recorder = commands.add_parser("record")
    recorder.add_argument("--run", type=Path, required=True)
    recorder.add_argument("--profile", type=Path, default=Path("pipelines/profiles/tiny.toml"))
    recorder.add_argument("--seed", type=int, default=0)
    recorder.add_argument("--out", type=Path, default=Path("runs/benchmarks/kept_step"))
    recorder.add_argument("--set", nargs="*", action="extend", default=[])
    replay = commands.add_parser("replay")
    replay.add_argument("files", type=Path, nargs="+")
    simulation = commands.add_parser("simulate")
    simulation.add_argument("--runs", type=int, default=300, help="of each curve")
    simulation.add_argument("--questions", type=int, default=200)
    simulation.add_argument("--jitter", type=float, default=1.5, help="points")
    return parser.parse_args()


def record(options: argparse.Namespace) -> None:
    """Train from a finished run's warm start; a killed call goes on from its checkpoint."""
    from espalier.determinism import prepare_environment, prepare_torch

    prepare_environment()
    from espalier.chain import STAGES
    from espalier.config import load_profile
    from espalier.environments import family_of
    from espalier.records import NullTracker, read_tasks
    from espalier.rollout.roller import Roller
    from espalier.training.checkpoint import CheckpointStore
    from espalier.training.parallel import Processes
    from espalier.training.rl.wiring import build_run
    from tests.benchmarks.keeping import keep, provenance

    profile = load_profile(options.profile, [f"seed={options.seed}", *options.set])
    prepare_torch(profile.threads)
    inputs = {name: options.run / name for name in STAGES["train"].inputs}
    work = options.out / f"{options.seed}.work"
    looks = work / "looks.jsonl"
    work.mkdir(parents=True, exist_ok=True)
    questions = read_tasks(inputs["accepted"] / "tasks" / "heldout.jsonl")
    with family_of(profile).environments(inputs["knowledge"]) as environments_over:
        store = CheckpointStore(work, STAGES["train"].digest(profile))
        run = build_run(profile, inputs, store, Processes(), environments_over)
        judge = Roller.local(run.policy, environments_over("full"), profile)

        def look(step: int) -> None:
            answers = judge.roll_out(questions, samples=1, temperature=0.0, seed=0)
            em = statistics.fmean(answer.is_right for answer in answers)
            with looks.open("a") as lines:
                lines.write(json.dumps([step, em]) + "\n")

        class Looking(NullTracker):
            """Asks the held-out questions whenever the dev questions were asked."""

            def metrics(self, values: Mapping[str, float], *, step: int | None = None) -> None:
                if step is not None and "dev_em" in values:
                    look(step)

        if not looks.exists():
            look(0)
        run.loop.run(Looking())
    heldout = dict(json.loads(line) for line in looks.read_text().splitlines())
    dev = {0: run.loop.progress.start_dev_em}
    dev |= {int(row["step"]): row["dev_em"] for row in run.loop.progress.history if "dev_em" in row}
    rows: list[dict[str, object]] = [
        {"step": step, "dev_em": em, "heldout_em": heldout[step]} for step, em in dev.items()
    ]
    asked = {"run": str(options.run), "dev_questions": profile.training.dev_questions}
    asked |= {"heldout_questions": len(questions), "set": options.set}
    keep(options.out / f"{options.seed}.json", asked, rows, provenance(profile.threads))


if __name__ == "__main__":
    main()
