"""Does the judge of plans keep the right ones? Truth is what comes of carrying them out.

    python -m tests.benchmarks.fas_judge --run runs/tiny --seeds 3

--run is the folder of a run that has reached its warm start. Its warm-started policy plans the
first action of training questions (chains that no demonstration answers), several draws of each.
The judge of FAS planning sees question and plan; the truth is what comes of carrying the plan out
through the real search tool, which the judge never sees. AgentFounder (arXiv:2509.13310) reports
43.5 % dropped, and 50 % -> 82 % accuracy.

A finished seed keeps its result under --out and is not sampled again. The last line is one JSON
object; intervals are 95 % bootstrap over questions, all seeds together.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
from pathlib import Path

from tests.benchmarks.finished_run import add_run_options, profile_of_run
from tests.benchmarks.keeping import keep, kept, provenance

TEMPERATURE = 1.0
RESAMPLES = 2000


def main() -> None:
    """Sample what is missing, then report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add_run_options(parser, "runs/tiny")
    parser.add_argument("--policy", default="warm_policy", help="artifact folder of the run")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--questions", type=int, default=300)
    parser.add_argument("--plans", type=int, default=4, help="draws of each question")
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks/fas_judge"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    by_seed = [_rows_of(options, seed) for seed in range(options.seeds)]
    _report(options, by_seed)


def _rows_of(options: argparse.Namespace, seed: int) -> list[dict[str, object]]:
    """The plans of one seed, sampled unless they are kept."""
    asked = {
        "run": str(options.run),
        "profile": options.profile and str(options.profile),
        "policy": options.policy,
        "seed": seed,
        "questions": options.questions,
        "plans": options.plans,
        "temperature": TEMPERATURE,
    }
    path = options.out / f"{options.policy}-{seed}.json"
    rows = kept(path, asked)
    if rows is None:
        rows = _sampled(options, seed)
        keep(path, asked, rows, provenance(1))
        print(f"seed {seed}: {len(rows)} plans", flush=True)
    return rows


def _sampled(options: argparse.Namespace, seed: int) -> list[dict[str, object]]:
    from espalier.policy.loading import load_policy
    from espalier.records.knowledge import KnowledgeGraph, load_documents
    from espalier.rollout.roller import Roller
    from espalier_search.knowledge.search import SearchTool, documents_path
    from espalier_search.search_qa import SearchQA, search_environments
    from espalier_search.synthesis.agent_texts.embedded import EmbeddedTeacher
    from espalier_search.synthesis.agent_texts.schema import Schema

    profile = profile_of_run(options)
    knowledge = options.run / "knowledge"
    search = SearchTool.open(knowledge, "train", profile.search)
    tasks = _tasks(options, seed)
    first_only = profile.model_copy(
        update={"episode": profile.episode.model_copy(update={"max_turns": 1})}
    )
    policy = load_policy(options.run / options.policy / "policy")
    environments = search_environments(search, SearchQA(first_only))
    roller = Roller.local(policy, environments, first_only)
    played = roller.roll_out(tasks, samples=options.plans, temperature=TEMPERATURE, seed=seed)
    schema = Schema(
        KnowledgeGraph.load(knowledge), load_documents(documents_path(knowledge, "train"))
    )
    judge = EmbeddedTeacher(schema, mistake_share=0.0, seed=seed)
    by_id = {task.task_id: task for task in tasks}
    return [_judged(by_id[t.task_id], t, judge, search) for t in played]


def _judged(task, trajectory, judge, search) -> dict[str, object]:
    from espalier.completions.request import ModelRefusal
    from espalier_search.synthesis.agent_texts.calls import (
        SEARCH,
        Plan,
        PlanInput,
        judge_request,
        plain_text,
    )
    from espalier_search.synthesis.rollouts import attempt_by_plan

    action = trajectory.messages[len(task.prompt)]
    # a policy may sample any byte: what could not stand in an answer is no plan either
    thought, query = "", ""
    if action.tool_calls:
        thought = plain_text(action.thought or "")
        query = plain_text(str(action.tool_calls[0].arguments["query"]))
    row = {"question": task.task_id, "hops": task.extra["hops"], "planned": bool(thought and query)}
    if not row["planned"]:
        return {**row, "kept": False, "right": False, "reason": "no plan"}
    plan = Plan(analysis=thought, tool="search", query=query)
    told = PlanInput(question=task.question, tools=(SEARCH,), plan=plan)
    judgement = asyncio.run(judge.answer(judge_request(told)))
    assert not isinstance(judgement, ModelRefusal), "the embedded judge judges"
    outcome = attempt_by_plan(task, plan, search).reward["outcome"]
    return {**row, "kept": judgement.likely, "right": outcome > 0, "reason": judgement.reason}


