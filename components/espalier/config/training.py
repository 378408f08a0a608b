"""Profile sections `training` and `hardware`: trajectories, algorithm, device and precision."""

from __future__ import annotations

import math
from typing import Literal, Self

from pydantic import Field, model_validator

from espalier.algorithms import Algorithm
from espalier.config.data import Section
from espalier.config.learning import PolicyOptimizerConfig


class HardwareConfig(Section):
    """Device and number format of training and sampling in this process, and memory of training."""

    device: str = Field(default="auto", min_length=1)
    """Device of training; `auto` is the accelerator if there is one. The engine in this process
    samples on the same GPU; with other accelerators it samples on the CPU."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Number format of matrix products; `auto` is bfloat16 on a GPU that supports it. On the CPU,
    and with small models, the engine samples in float32."""
    activation_checkpointing: bool = False
    """Recomputes activations in the backward pass: a third more work, far less memory."""
    micro_batch_tokens: int = Field(default=8192, ge=64)
    """Most positions in one forward pass; gradients of the parts are summed."""


class TemperatureSchedule(Section):
    """Schedule of the sampling temperature, from `training.temperature` to `final`."""

    shape: Literal["constant", "linear", "cosine"] = "constant"
    """Shape of the schedule; "constant" never changes the temperature."""
    final: float = Field(default=1.0, gt=0)
    """Temperature of the last step, unless constant."""

    def at(self, start: float, step: int, steps: int) -> float:
        """Temperature of optimizer step `step` of `steps`, counted from 0."""
        done = min(1.0, step / max(1, steps - 1))
        match self.shape:
            case "constant":
                return start
            case "linear":
                return start + (self.final - start) * done
            case "cosine":
                return self.final + (start - self.final) * (1 + math.cos(math.pi * done)) / 2


class ReplayConfig(Section):
    """A replay buffer of earlier groups; each step takes some of them besides new ones."""

    capacity: int = Field(default=0, ge=0)
    """Most groups in the buffer; 0 replays nothing."""
    share: float = Field(default=0.25, gt=0, lt=1)
    """Share of a step's groups from the buffer, once it holds that many."""
    order: Literal["fifo", "priority"] = "fifo"
    """"fifo" draws uniformly and evicts the oldest group; "priority" draws in proportion to the
    spread of a group's rewards and evicts the smallest (Schaul et al. 2016, arXiv:1511.05952)."""
    successes_only: bool = False
    """Keeps only a group's successes (WebRL, Qi et al. 2024, arXiv:2411.02337, sec. 3.3)."""
    perplexity_window: tuple[float, float] | None = None
    """Interval of the replayed trajectories' perplexity under the current policy, which leaves out
    those known by heart and those out of reach. WebRL's is (1.05, 2)."""
    max_staleness: int = Field(default=32, ge=1)
    """Age in policy versions at which a group is dropped."""

    def groups_of(self, step_groups: int) -> int:
        """Number of a step's `step_groups` that come from the buffer, once it is filled."""
        return round(self.share * step_groups) if self.capacity else 0

    @model_validator(mode="after")
    def _choices_have_a_buffer(self) -> Self:
        chosen = {
            "perplexity_window": self.perplexity_window is not None,
            "successes_only": self.successes_only,
            "order": self.order == "priority",
        }
        if not self.capacity and any(chosen.values()):
            key = next(key for key, is_chosen in chosen.items() if is_chosen)
            raise ValueError(
                f"training.replay.{key} needs a buffer, but training.replay.capacity = 0: set "
                "training.replay.capacity"
            )
        return self

    @model_validator(mode="after")
    def _successes_are_not_ranked(self) -> Self:
        if self.successes_only and self.order == "priority":
            raise ValueError(
                "training.replay.successes_only: successes of a group have no spread to be ranked "
                'by; choose order = "fifo"'
            )
        return self

    @model_validator(mode="after")
    def _window_is_an_interval(self) -> Self:
        if self.perplexity_window is not None:
            low, high = self.perplexity_window
            if not 1 <= low < high:
                raise ValueError(
                    f"training.replay.perplexity_window={self.perplexity_window} is not an "
                    "interval above 1, the lowest perplexity"
                )
        return self


