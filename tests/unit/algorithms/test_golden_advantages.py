"""Every advantage rule against the numbers of verl, TRL and prime-rl."""

from dataclasses import replace

import torch

from espalier.algorithms import advantages as ways
from espalier.algorithms.batch import CreditBatch
from espalier.algorithms.regularizers import KlPenalty
from tests.unit.algorithms.golden import golden_test


def _numbered(index):
    return torch.tensor([sorted(set(index)).index(group) for group in index])


def _verl_batch(case, **fields):
    index = case.inputs.get("index", [0] * len(case.inputs["response_mask"]))
    return CreditBatch(
        rewards_BT=case.tensor("token_level_rewards"),
        action_mask_BT=case.mask("response_mask"),
        groups_B=_numbered(index),
        **fields,
    )


def _check_verl(case, rule, batch):
    """`returns` are given only where they differ from the advantages."""
    credit = rule.credit(batch)
    mask_BT = batch.action_mask_BT
    case.check(credit.advantages_BT, "advantages", mask=mask_BT)
    case.check(
        credit.returns_BT, "returns" if "returns" in case.expected else "advantages", mask=mask_BT
    )


def _verl(rule_of):
    """Runs a case on the rule that its parameters make."""
    return lambda case: _check_verl(case, rule_of(case.params), _verl_batch(case))


def _grpo(params, **options):
    options["rewards_counted"] = "all_tokens"
    if params["norm_adv_by_std_in_grpo"]:
        return ways.Grpo(std_eps=params["epsilon"], **options)
    return ways.DrGrpo(**options)


def _remax(case):
    batch = _verl_batch(case, baseline_rewards_B=case.tensor("reward_baselines"))
    _check_verl(case, ways.ReMax(), batch)


def _pass_k(params):
    scale = "group" if params["norm_adv_by_std_in_grpo"] else "none"
    return ways.GrpoPassK(scale=scale, std_eps=params["epsilon"], rewards_counted="all_tokens")


def _gae(case):
    batch = _verl_batch(case, values_BT=case.tensor("values"))
    discounts = {"gamma": case.params["gamma"], "gae_lambda": case.params["lam"]}
    _check_verl(case, ways.Gae(**discounts), batch)
    raw = ways.Gae(**discounts, whitened=False).credit(batch)
    case.check(raw.advantages_BT, "raw_advantages", mask=batch.action_mask_BT)


def _token_baseline(case, **options):
    batch = _verl_batch(
        case,
        behavior_logprobs_BT=case.tensor("old_log_probs"),
        sum_pi_squared_BT=case.tensor("sum_pi_squared"),
    )
    alone = "no_baseline" if case.params["handle_zero_tail"] else "own_return"
    _check_verl(case, ways.OptimalTokenBaseline(alone=alone, **options), batch)


def _one_token_batch(outcomes_B, groups_B, **fields):
    """Outcomes as upstreams without tokens have them: one action token a trajectory."""
    return CreditBatch(
        rewards_BT=outcomes_B[:, None],
        action_mask_BT=torch.ones(len(outcomes_B), 1, dtype=torch.bool),
        groups_B=groups_B,
        **fields,
    )


def _trl_batch(case):
    """The outcome is the weighted sum of the terms that apply, NaN where none does."""
    terms_BK = case.tensor("rewards_per_func")
    weights_K = terms_BK.new_tensor(case.params["reward_weights"])
    outcomes_B = (terms_BK * weights_K).nansum(dim=1)
    outcomes_B = outcomes_B.masked_fill(terms_BK.isnan().all(dim=1), float("nan"))
    groups_B = torch.arange(len(terms_BK)) // case.params["num_generations"]
    names = tuple(map(str, range(terms_BK.shape[1])))
    return _one_token_batch(outcomes_B, groups_B, reward_terms_BK=terms_BK, reward_names=names)


def _trl_grpo(case):
    if case.params["multi_objective_aggregation"] == "normalize_then_sum":
        weights = enumerate(case.params["reward_weights"])
        rule = ways.Gdpo(weights={str(place): weight for place, weight in weights})
    elif case.params["scale_rewards"] == "none":
        rule = ways.DrGrpo(group_of_one="zero")
    else:
        rule = ways.Grpo(scale=case.params["scale_rewards"], std_eps=1e-4, group_of_one="zero")
    case.check(rule.credit(_trl_batch(case)).advantages_BT[:, 0], "advantages")


