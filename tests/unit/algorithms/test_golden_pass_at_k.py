"""pass@k of human-eval, pass^k of tau-bench and tau2-bench."""

from statistics import fmean

import torch

from espalier.evaluation import pass_at_k, pass_hat_k
from tests.unit.algorithms.golden import golden_test


def _human_eval(case):
    correct, samples = case.inputs["num_correct"], case.inputs["num_samples"]
    samples = samples if isinstance(samples, list) else [samples] * len(correct)
    k = case.params["k"]
    ours = [pass_at_k(n, c, k) for n, c in zip(samples, correct, strict=True)]
    case.check(torch.tensor(ours, dtype=case.dtype), "pass_at_k")


def _tau_bench(case):
    """n is the number of distinct trials over all tasks; success is a reward of 1 within 1e-6."""
    owners, rewards = case.inputs["task_id"], case.inputs["reward"]
    successes = dict.fromkeys(owners, 0)
    for owner, reward in zip(owners, rewards, strict=True):
        successes[owner] += abs(reward - 1) <= 1e-6
    n = len(set(case.inputs["trial"]))
    assert set(case.expected["pass_hat_k"]) == {str(k) for k in range(1, n + 1)}
    for k in range(1, n + 1):
        ours = fmean(pass_hat_k(n, c, k) for c in successes.values())
        case.check(ours, "pass_hat_k", str(k))
    case.check(fmean(rewards), "average_reward")


def _tau2_bench(case):
    n, c = case.inputs["num_trials"], case.inputs["success_count"]
    case.check(pass_hat_k(n, c, case.params["k"]), "pass_hat_k")


test_an_estimate_equals_the_reference_implementation = golden_test(
    "pass_at_k",
    {"human_eval_*": _human_eval, "tau_bench_pass_hat": _tau_bench, "tau2_pass_hat_k": _tau2_bench},
)
