"""The policy losses of verl and TRL: scalar, gradient, and the metrics that ours have as well."""

from dataclasses import replace

import torch

from espalier.algorithms import losses
from espalier.algorithms.aggregation import aggregate
from espalier.algorithms.batch import PolicyLoss
from espalier.algorithms.masking import masked_mean
from espalier.algorithms.off_policy import CorrectionBatch, OffPolicySequenceMask
from espalier.algorithms.regularizers import KlPenalty, token_kl
from tests.factories.loss_batches import differentiate, loss_batch, totals_of
from tests.unit.algorithms.golden import golden_test

VERL_MODES = {
    "token-mean": "token_mean",
    "seq-mean-token-sum": "seq_mean_token_sum",
    "seq-mean-token-mean": "seq_mean_token_mean",
    "seq-mean-token-sum-norm": "token_sum_norm",
    "seq-mean-token-mean (fixed)": "seq_mean_token_mean",
    "mean over sequences (fixed)": "row_mean_token_mean",
}
TRL_MODES = {
    "grpo": "row_mean_token_mean",
    "sapo": "row_mean_token_mean",
    "luspo": "row_mean_token_sum",
    "bnpo": "token_mean",
    "dapo": "token_mean",
    "cispo": "token_mean",
    "vespo": "token_mean",
    "dr_grpo": "constant",
}


CLIPPED = {"actor/pg_clipfrac": "clipped_share"}


def clips(case):
    return {"clip_low": case.params["clip_ratio_low"], "clip_high": case.params["clip_ratio_high"]}


def verl_totals(case, mask):
    """verl's `global_batch_info`; its losses are multiplied by dp_size against the averaging."""
    info = case.params.get("global_batch_info", {})
    totals = totals_of(mask, max_tokens=info.get("loss_scale_factor"))
    if "batch_num_tokens" in info:
        totals = replace(totals, tokens=float(info["batch_num_tokens"]))
    if "global_batch_size" in info:
        totals = replace(totals, sequences=float(info["global_batch_size"]))
    return totals, info.get("dp_size", 1)


def check_verl(case, rule, proximal="old_log_prob", metrics=None, approximate_kl="k1"):
    """Loss, gradient, mean KL to the proximal policy, and {upstream metric: our metric}."""
    mask = case.mask("response_mask")
    totals, processes = verl_totals(case, mask)
    weighted = "rollout_is_weights" in case.inputs
    batch = loss_batch(
        case.tensor("log_prob"),
        case.tensor(proximal),
        case.tensor("advantages"),
        mask,
        totals=totals,
        importance_weights_BT=case.tensor("rollout_is_weights") if weighted else None,
        draws_BT=torch.rand(mask.shape),
    )
    mode = VERL_MODES[case.params["loss_agg_mode"]]
    result, gradient = differentiate(lambda b: rule.loss(b, mode), batch)
    case.check(result.loss * processes, "loss")
    case.check(gradient * processes, "grad")
    share = totals.tokens / float(mask.sum())
    for theirs, ours in (metrics or {}).items():
        case.check(result.metrics[ours].double() * share, "metrics", theirs)
    if "actor/ppo_kl" in case.expected["metrics"]:
        log_ratio = batch.policy_logprobs_BT - batch.proximal_logprobs_BT
        kl = masked_mean(token_kl(-log_ratio, estimator=approximate_kl), mask)
        case.check(kl, "metrics", "actor/ppo_kl")


def verl(rule_of, **checked):
    return lambda case: check_verl(case, rule_of(case), **checked)


def verl_ppo(case):
    rule = losses.PpoClip(**clips(case), dual_clip=case.params["clip_ratio_c"])
    metrics = CLIPPED | {"actor/pg_clipfrac_lower": "dual_clipped_share"}
    check_verl(case, rule, metrics=metrics)


def sapo(positive, negative, **settings):
    """The rule of a case that names its two temperatures so."""

    def rule_of(case):
        taus = {"temperature_positive": case.params[positive]}
        return losses.Sapo(**taus, temperature_negative=case.params[negative], **settings)

    return rule_of


