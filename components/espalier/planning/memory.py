"""Memory of a run by part, in MiB: host and accelerator, trainer and engine.

A run's stages follow each other in one process, so its peak is that of the largest stage. Each part
counts memory that is alive at one time. The memory that the allocator keeps in addition follows an
empirical rule, which is fitted and not derived: `kept_mib`.

An update on a prefix tree is counted by its positions (`sharing`), plus the keys and values that
are gathered for each trajectory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from espalier.config import Profile
from espalier.planning.figures import Figures
from espalier.planning.sizes import PolicySize
from espalier.planning.work import StageWork

_MIB = 1 << 20
_F32, _BF16 = 4, 2
_PAGE = 32  # tokens per page of the engine's cache: rollout.engines.pages
_STEP_TOKENS = 4096  # most tokens that a step of the engine forwards: rollout.engines.lockstep
_LOGITS_AT_ONCE = 1 << 24  # most logits that the trainer has at one time: training.scoring
_FUSED_BELOW = 200_000_000  # parameters; below, the engine has its own copy of the weights
_ATTENTION_FLOATS = 14
"""Live floats of an attention block per token in the backward pass, in hidden widths: 11 for its
input, the input's norm before and after the scale, queries and keys before and after theirs, values
and output; 3 for gradients."""
_CONVOLUTION_FLOATS = 11
"""The same for a short convolution: 9 for input and norms, three gates, the convolution's input and
output; 2 for gradients. Both together are within 10 % of measured peaks: 64 to 67 KiB per token of
an LFM2 with 4 blocks of width 128, at 2,000 to 8,000 tokens in rows of 100 to 400."""
_FORWARD_FLOATS = 4
"""Feed-forward widths per token: gate, up, their activation and product."""
_NORM_FLOATS = 3
"""Hidden widths per token of a feed-forward's input and norms."""
_GATHERED_WIDTHS = 2  # keys and values, for each path of a tree: training.tree_forward
_LOGIT_COPIES = 6
"""Numbers per scored token and vocabulary entry: logits, scaled logits, log-softmax, probabilities,
and two gradients."""
_STEP_WIDTHS = 11
"""Hidden widths per token that the engine forwards, in one block: there is no backward pass."""
_DRAW_COPIES = 4
"""Numbers per drawn token and vocabulary entry: logits, scaled ones, probabilities, their sums."""
_TRAJECTORY_BYTES = 160
"""Memory of a trajectory's token: its id, mask and log-prob are Python numbers."""
_CONTEXT_MIB = 690.0
"""Accelerator memory of CUDA's context and libraries, before the first tensor: on an H200, with
torch 2.11 for CUDA 13, a process held 753 MiB with 64 MiB of tensors."""
_WORKSPACE_MIB = 64.0
"""Those 64 MiB: torch's workspaces for cuBLAS and cuBLASLt, from the first matrix product on."""
_CACHED_SHARE, _CACHED_MIB = 0.4, 1024.0
"""Accelerator memory that torch caches besides what is alive: a share of everything but the weights
and their moments, and its maximum. Fitted to five stages of the profile tiny on an H200, which held
809 to 1,343 MiB (tests/benchmarks/baselines/one_gpu.json; within 15 %). With 1.5 billion
parameters, where 7 and 10 GiB were alive, it was 0.4 and 1.0 GiB. Torch frees its cache when it
needs memory, so larger runs are not refused for it."""
_MAPPED_MIB = 32.0
"""Size from which blocks are mapped one by one, and return to the kernel when freed (mallopt(3),
the maximum of M_MMAP_THRESHOLD on 64 bits), so that large models leave no fragments."""
_POOL_GROWTH = 1.5
"""Factor of the cache's size: it doubles as it fills, and the old one lives until it is copied, but
pages without a token take no memory."""


MOST_FITTED_MIB = 530.0
"""Live memory of the largest run that `kept_mib` was fitted to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """Memory of one stage, MiB, by name of its part."""

    host: Mapping[str, float]
    accelerator: Mapping[str, float]
    """Empty on a machine without an accelerator."""

    @property
    def host_mib(self) -> float:
        """Total memory on the host."""
        return sum(self.host.values())

    @property
    def accelerator_mib(self) -> float:
        """Total memory of one accelerator."""
        return sum(self.accelerator.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Device and number format of a run."""

    accelerator: bool
    """Whether trainer and lock-step engine run on an accelerator."""
    half_precision: bool
    """Whether matrix products are in bfloat16."""


def stage_memory(
    work: StageWork, profile: Profile, size: PolicySize, figures: Figures, place: Placement
) -> StageMemory:
    """Memory of a stage that runs a policy."""
    trains = work.trained_tokens > 0
    shards = profile.training.processes if profile.training.sharded else 1
    trainer: dict[str, float] = {}
    if trains:
        trainer["gradients and optimizer"] = 3 * _F32 * size.trained / shards
        algorithm = profile.training.algorithm
        if work.rollout_tokens and algorithm.needs_reference and profile.policy.lora is None:
            trainer["reference"] = _F32 * size.parameters / shards
        if work.rollout_tokens and algorithm.critic:
            # policy and critic share the weights that an adapter does not train
            trainer["critic"] = 4 * _F32 * size.trained / shards
    working = _working(work, profile, size, figures, place) if trains else {}
    engine = _engine(work, profile, size, figures, place)
    weights = {"weights": _F32 * size.parameters}
    host: dict[str, float] = {}
    accelerator: dict[str, float] = {}
    if place.accelerator and (trains or engine):
        accelerator = {**weights, **trainer, **working, **engine}
        host = dict(weights)  # they are loaded on the host first
    else:
        host = {**weights, **trainer, **working, **engine}
    if trains:
        host["best weights"] = _F32 * size.trained
    host["trajectories"] = _TRAJECTORY_BYTES * work.kept_episodes * figures.episode_tokens
    host = _in_mib(host)
    pieces = sum(host.get(name, 0.0) for name in (*working, *engine))
    block = _F32 * size.hidden * work.micro_batch_tokens / _MIB
    kept = kept_mib(pieces, figures.unfragmented_mib)
    host["kept by the allocator"] = kept if block < _MAPPED_MIB else 0.0
    host["libraries and data"] = figures.policy_mib
    found = _in_mib(accelerator)
    if found:
        cached = _CACHED_SHARE * sum(found.get(name, 0.0) for name in (*working, *engine))
        found["kept by the allocator"] = min(cached, _CACHED_MIB)
        found["workspaces"] = _WORKSPACE_MIB
        found["context"] = _CONTEXT_MIB
    return StageMemory(host=host, accelerator=found)