class AsynchronousConfig(Section):
    """Sampling concurrent with learning: groups are played ahead of the step that uses them."""

    max_staleness: int = Field(default=0, ge=0)
    """Most policy versions between sampling and learning; 0 alternates them. Above 0 a run does not
    repeat bit for bit, since timing decides which groups are ready."""
    publish_every: int = Field(default=1, ge=1)
    """Optimizer steps between two versions that are sampled from. In this process, groups of
    different versions cannot share a batch: with slow tools many versions are in flight, each with
    a few rows, and fewer versions make larger batches. vLLM servers read their contexts again after
    each exchange of weights; the learner's own rollouts always have the newest weights."""

    @model_validator(mode="after")
    def _versions_live_until_the_next(self) -> Self:
        if self.publish_every > max(1, self.max_staleness):
            raise ValueError(
                f"training.asynchronous.publish_every={self.publish_every} samples from versions "
                f"that are older than max_staleness={self.max_staleness} allows; lower the first, "
                "or raise the second"
            )
        return self


class StragglersConfig(Section):
    """Rule that closes a group without the episodes that are still being played.

    Those are lost: they have no reward, and are counted in `lost_episodes`. Long episodes are often
    a different kind of attempt, so cutting many of them biases learning; choose limits that cut
    episodes that hang, not those that think.
    """

    share: float = Field(default=0.75, gt=0, lt=1)
    """Share of a group's episodes whose end starts the timer."""
    patience_s: float = Field(default=30.0, ge=0)
    """Seconds that the other episodes then have left."""


DetectorName = Literal[
    "mask_leak",
    "canary",
    "entropy",
    "entropy_rise",
    "kl",
    "clipped",
    "grad_norm",
    "head_grad_norm",
    "reward_spread",
    "own_task",
    "mismatch",
    "grounding",
    "grounded_right",
    "repetition",
    "repeated_calls",
    "unknown_calls",
    "failed_calls",
    "length_rise",
    "length_fall",
    "truncation",
    "silent_groups",
    "equal_outcomes",
    "disputed",
    "scattered",
    "paid_though_wrong",
    "staleness",
    "tasks_left",
    "few_tasks",
    "verdict_shift",
    "heldout_fall",
    "heldout_gap",
    "rule_against_judge",
]


class HealthConfig(Section):
    """Detectors of runs that go wrong.

    They compare the figures of each step with those of the run's first steps; what they notice is
    in `notices.jsonl`, the log and the report.
    """

    response: Literal["warn", "act"] = "warn"
    """"warn" tells; "act" also lowers the learning rate, adds an entropy bonus, raises the KL
    penalty, ends a step's updates where the output head's gradient surges, skips a step whose
    log-probs do not fit, takes tasks or a verifier's tasks out of the pool, leaves a term out of
    the reward, widens the curriculum, returns to the best weights or ends the run, undoes after
    eight steps what did not help, and says each of these in a notice."""
    ignore: tuple[DetectorName, ...] = ()
    """Names of detectors that stay silent, where a run is meant to do what they notice."""
    canaries: int = Field(default=8, ge=0)
    """Number of dev questions that each dev evaluation asks a second time, with a random answer as
    the right one. If an attempt at one counts as right, the verifier takes wrong answers. Families
    without `MakesCanaries` have none."""


class StreamsConfig(Section):
    """What training keeps of its attempts for the viewer.

    Figures and notices are kept of every step, and the groups of the attempts that notices name.
    Whole groups are kept or left out, the same ones in every run of a seed; what is left out is in
    no list, search or count of attempts.
    """

    attempts_share: float = Field(default=1.0, ge=0, le=1)
    """Share of each step's groups whose attempts are kept. An attempt takes about 20 bytes for each
    token and twice its text: lower it where `trained_policy` grows too heavy."""
    token_values_share: float = Field(default=1.0, ge=0, le=1)
    """Share of the kept groups whose tokens have the values of their update: advantage, log-prob of
    the trainer, entropy and loss mask; a third of an attempt's bytes."""


