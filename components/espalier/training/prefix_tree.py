"""A batch of sequences as a tree: tokens after the same beginning are forwarded once.

    P P P A A O A                    P P P A A O A
    P P P A B O O     = 14 tokens          |       = 10 nodes
                                           B O O

A node is a token after a certain beginning: its hidden state depends only on its ancestors, so it
is the same in every sequence that contains it. Nodes are numbered path by path, in the order of
their token ids; a branch is the part of a path that no earlier path has.

Axes: M nodes, C branches, Q nodes of a branch, K nodes of a path from its root, N scored nodes, S
scored tokens of all sequences, B sequences, T tokens of a sequence.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from espalier.training.packing import TrainingSequence

Ints = npt.NDArray[np.int64]


class Branches(NamedTuple):
    """Branches of similar sizes, whose attention is computed together."""

    queries_CQ: Tensor
    """Nodes of each branch, padded with arbitrary nodes."""
    keys_CK: Tensor
    """Nodes of each branch's path, from its root, padded with arbitrary nodes."""
    attends_C1QK: Tensor
    """Bool: each node attends to its ancestors and to itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixTree:
    """The nodes of a batch, and which tokens of its sequences are scored at them."""

    token_ids_M: Tensor
    depths_M: Tensor
    """Number of ancestors of each node: its position in every context that contains it."""
    parents_M: Tensor
    """Parent of each node; M, which is no node, for the first token of a context."""
    branches: tuple[Branches, ...]
    outputs_M: Tensor
    """Place of each node among the queries of all `branches`."""
    scored_N: Tensor
    """Nodes that are scored, each once; their parents predict them."""
    sequence_S: Tensor
    """Which sequence (by its index in the input) a scored token belongs to."""
    token_S: Tensor
    """The position of each scored token in that sequence."""
    score_S: Tensor
    """The node of each scored token, as an index into `scored_N`."""
    num_sequences: int

    @property
    def targets_N(self) -> Tensor:
        """Ids of the scored nodes."""
        return self.token_ids_M[self.scored_N]

    @property
    def predicting_N(self) -> Tensor:
        """Nodes whose hidden states predict the scored ones."""
        return self.parents_M[self.scored_N]

    @property
    def num_tokens(self) -> int:
        """Number of forwarded positions, which is the number of nodes."""
        return len(self.token_ids_M)

    def ancestors(self, generations: int) -> list[Tensor]:
        """Return [M] each: the parents, their parents, and so on; M where there is none."""
        none = self.parents_M.new_tensor([self.num_tokens])
        lookup = torch.cat((self.parents_M, none))
        found = [self.parents_M] if generations else []
        while len(found) < generations:
            found.append(lookup[found[-1]])
        return found

    def to(self, device: torch.device) -> PrefixTree:
        """The same tree on `device`."""
        if device == self.token_ids_M.device:
            return self
        return replace(
            self,
            token_ids_M=self.token_ids_M.to(device),
            depths_M=self.depths_M.to(device),
            parents_M=self.parents_M.to(device),
            branches=tuple(Branches(*(part.to(device) for part in b)) for b in self.branches),
            outputs_M=self.outputs_M.to(device),
            scored_N=self.scored_N.to(device),
            sequence_S=self.sequence_S.to(device),
            token_S=self.token_S.to(device),
            score_S=self.score_S.to(device),
        )

    def dense(self, values_N: Tensor, *, width: int) -> Tensor:
        """[B, `width`]: every scored token's value in its sequence's row and column, 0 elsewhere.

        Gradients flow back to `values_N`, summed over the sequences that share a node.
        """
        at = (self.sequence_S, self.token_S)
        values_S = values_N.index_select(0, self.score_S)
        return values_N.new_zeros(self.num_sequences, width).index_put(at, values_S)


class _Path(NamedTuple):
    """One context of a sequence, and its nodes."""

    nodes: Ints
    shared: int
    """Number of its first nodes that an earlier path has, too."""


def common_prefix(one: Ints, other: Ints) -> int:
    """Return how many tokens both begin with."""
    length = min(len(one), len(other))
    differs = one[:length] != other[:length]
    return int(differs.argmax()) if differs.any() else length


def prefix_tree_of(sequences: Sequence[TrainingSequence]) -> PrefixTree:
    """Lay out `sequences` as a tree; each of a sequence's windows is a path of its own."""
    windows = [(index, *window) for index, s in enumerate(sequences) for window in s.windows]
    # neighbours in this order share the most, so each need only be compared with the one before
    windows.sort(key=lambda window: sequences[window[0]].token_ids[window[1] : window[2]])
    paths: list[_Path] = []
    token_ids: list[Ints] = []
    depths: list[Ints] = []
    parents: list[Ints] = []
    scored: list[Ints] = []
    before, nodes, count = np.empty(0, np.int64), np.empty(0, np.int64), 0
    for index, start, end in windows:
        ids = np.asarray(sequences[index].token_ids[start:end], np.int64)
        shared = common_prefix(before, ids)
        fresh = np.arange(count, count + len(ids) - shared)
        nodes = np.concatenate((nodes[:shared], fresh))
        before, count = ids, count + len(fresh)
        paths.append(_Path(nodes, shared))
        token_ids.append(ids[shared:])
        depths.append(np.arange(shared, len(ids)))
        parents.append(np.concatenate(([-1], nodes[:-1]))[shared:])
        # nothing predicts the first token of a context
        mask = np.asarray(sequences[index].loss_mask[start + 1 : end], bool)
        places = np.flatnonzero(mask) + 1
        scored.append(np.stack((np.full(len(places), index), places + start, nodes[places])))
    of_sequence, of_token, of_node = np.concatenate(scored, axis=1)
    scored_nodes, score_of = np.unique(of_node, return_inverse=True)
    parent_of = np.concatenate(parents)
    branches, outputs = _branches(paths, count)
    return PrefixTree(
        token_ids_M=torch.from_numpy(np.concatenate(token_ids)),
        depths_M=torch.from_numpy(np.concatenate(depths)),
        parents_M=torch.from_numpy(np.where(parent_of < 0, count, parent_of)),
        branches=tuple(branches),
        outputs_M=torch.from_numpy(outputs),
        scored_N=torch.from_numpy(scored_nodes),
        sequence_S=torch.from_numpy(of_sequence),
        token_S=torch.from_numpy(of_token),
        score_S=torch.from_numpy(score_of),
        num_sequences=len(sequences),
    )