def live_mib(
    work: StageWork, profile: Profile, size: PolicySize, figures: Figures, place: Placement
) -> float:
    """Working memory of trainer and engine that is alive at one time, MiB."""
    working = _working(work, profile, size, figures, place) if work.trained_tokens else {}
    parts = {**working, **_engine(work, profile, size, figures, place)}
    return sum(_in_mib(parts).values())


def kept_mib(live: float, unfragmented: float) -> float:
    """Memory that the allocator keeps in addition to `live` MiB, by an empirical rule.

    Fitted to twelve runs of code, customer_service, function_calling, shop and web (packed updates,
    100 steps and more, glibc, one machine): with 250 to 530 MiB alive, their peak without the
    memory that is resident before a policy was live ** 2 / 165 MiB within 12 %. A constant factor
    was off by a third for long episodes. Above that range the memory kept no longer grows: by the
    rule, a model of 135 M parameters that trains in 9 GiB would keep 160. A probe replaces the 165
    (`Figures.unfragmented_mib`).
    """
    fitted = min(live, MOST_FITTED_MIB)
    return fitted * max(0.0, fitted / unfragmented - 1)


def _working(
    work: StageWork, profile: Profile, size: PolicySize, figures: Figures, place: Placement
) -> dict[str, float]:
    tokens = work.micro_batch_tokens
    norms = _NORM_FLOATS * size.hidden
    attention = _ATTENTION_FLOATS * size.hidden
    convolution = _CONVOLUTION_FLOATS * size.hidden
    forward = norms + _FORWARD_FLOATS * size.feed_forward
    of_layers = (
        size.attention_layers * attention + size.other_layers * convolution + size.layers * forward
    )
    if profile.hardware.activation_checkpointing:
        # the inputs of all layers, and one layer that is being recomputed
        widest = attention if size.attention_layers else convolution
        of_layers = size.layers * size.hidden + widest + forward
    if work.tokens_per_position > 1:
        attending = 1 if profile.hardware.activation_checkpointing else size.attention_layers
        gathered = _GATHERED_WIDTHS * min(attending, size.attention_layers) * size.key_value_width
        of_layers += gathered * work.tokens_per_position
    width = _BF16 if place.half_precision else _F32
    share = min(1.0, figures.action_tokens / figures.episode_tokens)
    scored = min(tokens * share, _LOGITS_AT_ONCE / size.vocabulary)
    masks = tokens * profile.episode.max_tokens * (1 + width)
    return {
        "activations": tokens * of_layers * width + masks,
        "logits": scored * size.vocabulary * _LOGIT_COPIES * _F32,
    }


def _engine(
    work: StageWork, profile: Profile, size: PolicySize, figures: Figures, place: Placement
) -> dict[str, float]:
    """Parts of the lock-step engine; a vLLM server has its own memory (`server_mib`)."""
    if not work.rows or profile.rollout.engine != "lockstep":
        return {}
    pages = -(-figures.episode_tokens // _PAGE)
    cache = work.rows * pages * _PAGE * size.cache_floats_per_token * _POOL_GROWTH
    state = work.rows * size.state_floats_per_row
    forwarded = min(_STEP_TOKENS, work.rows * figures.episode_tokens)
    step = forwarded * (_STEP_WIDTHS * size.hidden + _FORWARD_FLOATS * size.feed_forward)
    drawn = work.rows * size.vocabulary * _DRAW_COPIES
    parts = {"KV cache": (cache + state) * _F32, "engine": (step + drawn) * _F32}
    if size.parameters < _FUSED_BELOW:
        parts["engine"] += _F32 * size.parameters
    elif place.accelerator and place.half_precision:
        parts["engine"] += _BF16 * size.parameters  # its projections in bfloat16
    return parts


def server_mib(profile: Profile, size: PolicySize) -> dict[str, float]:
    """Memory of a vLLM server with the policy in bfloat16 and a cache for `max_rows` full episodes.

    The keys and values of a token are 2 x layers x key heads x head width numbers (Kwon et al.
    2023, arXiv:2309.06180, sec. 3). vLLM itself takes as much as gpu_memory_utilization allows;
    with less than this, episodes wait.
    """
    if profile.rollout.engine != "vllm":
        return {}
    tokens = profile.rollout.max_rows * profile.episode.max_tokens
    return _in_mib(
        {
            "weights": _BF16 * size.parameters,
            "KV cache": _BF16 * tokens * size.cache_floats_per_token,
        }
    )


def _in_mib(parts: Mapping[str, float]) -> dict[str, float]:
    return {name: number / _MIB for name, number in parts.items()}