class TrainingConfig(Section):
    """Reinforcement learning over multi-turn episodes."""

    steps: int = Field(default=40, ge=0)
    """Optimizer steps; each samples new trajectories."""
    tasks_per_step: int = Field(default=16, ge=1)
    """Tasks of a step: P in names of axes."""
    group_size: int = Field(default=16, ge=1)
    """Trajectories of each task: G. Credit comes from their differences; with 1, from a critic or a
    prediction (presets `ppo`, `spo`)."""
    algorithm: Algorithm = Algorithm.model_validate({})
    minibatches: int = Field(default=2, ge=1)
    """Optimizer updates of an epoch, each on a part of the step's trajectories. All but the first
    are off-policy: with 2, losses without a ratio (gpg, opo, v_trace) learned at most half as much
    as with 1."""
    epochs: int = Field(default=1, ge=1)
    """Passes over a step's trajectories."""
    temperature: float = Field(default=1.0, gt=0)
    """Sampling temperature of training rollouts."""
    temperature_schedule: TemperatureSchedule = TemperatureSchedule()
    replay: ReplayConfig = ReplayConfig()
    asynchronous: AsynchronousConfig = AsynchronousConfig()
    stragglers: StragglersConfig | None = Field(default=None, exclude_if=lambda it: it is None)
    """Rule that closes groups without their slowest episodes; unset, a group waits for all."""
    layout: Literal["packed", "prefix_tree"] = Field(
        default="prefix_tree", exclude_if=lambda it: it == "prefix_tree"
    )
    """Layout of a step's trajectories in the update. "prefix_tree" forwards shared beginnings only
    once (the prompt of a group, and the turns that its trajectories have in common), with the same
    gradients up to rounding. It needs one process, and a model with plain attention (Llama, Qwen,
    Mistral) or LFM2, such as the tiny policy; others are packed. The last step of a run of
    `customer_service` took a third of the packed update's processor time."""
    train_on_observations: bool = False
    """Ablation only: includes the tools' tokens in the loss."""
    health: HealthConfig = Field(default=HealthConfig(), exclude_if=lambda it: it == HealthConfig())
    streams: StreamsConfig = Field(
        default=StreamsConfig(), exclude_if=lambda it: it == StreamsConfig()
    )
    max_mismatch_kl: float = Field(default=1e-3, gt=0)
    """KL between engine and trainer on equal weights, nats per token, above which a warning is
    logged. It is about 1e-9 in float32, a few 1e-4 in bfloat16."""
    optimizer: PolicyOptimizerConfig = PolicyOptimizerConfig()
    processes: int = Field(default=1, ge=1)
    """Number of processes that share a step's trajectories: on this machine, or in the pod or pods
    of the stage (kubernetes.nodes)."""
    rollout_workers: int = Field(default=0, ge=0, exclude_if=lambda it: it == 0)
    """Ray actors that sample for all processes, each with the policy and with environments and
    sandboxes of its own, on one GPU or CPU of a cluster's nodes; 0 samples in the processes that
    train. It is the most that run: nodes may come and go."""
    sharded: bool = False
    """Splits weights and optimizer over the processes (FSDP2), for a model too large for one."""
    collective_timeout_s: float = Field(default=5400.0, gt=0, exclude_if=lambda it: it == 5400)
    """Seconds that the processes wait for one of them, for example for rank 0 while it answers dev
    questions; then they end with an error that names it. It has to exceed `rollout.deadline_s` and
    the limits on top of that, or the error names a rank instead of the tool it waits for."""
    evaluate_every: int = Field(default=20, ge=1)
    """Steps between two evaluations on dev questions, each with a checkpoint."""
    dev_questions: int = Field(default=300, ge=1)
    """Number of dev questions that choose the best weights: the last of `synthesis.dev_tasks`, with
    the mix of question kinds of the held-out questions."""
    renamed_share: float | None = Field(default=None, ge=0, le=1)
    """Own knowledge: share of the names that are replaced by invented ones in an episode's
    question, search results and accepted answers, anew each time a task is drawn, if the family
    knows what is a name and there are few names, so that RL cannot memorise a small source. None
    means 1 with triples, whose questions of several steps do not depend on names; otherwise 0.6,
    because a question that one search answers also teaches which kind of word is an answer, for
    which some words have to be real."""
    stop_after_idle_steps: int = Field(default=40, ge=0)
    """Number of consecutive steps without credit after which the run stops, with its best weights;
    0 never stops. In such a step 97 % of the groups had equal rewards, or screening or a filter
    dropped all. The default is two default intervals of curriculum.refresh_every, so that the band
    has been renewed once and tried as long."""

    def temperature_at(self, step: int) -> float:
        """Sampling temperature of optimizer step `step`, counted from 0."""
        return self.temperature_schedule.at(self.temperature, step, self.steps)

    def stops_after(self, idle_steps: float) -> bool:
        """Whether this many consecutive steps without credit end the run."""
        return 0 < self.stop_after_idle_steps <= idle_steps

    @model_validator(mode="after")
    def _minibatches_are_whole(self) -> Self:
        trajectories = self.tasks_per_step * self.group_size
        if trajectories % self.minibatches:
            fits = [n for n in range(1, trajectories + 1) if trajectories % n == 0]
            raise ValueError(
                f"training.minibatches={self.minibatches} does not divide the {trajectories} "
                f"trajectories of a step (tasks_per_step={self.tasks_per_step} x group_size="
                f"{self.group_size}); use one of {fits}"
            )
        return self

    @model_validator(mode="after")
    def _algorithm_has_what_it_compares(self) -> Self:
        algorithm, replay = self.algorithm, self.replay
        if self.group_size == 1 and algorithm.compares_groups:
            raise ValueError(
                f"training.group_size=1 leaves nothing to compare, but {algorithm.credit_source} "
                "learns from differences within a group; raise it, or choose "
                'preset = "spo", "reinforce_pp" or "ppo"'
            )
        if replay.capacity and replay.successes_only and algorithm.compares_groups:
            raise ValueError(
                "training.replay.successes_only leaves groups of equal rewards, in which "
                f'{algorithm.credit_source} finds no difference; choose preset = "rft" or one '
                "with a critic, or replay whole groups"
            )
        return self

    @model_validator(mode="after")
    def _policy_trains_after_the_critic_warmed_up(self) -> Self:
        critic = self.algorithm.critic
        warmup = critic.warmup_of(self.steps) if critic is not None else 0
        if critic is not None and 0 < self.steps <= warmup:
            raise ValueError(
                f"training.steps={self.steps} ends within the "
                f"training.algorithm.critic.warmup_steps={warmup} in which only the critic is "
                "trained, so that the policy would never be: raise training.steps above "
                f"{warmup}, or leave warmup_steps out (0 trains both from the first step)"
            )
        return self

    @model_validator(mode="after")
    def _observations_have_no_turn(self) -> Self:
        if self.train_on_observations and "turns_BT" in self.algorithm.needs:
            raise ValueError(
                f"{self.algorithm.credit_source} gives credit by turn, but an observation belongs "
                "to none; training.train_on_observations needs credit by trajectory"
            )
        return self

    @model_validator(mode="after")
    def _stale_data_is_corrected(self) -> Self:
        counts = {
            "training.replay.capacity": self.replay.capacity,
            "training.asynchronous.max_staleness": self.asynchronous.max_staleness,
        }
        stale = ", ".join(f"{key}={count}" for key, count in counts.items() if count)
        if stale and not self.algorithm.corrects_stale_data:
            raise ValueError(
                f'loss "{self.algorithm.loss.name}" (preset "{self.algorithm.preset}") assumes '
                f"trajectories of the current policy, but {stale} brings older ones; add "
                'training.algorithm.off_policy = [{name = "importance_weights"}]'
            )
        return self

    @model_validator(mode="after")
    def _responses_are_in_turns(self) -> Self:
        if self.health.response == "act" and self.asynchronous.max_staleness:
            raise ValueError(
                'training.health.response = "act" returns to earlier weights, under which groups '
                "that are sampled ahead were not sampled: set "
                'training.asynchronous.max_staleness = 0, or response = "warn"'
            )
        return self

    @model_validator(mode="after")
    def _sharding_has_processes(self) -> Self:
        if self.sharded and self.optimizer.kind == "muon":
            raise ValueError(
                'training.optimizer.kind = "muon" needs whole matrices, but training.sharded '
                'splits them: set kind = "adamw", or leave training.sharded out'
            )
        if self.sharded and self.processes == 1:
            raise ValueError(
                "training.sharded splits a model over processes, but there is only one: set "
                "training.processes, or leave training.sharded out"
            )
        return self
