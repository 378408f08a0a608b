"""Does a small folder of a user's own documents train an agent, with the default settings?

    python -m tests.benchmarks.own_folder
    python -m tests.benchmarks.own_folder --sets pairs --seeds 3
    python -m tests.benchmarks.own_folder --profile laptop --seeds 1

Two generated sets of a hundred short prose documents: one with the triples that the prose states,
one with 800 question pairs and nothing else. No setting was chosen on the triples; on the pairs one
was, which share of names RL renames. Others are tried on `tuning` (pairs) and `studied` (triples),
whose held-out answers were read for what goes wrong.

An arm is a set and a seed: every stage up to `evaluate` with the defaults of the library, or with
the profile of pipelines/profiles that is named, except that 40 % of the entities are held out, so
that 300 held-out questions or more are asked. The table has dev and held-out EM after the warm
start and after RL, the gain with its 95 % interval (paired over questions), and the minutes of the
whole run on the clock and on the processor; the latter only if the run was not interrupted. Below
it, EM of the held-out questions of one fact, in the words of the training's questions and in words
that no training question has. The last line is one JSON object.

A finished arm keeps its result with its commit in --out. A killed one goes on where it stood. What
another commit or other settings left there is refused, unless --any-commit counts it or --again
deletes it.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import pyarrow.parquet as pq

from espalier.records import Message
from tests.benchmarks.arms import (
    POLICIES,
    Arm,
    add_arm_options,
    asked,
    kept_arm,
    result_of,
    run_all,
    together,
)
from tests.benchmarks.chain_runs import run_chain
from tests.benchmarks.families import PROFILES
from tests.benchmarks.keeping import commit, keep, provenance
from tests.factories.prose_folder import ProseFolder, write

if TYPE_CHECKING:
    from espalier.config import Profile


class DocumentSet(NamedTuple):
    """A generated folder."""

    seed: int
    given: Literal["triples", "questions"]
    """Which file stands beside the documents."""


SETS = {
    "triples": DocumentSet(4, "triples"),
    "pairs": DocumentSet(2, "questions"),
    "tuning": DocumentSet(3, "questions"),
    "studied": DocumentSet(1, "triples"),
}
LEAST_TASKS = 300
BUDGET_MIN = 10
"""Minutes of a whole run on two cores that do nothing else."""
SETTINGS = ("splits.heldout_share=0.4", "evaluation.sampled_questions=1")


def main() -> None:
    """Run what is missing, then print the table."""
    options = _options()
    if options.arm:
        run_arm(Arm.named(options.arm), options)
        return
    arms = [Arm(name, seed) for name in options.sets for seed in range(options.seeds)]
    missing = [arm for arm in arms if kept_result(arm, options) is None]
    commands = {arm.name: _command(arm, options) for arm in missing}
    run_all(commands, options.out, workers=options.workers)
    report(arms, options)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--sets", nargs="*", choices=list(SETS), default=["triples", "pairs"])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2, help="of torch, in an arm")
    parser.add_argument("--profile", help="name in pipelines/profiles; default: no profile")
    add_arm_options(parser, "runs/benchmarks/own_folder")
    return parser.parse_args()


def _command(arm: Arm, options: argparse.Namespace) -> list[str]:
    command = ["tests.benchmarks.own_folder", "--arm", arm.name, "--out", str(options.out)]
    command += ["--threads", str(options.threads)]
    command += ["--profile", options.profile] if options.profile else []
    return [*command, "--set", *options.set]


def documents_of(arm: Arm, options: argparse.Namespace) -> Path:
    """The folder of the arm's set, written where it is not there yet."""
    seed = SETS[arm.variant].seed
    directory = options.out / "documents" / f"{arm.variant}-{seed}"
    if not (directory / "questions.jsonl").is_file():
        write(ProseFolder(seed), directory)
    return directory


