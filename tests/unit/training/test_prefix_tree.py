"""A batch laid out as a tree of prefixes: what it is, and that it changes no figure."""

import copy
import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import Lfm2Config, Lfm2ForCausalLM

from espalier.config import Profile
from espalier.policy.hardware import Hardware
from espalier.training.packing import PackedBatch, TrainingSequence, pack
from espalier.training.parallel import Processes
from espalier.training.prefix_tree import PrefixTree, prefix_tree_of
from espalier.training.rl.models import build_layout
from espalier.training.rl.rows import Group, tree_micro_batches
from espalier.training.scoring import PLAIN, ScoreRequest, score
from tests.factories import causal_models
from tests.factories.tiny import tiny_policy
from tests.factories.training_episodes import (
    CPU,
    episode,
    exact_policy,
    gradient_of,
    layout,
    profile_of,
)


def sequence(*token_ids, mask=None, windows=(0,)):
    """All tokens but the first are scored, unless a mask says otherwise."""
    mask = mask or (0, *[1] * (len(token_ids) - 1))
    return TrainingSequence(token_ids=token_ids, loss_mask=mask, window_starts=windows)


def branching(rng, count, *, longest=14):
    """Sequences that begin like an earlier one, for a while, and go on by themselves."""
    made = [(rng.randrange(20, 24),)]
    for _ in range(count):
        earlier = rng.choice(made)
        kept = earlier[: rng.randrange(len(earlier) + 1)]
        own = [rng.randrange(20, 24) for _ in range(rng.randrange(0 if kept else 1, longest))]
        made.append((*kept, *own))
    return [
        sequence(*ids, mask=(0, *(rng.randrange(2) for _ in ids[1:])))
        for ids in rng.sample(made, len(made))
    ]


def branching_groups(seed=0):
    """Groups of trajectories with their prompt, and for some their first turn, in common."""
    rng = random.Random(seed)
    groups = []
    for number, size in enumerate((4, 4, 3)):
        first = episode(number, 0, turns=3, rng=rng, group=f"name{number}")
        made = [first]
        for n in range(1, size):
            other = episode(number, n % 2, turns=3, rng=rng, group=f"name{number}")
            # its own first turn, or that of the first trajectory and what was observed
            kept = first.turns[0].observation_end if n % 2 else first.turns[0].action_start
            shape = first if n < 3 else replace(first, turns=first.turns[:2])
            length = shape.turns[-1].observation_end
            ids = (*first.token_ids[:kept], *other.token_ids, *first.token_ids)[:length]
            made.append(
                replace(
                    shape,
                    token_ids=ids,
                    action_mask=first.action_mask[:length],
                    behavior_logprobs=first.behavior_logprobs[:length],
                    reward=other.reward,
                )
            )
        groups.append(Group(trajectories=tuple(made), baseline_reward=0.5, expected_reward=0.25))
    return groups


def test_what_sequences_begin_with_alike_is_one_path():
    tree = prefix_tree_of([sequence(5, 6, 7, 8), sequence(5, 6, 9), sequence(4, 6)])
    assert tree.token_ids_M.tolist() == [4, 6, 5, 6, 7, 8, 9]
    assert tree.depths_M.tolist() == [0, 1, 0, 1, 2, 3, 2]
    assert tree.parents_M.tolist() == [7, 0, 7, 2, 3, 4, 3]
    assert [ancestors.tolist() for ancestors in tree.ancestors(2)] == [
        [7, 0, 7, 2, 3, 4, 3],
        [7, 7, 7, 7, 2, 3, 2],
    ]
    # the 6 behind 5 is scored once, for both sequences
    assert tree.targets_N.tolist() == [6, 6, 7, 8, 9]
    assert tree.predicting_N.tolist() == [0, 2, 3, 4, 3]
    dense_BT = tree.dense(torch.arange(1.0, 6.0), width=4)
    assert dense_BT.tolist() == [[0, 2, 3, 4], [0, 2, 5, 0], [0, 1, 0, 0]]
    assert (tree.num_tokens, tree.num_sequences) == (7, 3)


