"""Profile sections of learning, from the policy and its episodes to the registry."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from espalier.config.data import Section
from espalier.config.named_models import named_reference
from espalier.dialects import DialectName, chosen_dialect, syntax_of

OptimizerKind = Literal["adamw", "muon"]


class PrestageConfig(Section):
    """Question-free browsing logs that give the tiny policy its reading and copying skill."""

    steps: int = Field(default=1300, ge=1)
    """Optimizer steps."""
    tokens_per_step: int = Field(default=2048, ge=64)
    """Tokens of the logs per step."""
    learning_rate: float = Field(default=5e-3, gt=0)
    """Peak of the schedule."""
    optimizer: OptimizerKind = "muon"
    """Optimizer; see `warm_start.optimizer.kind`. Muon learns to read and copy in fewer steps."""
    substitution_share: float = Field(default=0.6, ge=0, le=1)
    """Share of the names replaced by invented ones, so that names are read and not memorised."""
    join_share: float = Field(default=0.15, ge=0, le=1)
    """Share of the logs that search for documents with two given names, if documents list
    several."""
    max_passes: int = Field(default=60, ge=1, exclude_if=lambda it: it == 60)
    """Own knowledge: limit of the logs' length, as a multiple of the words that training may read,
    but at least the million tokens that reading takes to learn. Steps become smaller, then
    fewer."""


class LoraConfig(Section):
    """A low-rank adapter (arXiv:2106.09685), trained instead of the weights."""

    rank: int = Field(default=32, ge=1)
    """Rank of the two factors."""
    alpha: float = Field(default=64.0, gt=0)
    """Scale of their product, which is multiplied by alpha / rank."""
    target: tuple[str, ...] = Field(
        default=("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
        min_length=1,
    )
    """Names of the linear layers that get an adapter; by default all of a block."""


def _known_dialect(name: str) -> str:
    if name != "auto":
        syntax_of(name)
    return name


class PolicyConfig(Section):
    """The base policy: a given model directory, or the tiny one, trained from scratch."""

    model: Path | None = None
    """A name of `espalier models list`, or the directory of any local Hugging Face causal LM; unset
    means the tiny policy."""
    start: Literal["base", "champion"] = "base"
    """"champion" starts from the registered model version that carries that alias."""
    dialect: Annotated[DialectName | Literal["auto"] | str, AfterValidator(_known_dialect)] = "auto"
    """How it writes thoughts and calls; one of your own is named as module:Class. "auto" takes what
    the model's chat template teaches; for the tiny policy that is "tags"."""
    vocab_size: int = Field(default=2048, ge=300)
    """Tiny policy: tokens of its vocabulary."""
    hidden_size: int = Field(default=128, ge=16)
    """Tiny policy: width."""
    attention_heads: int = Field(default=4, ge=1)
    """Tiny policy: heads of each attention block."""
    layers: tuple[Literal["conv", "attention"], ...] = ("conv", "attention", "conv", "attention")
    """LFM2 blocks (short convolutions and attention), in order."""
    feed_forward_size: int = Field(default=256, ge=16)
    """Tiny policy: width of the feed-forward layers."""
    lora: LoraConfig | None = Field(default=None, exclude_if=lambda it: it is None)
    """Trains an adapter instead of all weights, in every stage that trains; optimizer state and
    checkpoints then hold a few percent of the parameters. Learning rates have to be three to ten
    times as high as for all weights."""
    prestage: PrestageConfig = PrestageConfig()

    @model_validator(mode="after")
    def _heads_divide_the_width(self) -> Self:
        if self.hidden_size % (2 * self.attention_heads):
            raise ValueError(
                f"policy.hidden_size={self.hidden_size} must be an even multiple of "
                f"policy.attention_heads={self.attention_heads} (rotary halves need it)"
            )
        if self.model is not None and self.start == "champion":
            raise ValueError('policy.model and policy.start = "champion" exclude each other')
        return self

    @model_validator(mode="after")
    def _digests_are_whole(self) -> Self:
        reference = named_reference(self.model)
        if reference and not re.fullmatch("([0-9a-f]{12})?", reference.digest):
            raise ValueError(
                f"policy.model = {self.model}: write it as {reference.model.name}, or with the 12 "
                "characters after @ that `espalier models list` shows"
            )
        return self

    @property
    def directory(self) -> Path | None:
        """Directory of the model on this machine, whether it exists or not; None if embedded."""
        reference = named_reference(self.model)
        return self.model if reference is None else reference.directory

    @property
    def model_dialect(self) -> str:
        """The dialect of the base policy; of a named model it is known without its files."""
        reference = named_reference(self.model)
        if reference is not None and self.dialect == "auto":
            return reference.model.dialect
        return chosen_dialect(self.dialect, self.model)