def profile_of(arm: Arm, options: argparse.Namespace) -> Profile:
    """The library's defaults, or those of the named profile, over the arm's documents."""
    from espalier.config import load_profile

    directory = documents_of(arm, options)
    given = SETS[arm.variant].given
    knowledge = {
        "source": "folder",
        "path": str(directory / "texts"),
        given: str(directory / f"{given}.jsonl"),
    }
    if options.profile:
        path = PROFILES / f"{options.profile}.toml"
    else:
        path = options.out / f"{arm.variant}.toml"
        path.write_text("")
    settings = [f"knowledge.{key}={value}" for key, value in knowledge.items()]
    settings += [f"threads={options.threads}", f"seed={arm.seed}", f"name={arm.variant}"]
    return load_profile(path, [*SETTINGS, *settings, *options.set])


def run_arm(arm: Arm, options: argparse.Namespace) -> None:
    """One arm in this process, up to `evaluate`."""
    from espalier.determinism import prepare_environment, prepare_torch

    prepare_environment()
    profile = profile_of(arm, options)
    prepare_torch(profile.threads)
    run_dir, path = options.out / arm.name, options.out / f"{arm.name}.json"
    is_whole = not run_dir.exists()
    begun = {"asked": asked(profile), "origin": {"commit": commit()}}
    path.with_suffix(".begun").write_text(json.dumps(begun))
    run_chain(profile, run_dir, "evaluate")
    cpu_s = _processor_seconds() if is_whole else None
    folder = ProseFolder(SETS[arm.variant].seed)
    result = result_of(run_dir) | figures_of(run_dir) | {"cpu_s": cpu_s}
    result |= {"words": asked_otherwise(run_dir, profile, folder)}
    keep(path, asked(profile), [result], provenance(profile.threads))
    path.with_suffix(".begun").unlink()


def _processor_seconds() -> float:
    who = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(resource.getrusage(one).ru_utime + resource.getrusage(one).ru_stime for one in who)


def figures_of(run_dir: Path) -> dict[str, Any]:
    """Dev EM after each part of the training, and how many tasks each part had."""
    warm = _dev_em(run_dir / "warm_policy" / "history.parquet")
    history = pq.read_table(run_dir / "trained_policy" / "history.parquet").to_pylist()
    curriculum = json.loads((run_dir / "curriculum" / "manifest.json").read_bytes())["rows"]
    return {
        # RL keeps the weights that it began with where no later ones are better
        "dev_em": {
            "warm_start": warm,
            "trained": max(warm, _dev_em(run_dir / "trained_policy" / "history.parquet")),
        },
        "demonstrations": json.loads((run_dir / "warm_policy" / "manifest.json").read_bytes())[
            "rows"
        ]["trajectories"],
        "learnable": curriculum["kept"],
        "candidates": curriculum["candidates"],
        "rl_steps": len(history),
        "zero_variance_share": sum(row["zero_variance_share"] for row in history)
        / max(1, len(history)),
    }


def _dev_em(path: Path) -> float:
    rows = pq.read_table(path, columns=["dev_em"]).to_pylist()
    return max((row["dev_em"] for row in rows if row["dev_em"] is not None), default=0.0)


