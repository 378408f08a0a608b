"""What rlwatch and rldoctor say of kept histories: a program for a venv of their own.

    python -m venv /tmp/others && /tmp/others/bin/pip install rlwatch==0.5.1 rldoctor==0.2.0
    /tmp/others/bin/python tests/benchmarks/failures/others.py runs/benchmarks/failures
    python -m tests.benchmarks.failures score

It imports nothing of this repository, and writes others.json beside the histories, which `score`
reads. Both tools wait longer by default than a run of the library lasts, so each is asked twice:
as it comes, and with its windows and warm-ups divided by eight (`short`).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

SHORTER = 8


def main() -> None:
    """Write the flags of every history in the folder that is named."""
    out = Path(sys.argv[1])
    found: dict[str, dict[str, list[tuple[str, int]]]] = {}
    for path in sorted(out.glob("*-*.jsonl")):
        _, *rows = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
        found[path.stem] = {
            "rlwatch": list(by_rlwatch(rows, 1)),
            "rlwatch short": list(by_rlwatch(rows, SHORTER)),
            "rldoctor": list(by_rldoctor(rows, 1)),
            "rldoctor short": list(by_rldoctor(rows, SHORTER)),
        }
    (out / "others.json").write_text(json.dumps(found), encoding="utf-8")


def by_rlwatch(rows: list[dict[str, Any]], shorter: int) -> Iterator[tuple[str, int]]:
    """Yield the alerts of rlwatch's suite."""
    from rlwatch.config import RLWatchConfig
    from rlwatch.detectors import DetectorSuite

    config = RLWatchConfig()
    for section in fields(config):
        part = getattr(config, section.name)
        for name in ("warmup_steps", "consecutive_steps", "rolling_window", "baseline_window"):
            if hasattr(part, name):
                setattr(part, name, getattr(part, name) // shorter)
    suite = DetectorSuite(config)
    for row in rows:
        step = int(row["step"])
        alerts = suite.check_step(
            step,
            entropy=row.get("entropy"),
            kl_divergence=row.get("kl"),
            reward_mean=row["reward"],
            reward_std=row.get("reward_spread"),
            loss=row.get("loss"),
            grad_norm=row.get("grad_norm"),
        )
        for alert in alerts:
            yield alert.detector, step


def by_rldoctor(rows: list[dict[str, Any]], shorter: int) -> Iterator[tuple[str, int]]:
    """Yield the findings of rldoctor's live monitor, asked after every step."""
    from rl_doctor.live import DEFAULT_MIN_STEPS, LiveMonitor

    monitor = LiveMonitor(
        check_every=1, min_steps=DEFAULT_MIN_STEPS // shorter, on_finding=lambda finding: None
    )
    names = {
        "reward": "reward",
        "reward_spread": "reward_std",
        "zero_variance_share": "frac_reward_zero_std",
        "dev_em": "eval_score",
        "entropy": "entropy",
        "kl": "kl",
        "clipped_share": "clip_ratio/region_mean",
        "grad_norm": "grad_norm",
        "loss": "loss",
        "action_tokens": "completions/mean_length",
        "truncated_share": "completions/clipped_ratio",
    }
    for row in rows:
        step = int(row["step"])
        known = {name: row[ours] for ours, name in names.items() if ours in row}
        for finding in monitor.log(known, step=step):
            yield finding.detector, step


if __name__ == "__main__":
    main()