def kl_cov(case):
    return losses.KlCov(share=case.params["kl_cov_ratio"], coefficient=case.params["ppo_kl_coef"])


def clip_cov(case):
    params = case.params
    band = {"covariance_low": params["clip_cov_lb"], "covariance_high": params["clip_cov_ub"]}
    return losses.ClipCov(share=params["clip_cov_ratio"], **band, **clips(case))


def verl_value_loss(case):
    mask = case.mask("response_mask")
    mode = VERL_MODES[case.params["loss_agg_mode"]]
    rule = losses.ValueLoss(clip=case.params["cliprange_value"], aggregation=mode)
    values = case.tensor("vpreds").requires_grad_()
    result = rule.loss(
        values,
        case.tensor("returns"),
        old_values_BT=case.tensor("values"),
        mask_BT=mask,
        totals=totals_of(mask),
    )
    (gradient,) = torch.autograd.grad(result.loss, values)
    case.check(result.loss, "loss")
    case.check(gradient, "grad")
    case.check(result.metrics["value_clipped_share"], "clipfrac")


def verl_agg_loss(case):
    mask = case.mask("loss_mask")
    mode = VERL_MODES[case.params["loss_agg_mode"]]
    case.check(aggregate(mode, case.tensor("loss_mat"), mask, totals_of(mask)), "loss")


def trl_batch(case):
    mask = case.mask("completion_mask")
    if "tool_mask" in case.inputs:
        mask = mask & case.mask("tool_mask")
    optional = {
        ours: case.tensor(theirs)
        for theirs, ours in {
            "ref_log_prob": "reference_logprobs_BT",
            "importance_sampling_ratio": "importance_weights_BT",
            "sampling_log_prob": "behavior_logprobs_BT",
        }.items()
        if theirs in case.inputs
    }
    totals = totals_of(mask, max_tokens=case.params.get("max_completion_length"))
    totals = replace(
        totals,
        tokens=float(case.params.get("num_items_in_batch", totals.tokens)),
        rows=totals.rows * case.params.get("gradient_accumulation_steps", 1),
    )
    advantages = case.tensor("advantages")[:, None].expand(mask.shape)
    policy, old = case.tensor("log_prob"), case.tensor("old_log_prob")
    return loss_batch(policy, old, advantages, mask, totals=totals, **optional)


def check_trl(case, rule):
    """Loss and gradient of a rule, with TRL's KL term and off-policy mask where they are asked for.

    Returns what the rule returned and the sizes of the batch.
    """
    batch = trl_batch(case)
    mode = TRL_MODES[case.params.get("loss_type", "grpo")]
    if threshold := case.params.get("off_policy_mask_threshold"):
        correction = OffPolicySequenceMask(threshold=threshold).correct(
            CorrectionBatch(
                trainer_logprobs_BT=batch.policy_logprobs_BT,
                behavior_logprobs_BT=batch.behavior_logprobs_BT,
                action_mask_BT=batch.loss_mask_BT,
                advantages_BT=batch.advantages_BT,
            )
        )
        batch = replace(batch, importance_weights_BT=correction.weights_BT)

    def compute(batch):
        result = rule.loss(batch, mode)
        if not case.params.get("beta"):
            return result
        penalty = KlPenalty(
            coefficient=case.params["beta"],
            importance_corrected=case.params["use_bias_correction_kl"],
        )
        kl = penalty.loss(batch, mode, coefficient=penalty.coefficient)
        return PolicyLoss(result.loss + kl.loss, {**result.metrics, **kl.metrics})

    result, gradient = differentiate(compute, batch)
    case.check(result.loss, "loss")
    case.check(gradient, "grad")
    if "kl" in result.metrics:
        case.check(result.metrics["kl"], "metrics", "kl")
    return result, batch


def trl_clips(case):
    return {"clip_low": case.params["epsilon_low"], "clip_high": case.params["epsilon_high"]}


