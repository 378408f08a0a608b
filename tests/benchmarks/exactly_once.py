"""Is each prompt trained once, or dropped under a reason, however often a run is killed?

    python -m tests.benchmarks.exactly_once --kills 20 --seed 0

Tiny runs, in turns and ahead of the learner, each killed with SIGKILL at points uniform over what
is left of it and started again, until each mode has had its kills. Beside the ledger three things
are written down that it has no hand in: every task that the pool hands out, every group that the
learner has learned from, and the checkpoint that each kill left. In the end they are compared:

    whole     every number from 0 on is in the ledger once, and the counts are those of its rows
    skipped   draws that were made and are neither trained nor dropped, or are another task now
    doubled   draws that more than one step of the kept weights has learned from, or one twice
    stale     groups that were learned from later than the bound allows

In turns, ledger and weights must also be those of a run that nobody killed. The last line is one
JSON object; exit code 1 where something is wrong.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import sys
import time
from collections import Counter
from pathlib import Path

import torch

from espalier.records import NullTracker
from tests.factories.tiny_training import STEPS, profile_of, tiny_run, write_inputs

MODES = {"in turns": 0, "ahead": 2}
KILLS_PER_RUN = 4
"""Kills that one run has to bear before it may finish."""


def main():
    """Kill, compare, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=20, help="in each mode")
    parser.add_argument("--modes", nargs="*", choices=MODES, default=list(MODES))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks/exactly_once"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    shutil.rmtree(options.out, ignore_errors=True)
    options.out.mkdir(parents=True)
    inputs = options.out / "inputs"
    inputs.mkdir()
    # every life is a forked process: torch is imported once, and this process computes nothing
    finish(forked(lambda: write_inputs(inputs)))
    rng = random.Random(options.seed)
    totals = {mode: Bench(options.out, mode, rng).kill(options.kills) for mode in options.modes}
    total = sum(totals.values(), Counter())
    figures = {
        "benchmark": "exactly_once",
        "seed": options.seed,
        **{name: total[name] for name in ("kills", "runs", "draws", "trained", "dropped")},
        **{name: total[name] for name in FAULTS},
        "by_mode": {mode: dict(counts) for mode, counts in totals.items()},
    }
    print(json.dumps(figures))
    sys.exit(any(total[name] for name in FAULTS))


FAULTS = ("not_whole", "skipped", "doubled", "stale", "unlike_undisturbed")


class Bench:
    """Runs of one mode."""

    def __init__(self, out, mode, rng):
        self._out, self._mode, self._rng = out, mode, rng
        self._max_staleness = MODES[mode]
        self._reference = self._life("undisturbed")
        started = time.perf_counter()
        finish(self._reference)
        self._usual_s = time.perf_counter() - started
        print(f"{mode}: undisturbed run of {STEPS} steps: {self._usual_s:.1f} s", flush=True)

    def kill(self, kills):
        """Runs until that many kills have hit; what they came to, as counts."""
        counts = Counter()
        while counts["kills"] < kills:
            name = f"run-{counts['runs']}"
            most = min(KILLS_PER_RUN, kills - counts["kills"])
            struck = sum(self._strike(name, counts) for _ in range(most))
            finish(self._life(name))
            found = self._compared(name)
            counts.update(runs=1, kills=struck, **found)
            wrong = {fault: found[fault] for fault in FAULTS if found.get(fault)}
            print(
                f"{self._mode}, {name}: {struck} kills, {found['draws']} draws, "
                f"{found['trained']} trained, {found['dropped']} dropped; "
                f"{wrong or 'none skipped, none doubled'}",
                flush=True,
            )
        return counts

    def _strike(self, name, counts):
        """Kill one life at a point uniform over the steps that it has left."""
        events = self._folder(name) / "events.jsonl"
        written = events.stat().st_size if events.exists() else 0
        first = self._left_by_kill(name)["step"]
        target = self._rng.uniform(first, STEPS)
        process, started = self._life(name), time.perf_counter()
        while (done := _newest_step(events, written, first)) < int(target):
            if os.waitpid(process, os.WNOHANG)[0]:
                return 0
            time.sleep(0.005)
        # the machine is now faster, now slower than it was for the undisturbed run
        taken_s = time.perf_counter() - started
        a_step_s = taken_s / (done - first) if done > first else 2 * self._usual_s / STEPS
        time.sleep((target - int(target)) * a_step_s)
        os.kill(process, signal.SIGKILL)  # not waited for yet, so the number is still its own
        _, status = os.waitpid(process, 0)
        if os.waitstatus_to_exitcode(status) != -signal.SIGKILL:
            return 0
        left = self._left_by_kill(name)
        counts.update(not_whole=not left["is_whole"])
        print(
            f"{self._mode}, {name}: killed at step {target:.2f}; checkpoint of step "
            f"{left['step']}, {left['draws']} draws in its ledger, {left['open']} of them open, "
            f"{left['journalled']} in the journal",
            flush=True,
        )
        return 1

    def _left_by_kill(self, name):
        work = self._folder(name) / "work"
        journal = work / ".draws.jsonl"
        lines = journal.read_text().count("\n") - 1 if journal.exists() else 0
        if not (work / "latest.pt").exists():
            return {"step": 0, "draws": 0, "open": 0, "journalled": lines, "is_whole": True}
        checkpoint = torch.load(work / "latest.pt", weights_only=True)
        ledger = checkpoint["extra"]["ledger"]
        numbers = [row[0] for row in (*ledger["open"], *ledger["newest"])]
        counted = Counter(row[3] for row in ledger["newest"])
        is_whole = sorted(numbers) == list(range(ledger["next"])) and counted == ledger["counts"]
        step, draws, still_open = checkpoint["step"], ledger["next"], len(ledger["open"])
        return {
            "step": step,
            "draws": draws,
            "open": still_open,
            "journalled": lines,
            "is_whole": is_whole,
        }

    def _compared(self, name):
        folder = self._folder(name)
        summary, *rows = _lines(folder / "ledger.jsonl")
        told = Counter(row["outcome"] for row in rows)
        is_whole = (
            sorted(row["number"] for row in rows) == list(range(summary["draws"]))
            and all(summary[outcome] == count for outcome, count in told.items())
            and summary["open"] == 0
        )
        events = _lines(folder / "events.jsonl")
        drawn = [event for event in events if "drawn" in event]
        in_ledger = {row["number"]: row["task_id"] for row in rows}
        handed_out = {(draw, task) for event in drawn for draw, task in event["drawn"]}
        skipped = sum(in_ledger.get(draw) != task for draw, task in handed_out)
        skipped += summary["draws"] - len({draw for draw, _ in handed_out})
        # of each step the last time that it was done counts: the others went with their weights
        learned = {event["step"]: event for event in events if "learned" in event}
        groups = Counter(draw for event in learned.values() for draw, _ in event["learned"])
        trained = {row["number"]: row["step"] for row in rows if row["outcome"] == "trained"}
        skipped += len(trained.keys() ^ groups.keys())
        doubled = sum(count > 1 for count in groups.values())
        late = sum(
            step - 1 - version > self._max_staleness
            for step, event in learned.items()
            for _, version in event["learned"]
        )
        is_unlike = False
        if not self._max_staleness:
            undisturbed = self._folder("undisturbed")
            is_unlike = any(
                (folder / kept).read_bytes() != (undisturbed / kept).read_bytes()
                for kept in ("ledger.jsonl", "weights.txt")
            )
        return {
            "draws": summary["draws"],
            "trained": told["trained"],
            "dropped": told.total() - told["trained"],
            "not_whole": int(not is_whole),
            "skipped": skipped,
            "doubled": doubled,
            "stale": late,
            "unlike_undisturbed": int(is_unlike),
        }

    def _folder(self, name):
        return self._out / self._mode.replace(" ", "-") / name

    def _life(self, name):
        folder = self._folder(name)
        folder.mkdir(parents=True, exist_ok=True)
        return forked(lambda: live(self._out / "inputs", folder, self._max_staleness))


