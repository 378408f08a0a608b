"""Figures of the data-value benchmark: token lengths, scores, probes, and the table of arms."""

from __future__ import annotations

import random
import re
from pathlib import Path
from statistics import fmean, pstdev

LOSS_TAIL = 20
"""Last steps of the warm start whose loss is told."""
_POWER = 2.8
"""Standard errors of a difference that is found in four cases of five."""
RESAMPLES = 2000
_TAG = re.compile(r"</?([a-zA-Z_]+)")


def mean_tokens(profile, run_dir: Path) -> dict[str, float]:
    """Mean tokens of a demonstration, of what the warm start draws, and of a text that fits."""
    from espalier.environments import family_of, policy_dialect
    from espalier.policy.loading import load_policy
    from espalier.records import read_agent_texts, read_tasks
    from espalier.records.trajectory import read_trajectories
    from espalier.training.demonstrations import encode_demonstration, encode_negative, encode_text

    accepted = run_dir / "accepted"
    policy = load_policy(run_dir / "base_policy" / "policy")
    dialect = policy_dialect(family_of(profile), policy.tokenizer)
    tasks = {task.task_id: task for task in read_tasks(accepted / "tasks" / "train.jsonl")}
    shown = [
        len(encode_demonstration(t, tasks, lambda _task: dialect).token_ids)
        for t in read_trajectories(accepted / "trajectories.parquet")
    ]
    limit = profile.episode.max_tokens
    negatives = [
        len(encode_negative(n, dialect).token_ids)
        for n in read_agent_texts(accepted / "negatives.jsonl")
    ]
    texts = [
        len(encode_text(t, dialect).token_ids)
        for t in read_agent_texts(accepted / "agent_texts.jsonl")
    ]
    fitting = [length for length in texts if length <= limit]
    return {
        "demonstration": fmean(shown),
        "warm_start": fmean([*shown, *(n for n in negatives if n <= limit)]),
        "text": fmean(fitting) if fitting else 0.0,
    }


def measured(profile, run_dir: Path, heldout) -> dict[str, object]:
    """Loss, held-out hits and probes of the warm-started and of the trained policy."""
    import pandas as pd

    history = pd.read_parquet(run_dir / "warm_policy" / "history.parquet")
    row: dict[str, object] = {
        "sft_loss": float(history["loss"].tail(LOSS_TAIL).mean()),
        "sft_first_loss": float(history["loss"].head(LOSS_TAIL).mean()),
        "sft_tokens": int(history["tokens"].sum()),
        "read_tokens": _read_tokens(run_dir),
    }
    for name, folder in (("warm", "warm_policy"), ("trained", "trained_policy")):
        row |= {
            f"{name}_{key}": value
            for key, value in _judged(profile, run_dir, run_dir / folder, heldout).items()
        }
    return row


def _read_tokens(run_dir: Path) -> int:
    import pandas as pd

    from espalier.records import read_manifest

    folder = run_dir / "pretrained_policy"
    if not read_manifest(folder).rows["texts"]:
        return 0
    return int(pd.read_parquet(folder / "history.parquet")["tokens"].sum())


def _judged(profile, run_dir: Path, policy_dir: Path, tasks) -> dict[str, object]:
    from espalier.environments import family_of
    from espalier.policy.loading import load_policy
    from espalier.rollout.roller import Roller

    policy = load_policy(policy_dir / "policy")
    with family_of(profile).environments(run_dir / "knowledge") as environments_over:
        roller = Roller.local(policy, environments_over("full"), profile)
        played = roller.roll_out(tasks, samples=1, temperature=0.0, seed=0)
        found = {"hits": [int(t.reward["outcome"] > 0) for t in played]}
        for kind, probes in _probes(tasks).items():
            answered = roller.roll_out(probes, samples=1, temperature=0.0, seed=0)
            found[f"{kind}_called"] = [int(_calls_what_is_not_there(kind, t)) for t in answered]
    return found


