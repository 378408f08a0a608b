"""evaluate: judges the untrained, warm-started and trained policy on the same questions."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from espalier.chain import STAGES, opened, policy_digest, provenance
from espalier.config import Profile
from espalier.environments import Environments
from espalier.environments.memory import remembering
from espalier.environments.mixins import SearchesAddedLines
from espalier.evaluation.contamination import Training
from espalier.evaluation.lineage import lineage_of
from espalier.evaluation.policies import FinishedEvaluations, PolicyEvaluation, evaluate_on_suite
from espalier.evaluation.questions import QuestionRow, questions_table
from espalier.evaluation.results import (
    KNOWLEDGE,
    LOSSES,
    POLICIES,
    figures_as_written,
    gain,
    summarize,
)
from espalier.evaluation.run_suites import EvaluatedPolicy, judge_suite
from espalier.evaluation.suite import VIEW, Suite, make_suite
from espalier.evaluation.suite_results import TaskRow, write_rows
from espalier.records import (
    Draft,
    Manifest,
    Tracker,
    group_changes,
    json_digest,
    publishing,
    read_tasks,
    work_dir,
)
from espalier.records.streams import STREAMS_FOLDER, link_streams
from espalier.records.trajectory import Trajectory, write_trajectories
from espalier.rollout.roller import Roller
from espalier.usage import used_since

BASELINE = "warm_start"
"""Policy that the gain is measured against: gain = trained - baseline."""


_ARTIFACTS = {
    "untrained": "base_policy", "warm_start": "warm_policy", "trained": "trained_policy",
}  # fmt: skip
"""Name of a policy in the results -> its artifact."""


def run(
    profile: Profile,
    inputs: Mapping[str, Path],
    output_dir: Path,
    tracker: Tracker,
    *,
    external_digests: Mapping[str, str] | None = None,
) -> Manifest:
    """Judge the three policies and publish figures, rows, suite, and a stream of all attempts.

    Evaluations are kept in the work directory: after a kill only unfinished policies are judged.

    Raises:
        ArtifactError: an input is missing or damaged, or the output cannot be written.
        PolicyError: a policy cannot be loaded, or its dialect does not fit.
        EnvironmentLostError: too many episodes of a policy were lost in every attempt.
    """
    started = time.perf_counter()
    manifests = opened(inputs)
    origin = provenance("evaluate", profile, manifests, external_digests)
    heldout = read_tasks(inputs["accepted"] / "tasks" / "heldout.jsonl")
    suite = make_suite(profile, heldout, manifests["knowledge"].content)
    digests = {name: policy_digest(manifests[folder]) for name, folder in _ARTIFACTS.items()}
    with publishing(output_dir, origin) as draft:
        finished = FinishedEvaluations(work_dir(output_dir))
        # keys of the evaluations by policy, equal for equal weights
        settings = [suite.digest, STAGES["evaluate"].digest(profile)]
        keys = {name: json_digest([digest, *settings]) for name, digest in digests.items()}
        finished.name_attempts(keys)
        judged = _judge_all(profile, inputs, suite, keys, finished, tracker)
        results = results_of(profile, suite, digests, judged)
        for name, rows in _judged_as_written(profile, inputs, suite, digests, finished).items():
            whole = judged[name].rows
            results["eval"][name] |= figures_as_written(rows, whole, suite.config, profile.seed)
        if profile.evaluation.suites:
            training = _training(profile, inputs, manifests)
            policies = {
                name: EvaluatedPolicy(inputs[folder] / "policy", digests[name], training)
                for name, folder in _ARTIFACTS.items()
            }
            work = work_dir(output_dir)
            results["suites"] = _judge_suites(profile, inputs, policies, work, draft)
        _write(draft, results, suite, judged)
        for name, key in keys.items():
            link_streams(finished.attempts_folder(key), draft.path / STREAMS_FOLDER / name)
        _write_measurements(draft.path, judged, started)
    _report_figures(tracker, results, judged["trained"].kept, output_dir)
    return draft.published


def _training(
    profile: Profile, inputs: Mapping[str, Path], manifests: Mapping[str, Manifest]
) -> Training:
    lineage = lineage_of(
        profile,
        inputs["accepted"],
        inputs["trained_policy"],  # its training includes that of the others
        manifests["accepted"].content,
        profile.policy.model,
    )
    if not lineage.base_name and profile.policy.start == "base":
        return lineage.training
    base = lineage.base_name or "the champion"
    return lineage.training + Training.not_known(f"what {base}, its base, was trained on")


def _judge_suites(
    profile: Profile,
    inputs: Mapping[str, Path],
    policies: Mapping[str, EvaluatedPolicy],
    work: Path,
    draft: Draft,
) -> dict[str, Any]:
    """Judge the policies on the profile's suites, write the rows, and return figures by suite."""
    figures: dict[str, Any] = {}
    rows: list[TaskRow] = []
    for name in profile.evaluation.suites:
        found = judge_suite(name, profile, policies, inputs, work)
        figures[name] = found.figures
        rows += [row for of_policy in found.rows.values() for row in of_policy]
    draft.rows["suite_tasks"] = write_rows(draft.path / "suites.parquet", rows)
    return figures