class RetryConfig(Section):
    """Further attempts in one episode while the answer is wrong, each after a reflection.

    Reflexion (Shinn et al. 2023, arXiv:2303.11366): the policy reads that the attempt failed,
    writes what to do differently, and starts over from the prompt and this reflection. The verifier
    decides whether to retry, so results are not comparable with those of single attempts.
    """

    attempts: int = Field(default=2, ge=2, le=16)
    """Most attempts of an episode, including the first; the last one is rewarded."""
    reflection_tokens: int = Field(default=40, ge=4)
    """Most tokens of a reflection; they count against `max_tokens`. Without room for it the episode
    ends with the failed attempt."""


class MemoryConfig(Section):
    """Worked solutions of similar training tasks before each question.

    They are the demonstrations that validation accepted (ExpeL, arXiv:2308.10144), retrieved by
    the words of their questions; a task never sees its own.
    """

    recalled: int = Field(default=1, ge=1, le=16)
    """Number of solutions before a question, the most similar first."""
    max_tokens: int = Field(default=64, ge=8)
    """Most tokens that they add to a prompt, which count against `episode.max_tokens`; the least
    similar are left out beyond that."""


class EpisodeConfig(Section):
    """Limits of one episode, the same for every policy, stage and benchmark."""

    max_turns: int = Field(default=6, ge=1)
    """Most messages that call tools, each with any number of calls."""
    max_turn_calls: int = Field(default=8, ge=1)
    """Most calls of one message; the policy reads that further ones were refused. The tag dialect
    writes one call per message."""
    max_tokens: int = Field(default=384, ge=16)
    """Most tokens of an episode's context, including prompt and observations. Names that the
    tokenizer never saw take more tokens: episodes that fit in training may not fit held-out."""
    max_turn_tokens: int = Field(default=40, ge=4)
    """Most tokens that the policy writes in one turn."""
    overflow: Literal["stop", "truncate", "summarise"] = "stop"
    """Treatment of an episode whose context is full: "stop" ends it; the others continue in a new
    context, "truncate" without its oldest observations, "summarise" with the policy's own summary
    instead of all of them."""
    retry: RetryConfig | None = Field(default=None, exclude_if=lambda it: it is None)
    memory: MemoryConfig | None = Field(default=None, exclude_if=lambda it: it is None)


class OptimizerConfig(Section):
    """AdamW or Muon, with linear warm-up and cosine decay to `final_share` of the peak."""

    kind: OptimizerKind = Field(default="adamw", exclude_if=lambda it: it == "adamw")
    """"muon" orthogonalizes the momentum of each hidden matrix (arXiv:2502.16982), and leaves
    embeddings, vectors and convolutions to AdamW. Both use the same learning rate."""
    learning_rate: float = Field(default=1e-3, gt=0)
    """Peak of the schedule."""
    warmup_share: float = Field(default=0.05, ge=0, le=1)
    """Share of the steps in which the rate rises to its peak."""
    final_share: float = Field(default=0.1, ge=0, le=1)
    """Rate of the last step, as a share of the peak."""
    weight_decay: float = Field(default=0.01, ge=0)
    """Decoupled weight decay."""
    betas: tuple[float, float] = (0.9, 0.95)
    """Decay rates of AdamW's two moments; the second is Muon's momentum."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """Gradients with a larger norm are scaled down to it."""
    max_skipped_updates: int = Field(default=3, ge=1)
    """Number of consecutive updates with a non-finite gradient that stops the run; each is skipped.
    One or two come from an odd batch. As skipping leaves the weights alone, a third, on other data,
    means that the next will fail too. 1 stops at the first."""


class PolicyOptimizerConfig(OptimizerConfig):
    """The same, with reinforcement learning's defaults for the keys that a profile leaves out."""

    learning_rate: float = Field(default=3e-4, gt=0)
    final_share: float = Field(default=0.3, ge=0, le=1)
    weight_decay: float = Field(default=0.0, ge=0)


class HindsightConfig(Section):
    """A second round of the warm start, which relabels failed attempts with the task they solved.

    Hindsight experience replay (arXiv:1707.01495) for attempts at training tasks.
    """

    tasks: int = Field(default=400, ge=1)
    """Number of training tasks without a demonstration that the policy of the first round
    attempts."""
    attempts: int = Field(default=2, ge=1)
    """Attempts at each of these tasks."""
    temperature: float = Field(default=1.0, gt=0)
    """Sampling temperature of the attempts."""
    max_share: float = Field(default=0.5, gt=0, lt=1)
    """Largest share of relabelled attempts among the second round's demonstrations; beyond it, a
    random choice is left out."""
    steps: int = Field(default=100, ge=1)
    """Optimizer steps of the second round, with the batch and the optimizer of the first. Its
    weights are kept only if they answer more dev questions than those of the first."""