def _probes(tasks) -> dict[str, list]:
    """The questions again, without the tool, and with a demand for one that does not exist."""
    from espalier_search.synthesis.agent_texts.negatives import (
        NOT_EXISTING,
        NOT_OFFERED,
        UNKNOWN_TOOLS,
        not_existing_prompt,
        not_offered_prompt,
    )

    rng = random.Random("probes")
    return {
        NOT_OFFERED: [_asking(task, not_offered_prompt(task.question)) for task in tasks],
        NOT_EXISTING: [
            _asking(task, not_existing_prompt(task.question, rng.choice(UNKNOWN_TOOLS)))
            for task in tasks
        ],
    }


def _asking(task, question: str):
    from espalier.records import Message

    return task.model_copy(update={"prompt": (Message(role="user", content=question),)})


def _calls_what_is_not_there(kind: str, trajectory) -> bool:
    """A search where none is offered; elsewhere a tag of no tool, or no action at all."""
    from espalier_search.synthesis.agent_texts.negatives import NOT_OFFERED

    # a message that could be parsed has its calls apart, one that could not is raw text
    written = [message for message in trajectory.messages if message.role == "assistant"]
    if kind == NOT_OFFERED:
        return any(message.tool_calls or "<search>" in message.content for message in written)
    known = {"think", "search", "answer"}
    return any(set(_TAG.findall(message.content)) - known for message in written)


FIGURES = (
    ("warm_hits", "EM warm"),
    ("trained_hits", "EM GRPO"),
    ("warm_not_offered_called", "calls, none offered"),
    ("warm_not_existing_called", "calls, not existing"),
    ("trained_not_offered_called", "GRPO, none offered"),
)


def print_report(results: dict[tuple[str, int], dict[str, object]]) -> dict[str, object]:
    """The table of arms, and the figures behind it.

    Below each arm, and as `detectable`, stands the true difference that as many seeds and questions
    find in four cases of five: an interval of 95 % with a power of 80 %.
    """
    arms = list(dict.fromkeys(arm for arm, _ in results))
    seeds = sorted({seed for _, seed in results})
    print(f"{'arm':>10} {'SFT loss':>9} " + " ".join(f"{title:>26}" for _, title in FIGURES))
    report: dict[str, object] = {"benchmark": "data_value", "seeds": len(seeds)}
    for arm in arms:
        rows = [results[arm, seed] for seed in seeds]
        told = {"sft_loss": [row["sft_loss"] for row in rows]}
        cells = []
        for key, _ in FIGURES:
            rates = [fmean(row[key]) for row in rows]
            plain = [results["plain", seed][key] for seed in seeds] if "plain" in arms else []
            low, high, error = _difference([row[key] for row in rows], plain or None)
            told[key] = {"by_seed": rates, "mean": fmean(rates), "difference_ci95": [low, high]}
            told[key]["detectable"] = _POWER * error
            cells.append(f"{f'{fmean(rates):.3f} ({low:+.3f}..{high:+.3f})':>26}")
        print(f"{arm:>10} {fmean(told['sft_loss']):>9.4f} " + " ".join(cells))
        if arm != "plain":
            found = [f"+-{told[key]['detectable']:.3f}" for key, _ in FIGURES]
            print(f"{'':>10} {'found':>9} " + " ".join(f"{one:>26}" for one in found))
        report[arm] = told | {
            "sft_tokens": [row["sft_tokens"] for row in rows],
            "read_tokens": [row["read_tokens"] for row in rows],
        }
    return report


def _difference(arm: list[list[int]], plain: list[list[int]] | None) -> tuple[float, float, float]:
    """Bootstrap of the mean paired difference, over seeds and the questions in them.

    Returns:
        The bounds of 95 %, and the standard error; 0.0 each without anything to compare with.
    """
    if plain is None:
        return 0.0, 0.0, 0.0
    paired = [
        [a - b for a, b in zip(one, other, strict=True)]
        for one, other in zip(arm, plain, strict=True)
    ]
    rng = random.Random(0)
    means = sorted(
        fmean(fmean(rng.choices(seed, k=len(seed))) for seed in rng.choices(paired, k=len(paired)))
        for _ in range(RESAMPLES)
    )
    return means[int(0.025 * RESAMPLES)], means[int(0.975 * RESAMPLES)], pstdev(means)
