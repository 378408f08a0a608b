"""What the learning benchmark reports: tables for people, and the headline figures as JSON."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow.parquet as pq

from espalier.evaluation.estimates import paired_difference

RESAMPLES = 10_000


def is_evaluated(out: Path, name: str) -> bool:
    """Whether the arm went as far as the held-out questions."""
    return (out / name / "evaluation").is_dir()


def evaluation(out: Path, name: str) -> dict[str, object]:
    """The `eval` part of an arm's results.json."""
    return json.loads((out / name / "evaluation" / "results.json").read_bytes())["eval"]


def print_report(out: Path, results: Mapping[str, object]) -> None:
    """EM before and after, the learning curves, and the ablations of the arms that finished."""
    print("\narm                untrained   warm start  trained     gain [95%]             n")
    for name in (n for n in results if is_evaluated(out, n)):
        e = evaluation(out, name)
        low, high = e["gain"]["ci95"]
        ems = "  ".join(f"{100 * e[p]['em']:10.1f}" for p in ("untrained", "warm_start", "trained"))
        gain = f"{100 * e['gain']['em']:+6.1f} [{100 * low:+.1f}, {100 * high:+.1f}]"
        print(f"{name:18s}{ems}  {gain:24s}{e['trained']['n']:5d}")
    for name in (n for n in results if n.startswith("seed-")):
        print_groups(out, name)
    print_curves(out, results)
    if "long-sft" in results:
        rows = history(out, "long-sft", "warm_policy")
        curve = "  ".join(f"{int(r['step'])}:{100 * r['dev_em']:.0f}" for r in judged(rows))
        print(f"\ndev EM against SFT steps (seed 0, no GRPO): {curve}")


def print_groups(out: Path, name: str) -> None:
    """EM by hops and by kind of question of one arm."""
    e = evaluation(out, name)
    parts = [
        f"{group} {unit} {100 * e['warm_start'][by][group]['em']:.0f} -> {100 * found['em']:.0f}"
        for by, unit in (("by_hops", "hops"), ("by_kind", ""))
        for group, found in sorted(e["trained"][by].items())
    ]
    print(f"  {name}: {', '.join(parts)}")


def print_curves(out: Path, results: Mapping[str, object]) -> None:
    """Dev EM against optimizer steps and the share of the GRPO stage's seconds."""
    print("\ndev EM against GRPO steps (step:seconds:EM)")
    for name, result in results.items():
        if name == "long-sft":
            continue
        rows = history(out, name, "trained_policy")
        seconds = result["timings"]["train"]["seconds"]
        per_step = seconds / max(1, len(rows))
        points = (
            f"{int(r['step'])}:{r['step'] * per_step:.0f}:{100 * r['dev_em']:.0f}"
            for r in judged(rows)
        )
        print(f"  {name:18s}{'  '.join(points)}")


def history(out: Path, name: str, folder: str) -> list[dict[str, float]]:
    """Rows of a training stage's history."""
    return pq.read_table(out / name / folder / "history.parquet").to_pylist()


def judged(rows: Sequence[dict[str, float]]) -> list[dict[str, float]]:
    """The rows at which dev questions were answered."""
    return [row for row in rows if row.get("dev_em") is not None]


def warm_em(out: Path, name: str) -> float:
    """Dev EM of the policy that GRPO started from."""
    return max(r["dev_em"] for r in judged(history(out, name, "warm_policy")))


def rollouts_to(out: Path, name: str, level: float) -> float | None:
    """Rollouts (pass-rate estimation and dropped groups included) until dev EM >= `level`."""
    spent = json.loads((out / name / "curriculum" / "rollouts.json").read_bytes())["rollouts"]
    before = (spent, warm_em(out, name))
    for row in judged(history(out, name, "trained_policy")):
        point = (spent + row["rollouts"], row["dev_em"])
        if point[1] >= level:
            share = (level - before[1]) / (point[1] - before[1])
            return before[0] + max(0.0, share) * (point[0] - before[0])
        before = point
    return None


def curriculum_ratio(out: Path, seed: int) -> dict[str, float | list[float]]:
    """Rollouts without the filter over rollouts with it, to each dev EM that both arms reach.

    One level is a noisy figure (200 questions), so the headline is the geometric mean over levels
    in steps of two points, from the warm start's to the highest that both reach.
    """
    arms = (f"filter-{seed}", f"no-filter-{seed}")
    curves = [[r["dev_em"] for r in judged(history(out, a, "trained_policy"))] for a in arms]
    top = min(max(curve) for curve in curves)
    first = math.floor(50 * warm_em(out, arms[0])) / 50
    levels = [first + 0.02 * n for n in range(1, 50) if first + 0.02 * n <= top]
    pairs = [(rollouts_to(out, arms[1], x), rollouts_to(out, arms[0], x)) for x in levels]
    ratios = [without / with_ for without, with_ in pairs if without and with_]
    return {
        "levels": [levels[0], levels[-1]],
        "ratio": statistics.geometric_mean(ratios),
        "ratio_at_top": ratios[-1],
        "best_with": max(curves[0]),
        "best_without": max(curves[1]),
    }


def paired(out: Path, after: str, before: str) -> dict[str, float]:
    """Held-out EM of the trained policy of one arm minus that of another, on the same questions."""
    tables = []
    for name in (after, before):
        rows = pq.read_table(out / name / "evaluation" / "questions.parquet").to_pylist()
        tables.append({r["task_id"]: r["em"] for r in rows if r["policy"] == "trained"})
    shared = sorted(tables[0].keys() & tables[1].keys())
    difference = paired_difference(
        [tables[0][t] for t in shared],
        [tables[1][t] for t in shared],
        resamples=RESAMPLES,
        confidence=0.95,
        seed=0,
    )
    return {"em": difference.mean, "low": difference.low, "high": difference.high}


def headline(out: Path, results: Mapping[str, object]) -> dict[str, object]:
    """The figures that a reader compares with what was claimed."""
    seeds = [name for name in results if name.startswith("seed-")]
    evaluations = {name: evaluation(out, name) for name in seeds}
    gains = [e["gain"]["em"] for e in evaluations.values()]
    figures: dict[str, object] = {
        "benchmark": "learning",
        "seeds": len(seeds),
        "questions": evaluations[seeds[0]]["trained"]["n"] if seeds else 0,
        "untrained_em": [e["untrained"]["em"] for e in evaluations.values()],
        "warm_start_em": [e["warm_start"]["em"] for e in evaluations.values()],
        "trained_em": [e["trained"]["em"] for e in evaluations.values()],
        "gain": gains,
        "gain_low": [e["gain"]["ci95"][0] for e in evaluations.values()],
        "mean_gain": statistics.fmean(gains) if gains else None,
    }
    for seed in (0, 1):
        if {f"filter-{seed}", f"no-filter-{seed}"} <= results.keys():
            figures[f"curriculum_{seed}"] = curriculum_ratio(out, seed)
    if {"seed-0", "observations"} <= results.keys():
        figures["observations_minus_masked"] = paired(out, "observations", "seed-0")
    for name in (n for n in results if n.startswith("trajectories-")):
        figures[name] = {
            "warm_start_em": evaluation(out, name)["warm_start"]["em"],
            "trained_em": evaluation(out, name)["trained"]["em"],
            "gain": evaluation(out, name)["gain"]["em"],
        }
    figures["commits"] = sorted({str(r["commit"]) for r in results.values()})
    return figures
