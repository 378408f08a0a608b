"""Do trained heads agree with the rule, and does a policy learn from them?

    python -m tests.benchmarks.process_rewards --out runs/benchmarks/process

Runs an arithmetic profile up to its curriculum, trains a process head (Math-Shepherd's labels) and
an outcome reward model on attempts of the warm policy, and then trains that policy three times
alike: paid by the rule, by the rule and the process head, and by the outcome model alone. Each is
judged by the rule on the same dev questions. Stories of one and two operations, in some minutes a
training on two idle cores; a killed benchmark goes on where it stood. The last line is one JSON
object.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tests.benchmarks.arms import add_settings
from tests.benchmarks.chain_runs import run_chain
from tests.benchmarks.keeping import keep, kept, provenance

PROFILE = Path("pipelines/profiles/arithmetic.toml")
SMALL = (
    "synthesis.train_tasks=1200", "synthesis.dev_tasks=120", "synthesis.heldout_tasks=60",
    "synthesis.trajectories=400", "synthesis.chain_weights=[0.6, 0.4, 0.0, 0.0]",
    "policy.prestage.steps=500", "episode.max_turns=3", "episode.max_tokens=256",
    "warm_start.steps=160", "warm_start.dev_questions=60", "curriculum.candidates=60",
    "training.steps=30", "training.tasks_per_step=8", "training.evaluate_every=10",
    "training.dev_questions=120", "reward_model.tasks=80", "reward_model.attempts=4",
    "reward_model.completions=4", "reward_model.dev_tasks=60", "reward_model.steps=120",
)  # fmt: skip
KINDS = ("process", "outcome")
PAID_BY = ("rule", "rule and process head", "outcome model")


def main() -> None:
    """Run what is missing, then report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--profile", type=Path, default=PROFILE)
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks/process"))
    add_settings(parser)
    options = parser.parse_args()
    from espalier.determinism import prepare_environment, prepare_torch

    prepare_environment()
    from espalier.config import load_profile

    changes = [f"seed={options.seed}", *SMALL, *options.set]
    profile = load_profile(options.profile, changes)
    prepare_torch(profile.threads)
    base = options.out / f"seed-{options.seed}"
    run_chain(profile, base / "run", "filter_curriculum")
    asked = {"profile": options.profile.read_text(), "changes": changes}
    heads = {kind: _head(profile, base, kind, asked) for kind in KINDS}
    for kind, figures in heads.items():
        print(
            f"{kind:<8} AUC {figures['auc']:.3f}  agreement {100 * figures['agreement']:.1f} %  "
            f"({figures['dev_attempts']:.0f} dev attempts, "
            f"{100 * figures['dev_right_share']:.0f} % right)"
        )
    learned = {name: _learned(options, changes, base, name, asked) for name in PAID_BY}
    for name, curve in learned.items():
        told = "  ".join(f"{step}: {100 * em:.1f}" for step, em in curve["dev_em"])
        print(f"{name:<22} dev EM % by step  {told}")
    print(json.dumps({"heads": heads, "learned": learned}))


def _head(profile: Any, base: Path, kind: str, asked: object) -> dict[str, float]:
    from espalier.records import NullTracker
    from espalier.training.reward_models.fitting import INPUTS, fit_reward_model

    path = base / f"{kind}.json"
    rows = kept(path, asked)
    if rows is None:
        inputs = {name: base / "run" / name for name in INPUTS}
        fit_reward_model(profile, inputs, base / f"{kind}-model", kind, NullTracker())
        figures = json.loads((base / f"{kind}-model" / "run.json").read_text())
        keep(path, asked, [figures], provenance(profile.threads))
        return figures
    return rows[0]


def _learned(
    options: argparse.Namespace, changes: list[str], base: Path, name: str, asked: object
) -> dict[str, Any]:
    from espalier.config import load_profile
    from espalier.records import NullTracker
    from espalier.stages import train

    path = base / f"{name.replace(' ', '-')}.json"
    rows = kept(path, asked)
    if rows is not None:
        return rows[0]
    own = {
        "rule": [],
        "rule and process head": [f'reward.process.model="{base / "process-model"}"'],
        "outcome model": [f'reward.outcome_model.model="{base / "outcome-model"}"'],
    }[name]
    profile = load_profile(options.profile, [*changes, *own])
    run = base / "run"
    inputs = {part: run / part for part in ("knowledge", "accepted", "curriculum", "warm_policy")}
    out = base / f"trained-{name.replace(' ', '-')}"
    train.run(profile, inputs, out, NullTracker())
    history = pq.read_table(out / "history.parquet").to_pylist()
    figures = {
        "dev_em": [(row["step"], row["dev_em"]) for row in history if row["dev_em"] is not None],
        "reward": [row["reward"] for row in history],
        "agreement": history[-1].get("outcome_model/agreement"),
    }
    keep(path, asked, [figures], provenance(profile.threads))
    return figures


if __name__ == "__main__":
    main()