_SHORT = 4
"""In bits: branches of fewer than 16 tokens are attended together; separately, the calls would cost
more than the padding."""


def _branches(paths: Sequence[_Path], count: int) -> tuple[list[Branches], Ints]:
    """Return branches grouped by size, within a factor of two, and the nodes' places in them."""
    by_size: defaultdict[tuple[int, int], list[_Path]] = defaultdict(list)
    for path in paths:
        own = len(path.nodes) - path.shared
        if own:  # skip a path that another one contains whole
            size = (max(_SHORT, own.bit_length()), len(path.nodes).bit_length())
            by_size[size].append(path)
    branches: list[Branches] = []
    outputs = np.empty(count, np.int64)
    offset = 0
    for _, alike in sorted(by_size.items()):
        width = max(len(path.nodes) - path.shared for path in alike)
        queries = np.zeros((len(alike), width), np.int64)
        keys = np.zeros((len(alike), max(len(path.nodes) for path in alike)), np.int64)
        for row, path in enumerate(alike):
            own = path.nodes[path.shared :]
            queries[row, : len(own)] = own
            keys[row, : len(path.nodes)] = path.nodes
            outputs[own] = offset + row * width + np.arange(len(own))
        offset += queries.size
        # a branch's first node follows the shared ones; only padding attends to padding
        shared_C = torch.tensor([path.shared for path in alike])
        last_CQ = shared_C[:, None] + torch.arange(width)
        attends_CQK = torch.arange(keys.shape[1]) <= last_CQ[:, :, None]
        branches.append(
            Branches(torch.from_numpy(queries), torch.from_numpy(keys), attends_CQK[:, None])
        )
    return branches, outputs