def results_of(
    profile: Profile,
    suite: Suite,
    digests: Mapping[str, str],
    judged: Mapping[str, PolicyEvaluation],
) -> dict[str, Any]:
    """The content of results.json."""
    config, seed = suite.config, profile.seed
    figures = {name: summarize(one.rows, config, seed) for name, one in judged.items()}
    difference = gain(judged["trained"].rows, judged[BASELINE].rows, config, seed)
    return {
        "suite": {
            "digest": suite.digest,
            "n": len(suite.tasks),
            "sampled_n": len(suite.sampled_tasks),
            "samples_per_task": config.samples_per_task,
        },
        "environment": dict(suite.environment),
        "bootstrap": {
            "resamples": config.bootstrap_resamples,
            "confidence": config.confidence,
            "seed": seed,
        },
        "policies": dict(digests),
        # the tiny policy is made by a stage that trains it
        "taught_to_read": profile.policy.directory is None,
        "eval": {**figures, "gain": {**difference, "baseline": BASELINE}},
    }


def _judge_all(
    profile: Profile,
    inputs: Mapping[str, Path],
    suite: Suite,
    keys: Mapping[str, str],
    finished: FinishedEvaluations,
    tracker: Tracker,
) -> dict[str, PolicyEvaluation]:
    """Judge the policies without a kept evaluation; policies with equal weights share one."""
    judged = {}
    with (
        remembering(profile, inputs["accepted"]).environments(
            inputs["knowledge"]
        ) as environments_over,
        tracker.progress("policies judged", total=len(keys)) as progress,
    ):
        environments = environments_over(VIEW)
        for name, folder in _ARTIFACTS.items():
            attempts = finished.attempts_folder(keys[name])
            evaluate = partial(_roll_out, profile, suite, inputs[folder], environments, attempts)
            judged[name] = finished.get(keys[name], evaluate)
            progress.advance()
    return judged


def _judged_as_written(
    profile: Profile,
    inputs: Mapping[str, Path],
    suite: Suite,
    digests: Mapping[str, str],
    finished: FinishedEvaluations,
) -> dict[str, list[QuestionRow]]:
    """Warm-started and trained policy on the questions that ask for added lines, without these."""
    family = remembering(profile, inputs["accepted"])
    if not isinstance(family, SearchesAddedLines):
        return {}
    part = suite.part([task for task in suite.tasks if family.asks_for_added_lines(task)])
    if not part.tasks:
        return {}
    settings = [part.digest, STAGES["evaluate"].digest(profile), "as written"]
    judged = {}
    with family.environments_as_written(inputs["knowledge"]) as environments:
        for name in (BASELINE, "trained"):
            key = json_digest([digests[name], *settings])
            evaluate = partial(_roll_out, profile, part, inputs[_ARTIFACTS[name]], environments)
            judged[name] = finished.get(key, evaluate).rows
    return judged


