"""Memory of a run by part, in MiB: host and accelerator, trainer and engine.

A run's stages follow each other in one process, so its peak is that of the stage that needs most.
A part is what lives at one time. What the allocator keeps beside it is an empirical rule, which was
fitted and not derived: `kept_mib`.

An update on a prefix tree is counted by its positions (`sharing`), and with the keys and values
that are gathered for each trajectory.
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
_PAGE = 32  # tokens of a page of the engine's cache: rollout.engines.pages
_STEP_TOKENS = 4096  # most that a step of the engine forwards: rollout.engines.lockstep
_LOGITS_AT_ONCE = 1 << 24  # most logits that the trainer has at one time: training.scoring
_FUSED_BELOW = 200_000_000  # parameters; below, the engine has weights of its own
_ATTENTION_FLOATS = 14
"""Widths that an attention block has of a token in its backward pass: its input, the input's norm
before and after the scale, queries and keys before and after theirs, values and the output, which
are 11, and 3 of gradients that are under way."""
_CONVOLUTION_FLOATS = 11
"""The same of a short convolution: input and norms, three gates, what goes in and comes out, which
are 9, and 2 of gradients. Both together came to within 10 % of measured peaks: 64 to 67 KiB a token
of an LFM2 of 4 blocks, width 128, at 2,000 to 8,000 tokens in rows of 100 to 400."""
_FORWARD_FLOATS = 4
"""Feed-forward widths: gate, up, their activation and product; its input and norms are 3 more."""
_NORM_FLOATS = 3
_GATHERED_WIDTHS = 2  # keys and values, for each path of a tree: training.tree_forward
_LOGIT_COPIES = 6
"""Numbers for each scored token and word: logits, scaled, log-softmax, probabilities, and two
gradients."""
_STEP_WIDTHS = 11
"""Widths of a token that the engine forwards, in one block: no backward pass follows."""
_DRAW_COPIES = 4
"""The same where a token is drawn: logits, scaled, probabilities, their sums."""
_TRAJECTORY_BYTES = 160
"""Memory of a token in a trajectory: its id, mask and log-prob are Python numbers."""
_CONTEXT_MIB = 690.0
"""What CUDA's context and libraries take of an accelerator before the first tensor: on an H200,
with torch 2.11 for CUDA 13, a process held 753 MiB while 64 MiB were tensors."""
_WORKSPACE_MIB = 64.0
"""Those 64 MiB: what torch gives cuBLAS and cuBLASLt as soon as there are matrix products."""
_CACHED_SHARE, _CACHED_MIB = 0.4, 1024.0
"""What torch holds of an accelerator beside what lived at one time: a share of all but the weights
and their moments, and at most so much. Fitted to five stages of the profile tiny on an H200,
which held 809 to 1,343 MiB (tests/benchmarks/baselines/one_gpu.json; within 15 %). Beside 1.5
billion parameters, where 7 and 10 GiB lived, it was 0.4 and 1.0 GiB. Torch gives it back when it
needs more, so larger runs are not refused for it."""
_MAPPED_MIB = 32.0
"""Blocks of this size are mapped one by one, and go back to the kernel (mallopt(3), the maximum of
M_MMAP_THRESHOLD on 64 bits): large models leave no pieces."""
_POOL_GROWTH = 1.5
"""The cache doubles as it fills, and the former one lives until it is copied; pages that no token
was written to take no memory."""


MOST_FITTED_MIB = 530.0
"""Live memory of the largest run that `kept_mib` was fitted on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """Parts of one stage's memory, MiB, by name."""

    host: Mapping[str, float]
    accelerator: Mapping[str, float]
    """Empty on a machine without one."""

    @property
    def host_mib(self) -> float:
        """All of the host's."""
        return sum(self.host.values())

    @property
    def accelerator_mib(self) -> float:
        """All of one accelerator's."""
        return sum(self.accelerator.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where a run computes."""

    accelerator: bool
    """Whether trainer and lock-step engine compute on one."""
    half_precision: bool
    """Whether matrix products are in bfloat16."""


def stage_memory(
    work: StageWork, profile: Profile, size: PolicySize, figures: Figures, place: Placement
) -> StageMemory:
    """Memory of a stage that computes on a policy."""
    trains = work.trained_tokens > 0
    shards = profile.training.processes if profile.training.sharded else 1
    trainer: dict[str, float] = {}
    if trains:
        trainer["gradients and optimizer"] = 3 * _F32 * size.trained / shards
        algorithm = profile.training.algorithm
        if work.rollout_tokens and algorithm.needs_reference and profile.policy.lora is None:
            trainer["reference"] = _F32 * size.parameters / shards
        if work.rollout_tokens and algorithm.critic:
            # what an adapter leaves as it is, both hold once
            trainer["critic"] = 4 * _F32 * size.trained / shards
    working = _working(work, profile, size, figures, place) if trains else {}
    engine = _engine(work, profile, size, figures, place)
    weights = {"weights": _F32 * size.parameters}
    host: dict[str, float] = {}
    accelerator: dict[str, float] = {}
    if place.accelerator and (trains or engine):
        accelerator = {**weights, **trainer, **working, **engine}
        host = dict(weights)  # as they are read
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
    """Working memory of trainer and engine that lives at one time, MiB."""
    working = _working(work, profile, size, figures, place) if work.trained_tokens else {}
    parts = {**working, **_engine(work, profile, size, figures, place)}
    return sum(_in_mib(parts).values())


def kept_mib(live: float, unfragmented: float) -> float:
    """What the allocator keeps beside `live` MiB: an empirical rule, which nothing is derived from.

    Fitted on twelve runs of code, customer_service, function_calling, shop and web (packed updates,
    100 steps and more, glibc, one machine): their peak, less what is resident without a policy, was
    live ** 2 / 165 MiB within 12 %, where 250 to 530 MiB were alive. A constant factor had missed
    long episodes by a third. Above that range what is kept no longer grows: by the rule, a model of
    135 M parameters in 9 GiB would keep 160. A probe replaces the 165
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
        # the inputs of all layers, and one layer as it is computed again
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
    """The lock-step engine's parts; a server of vLLM has its own memory (`server_mib`)."""
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
        parts["engine"] += _BF16 * size.parameters  # of its projections, in that format
    return parts


def server_mib(profile: Profile, size: PolicySize) -> dict[str, float]:
    """A server of vLLM with the policy in bfloat16 and a cache for `max_rows` whole episodes.

    Keys and values of one token are 2 x layers x key heads x head width numbers (Kwon et al. 2023,
    arXiv:2309.06180, sec. 3). vLLM itself takes what gpu_memory_utilization allows; less than this
    makes episodes wait.
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