class PreferenceOptimizerConfig(OptimizerConfig):
    """The same, with the preference phase's defaults for the keys that a profile leaves out."""

    learning_rate: float = Field(default=3e-4, gt=0)
    weight_decay: float = Field(default=0.0, ge=0)


class PreferencesConfig(Section):
    """A last phase of the warm start: DPO on preference pairs of your own, without sampling.

    Rafailov et al. 2023, arXiv:2305.18290; the reference is the policy at the phase's beginning.
    """

    path: Path
    """JSON lines of {"prompt": ..., "chosen": ..., "rejected": ...} in TRL's format: texts, or
    lists of messages in OpenAI's chat format."""
    steps: int = Field(default=60, ge=1)
    """Optimizer steps."""
    pairs_per_step: int = Field(default=8, ge=1)
    """Pairs in a batch."""
    beta: float = Field(default=0.1, gt=0)
    """Weight of the margin over the reference, per nat; the paper uses 0.1. A larger value stays
    closer to the reference."""
    optimizer: PreferenceOptimizerConfig = PreferenceOptimizerConfig()


class WarmStartConfig(Section):
    """Masked SFT on the teacher's trajectories, and on demonstrations of your own."""

    steps: int = Field(default=300, ge=1)
    """Optimizer steps."""
    trajectories_per_step: int = Field(default=16, ge=1)
    """Demonstrations in a batch."""
    optimizer: OptimizerConfig = OptimizerConfig()
    evaluate_every: int = Field(default=50, ge=1)
    """Steps between two evaluations on dev questions, each with a checkpoint."""
    dev_questions: int = Field(default=200, ge=1)
    """Number of dev questions that choose the best weights: the first of `synthesis.dev_tasks`,
    with the mix of question kinds of the held-out questions."""
    renamed_share: float = Field(default=0.6, ge=0, le=1)
    """Share of the names in a demonstration that are replaced by invented ones, anew each time it
    is shown, if the family knows what is a name: a plan then depends only on a question's words."""
    max_epochs: int = Field(default=20, ge=1, exclude_if=lambda it: it == 20)
    """Own knowledge: most times that a demonstration is shown; there are fewer steps otherwise."""
    demonstrations: Path | None = Field(default=None, exclude_if=lambda it: it is None)
    """Demonstrations of your own: JSON lines of {"messages": [...]} in OpenAI's chat format, with
    tool calls. Each is shown as often as one of the teacher's; only the assistant's messages are
    trained on. The file's content is part of the stage's digest, not its path."""
    teacher: bool = Field(default=True, exclude_if=lambda it: it)
    """Whether the teacher's demonstrations are shown too; if not, `demonstrations` replace them."""
    hindsight: HindsightConfig | None = Field(default=None, exclude_if=lambda it: it is None)
    preferences: PreferencesConfig | None = Field(default=None, exclude_if=lambda it: it is None)

    def external_files(self) -> dict[str, Path | None]:
        """Profile key -> the user's own file that it names."""
        return {
            "warm_start.demonstrations": self.demonstrations,
            "warm_start.preferences.path": self.preferences and self.preferences.path,
        }

    @model_validator(mode="after")
    def _somebody_demonstrates(self) -> Self:
        if not self.teacher and self.demonstrations is None:
            raise ValueError(
                "warm_start.teacher=false leaves nothing to imitate: set "
                "warm_start.demonstrations to a file, or let the teacher demonstrate"
            )
        return self


