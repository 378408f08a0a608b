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
    """`auto` is the accelerator, where there is one. The engine in this process samples on a GPU,
    too; on other accelerators it stays on the CPU."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Number format of matrix products; `auto` is bfloat16 on a GPU that has it. On the CPU, and of
    small models, the engine samples in float32."""
    activation_checkpointing: bool = False
    """Computes activations again in the backward pass: a third more work, far less memory."""
    micro_batch_tokens: int = Field(default=8192, ge=64)
    """Positions that are forwarded at once; gradients of the parts are summed."""


class TemperatureSchedule(Section):
    """How the sampling temperature moves from `training.temperature` to `final`."""

    shape: Literal["constant", "linear", "cosine"] = "constant"
    """How it moves there."""
    final: float = Field(default=1.0, gt=0)
    """Reached in the last step; a constant temperature never moves."""

    def at(self, start: float, step: int, steps: int) -> float:
        """The temperature of optimizer step `step` of `steps`, counted from 0."""
        done = min(1.0, step / max(1, steps - 1))
        match self.shape:
            case "constant":
                return start
            case "linear":
                return start + (self.final - start) * done
            case "cosine":
                return self.final + (start - self.final) * (1 + math.cos(math.pi * done)) / 2


class ReplayConfig(Section):
    """A buffer of former groups, of which each step takes some beside its own."""

    capacity: int = Field(default=0, ge=0)
    """Groups that are kept; 0 replays nothing."""
    share: float = Field(default=0.25, gt=0, lt=1)
    """Share of a step's groups taken from the buffer, once it holds that many."""
    order: Literal["fifo", "priority"] = "fifo"
    """fifo draws any, and the oldest leaves first; priority draws in proportion to the spread of a
    group's rewards, and the least of them leaves first (Schaul et al. 2016, arXiv:1511.05952)."""
    successes_only: bool = False
    """Keeps a group's successes alone (WebRL, Qi et al. 2024, arXiv:2411.02337, sec. 3.3)."""
    perplexity_window: tuple[float, float] | None = None
    """Replays trajectories whose perplexity under the policy of today lies inside: neither known by
    heart nor out of reach. WebRL's is (1.05, 2)."""
    max_staleness: int = Field(default=32, ge=1)
    """Policy versions after which a group is forgotten."""

    def groups_of(self, step_groups: int) -> int:
        """How many groups of a step of `step_groups` come from the buffer, once it is filled."""
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
                f"training.replay.{key} chooses from a buffer that holds nothing: set "
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
                    "interval above 1, the least that a perplexity can be"
                )
        return self


class AsynchronousConfig(Section):
    """Sampling beside learning: groups are played ahead of the step that learns from them."""

    max_staleness: int = Field(default=0, ge=0)
    """Most policy versions between sampling and learning; 0 samples and learns in turns. Above it,
    a run no longer repeats itself bit for bit: which groups are ready is a matter of time. For
    rollout.engine = "lockstep" alone."""
    publish_every: int = Field(default=1, ge=1)
    """Optimizer steps between the versions that are sampled from. Groups of different versions are
    decoded apart: where tools are slow many versions are under way, each with a few rows, and fewer
    versions make larger batches."""

    @model_validator(mode="after")
    def _versions_live_until_the_next(self) -> Self:
        if self.publish_every > max(1, self.max_staleness):
            raise ValueError(
                f"training.asynchronous.publish_every={self.publish_every} samples from versions "
                f"that are older than max_staleness={self.max_staleness} lets in; lower the one, "
                "or raise the other"
            )
        return self


class StragglersConfig(Section):
    """When a group is closed without the episodes that are still being played.

    Those are lost: they have no reward, and are counted in `lost_episodes`. A long episode is often
    another kind of attempt than a short one, so that a rule that cuts many of them bends what is
    learned; cut what hangs, and not what thinks.
    """

    share: float = Field(default=0.75, gt=0, lt=1)
    """Once this share of a group's episodes has ended, the time of the others runs."""
    patience_s: float = Field(default=30.0, ge=0)
    """Seconds that they are given then."""


