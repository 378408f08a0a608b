"""Every filter against the selections of RAGEN, DAPO, prime-rl and TRL."""

from statistics import fmean

import torch

from espalier.algorithms import filters
from tests.unit.algorithms.golden import golden_test

SELF_PLAY = "no filter of groups: tests/unit/curriculum/test_learnability.py runs it"


def _groups(case):
    rewards, size = case.inputs["rewards"], case.inputs["group_size"]
    return [rewards[start : start + size] for start in range(0, len(rewards), size)]


def _responses(groups, kept):
    """Places of the kept groups' responses in the flat batch, ascending."""
    starts = [sum(len(group) for group in groups[:p]) for p in range(len(groups))]
    return sorted(starts[p] + i for p in kept for i in range(len(groups[p])))


def _ragen_rule(params):
    ranking = {
        "score": {"reward_variance": "std", "reward": "mean"}[params["metric"]],
        "keep": params["filter_type"],
        "include_zero": params["include_zero"],
    }
    value = params["value"]
    match params["strategy"]:
        case "top_p":
            mode, slack = params["top_p_prob_mode"], params["selection_eps"]
            return filters.GroupTopP(share=value, weights=mode, slack=slack, **ranking)
        case "top_k":
            return filters.GroupTopK(fraction=value, **ranking)
        case "top_k_abs":
            return filters.GroupTopKAbs(count=value, **ranking)
        case "min_p":
            return filters.GroupMinP(ratio=value, **ranking)


def _ragen(case):
    rule, groups = _ragen_rule(case.params), _groups(case)
    kept = rule.select(groups).kept
    assert list(kept) == case.expected["selected_groups"]
    assert _responses(groups, kept) == case.expected["kept_responses"]
    scores = [rule.score_of(group) for group in groups]
    if rule.score == "std":
        case.check(torch.tensor(scores), "group_std")
    assert sum(abs(score) <= 1e-10 for score in scores) == case.expected["zero_count"]


def _ragen_v1(case):
    keep = {"std": "largest", "std_rev": "smallest"}[case.params["rollout_filter_type"]]
    rule = filters.GroupTopK(fraction=case.params["rollout_filter_ratio"], keep=keep, at_least=0)
    groups = _groups(case)
    kept = rule.select(groups).kept
    assert _responses(groups, kept) == case.expected["kept_responses"]
    deviations = [rule.score_of(group) for group in groups]
    case.check(fmean(deviations), "metrics", "rollout/in_group_std")
    case.check(fmean(deviations[p] for p in kept), "metrics", "rollout/chosen_in_group_std")


def _dapo(case):
    uids = list(dict.fromkeys(case.inputs["uid"]))
    rewards = list(zip(case.inputs["uid"], case.inputs["metric"], strict=True))
    kept = filters.ZeroVariance(action="regenerate").select(
        [[reward for owner, reward in rewards if owner == uid] for uid in uids]
    )
    assert [uids[p] for p in kept.kept] == case.expected["kept_uids"]
    assert len(kept.kept) == case.expected["num_prompts_kept"]


def _advantage_gate(case):
    rule = filters.AdvantageGate(
        reject_low=case.params["reject_min"], reject_high=case.params["reject_max"]
    )
    groups = case.inputs["group_advantages"]
    kept = rule.select(groups).kept
    assert [p in kept for p in range(len(groups))] == case.expected["admit"]


def _high_entropy(case):
    rule = filters.HighEntropyTokens(share=1 - case.params["threshold"])
    mask_BT = rule.masked(case.mask("mask"), case.tensor("entropies"))
    assert mask_BT.int().tolist() == case.expected["entropy_mask"]


test_a_filter_selects_what_its_upstream_does = golden_test(
    "filters",
    {
        "ragen": _ragen,
        "ragen_v1": _ragen_v1,
        "dapo_filter_groups": _dapo,
        "prime_rl_adv_gate": _advantage_gate,
        "trl_high_entropy_mask": _high_entropy,
    },
    excluded={
        "rzero_questioner/score_grid": f"R-Zero's questioner reward is {SELF_PLAY}",
        "rzero_questioner/format_failures": "no challenger writes questions as text here",
        "rzero_difficulty_filter/*": f"R-Zero's filter of synthetic questions is {SELF_PLAY}",
        "azr_learnability/*": f"Absolute Zero's proposer reward is {SELF_PLAY}",
        "azr_valid_program_filter/*": f"Absolute Zero's filter of programs is {SELF_PLAY}",
    },
)