def _tasks(options: argparse.Namespace, seed: int):
    from espalier.records import read_tasks
    from espalier.records.trajectory import read_trajectories

    accepted = options.run / "accepted"
    shown = {t.task_id for t in read_trajectories(accepted / "trajectories.parquet")}
    chains = [
        task
        for task in read_tasks(accepted / "tasks" / "train.jsonl")
        if task.extra["kind"] == "chain" and task.task_id not in shown
    ]
    drawn = random.Random(f"fas_judge/{seed}").sample(chains, min(options.questions, len(chains)))
    return drawn


def figures(rows: list[dict[str, object]]) -> dict[str, float]:
    """Shares over plans; text that is no plan counts as no plan and nowhere else."""
    planned = [row for row in rows if row["planned"]]
    chosen = [row for row in planned if row["kept"]]
    right = [row for row in planned if row["right"]]
    both = [row for row in chosen if row["right"]]
    return {
        "plans": len(planned),
        "no_plan": len(rows) - len(planned),
        "kept_share": _share(len(chosen), len(planned)),
        "accuracy_before": _share(len(right), len(planned)),
        "accuracy_after": _share(len(both), len(chosen)),
        "recall": _share(len(both), len(right)),
        "refused_wrong": _share(
            sum(not row["kept"] for row in planned if not row["right"]), len(planned) - len(right)
        ),
    }


def _share(part: int, whole: int) -> float:
    return part / whole if whole else float("nan")


def intervals(rows: list[dict[str, object]]) -> dict[str, tuple[float, float]]:
    """95 % bootstrap over questions: draws of one question stay together."""
    by_question: dict[object, list[dict[str, object]]] = {}
    for row in rows:
        by_question.setdefault((row["seed"], row["question"]), []).append(row)
    clusters = list(by_question.values())
    rng = random.Random(0)
    drawn: dict[str, list[float]] = {}
    for _ in range(RESAMPLES):
        resample = [row for rows_ in rng.choices(clusters, k=len(clusters)) for row in rows_]
        for name, value in figures(resample).items():
            drawn.setdefault(name, []).append(value)
    low, high = int(0.025 * RESAMPLES), int(0.975 * RESAMPLES)
    return {name: (sorted(v)[low], sorted(v)[high]) for name, v in drawn.items()}


def _report(options: argparse.Namespace, by_seed: list[list[dict[str, object]]]) -> None:
    pooled = [{**row, "seed": seed} for seed, rows in enumerate(by_seed) for row in rows]
    found, between = figures(pooled), intervals(pooled)
    names = [name for name in found if name not in ("plans", "no_plan")]
    print(f"{'':>12} {'plans':>6} " + " ".join(f"{name:>16}" for name in names))
    for seed, rows in enumerate(by_seed):
        one = figures(rows)
        shown = " ".join(f"{one[name]:>16.3f}" for name in names)
        print(f"{f'seed {seed}':>12} {one['plans']:>6} {shown}")
    shown = " ".join(f"{found[name]:>16.3f}" for name in names)
    print(f"{'all':>12} {found['plans']:>6} {shown}")
    ends = " ".join(f"{f'{between[n][0]:.3f}-{between[n][1]:.3f}':>16}" for n in names)
    print(f"{'95 %':>12} {'':>6} {ends}")
    for hops in sorted({row["hops"] for row in pooled}):
        one = figures([row for row in pooled if row["hops"] == hops])
        shown = " ".join(f"{one[name]:>16.3f}" for name in names)
        print(f"{f'{hops} hops':>12} {one['plans']:>6} {shown}")
    result = {
        "benchmark": "fas_judge",
        "policy": options.policy,
        "seeds": options.seeds,
        "dropped_share": 1 - found["kept_share"],
        **found,
        "intervals": {name: between[name] for name in names},
        "by_seed": [figures(rows) for rows in by_seed],
        "paper": {"dropped_share": 0.435, "accuracy_before": 0.50, "accuracy_after": 0.82},
        "origin": provenance(1),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