def trl_clip(case):
    delta = case.params["delta"]
    rule = losses.PpoClip(**trl_clips(case), dual_clip=delta, log_ratio_bound=None)
    result, batch = check_trl(case, rule)
    share = batch.totals.tokens / float(batch.loss_mask_BT.sum())
    clipped = result.metrics["clipped_share"].double() * share
    high = result.metrics["clipped_high_share"].double() * share
    case.check(clipped, "metrics", "clip_ratio/region_mean")
    case.check(high, "metrics", "clip_ratio/high_mean")
    case.check(clipped - high, "metrics", "clip_ratio/low_mean")


def trl_gspo(case):
    rule = losses.Gspo(**trl_clips(case), log_ratio_ceiling=None)
    result, batch = check_trl(case, rule)
    # TRL counts rows, those without a token included
    share = batch.totals.sequences / batch.totals.rows
    clipped = result.metrics["clipped_sequence_share"].double() * share
    case.check(clipped, "metrics", "clip_ratio/region_mean")


def trl_cispo(case):
    rule = losses.Cispo(
        convention="trl", clip_high=case.params["epsilon_high"], log_ratio_bound=None
    )
    result, _ = check_trl(case, rule)
    case.check(result.metrics["clipped_share"].double(), "metrics", "cispo_clip_ratio")


def trl_vespo(case):
    names = {"k_pos": "k_positive", "k_neg": "k_negative"}
    names |= {"lambda_pos": "lambda_positive", "lambda_neg": "lambda_negative"}
    rule = losses.Vespo(**{ours: case.params[theirs] for theirs, ours in names.items()})
    result, batch = check_trl(case, rule)
    # TRL averages over rows, and one without a token has weight 1
    totals = batch.totals
    kernels = result.metrics["kernel_mean"] * totals.sequences + totals.rows - totals.sequences
    case.check(kernels / totals.rows, "metrics", "vespo/phi_seq_mean")


def trl_rloo(case):
    result, batch = check_trl(case, losses.SequencePpoClip(**trl_clips(case)))
    # TRL counts rows, those without a token included
    share = batch.totals.sequences / batch.totals.rows
    clipped = result.metrics["clipped_sequence_share"].double() * share
    case.check(clipped, "metrics", "clip_ratio/region_mean")


test_policy_loss_equals_the_upstream_one = golden_test(
    "policy_losses",
    {
        "verl_ppo_*": verl_ppo,
        "verl_gspo*": verl(lambda case: losses.Gspo(**clips(case)), metrics=CLIPPED),
        "verl_cispo": verl(
            lambda case: losses.Cispo(convention="verl", **clips(case)), metrics=CLIPPED
        ),
        "verl_sapo": verl(sapo("tau_pos", "tau_neg")),
        "verl_gmpo": verl(lambda case: losses.Gmpo(**clips(case))),
        "verl_gpg": verl(lambda case: losses.Reinforce()),
        "verl_reinforce*": verl(lambda case: losses.Reinforce(), proximal="rollout_log_prob"),
        "verl_kl_cov": verl(kl_cov, approximate_kl="abs"),
        "verl_clip_cov_all_candidates": verl(
            clip_cov, metrics={"actor/pg_clipfrac": "dropped_share"}
        ),
        "verl_value_loss": verl_value_loss,
        "verl_agg_loss": verl_agg_loss,
        "trl_grpo*": trl_clip,
        "trl_bnpo": trl_clip,
        "trl_dr_grpo": trl_clip,
        "trl_dapo*": trl_clip,
        "trl_gspo*": trl_gspo,
        "trl_luspo": trl_gspo,
        "trl_cispo": trl_cispo,
        "trl_sapo": lambda case: check_trl(
            case, sapo("sapo_temperature_pos", "sapo_temperature_neg", log_ratio_bound=None)(case)
        ),
        "trl_vespo": trl_vespo,
        "trl_rloo_loss": trl_rloo,
    },
)
