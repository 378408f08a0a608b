"""What the curriculum benchmark reports: rollouts to equal dev EM, their ratios, a plot."""

from __future__ import annotations

import csv
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Curve = Sequence[Sequence[float]]
"""(rollouts, dev EM 0-1) of every evaluation, the warm start first."""
Results = Mapping[str, Mapping[str, Any]]
"""Of one seed: name of an arm -> its result."""

COLORS = ("#888888", "#4477aa", "#66aa88", "#bb8833", "#aa3355", "#5544aa")


def level_of(results: Results) -> float:
    """The best dev EM that the weakest arm reaches."""
    return min(max(em for _, em in result["curve"]) for result in results.values())


def rollouts_to(curve: Curve, level: float) -> float | None:
    """Rollouts at which dev EM first is `level` or more; None if it never is."""
    before = curve[0]
    for point in curve:
        if point[1] >= level:
            if point is before:
                return point[0]
            share = (level - before[1]) / (point[1] - before[1])
            return before[0] + share * (point[0] - before[0])
        before = point
    return None


def ratio_over_levels(curve: Curve, other: Curve) -> float | None:
    """The other's rollouts over this curve's, geometric mean over levels 2 points of EM apart.

    From the first level above the warm start to the best that both reach: at one level alone the
    noise of a few hundred dev questions decides.
    """
    top = min(max(em for _, em in one) for one in (curve, other))
    first = 0.02 * (math.floor(curve[0][1] / 0.02 + 1e-9) + 1)
    found: list[float] = []
    while first + 0.02 * len(found) <= top + 1e-9:
        level = first + 0.02 * len(found)
        own, others = rollouts_to(curve, level - 1e-9), rollouts_to(other, level - 1e-9)
        assert own is not None, "the curve reaches the top"
        assert others is not None, "so does the other"
        found.append(max(others, 1.0) / max(own, 1.0))
    return statistics.geometric_mean(found) if found else None


def seed_figures(results: Results) -> dict[str, Any]:
    """Level, and for each arm: rollouts to it, best dev EM, and what a perfect filter would save.

    `perfect` is all rollouts over those of groups with variance: how many times fewer a filter that
    knew them before would sample.
    """
    level = level_of(results)
    return {
        "level": level,
        "arms": {
            name: {
                "rollouts": result["rollouts"],
                "best_em": max(em for _, em in result["curve"]),
                "to_level": rollouts_to(result["curve"], level),
                "informative_share": round(result["informative_share"], 3),
                "perfect": round(1 / max(1e-9, result["informative_share"]), 2),
                "seconds": round(result["seconds"]),
            }
            for name, result in results.items()
        },
    }


def ratios(by_seed: Mapping[int, dict[str, Any]]) -> dict[str, dict[str, list[float]]]:
    """Arm -> other arm -> by seed, the other's rollouts to the level over the arm's."""
    names = list(dict.fromkeys(name for one in by_seed.values() for name in one["arms"]))
    found: dict[str, dict[str, list[float]]] = {}
    for arm in names:
        found[arm] = {}
        for other in names:
            pairs = [
                (one["arms"][other]["to_level"], one["arms"][arm]["to_level"])
                for one in by_seed.values()
                if arm in one["arms"] and other in one["arms"]
            ]
            found[arm][other] = [round(a / b, 2) for a, b in pairs if a and b]
    return found


def report(by_seed: Mapping[int, Results], out: Path) -> None:
    """Print a line an arm and the ratios, write curves.csv and curves.svg, then the JSON line."""
    finished = {seed: results for seed, results in by_seed.items() if results}
    figures = {seed: seed_figures(results) for seed, results in finished.items()}
    print("seed  arm        rollouts  best dev EM  rollouts to level  informative  perfect filter")
    for seed, one in figures.items():
        print(f"seed {seed}: level {100 * one['level']:.1f} dev EM")
        for name, arm in one["arms"].items():
            print(
                f"{seed:<6}{name:<10}{arm['rollouts']:>9.0f}{100 * arm['best_em']:>13.1f}"
                f"{arm['to_level']:>19.0f}{arm['informative_share']:>13.2f}"
                f"{arm['perfect']:>14.2f}x"
            )
    found = ratios(figures)
    averaged = {
        arm: {
            other: [
                round(ratio, 2)
                for results in finished.values()
                if arm in results
                and other in results
                and (ratio := ratio_over_levels(results[arm]["curve"], results[other]["curve"]))
            ]
            for other in found
        }
        for arm in found
    }
    _print_ratios("to the level", found)
    _print_ratios("mean over levels that both reach", averaged)
    _write_curves(finished, out / "curves.csv")
    _plot(finished, out / "curves.svg")
    print(json.dumps({"seeds": figures, "ratios": found, "over_levels": averaged}))


def _print_ratios(what: str, found: Mapping[str, Mapping[str, Sequence[float]]]) -> None:
    print(f"\nrollouts of the row's arm over those of the others, by seed; {what}")
    for other in found:
        cells = [
            f"{arm} {' '.join(f'{value:.2f}' for value in found[arm][other])}"
            + (f" (mean {statistics.geometric_mean(values):.2f})" if len(values) > 1 else "")
            for arm, values in ((arm, found[arm][other]) for arm in found)
            if arm != other and values
        ]
        print(f"  {other:<10} " + "; ".join(cells))


def _write_curves(by_seed: Mapping[int, Results], path: Path) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("seed", "arm", "rollouts", "dev_em"))
        for seed, results in by_seed.items():
            for name, result in results.items():
                writer.writerows((seed, name, *point) for point in result["curve"])


def _plot(by_seed: Mapping[int, Results], path: Path) -> None:
    """Dev EM against rollouts, one panel a seed, one colour an arm; nothing is smoothed."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.2 * max(1, len(by_seed)), 3.2), layout="constrained")
    FigureCanvasSVG(figure)
    panels = figure.subplots(1, max(1, len(by_seed)), squeeze=False)[0]
    names = list(dict.fromkeys(name for results in by_seed.values() for name in results))
    for panel, (seed, results) in zip(panels, by_seed.items(), strict=True):
        for name, result in results.items():
            rollouts, em = zip(*result["curve"], strict=True)
            color = COLORS[names.index(name) % len(COLORS)]
            panel.plot(rollouts, [100 * value for value in em], label=name, color=color)
        panel.axhline(100 * level_of(results), color="#bbbbbb", linewidth=0.8, linestyle=":")
        panel.set(title=f"seed {seed}", xlabel="rollouts", ylabel="dev EM, %")
        panel.set_ylim(bottom=0)
    panels[0].legend(frameon=False)
    figure.savefig(path, metadata={"Date": None})