def test_tokens_and_contexts_that_differ_are_scored_apart():
    tree = prefix_tree_of([sequence(5, 6, 7), sequence(5, 6, 8, mask=(0, 0, 1))])
    dense_BT = tree.dense(torch.tensor([1.0, 2.0, 3.0]), width=3)
    assert dense_BT.tolist() == [[0, 1, 2], [0, 0, 3]], "for those who learn it"
    tree = prefix_tree_of([sequence(5, 6, 7, 5, 6, 8, windows=(0, 3))])
    assert tree.token_ids_M.tolist() == [5, 6, 7, 8]
    # the first token of each context is predicted by nothing
    assert sorted(tree.token_S.tolist()) == [1, 2, 4, 5]


def scores_of(model, sequences, request, *, as_tree):
    """On a tree, or of each sequence in a row of its own."""
    batch = prefix_tree_of(sequences) if as_tree else pack(sequences, row_tokens=1, gap=0)
    width = max(len(one.token_ids) for one in sequences)
    return [
        batch.dense(values_N, width=width)
        for values_N in score(model, batch, request)
        if values_N is not None
    ]


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 12))
def test_scores_of_a_tree_are_those_of_each_sequence(seed, count):
    model = exact_policy()
    rng = random.Random(seed)
    sequences = branching(rng, count)
    if rng.random() < 0.5:  # one with a second context
        ids = sequences[0].token_ids
        sequences.append(sequence(*ids, *ids[:1], 22, windows=(0, len(ids))))
    request = ScoreRequest(temperature=0.7, entropy=True, entropy_gradient=True)
    tree = scores_of(model, sequences, request, as_tree=True)
    apart = scores_of(model, sequences, request, as_tree=False)
    for ours, theirs in zip(tree, apart, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)
    weights = [torch.rand(values.shape, dtype=values.dtype) for values in tree]
    gradients = []
    for found in (tree, apart):
        model.zero_grad(set_to_none=True)
        products = [w * values for w, values in zip(weights, found, strict=True)]
        torch.stack(products).sum().backward()
        gradients.append({n: p.grad for n, p in model.named_parameters() if p.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradient, gradients[1][name], rtol=1e-5, atol=1e-5, msg=name)


@pytest.mark.parametrize(
    ("preset", "nodes"), [("default", 8192), ("default", 40), ("ppo", 40), ("dpo", 40)]
)
def test_gradients_of_a_tree_are_those_of_each_trajectory(preset, nodes):
    policy, groups, profile = exact_policy(), branching_groups(), profile_of({"preset": preset})
    apart = gradient_of(policy, groups, profile, layout(row_tokens=1))  # each in a row of its own
    tree = gradient_of(policy, groups, profile, layout(nodes, prefix_tree=True))
    assert any(gradient.abs().max() > 1e-4 for gradient in apart.by_name.values())
    tree.close_to(apart, tolerance=1e-6)


def test_activations_computed_again_give_the_same_gradient():
    policy, groups, profile = exact_policy(), branching_groups(), profile_of()
    plain = gradient_of(policy, groups, profile, layout(prefix_tree=True))
    policy.activation_checkpointing_enable({"use_reentrant": False})
    policy.train()
    gradient_of(policy, groups, profile, layout(prefix_tree=True)).close_to(plain)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 30), st.integers(1, 60))
def test_runs_hold_every_unit_once_within_their_nodes(seed, count, max_nodes):
    sequences = branching(random.Random(seed), count)
    units = [(row,) for row in range(len(sequences))]
    runs = tree_micro_batches(units, sequences, max_nodes=max_nodes)
    assert sorted(unit for run in runs for unit in run) == units
    for run in runs:
        tree = prefix_tree_of([sequences[row] for (row,) in run])
        assert len(run) == 1 or tree.num_tokens <= max_nodes


def test_a_run_ends_where_the_least_is_forwarded_again():
    prompts = [range(number, number + 10) for number in (100, 200, 300)]
    sequences = [sequence(*prompt, last) for prompt in prompts for last in (1, 2, 3, 4)]
    units = [(row,) for row in range(12)]
    # a fifth row would fit, without the rest of its group
    runs = tree_micro_batches(units, sequences, max_nodes=25)
    assert runs == [units[:4], units[4:8], units[8:]]
    assert tree_micro_batches(units, sequences, max_nodes=28) == [units[:8], units[8:]]