def asked_otherwise(run_dir: Path, profile: Profile, folder: ProseFolder) -> dict[str, Any]:
    """EM of the held-out questions of one fact in the training's words, and in others."""
    from espalier.environments import family_of
    from espalier.records import read_tasks
    from espalier.rollout.roller import Roller

    facts = {(fact.subject, fact.relation): fact for fact in folder.facts}
    words = {
        template.format(s=fact.subject): fact
        for fact in folder.facts
        for template in folder.wordings(fact)
    }
    other = []
    for task in read_tasks(run_dir / "accepted" / "tasks" / "heldout.jsonl"):
        fact = words.get(task.prompt[-1].content)
        if fact is None:  # of triples: a query of one relation
            relation, subject = task.metadata.pattern, task.metadata.extra.get("entities", [""])[0]
            fact = facts.get((subject, relation.removesuffix("(C)")))
        if fact is not None:
            prompt = (*task.prompt[:-1], Message(role="user", content=folder.otherwise(fact)))
            other.append(task.model_copy(update={"prompt": prompt}))
    rows = pq.read_table(run_dir / "evaluation" / "questions.parquet").to_pylist()
    is_right = {(row["policy"], row["task_id"]): row["em"] for row in rows}
    found: dict[str, Any] = {"n": len(other), "training": {}, "other": {}}
    with family_of(profile).environments(run_dir / "knowledge") as environments_over:
        for name in POLICIES[1:]:
            policy_dir = run_dir / f"{name.removesuffix('_start')}_policy" / "policy"
            judge = Roller.open(policy_dir, environments_over("full"), profile)
            answers = judge.roll_out(other, samples=1, temperature=0.0, seed=profile.seed)
            same = [is_right[name, task.task_id] for task in other]
            found["training"][name] = sum(same) / len(other)
            found["other"][name] = sum(answer.is_right for answer in answers) / len(other)
    return found


def kept_result(arm: Arm, options: argparse.Namespace) -> dict[str, Any] | None:
    """See `kept_arm`."""
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / f"{arm.name}.json"
    return kept_arm(path, lambda: profile_of(arm, options), options)


def report(arms: list[Arm], options: argparse.Namespace) -> None:
    """A line an arm, and the JSON line.

    Raises:
        SystemExit: an arm answered too few questions, or took too long.
    """
    results = {arm: result for arm in arms if (result := kept_result(arm, options))}
    print(
        "set        seed    n   dev EM warm, RL   EM untrained, warm, RL   gain [95%]          "
        "   minutes  processor"
    )
    headline: dict[str, Any] = {}
    for arm, result in results.items():
        headline[arm.name] = one = summary(result)
        dev = " ".join(f"{100 * one['dev_em'][name]:7.1f}" for name in POLICIES[1:])
        em = " ".join(f"{100 * one['em'][name]:7.1f}" for name in POLICIES)
        mean, low, high = (100 * value for value in one["gain"])
        cpu = "-" if one["cpu_minutes"] is None else f"{one['cpu_minutes']:.1f}"
        print(
            f"{arm.variant:<9} {arm.seed:>5} {one['n']:>5}   {dev}   {em}   "
            f"{mean:+6.1f} [{low:+5.1f}, {high:+5.1f}]  {one['minutes']:8.1f}  {cpu:>9}"
        )
    for name, one in headline.items():
        words = one["words"]
        said = (
            f"{which} words " + " ".join(f"{100 * words[which][p]:.1f}" for p in POLICIES[1:])
            for which in ("training", "other")
        )
        print(f"{name}: {words['n']} questions of one fact, warm start, RL: {'; '.join(said)}")
    print(json.dumps(headline))
    few = [name for name, one in headline.items() if one["n"] < LEAST_TASKS]
    slow = [name for name, one in headline.items() if one["minutes"] > BUDGET_MIN]
    if few:
        sys.exit(f"{', '.join(few)}: fewer than {LEAST_TASKS} held-out questions")
    if slow:
        print(f"{', '.join(slow)}: over the budget of {BUDGET_MIN} minutes", file=sys.stderr)


def summary(result: dict[str, Any]) -> dict[str, Any]:
    """What is quoted of an arm."""
    whole = together([result])
    seconds = sum(stage["seconds"] for stage in result["timings"].values())
    cpu_s = result["cpu_s"]
    names = ("dev_em", "demonstrations", "candidates", "learnable", "rl_steps", "words", "commit")
    return {
        "n": whole["n"],
        "em": whole["em"],
        "gain": whole["gain"],
        **{name: result[name] for name in names},
        "zero_variance_share": round(result["zero_variance_share"], 3),
        "minutes": round(seconds / 60, 1),
        "cpu_minutes": None if cpu_s is None else round(cpu_s / 60, 1),
    }


if __name__ == "__main__":
    main()