def _with_k1_in_reward(case, batch):
    """TRL's beta: rewards that were penalised before the rule sees them."""
    if not case.params["beta"]:
        return batch
    ratio_BT = case.tensor("old_per_token_logps") - case.tensor("ref_per_token_logps")
    lengths_B = torch.tensor(case.inputs["completion_lengths"])
    mask_BT = torch.arange(ratio_BT.shape[1]) < lengths_B[:, None]
    rewards_BT = batch.rewards_BT * (torch.arange(ratio_BT.shape[1]) == 0)
    penalty = KlPenalty(place="reward", estimator="k1")
    rewards_BT = penalty.penalized(rewards_BT, ratio_BT, mask_BT, coefficient=case.params["beta"])
    return replace(batch, rewards_BT=rewards_BT, action_mask_BT=mask_BT)


def _trl_rloo(case):
    batch = _with_k1_in_reward(case, _trl_batch(case))
    rule = ways.Rloo(
        reward_clip=case.params["reward_clip_range"],
        normalize=case.params["normalize_advantages"],
        group_of_one="zero",
    )
    case.check(rule.credit(batch).advantages_BT[:, 0], "advantages")


def _max_rl(case):
    outcomes_B = case.tensor("rewards")
    batch = _one_token_batch(outcomes_B, torch.zeros(len(outcomes_B), dtype=torch.int64))
    case.check(ways.MaxRl().credit(batch).advantages_BT[:, 0], "advantages")


def _length_penalty(case):
    outcomes_B = case.tensor("rewards")
    output_B, turns_B = (
        torch.tensor(case.inputs[name]) for name in ("num_output_tokens", "num_turns")
    )
    column_T = torch.arange(int(output_B.max()))
    mask_BT = column_T < output_B[:, None]
    turns_BT = column_T.clamp(max=turns_B[:, None] - 1).masked_fill(~mask_BT, -1)
    rewards_BT = outcomes_B[:, None] * (column_T == 0)
    batch = CreditBatch(
        rewards_BT=rewards_BT,
        action_mask_BT=mask_BT,
        groups_B=torch.zeros(len(outcomes_B), dtype=torch.int64),
        turns_BT=turns_BT,
        total_tokens_B=torch.tensor(case.inputs["num_total_tokens"]),
    )
    rule = ways.GrpoLengthPenalty(
        output_weight=case.params["num_output_tokens_weight"],
        input_weight=case.params["num_input_tokens_weight"],
        turns_weight=case.params["num_turns_weight"],
    )
    case.check(rule.credit(batch).advantages_BT[:, 0], "advantages")


test_a_rule_reproduces_its_upstream = golden_test(
    "advantages",
    {
        "verl_grpo_std": _verl(_grpo),
        "verl_grpo_nostd": _verl(_grpo),
        "verl_grpo_vectorized_std": _verl(lambda params: _grpo(params, std_floor=1e-3)),
        "verl_grpo_passk_*": _verl(_pass_k),
        "verl_rloo": _verl(lambda _: ways.Rloo(rewards_counted="all_tokens")),
        "verl_rloo_vectorized": _verl(
            lambda _: ways.Rloo(rewards_counted="all_tokens", group_of_one="zero")
        ),
        "verl_opo": _verl(lambda _: ways.Opo(rewards_counted="all_tokens")),
        "verl_gpg": _verl(
            lambda params: ways.Gpg(normalizer=params["f_norm"], rewards_counted="all_tokens")
        ),
        "verl_rfpp_gamma*": _verl(
            lambda params: ways.ReinforcePlusPlus(gamma=params["gamma"], at_observations="reset")
        ),
        "verl_rfpp_baseline": _verl(
            lambda _: ways.ReinforcePlusPlusBaseline(rewards_counted="all_tokens")
        ),
        "verl_remax": _remax,
        "verl_gae_*": _gae,
        "verl_otb": lambda case: _token_baseline(case, align="columns"),
        "verl_tir_otb": _token_baseline,
        "trl_grpo": _trl_grpo,
        "trl_rloo": _trl_rloo,
        "prime_rl_maxrl": _max_rl,
        "prime_rl_grpo_length_penalty": _length_penalty,
    },
)