def test_runs_have_few_tokens_for_each_node_and_whole_pairs():
    sequences = [sequence(*range(100, 109), 9)] * 9
    runs = tree_micro_batches([(row,) for row in range(9)], sequences, max_nodes=10)
    assert [len(run) for run in runs] == [4, 4, 1]
    pairs = [sequence(5, 6, 7), sequence(9, 6, 7), sequence(5, 6, 8), sequence(9, 6, 8)]
    runs = tree_micro_batches([(0, 3), (1, 2)], pairs, max_nodes=6)
    assert runs == [[(0, 3)], [(1, 2)]]


@pytest.mark.parametrize(
    ("asked", "processes", "is_tree"),
    [("prefix_tree", 1, True), ("prefix_tree", 2, False), ("packed", 1, False)],
)
def test_rows_that_processes_share_are_packed(asked, processes, is_tree):
    profile = Profile.model_validate({"training": {"layout": asked}})
    how = build_layout(tiny_policy().model, profile, CPU, Processes(0, processes))
    batch = how.batch([sequence(5, 6, 7)])
    assert isinstance(batch, PrefixTree if is_tree else PackedBatch)


@pytest.mark.parametrize(("precision", "gap"), [(None, 1e-5), (torch.bfloat16, 3e-2)])
def test_grouped_heads_and_biases_are_the_models_own(precision, gap):
    torch.manual_seed(0)
    model = Lfm2ForCausalLM(
        Lfm2Config(
            vocab_size=40,
            hidden_size=32,
            intermediate_size=32,
            layer_types=["full_attention", "conv"],
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            conv_bias=True,
            conv_L_cache=4,
            pad_token_id=0,
        )
    )
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    sequences = branching(random.Random(0), 6)
    with torch.no_grad(), Hardware(torch.device("cpu"), precision).precision():
        [tree_BT] = scores_of(model, sequences, PLAIN, as_tree=True)
        [apart_BT] = scores_of(model, sequences, PLAIN, as_tree=False)
    torch.testing.assert_close(tree_BT, apart_BT, rtol=gap, atol=gap)


@pytest.mark.parametrize(
    "build",
    [causal_models.llama, causal_models.mistral, causal_models.qwen2, causal_models.qwen3],
)
def test_models_of_plain_attention_are_forwarded_as_trees(build):
    model, row = copy.deepcopy(build()).double(), torch.arange(3, 12)[None]
    assert build_layout(model, Profile(), CPU, Processes()).prefix_tree
    before = model(row, use_cache=False).logits
    sequences = branching(random.Random(3), 8)
    found = []
    for as_tree in (False, True):
        model.zero_grad(set_to_none=True)
        [scores_BT] = scores_of(model, sequences, PLAIN, as_tree=as_tree)
        weights_BT = torch.rand(scores_BT.shape, generator=torch.Generator().manual_seed(0))
        (scores_BT * weights_BT).sum().backward()
        found.append((scores_BT, {n: p.grad.clone() for n, p in model.named_parameters()}))
    # norms are computed in single precision, whatever the weights are
    (apart_BT, gradients), (tree_BT, of_tree) = found
    torch.testing.assert_close(tree_BT, apart_BT, rtol=1e-9, atol=1e-9)
    for name, gradient in gradients.items():
        gap = (of_tree[name] - gradient).abs().max() / gradient.abs().max()
        assert gap < 1e-5, name
    after = model(row, use_cache=False).logits
    torch.testing.assert_close(after, before)


@pytest.mark.parametrize(
    "build",
    [
        causal_models.gemma2_with_capped_logits,
        causal_models.gpt2,  # drops weights in training
        causal_models.mamba,
        causal_models.mistral_with_a_window,
    ],
)
def test_models_of_other_attention_are_packed(build):
    assert not build_layout(copy.deepcopy(build()), Profile(), CPU, Processes()).prefix_tree
