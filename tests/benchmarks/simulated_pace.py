"""Where samplers and learner wait for each other, from 64 to 4,096 GPUs: a simulation.

    python -m tests.benchmarks.simulated_pace

`espalier.planning.pace` with service times from the baselines beside this file:

    update      a line through both updates of Qwen3-0.6B's shape on an H200 (gpu.json)
    decoding    a step of 128 rows of Qwen2.5-1.5B's shape on an H200 (one_gpu.json); it waits for
                kernels to start, so fewer rows and Qwen3-0.6B, with as many layers, take as long
    tools       a program in a pod on gVisor, 20 at once (components/espalier/sandbox/README.md)
    lengths     turns of 272 attempts of the profile tiny, stretched to 2,000 action tokens

Not measured, but assumed: that updates divide among GPUs but for the exchange of gradients, at 400
Gb/s a GPU; 0.2 s until samplers have new weights; a tail of lengths (log-normal, sigma 0.8, cut at
8 means), since attempts of so small a policy have none. First prints what is measured on one
machine beside its simulation, then the table, and JSON in its last line. Further seeds by --seed.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any, NamedTuple

from espalier.planning.pace import Attempts, Learner, Samplers, simulated
from tests.benchmarks.keeping import commit

BASELINES = Path(__file__).parent / "baselines"
GPUS = (64, 256, 1024, 4096)
BOUNDS = (2, 8)
GROUPS, GROUP_SIZE, ACTION_TOKENS = 128, 16, 2000.0
ACTION_SHARE = 0.45
"""Action tokens of a trajectory's, as `espalier plan` assumes them."""
TOOL_S, TOOL_P99_S = 0.817, 1.353
ROWS = 128
PARAMETERS = 0.6e9
GPU_BYTES_PER_S = 50e9
EXCHANGE_S = 0.2
FIXED_SHARE = 0.31
"""Of a decoding step on two cores: 430 tokens/s with 64 rows, 510 with 128."""
LEARNER_SHARES = (1 / 16, 1 / 8, 1 / 4, 1 / 2)


class Case(NamedTuple):
    """Samplers and lengths of one block of the table."""

    name: str
    step_s: float
    tail: float


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    began_s = time.process_time()
    updates = baseline("gpu")["updates"]
    token_s = (updates[1]["seconds"] - updates[0]["seconds"]) / (
        updates[1]["tokens"] - updates[0]["tokens"]
    )
    update_s = updates[0]["seconds"] - token_s * updates[0]["tokens"]
    step_s = baseline("one_gpu")["decode"]["decode.bfloat16.ms_per_step"] / 1000
    measured = [with_tools(one, options.seed) for one in baseline("speed")["rollout"]["engines"]]
    for one in filter(None, measured):
        print(
            f"{one['engine']}: {one['without_tools']} tokens/s without tools, with tools of 0.1 s "
            f"{one['with_tools']} measured, {one['simulated']} simulated"
        )
    print(f"{'case':<34}{'GPUs':>6}{'learners':>9}{'bound':>6}{'step, s':>9}", end="")
    print(f"{'learner waits':>14}{'samplers idle':>14}{'staleness':>10}{'times':>7}")
    rows: list[dict[str, Any]] = []
    for case in (
        Case("measured lengths", step_s, 0.0),
        Case("long tail", step_s, 0.8),
    ):
        slowest_s = 0.0
        for gpus in GPUS:
            for bound in (0, *BOUNDS):
                row = cell(case, gpus, bound, update_s, token_s, options.seed)
                slowest_s = slowest_s or row["step_s"]
                row["times"] = round(slowest_s / row["step_s"], 2)
                rows.append(row)
                print(
                    f"{row['case']:<34}{gpus:>6}{row['learners']:>9}{bound:>6}{row['step_s']:>9}"
                    f"{row['learner_waits']:>13} %{row['samplers_idle']:>12} %"
                    f"{row['staleness']:>10}{row['times']:>7}"
                )
    print(
        json.dumps(
            {
                "benchmark": "pace",
                "commit": commit(),
                "seed": options.seed,
                "cpu_s": round(time.process_time() - began_s, 1),
                "measured": list(filter(None, measured)),
                "rows": rows,
            }
        )
    )


def with_tools(engine: dict[str, Any], seed: int) -> dict[str, Any] | None:
    """One machine of `tests.benchmarks.rollout`: its rate without tools predicts that with them."""
    bare, slowed = engine["tokens_per_s"]
    if slowed is None:
        return None
    row_step_s = 64 / bare
    samplers = Samplers(
        servers=1,
        rows=64,
        step_s=FIXED_SHARE * row_step_s,
        row_s=(1 - FIXED_SHARE) * row_step_s / 64,
    )
    learner = Learner(update_s=0.0, token_s=0.0)
    found = [
        simulated(
            samplers,
            learner,
            Attempts(
                groups=8,
                group_size=8,
                action_tokens=100.0,
                trained_tokens=100.0,
                tool_s=tool_s,
                tool_p99_s=tool_s,
            ),
            max_staleness=0,
            seed=seed,
        ).step_s
        for tool_s in (0.0, 0.1)
    ]
    return {
        "engine": engine["name"],
        "without_tools": bare,
        "with_tools": slowed,
        "simulated": round(bare * found[0] / found[1], 1),
    }


def cell(
    case: Case, gpus: int, bound: int, update_s: float, token_s: float, seed: int
) -> dict[str, Any]:
    """One row; with a bound of 0 every GPU samples and then learns, otherwise some do each."""
    trained = ACTION_TOKENS / ACTION_SHARE

    def learner_of(count: int) -> Learner:
        gradients_s = 2 * 4 * PARAMETERS / GPU_BYTES_PER_S
        return Learner(
            update_s=update_s + gradients_s, token_s=token_s / count, exchange_s=EXCHANGE_S
        )

    def slower_s(count: int) -> float:
        """Seconds of a step, if neither waited for the other."""
        tokens = GROUPS * GROUP_SIZE * ACTION_TOKENS
        learner = learner_of(count)
        learning_s = learner.update_s + learner.token_s * tokens / ACTION_SHARE
        return max(learning_s, tokens * case.step_s / (ROWS * (gpus - count)))

    learners = gpus
    if bound:
        learners = min((int(gpus * share) for share in LEARNER_SHARES), key=slower_s)
    found = simulated(
        Samplers(servers=gpus - learners or gpus, rows=ROWS, step_s=case.step_s),
        learner_of(learners),
        Attempts(
            groups=GROUPS,
            group_size=GROUP_SIZE,
            action_tokens=ACTION_TOKENS,
            trained_tokens=trained,
            tail=case.tail,
            tool_s=TOOL_S,
            tool_p99_s=TOOL_P99_S,
        ),
        max_staleness=bound,
        seed=seed,
    )
    return {
        "case": case.name,
        "gpus": gpus,
        "learners": learners,
        "bound": bound,
        "step_s": round(found.step_s, 1),
        "learner_waits": round(100 * found.learner_waits),
        "samplers_idle": round(100 * found.samplers_idle),
        "staleness": round(found.staleness, 1),
    }


def baseline(name: str) -> dict[str, Any]:
    """The figures of one measurement."""
    figures: dict[str, Any] = json.loads((BASELINES / f"{name}.json").read_text("utf-8"))
    return figures


if __name__ == "__main__":
    main()
