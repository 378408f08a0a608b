"""KL estimators, controllers, entropies and log-probs of verl, TRL and prime-rl."""

import torch

from espalier.algorithms import regularizers
from espalier.algorithms.masking import kept, masked_mean, whiten
from tests.factories.loss_batches import differentiate, loss_batch
from tests.unit.algorithms.golden import golden_test

VERL_ESTIMATORS = {"kl": "k1", "abs": "abs", "mse": "k2", "low_var_kl": "k3"}


def verl_kl(case):
    mask, reference = case.mask("response_mask"), case.tensor("ref_log_prob")
    policy = case.tensor("log_prob").requires_grad_()
    estimator = VERL_ESTIMATORS[case.params["kl_penalty"]]
    kl = regularizers.token_kl(policy - reference, estimator=estimator, convention="verl")
    (gradient,) = torch.autograd.grad(kept(kl, mask).sum(), policy)
    case.check(kl, "kl")
    case.check(gradient, "grad_masked_sum")
    case.check(masked_mean(kl, mask), "masked_mean")


def trl_k3(case):
    mask, policy = case.mask("response_mask"), case.tensor("log_prob")
    batch = loss_batch(
        policy,
        policy,
        torch.zeros_like(policy),
        mask,
        reference_logprobs_BT=case.tensor("ref_log_prob"),
    )
    mode = {"bnpo": "token_mean", "grpo": "row_mean_token_mean"}[case.params["loss_type"]]
    beta = case.params["beta"]
    result, gradient = differentiate(
        lambda b: regularizers.KlPenalty().loss(b, mode, coefficient=beta), batch
    )
    case.check(result.loss, "loss")
    case.check(gradient, "grad")
    case.check(result.metrics["kl"], "kl_metric")


def prime_rl_mismatch(case):
    trainer, inference = case.tensor("trainer_logprobs"), case.tensor("inference_logprobs")
    case.check(trainer - inference, "log_importance_ratio")
    case.check((trainer - inference).exp(), "importance_ratio")
    case.check(regularizers.mismatch_kl(trainer, inference), "mismatch_kl")


def verl_kl_in_reward(case):
    scores = case.tensor("token_level_scores")
    log_ratio = case.tensor("old_log_prob") - case.tensor("ref_log_prob")
    rule = regularizers.KlPenalty(
        place="reward", estimator="k1", coefficient=case.params["kl_ratio"]
    )
    everywhere = torch.ones_like(scores).bool()
    rewards = rule.penalized(scores, log_ratio, everywhere, coefficient=rule.coefficient)
    case.check(rewards, "token_level_rewards")


def verl_adaptive(case):
    rule = regularizers.AdaptiveKl(target=case.params["target_kl"], horizon=case.params["horizon"])
    coefficient, trace = case.params["init_kl_coef"], []
    for observed, steps in zip(case.inputs["current_kl"], case.inputs["n_steps"], strict=True):
        coefficient = rule.next_coefficient(coefficient, observed, steps)
        trace.append(coefficient)
    case.check(torch.tensor(trace, dtype=torch.float64), "value")


def entropy(case):
    logits = case.tensor("logits").requires_grad_()
    found = regularizers.token_entropy(logits)
    case.check(found, "entropy")
    if "response_mask" not in case.inputs:
        return
    mask = case.mask("response_mask")
    (gradient,) = torch.autograd.grad(kept(found, mask).sum(), logits)
    case.check(gradient, "grad_masked_sum")
    zeros = torch.zeros_like(found)
    batch = loss_batch(zeros, zeros, zeros, mask, entropy_BT=found)
    for name in ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean"):
        bonus = regularizers.entropy_bonus(batch, name.replace("-", "_"), coefficient=1.0)
        case.check(-bonus.loss, f"loss_{name}")


def verl_logprobs(case):
    mask, labels = case.mask("response_mask"), torch.tensor(case.inputs["labels"])
    logits = case.tensor("logits").requires_grad_()
    found = regularizers.token_logprobs(logits, labels, temperature=1.0)
    (gradient,) = torch.autograd.grad(kept(found, mask).sum(), logits)
    case.check(found, "log_prob")
    case.check(gradient, "grad_masked_sum")


def trl_logprobs(case):
    labels = torch.tensor(case.inputs["index"])
    found = regularizers.token_logprobs(
        case.tensor("logits"), labels, temperature=case.params["temperature"]
    )
    case.check(found, "log_prob")


def verl_whiten(case):
    values, mask = case.tensor("values"), case.mask("mask")
    whitened = whiten(values, mask)
    if not case.params["shift_mean"]:
        whitened = whitened + masked_mean(values, mask)
    case.check(whitened, "whitened", mask=mask)


test_kl_entropy_and_logprobs_equal_the_upstream_ones = golden_test(
    "kl",
    {
        "verl_kl": verl_kl,
        "verl_abs": verl_kl,
        "verl_mse": verl_kl,
        "verl_low_var_kl": verl_kl,
        "trl_k3_*": trl_k3,
        "prime_rl_mismatch_kl": prime_rl_mismatch,
        "verl_kl_in_reward": verl_kl_in_reward,
        "verl_adaptive_kl_controller": verl_adaptive,
        "*_entropy_from_logits": entropy,
        "verl_logprobs_from_logits": verl_logprobs,
        "trl_selective_log_softmax": trl_logprobs,
        "verl_masked_whiten": verl_whiten,
    },
)