def _roll_out(
    profile: Profile,
    suite: Suite,
    policy_dir: Path,
    environments: Environments,
    attempts: Path | None = None,
) -> PolicyEvaluation:
    roller = Roller.open(policy_dir / "policy", environments, profile)
    return evaluate_on_suite(roller, suite, profile.seed, attempts)


def _write(
    draft: Draft, results: Mapping[str, Any], suite: Suite, judged: Mapping[str, PolicyEvaluation]
) -> None:
    for name, content in (("results.json", results), ("suite.json", suite.described())):
        text = json.dumps(content, indent=1, ensure_ascii=False)
        (draft.path / name).write_text(text + "\n", encoding="utf-8")
    questions = questions_table({name: one.rows for name, one in judged.items()})
    pq.write_table(questions, draft.path / "questions.parquet")
    draft.rows["questions"] = questions.num_rows
    path = draft.path / "trajectories.parquet"
    draft.rows["trajectories"] = write_trajectories(path, judged["trained"].kept)


def _write_measurements(
    directory: Path, judged: Mapping[str, PolicyEvaluation], started: float
) -> None:
    """Write run.json: throughput with rollouts before a kill, cost of the last attempt only."""
    costs = [one.cost for one in judged.values()]
    rollout_s = sum(cost.seconds for cost in costs)
    total_tokens = sum(cost.total_tokens for cost in costs)
    measured = {
        **used_since(started),
        "rollout_tokens_per_s": round(total_tokens / rollout_s, 1) if rollout_s else None,
        "policies": {name: asdict(one.cost) for name, one in judged.items()},
    }
    (directory / "run.json").write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")


def _report_figures(
    tracker: Tracker, results: Mapping[str, Any], kept: Sequence[Trajectory], output_dir: Path
) -> None:
    tracker.params({"suite_digest": results["suite"]["digest"]})
    figures = results["eval"]
    for name in POLICIES:
        known = (figure for figure in ("f1", *KNOWLEDGE) if figure in figures[name])
        said = ("em", *LOSSES, *known)
        tracker.metrics({f"{name}_{figure}": figures[name][figure] for figure in said})
    tracker.metrics({"gain_em": figures["gain"]["em"]})
    for name, found in results.get("suites", {}).items():
        for policy, own in found["policies"].items():
            if "headline" in own:
                tracker.metrics({f"{policy}_{name}": own["headline"]["mean"]})
    tracker.artifact(output_dir / "results.json")
    tracker.episodes(
        [
            {
                "task_id": trajectory.task_id,
                "messages": [message.model_dump() for message in trajectory.messages],
                "reward": trajectory.total_reward,
                "finish_reason": trajectory.finish_reason.value,
                "tools": [result.call.name for result in trajectory.tool_results],
            }
            for trajectory in kept
        ]
    )
    low, high = figures["gain"]["ci95"]
    tracker.note(
        f"held-out EM {100 * figures[BASELINE]['em']:.1f} -> {100 * figures['trained']['em']:.1f}, "
        f"gain {100 * figures['gain']['em']:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})"
    )
    if "as_written_em" in figures["trained"]:
        own = figures["trained"]
        tracker.note(
            f"of these, {own['as_written_n']} questions made from triples, EM of the trained "
            f"policy: {100 * own['added_lines_em']:.1f} with the added lines, "
            f"{100 * own['as_written_em']:.1f} over the documents as they are written"
        )
    if not figures["trained"]["em"]:
        tracker.note(
            "warning: the trained policy is right in none of the held-out questions; it is "
            "registered all the same, and no gate will pass it"
        )
    if fallen := [str(it) for it in group_changes(figures["gain"]).values() if it.has_fallen]:
        tracker.note(f"warning: training lost EM in groups of questions: {'; '.join(fallen)}")