class CurriculumConfig(Section):
    """Choice of the training tasks worth sampling, by pass rates of the warm-started policy."""

    enabled: bool = True
    """Whether tasks are chosen by pass rate; if not, training draws uniformly from all tasks."""
    candidates: int = Field(default=1500, ge=1)
    """Number of training tasks whose pass rate is estimated."""
    rollouts_per_task: int = Field(default=4, ge=2)
    """Attempts at each candidate, from which its pass rate is estimated."""
    draw: Literal["band", "kinds", "uniform", "patterns", "predicted", "frontier"] = "kinds"
    """Rule by which training draws tasks. "band": those whose estimated pass rate lies inside
    `pass_rate_band`. "kinds": the same, with equal weight for each group that reports show (kind of
    question, number of steps), unless it has less than a twentieth of the tasks; by "band", with
    six times as many tasks of 3 steps as of 4, RL halved the EM of 4. "uniform": all alike.
    "patterns": a pattern uniformly, then one of its tasks. "predicted": by the chance that a task's
    rollouts have both outcomes, predicted by a regression over pattern, kind and lengths and by the
    task's own attempts. "frontier": untried tasks of patterns with a predicted pass rate of 0.2 to
    0.8."""
    pass_rate_band: tuple[float, float] = (0.05, 0.90)
    """Interval of pass rates of the kept tasks; a group at 0 or 1 gives no gradient."""
    screening_rollouts: int = Field(default=4, ge=0)
    """Rollouts of a task that are sampled first: if all or none of them solve it, the rest of its
    group is not sampled and the group is dropped (SPEED-RL, arXiv:2506.09016). 0 samples whole
    groups at once."""
    refresh_every: int = Field(default=20, ge=1)
    """Optimizer steps between updates of the band from training's own rollouts."""
    explore_share: float = Field(default=0.15, ge=0, le=1)
    """Share of a step's tasks drawn from outside the band, so that their pass rates stay known."""
    preference: Literal["even", "r_zero", "absolute_zero", "absolute_zero_code"] = "even"
    """Tasks of the band that are drawn more often: "even" none, "r_zero" those solved half of the
    time (R-Zero's reward of a challenger), "absolute_zero" the hard ones; "absolute_zero_code" as
    in the public code, without those never solved. Weights follow pass rates during training."""

    @property
    def active_screening(self) -> int:
        """Number of screening rollouts; 0 if the curriculum is off."""
        return self.screening_rollouts if self.enabled else 0

    @model_validator(mode="after")
    def _band_is_an_interval(self) -> Self:
        low, high = self.pass_rate_band
        if not 0 <= low < high <= 1:
            raise ValueError(
                f"curriculum.pass_rate_band={self.pass_rate_band} is not an interval inside 0-1"
            )
        return self

    @model_validator(mode="after")
    def _choices_have_pass_rates(self) -> Self:
        if self.enabled:
            return self
        chosen = {"draw": self.draw, "preference": self.preference}
        for key, value in chosen.items():
            # "band" and "kinds" may be the default of a profile
            if value not in (None, "band", "kinds", "uniform", "even"):
                raise ValueError(
                    "curriculum.enabled=false draws uniformly from all tasks, but curriculum."
                    f'{key}="{value}" chooses among them; leave one of them out'
                )
        return self

    @model_validator(mode="after")
    def _preference_is_of_the_band(self) -> Self:
        if self.preference != "even" and self.draw not in ("band", "kinds"):
            raise ValueError(
                f'curriculum.preference="{self.preference}" weights the tasks of the band, which '
                f'draw="{self.draw}" does not use; leave one of them out'
            )
        return self


class RegistryConfig(Section):
    """Name of the registered model, and conditions for a version to become champion."""

    model_name: str | None = Field(default=None, min_length=1)
    """Name of the registered model. Unset, it is espalier-NAME after the folder, dump, database or
    problem file that the agent is about, and espalier-search-agent for GeoNames."""
    experiment: str = Field(default="espalier", min_length=1)
    """MLflow experiment of the tracked run."""
    viewer: str | None = Field(
        default=None, pattern=r"^https?://[^\s?#]+$", exclude_if=lambda it: it is None
    )
    """Address at which `espalier ui` shows the folder of runs. Runs and traces in MLflow then link
    to their pages there."""
    min_gain: float = Field(default=0.0, ge=-1, le=1)
    """Least lower end of the paired interval (challenger - champion, EM 0-1), exclusive."""
    min_questions: int = Field(default=50, ge=1)
    """Least number of held-out questions that can pass the gate. How many a gain needs is what its
    interval says; with fewer than 50 the bootstrap makes it too narrow."""
    must_not_fall: tuple[str, ...] = Field(default=(), exclude_if=lambda it: not it)
    """Suites of [evaluation.suites] on which a challenger must not fall behind either."""
    max_fall: float = Field(default=0.05, ge=0, lt=1, exclude_if=lambda it: it == 0.05)
    """Largest fall on those suites: the lower end of the paired interval of the headline score
    (challenger - champion, 0-1) must lie above minus this."""
    contaminated: Literal["exclude", "refuse"] = Field(
        default="exclude", exclude_if=lambda it: it == "exclude"
    )
    """Treatment of questions that either version was trained on: "exclude" compares on the others,
    "refuse" refuses the promotion if there are any."""
    unknown_training: Literal["allow", "refuse"] = Field(
        default="allow", exclude_if=lambda it: it == "allow"
    )
    """Whether to promote a version if the training data of either is not fully known."""
