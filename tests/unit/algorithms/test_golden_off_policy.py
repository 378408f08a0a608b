"""Off-policy corrections of verl and TRL, and the losses of prime-rl that hold their own."""

import torch

from espalier.algorithms import off_policy
from espalier.algorithms.losses import Dppo, Ipo, PpoClip, Reinforce, Vespo
from espalier.algorithms.masking import masked_mean
from tests.factories.loss_batches import differentiate, loss_batch, totals_of
from tests.unit.algorithms.golden import golden_test, numbers


def correction_batch(trainer, behavior, mask, advantages=None):
    return off_policy.CorrectionBatch(
        trainer_logprobs_BT=trainer,
        behavior_logprobs_BT=behavior,
        action_mask_BT=mask,
        advantages_BT=advantages,
    )


def verl_batch(case, trainer="old_log_prob"):
    return correction_batch(
        case.tensor(trainer), case.tensor("rollout_log_prob"), case.mask("response_mask")
    )


def verl_weights_rule(case):
    return off_policy.ImportanceWeights(
        level=case.params["rollout_is"],
        upper=case.params["rollout_is_threshold"],
        normalize=case.params.get("rollout_is_batch_normalize", False),
    )


def verl_rejection_rules(case):
    """verl writes several rules as one string: token_k1,seq_mean_k3 with 0.6_1.6,0.05."""
    kinds = case.params["rollout_rs"].split(",")
    thresholds = case.params["rollout_rs_threshold"].split(",")
    rules = []
    for kind, threshold in zip(kinds, thresholds, strict=True):
        level, _, estimator = kind.rpartition("_")
        *lower, upper = map(float, threshold.split("_"))
        bounds = {"upper": upper, "lower": lower[0] if lower else None}
        rules.append(off_policy.Rejection(level=level, estimator=estimator, **bounds))
    return rules


def verl_weights(case):
    correction = verl_weights_rule(case).correct(verl_batch(case))
    case.check(correction.weights_BT, "rollout_is_weights")
    metrics = {
        "rollout_is_mean": "importance_ratio_mean",
        "rollout_is_max": "importance_ratio_max",
        "rollout_is_ratio_fraction_high": "importance_above_share",
    }
    if case.params["rollout_is"] == "token":
        # verl reads a sequence's smallest ratio before the clamp at exp(-20), ours after it
        metrics["rollout_is_min"] = "importance_ratio_min"
    for theirs, ours in metrics.items():
        case.check(correction.metrics[ours].double(), "metrics", theirs)


def verl_rejection(case):
    rules = verl_rejection_rules(case)
    correction = off_policy.correct(rules, verl_batch(case))
    case.check(correction.mask_BT, "modified_response_mask")
    for rule, kind in zip(rules, case.params["rollout_rs"].split(","), strict=True):
        for ours, theirs in (("rejected_share", ""), ("rejected_sequence_share", "seq_")):
            share = correction.metrics[f"{ours}_{rule.level}_{rule.estimator}"].double()
            case.check(share, "metrics", f"rollout_rs_{kind}_{theirs}masked_fraction")


def verl_weights_and_rejection(case):
    rules = [verl_weights_rule(case), *verl_rejection_rules(case)]
    correction = off_policy.correct(rules, verl_batch(case))
    case.check(correction.weights_BT, "rollout_is_weights")
    case.check(correction.mask_BT, "modified_response_mask")


def verl_metrics(case):
    ours = off_policy.mismatch_metrics(verl_batch(case))
    names = {
        "training_ppl": "trainer_perplexity",
        "rollout_ppl": "behavior_perplexity",
        "kl": "mismatch_kl_k1",
        "k3_kl": "mismatch_kl",
        "log_ppl_diff": "log_perplexity_gap",
        "log_ppl_abs_diff": "log_perplexity_gap_abs",
        "log_ppl_diff_max": "log_perplexity_gap_max",
        "log_ppl_diff_min": "log_perplexity_gap_min",
        "ppl_ratio": "perplexity_ratio",
        "chi2_token": "chi2_token",
        "chi2_seq": "chi2_row",
    }
    for theirs, name in names.items():
        case.check(ours[name], "metrics", theirs)


def verl_bypass(case):
    """The policy itself against the sampler, corrected anew at every update."""
    rules = [verl_weights_rule(case), *verl_rejection_rules(case)]
    correction = off_policy.correct(rules, verl_batch(case, trainer="log_prob"))
    is_reinforce = case.params["loss_type"] == "reinforce"
    batch = loss_batch(
        case.tensor("log_prob"),
        case.tensor("rollout_log_prob"),
        case.tensor("advantages"),
        correction.mask_BT,
        # the ratio of the clipped surrogate is this very weight
        importance_weights_BT=correction.weights_BT if is_reinforce else None,
    )
    clips = {"clip_low": case.params["clip_ratio_low"], "clip_high": case.params["clip_ratio_high"]}
    clipped = PpoClip(**clips, dual_clip=case.params["clip_ratio_c"])
    rule = Reinforce() if is_reinforce else clipped
    result, gradient = differentiate(lambda b: rule.loss(b, "token_mean"), batch)
    case.check(result.loss, "loss")
    case.check(gradient, "grad")
    log_ratio = batch.policy_logprobs_BT - batch.proximal_logprobs_BT
    case.check(-masked_mean(log_ratio, correction.mask_BT), "ppo_kl")


