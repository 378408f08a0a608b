"""Whatever happens to its sandboxes: what does a pool still keep?

    python -m tests.benchmarks.chaos --seconds 1200 --claims 10000 --seed 0

Real local sandboxes (bubblewrap) in a real pool, lent to many borrowers at once, while processes
are killed and frozen, connections delayed, broken off and lied on, creates fail, borrowers are
cancelled, raise and leave things behind, and pools are closed under their borrowers. Invariants:

    sharing    no sandbox has two borrowers, as the harness and a program in the sandbox see it
    leftover   nothing of an earlier borrower is found: files, names, processes, ports, times
    hanging    every claim and call ends in its time, with a result or a SandboxError
    results    each call's output is its own
    size       there are never more sandboxes than the pool may have
    nothing    is left of a closed pool: process, folder, descriptor, thread, control group, memory
    recovery   a minute after the chaos claims succeed again
    metrics    what was created was closed

Moments and victims are drawn from the seed; what runs at that moment is the machine's. A line for
each pool; the last line is one JSON object. The first violation ends the trial: its moment, the
seed and the events before it are printed, and the command fails. `--weaken` takes a safeguard out,
as a control: a violation has to be found then.
"""

import argparse
import dataclasses
import json
import sys
import time

from tests.benchmarks.chaos.trial import Trial
from tests.benchmarks.chaos.world import Plan
from tests.benchmarks.keeping import commit

_LONGEST_LIFE_S = 60.0


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=1200.0)
    parser.add_argument("--claims", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pools", type=int, help="opened one after the other (one a minute)")
    parser.add_argument("--size", type=int, default=10, help="sandboxes of a pool")
    parser.add_argument("--weaken", choices=("reset", "sharing", "closing"))
    options = parser.parse_args()
    plan = Plan(
        seconds=options.seconds,
        claims=options.claims,
        seed=options.seed,
        size=options.size,
        borrowers=2 * options.size,
        pools=options.pools or max(4, round(options.seconds / _LONGEST_LIFE_S)),
        weaken=options.weaken,
    )
    origin = commit()
    trial = Trial(plan, lambda line: print(line, flush=True))
    trial.run()
    if trial.world.violations:
        print(f"seed {plan.seed}, violated at {trial.world.violations[0]}; the events before it:")
        print("\n".join(trial.world.events))
    print(json.dumps({"benchmark": "chaos", "commit": origin} | figures(trial)))
    sys.exit(bool(trial.world.violations))


def figures(trial):
    """The headline figures of a trial."""
    world = trial.world
    seconds = sorted(world.claim_s)
    return {
        "plan": dataclasses.asdict(world.plan),
        "seconds": round(time.monotonic() - world.began_s, 1),
        "claims": world.claims,
        "lent": world.served,
        "ended": dict(sorted(world.causes.items())),
        "events": dict(sorted(world.counted.items())),
        "sandboxes_made": trial.made,
        "most_existing": trial.most_existing,
        "violations": world.violations,
        "claim_s": {share: _quantile(seconds, share) for share in (0.5, 0.9, 0.99, 1.0)},
        "recovery_s": [round(taken_s, 2) for taken_s in trial.recovery_s],
        "memory_growth_mib": round(trial.growth_bytes / 2**20, 1),
    }


def _quantile(ordered, share):
    return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 3) if ordered else None


if __name__ == "__main__":
    main()