class TrainingConfig(Section):
    """Reinforcement learning over multi-turn episodes."""

    steps: int = Field(default=40, ge=0)
    """Optimizer steps; each samples anew."""
    tasks_per_step: int = Field(default=16, ge=1)
    """Tasks that a step draws: P of the notation."""
    group_size: int = Field(default=16, ge=1)
    """Trajectories of each task: G. Credit comes from their differences; of one, from a critic or a
    prediction (presets `ppo`, `spo`)."""
    algorithm: Algorithm = Algorithm.model_validate({})
    minibatches: int = Field(default=2, ge=1)
    """Optimizer updates of an epoch, each on a part of the step's trajectories. From the second on
    they are off-policy: with 2, losses without a ratio (gpg, opo, v_trace) learned half as much as
    with 1, or less."""
    epochs: int = Field(default=1, ge=1)
    """How often a step's trajectories are gone through."""
    temperature: float = Field(default=1.0, gt=0)
    """Sampling temperature of training rollouts."""
    temperature_schedule: TemperatureSchedule = TemperatureSchedule()
    replay: ReplayConfig = ReplayConfig()
    asynchronous: AsynchronousConfig = AsynchronousConfig()
    stragglers: StragglersConfig | None = Field(default=None, exclude_if=lambda it: it is None)
    """Closes groups without their slowest episodes; without it a group waits for all of them."""
    layout: Literal["packed", "prefix_tree"] = Field(
        default="prefix_tree", exclude_if=lambda it: it == "prefix_tree"
    )
    """How the update forwards a step's trajectories. "prefix_tree" forwards what several begin with
    alike once, with the same gradients up to rounding: prompts of a group, and the turns that its
    trajectories have in common. It is for one process, and for models
    whose tokens meet in plain attention (Llama, Qwen, Mistral) or that are LFM2, as the embedded
    one; others are packed. The last step of a run of `customer_service` took a third of the packed
    update's processor time."""
    train_on_observations: bool = False
    """Ablation only: leaves the tool's tokens in the loss."""
    max_mismatch_kl: float = Field(default=1e-3, gt=0)
    """Nats a token between engine and trainer on equal weights; beyond it a warning is said. In
    float32 it is about 1e-9, in bfloat16 a few 1e-4."""
    optimizer: PolicyOptimizerConfig = PolicyOptimizerConfig()
    processes: int = Field(default=1, ge=1)
    """Processes that share a step's trajectories: on this machine, in the pod of a Job or TrainJob,
    or on the nodes of kubernetes.ray.workers."""
    sharded: bool = False
    """Splits weights and optimizer over the processes (FSDP2), for a model too large for one."""
    collective_timeout_s: float = Field(default=5400.0, gt=0, exclude_if=lambda it: it == 5400)
    """How long the processes wait for one of them, as all do while rank 0 answers dev questions and
    writes checkpoints; then they end with an error that names it. Longer than `rollout.deadline_s`
    with the limits on top of that, or else a rank is named and not the tool that it waits for."""
    evaluate_every: int = Field(default=20, ge=1)
    """Dev questions are answered, and a checkpoint is written, every so many steps."""
    dev_questions: int = Field(default=300, ge=1)
    """Dev questions that choose the best weights: of each kind the last of `synthesis.dev_tasks`,
    as large a share as of the held-out questions."""
    renamed_share: float | None = Field(default=None, ge=0, le=1)
    """Own knowledge: share of the names that become invented ones in an episode's question, search
    results and accepted answers, anew each time a task is drawn, where the family knows what is a
    name and there are few of them. RL then cannot learn those of a small source. None is 1 where
    there are triples: questions of several steps are planned by the names that are left. Else it is
    0.6: where one search answers, it is learned what kind of word an answer is, by known words."""
    stop_after_idle_steps: int = Field(default=40, ge=0)
    """Stops the run, with its best weights, after so many steps in a row in which no trajectory got
    credit (nearly none, see `idle_share`): all groups had equal rewards, or the screening or a
    filter dropped them. The default is two intervals of curriculum.refresh_every's default: the
    band has been drawn anew in between, and its tasks were tried for as long. 0 never stops."""
    idle_share: float = Field(default=0.97, gt=0, le=1, exclude_if=lambda it: it == 0.97)
    """A step gives no credit, for that count, if so many of the groups that it sampled had equal
    rewards, or of groups of one were right: of a few hundred tasks known by heart one is missed now
    and then. 1 counts only steps without any credit."""

    def temperature_at(self, step: int) -> float:
        """The sampling temperature of optimizer step `step`, counted from 0."""
        return self.temperature_schedule.at(self.temperature, step, self.steps)

    def stops_after(self, idle_steps: float) -> bool:
        """Whether so many steps in a row without credit end the run."""
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
                f"training.group_size=1 leaves nothing to compare, and {algorithm.credit_source} "
                "learns from differences inside a group; raise it, or choose "
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
                f"training.algorithm.critic.warmup_steps={warmup} in which the critic "
                "alone is trained, so the policy would never be: raise training.steps above "
                f"{warmup}, or leave warmup_steps out (0 trains both from the first step)"
            )
        return self

    @model_validator(mode="after")
    def _observations_have_no_turn(self) -> Self:
        if self.train_on_observations and "turns_BT" in self.algorithm.needs:
            raise ValueError(
                f"{self.algorithm.credit_source} gives credit by the turn, and an observation "
                "is in none; training.train_on_observations goes with credit by the trajectory"
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
                f'loss "{self.algorithm.loss.name}" (preset "{self.algorithm.preset}") takes every '
                f"trajectory for one of today's policy, and {stale} brings older ones; add "
                'training.algorithm.off_policy = [{name = "importance_weights"}]'
            )
        return self

    @model_validator(mode="after")
    def _sharding_has_processes(self) -> Self:
        if self.sharded and self.optimizer.kind == "muon":
            raise ValueError(
                'training.optimizer.kind = "muon" needs whole matrices, which training.sharded '
                'splits: set kind = "adamw", or leave training.sharded out'
            )
        if self.sharded and self.processes == 1:
            raise ValueError(
                "training.sharded splits a model over processes and there is one: set "
                "training.processes, or leave training.sharded out"
            )
        return self