def padded(case, name, width, dtype=torch.float64):
    """A ragged input, with zeros after each row; a row that is null has NaN all along."""
    rows = case.inputs[name]
    full = [row if row is not None else [None] * width for row in rows]
    padding = [[*row, *[0] * (width - len(row))] for row in full]
    return torch.tensor(numbers(padding), dtype=dtype)


def trl_weights(case):
    width = max(len(row) for row in case.inputs["tool_mask"])
    mask = padded(case, "tool_mask", width, torch.bool)
    trainer = padded(case, "old_log_prob", width)
    batch = correction_batch(trainer, padded(case, "sampling_log_prob", width), mask)
    level, outside = case.params["vllm_importance_sampling_mode"].split("_")
    rule = off_policy.ImportanceWeights(
        level=level,
        outside={"truncate": "truncate", "mask": "zero"}[outside],
        lower=case.params["clip_min"],
        upper=case.params["clip_max"],
        log_ratio_bound=None,
    )
    correction = rule.correct(batch)
    if level == "token":
        # masked tokens have weight 1 in TRL and 0 here; neither is read
        case.check(correction.weights_BT.masked_fill(~mask, 1.0), "importance_sampling_ratio")
        mean = "sampling/importance_sampling_ratio/mean"
        case.check(correction.metrics["importance_weight_mean"], "metrics", mean)
    else:
        # one number a row, 1 for a row without tokens
        weights = correction.weights_BT.amax(dim=1, keepdim=True)
        weights = weights.masked_fill(~mask.any(dim=1, keepdim=True), 1.0)
        case.check(weights, "importance_sampling_ratio")
    gaps = off_policy.mismatch_metrics(batch)
    for kind in ("mean", "max"):
        theirs = f"sampling/sampling_logp_difference/{kind}"
        case.check(gaps[f"logprob_gap_{kind}"], "metrics", theirs)


def trl_sequence_mask(case):
    mask = case.mask("mask")
    advantages = case.tensor("advantages")[:, None].expand(mask.shape)
    policy, sampling = case.tensor("per_token_logps"), case.tensor("sampling_per_token_logps")
    rule = off_policy.OffPolicySequenceMask(threshold=case.params["off_policy_threshold"])
    correction = rule.correct(correction_batch(policy, sampling, mask, advantages))
    case.check(correction.weights_BT[:, 0], "keep")


def trl_vespo(case):
    mask, params = case.mask("mask"), case.params
    advantages = case.tensor("advantages")[:, None].expand(mask.shape)
    rule = Vespo(
        k_positive=params["k_pos"],
        k_negative=params["k_neg"],
        lambda_positive=params["lambda_pos"],
        lambda_negative=params["lambda_neg"],
    )
    batch = loss_batch(case.tensor("log_prob"), case.tensor("old_log_prob"), advantages, mask)
    case.check(rule.kernel(batch)[:, 0], "phi_seq")


def prime_rl(rule_of):
    """Theirs are sums over the tokens of one sequence, and means over those in and outside."""

    def check(case):
        assert case.params["adv_tau"] == 1
        mask = case.mask("loss_mask")[None]
        policy = case.tensor("trainer_logprobs")[None]
        batch = loss_batch(
            policy,
            torch.full_like(policy, float("nan")),
            case.tensor("advantages")[None],
            mask,
            behavior_logprobs_BT=case.tensor("inference_logprobs")[None],
        )
        rule = rule_of(case.params, kl_coefficient=case.params["kl_tau"])
        result, gradient = differentiate(lambda b: rule.loss(b, "token_mean"), batch)
        tokens = totals_of(mask).tokens
        case.check(result.loss * tokens, "loss")
        case.check(gradient[0] * tokens, "grad")
        outside = result.metrics["outside_share"].double()
        case.check(outside, "metrics", "is_masked")
        for theirs, ours, share in (
            ("masked", "outside", outside),
            ("unmasked", "inside", 1 - outside),
        ):
            kl = result.metrics[f"{ours}_mismatch_kl"]
            case.check(kl / share if share else kl, "metrics", f"{theirs}_mismatch_kl")

    return check


def dppo(params, **settings):
    return Dppo(fall=params["dppo_mask_low"], rise=params["dppo_mask_high"], **settings)


test_correction_equals_the_upstream_one = golden_test(
    "off_policy",
    {
        "verl_is_token_*": verl_weights,
        "verl_is_sequence_*": verl_weights,
        "verl_rs_*": verl_rejection,
        "verl_offpolicy_metrics": verl_metrics,
        "verl_is_plus_rs": verl_weights_and_rejection,
        "verl_bypass_*": verl_bypass,
        "trl_token_*": trl_weights,
        "trl_sequence_*": trl_weights,
        "trl_off_policy_sequence_mask_*": trl_sequence_mask,
        "trl_vespo_gamma_weights": trl_vespo,
        "prime_rl_default_loss_fn": prime_rl(dppo),
        "prime_rl_ipo_loss_fn": prime_rl(
            lambda params, **more: Ipo(threshold=params["ipo_threshold"], **more)
        ),
    },
)