def _newest_step(events, offset, first):
    """The step that a life has come to, from what it wrote behind the offset."""
    if not events.exists():
        return first
    with events.open() as stream:
        stream.seek(offset)
        steps = [
            json.loads(line)["step"] for line in stream if line.endswith("}\n") and '"step"' in line
        ]
    return steps[-1] if steps else first


def live(inputs, folder, max_staleness):
    """Train to the end, and write down what is drawn and learned from meanwhile."""
    run = tiny_run(inputs, folder / "work", profile_of(max_staleness=max_staleness))
    parts, ledger = run.loop.parts, run.loop.parts.sampler.ledger
    log = (folder / "events.jsonl").open("a", buffering=1)
    log.write("\n")  # what the life before was writing may have no end
    if max_staleness:
        _log_orders(parts.sampler._own, log)
    else:
        _log_draws(parts.pool, ledger, log)
    _log_learning(run.loop, log)
    run.loop.run(NullTracker())
    ledger.write(folder / "ledger.jsonl")
    weights = b"".join(
        tensor.numpy().tobytes() for tensor in run.policy.model.state_dict().values()
    )
    (folder / "weights.txt").write_text(hashlib.sha256(weights).hexdigest())


def _log_draws(pool, ledger, log):
    """In turns: what the pool hands out, in its order, under the ledger's next numbers."""
    draw = pool.draw

    def logged(count, rng, **how):
        tasks = draw(count, rng, **how)
        numbered = [[ledger.num_draws + n, task.task_id] for n, task in enumerate(tasks)]
        log.write(json.dumps({"drawn": numbered}) + "\n")
        return tasks

    pool.draw = logged


def _log_orders(sampler, log):
    """Ahead of the learner: what is ordered, when it is."""
    order = sampler._worker.order

    def logged(given):
        log.write(json.dumps({"drawn": [[given.draw, given.task.task_id]]}) + "\n")
        order(given)

    sampler._worker.order = logged


def _log_learning(loop, log):
    """The groups of each step, once its update is over."""
    sample, apply = loop.parts.sampler.sample, loop._update.apply
    given = []

    def sampled(step, **how):
        rollouts = sample(step, **how)
        given[:] = [
            [g.draw, min(t.policy_version for t in g.trajectories)] for g in rollouts.groups
        ]
        log.write(json.dumps({"step": step + 1, "learned": []}) + "\n")
        return rollouts

    def applied(rows, units, context):
        figures = apply(rows, units, context)
        log.write(json.dumps({"step": context.number + 1, "learned": given}) + "\n")
        return figures

    loop.parts.sampler.sample, loop._update.apply = sampled, applied


def _lines(path):
    """JSON lines; the last of a killed process may be cut off, and the next one follow it."""
    found = []
    for line in path.read_text().splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def forked(work):
    """A process that does the work."""
    process = os.fork()
    if process:
        return process
    status = 1
    try:
        torch.set_num_threads(1)
        work()
        status = 0
    finally:
        if status:
            sys.excepthook(*sys.exc_info())
        os._exit(status)


def finish(process):
    """Wait for a process to end well."""
    _, status = os.waitpid(process, 0)
    if status:
        sys.exit(f"a run ended with {os.waitstatus_to_exitcode(status)}: see its lines above")


if __name__ == "__main__":
    main()
