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
    """Tokens of the logs that a step trains on."""
    learning_rate: float = Field(default=5e-3, gt=0)
    """Peak of the schedule."""
    optimizer: OptimizerKind = "muon"
    """Optimizer, as `warm_start.optimizer.kind`. Muon learns to read and copy in fewer steps."""
    substitution_share: float = Field(default=0.6, ge=0, le=1)
    """Share of the names replaced by invented ones, so that names are read and not memorised."""
    join_share: float = Field(default=0.15, ge=0, le=1)
    """Share of the logs that search for what mentions two names, where documents list several."""
    max_passes: int = Field(default=60, ge=1, exclude_if=lambda it: it == 60)
    """Own knowledge: logs hold at most so many times the words of what training may read, and at
    least the million tokens that reading takes to learn: in smaller steps, then in fewer."""


class LoraConfig(Section):
    """A low-rank adapter (arXiv:2106.09685), trained in the place of the weights."""

    rank: int = Field(default=32, ge=1)
    """Columns of its two factors."""
    alpha: float = Field(default=64.0, gt=0)
    """Their product is scaled by alpha / rank."""
    target: tuple[str, ...] = Field(
        default=("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
        min_length=1,
    )
    """Names of the linear layers that get one; the default is all of a block."""


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
    checkpoints are then those of a few percent of the parameters. Learning rates are ten times
    those of all weights, and more."""
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
        """Where the given model lies on this machine, there or not; None without one."""
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
    writes what to do differently, and begins anew with the prompt and that. The verifier decides,
    so what is measured this way is not comparable with single attempts.
    """

    attempts: int = Field(default=2, ge=2, le=16)
    """Attempts of an episode, the first included; the last one is paid."""
    reflection_tokens: int = Field(default=40, ge=4)
    """Tokens of a reflection; like all others they count against `max_tokens`. Without room for it
    the episode ends with the attempt that failed."""


class MemoryConfig(Section):
    """Worked solutions of similar training tasks before each question.

    They are the demonstrations that validation accepted (ExpeL, arXiv:2308.10144), found by the
    words of their questions; a task's own is never shown to it.
    """

    recalled: int = Field(default=1, ge=1, le=16)
    """Solutions before a question, the most similar first."""
    max_tokens: int = Field(default=64, ge=8)
    """Tokens that they may add to a prompt, where they count against `episode.max_tokens`; of more
    the least similar are left out."""


class EpisodeConfig(Section):
    """Limits of one episode, the same for every policy, stage and benchmark."""

    max_turns: int = Field(default=6, ge=1)
    """Messages that call tools, however many calls one holds."""
    max_turn_calls: int = Field(default=8, ge=1)
    """Calls of one message that are made; the policy reads that any further one was refused. The
    tag dialect writes one call a message."""
    max_tokens: int = Field(default=384, ge=16)
    """Tokens of an episode's context, prompt and observations included. Names that the tokenizer
    never met take more of them: what fits in training may be cut off when it is judged."""
    max_turn_tokens: int = Field(default=40, ge=4)
    """Tokens that the policy may write in one turn."""
    overflow: Literal["stop", "truncate", "summarise"] = "stop"
    """What becomes of an episode whose context is full: it ends, or it goes on in a new context,
    without its oldest observations or with the policy's own summary in the place of all."""
    retry: RetryConfig | None = Field(default=None, exclude_if=lambda it: it is None)
    memory: MemoryConfig | None = Field(default=None, exclude_if=lambda it: it is None)


class OptimizerConfig(Section):
    """AdamW or Muon, with linear warm-up and cosine decay to `final_share` of the peak."""

    kind: OptimizerKind = Field(default="adamw", exclude_if=lambda it: it == "adamw")
    """"muon" makes the momentum of each hidden matrix orthogonal (arXiv:2502.16982), and leaves
    embeddings, vectors and convolutions to AdamW. One learning rate serves both."""
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
    """Gradients of a larger norm are scaled down to it."""
    max_skipped_updates: int = Field(default=3, ge=1)
    """An update whose gradient is not finite is skipped; so many in a row stop the run. One or two
    come of an odd batch; the weights stay as they were, so that a third, on other data, says that
    the next will be no better. 1 stops at the first."""


EMBEDDED_WARM_START = OptimizerConfig(kind="muon", learning_rate=1.5e-3)
"""Optimizer of a policy made from scratch, unless the profile has [warm_start.optimizer]."""


class PolicyOptimizerConfig(OptimizerConfig):
    """The same, with defaults of reinforcement learning that hold where a profile sets one key."""

    learning_rate: float = Field(default=3e-4, gt=0)
    final_share: float = Field(default=0.3, ge=0, le=1)
    weight_decay: float = Field(default=0.0, ge=0)


class HindsightConfig(Section):
    """A second round of the warm start, also on failed attempts: each shows what it did solve.

    Hindsight experience replay (arXiv:1707.01495) for attempts at training tasks.
    """

    tasks: int = Field(default=400, ge=1)
    """Training tasks that the policy of the first round attempts, none that a teacher showed."""
    attempts: int = Field(default=2, ge=1)
    """Attempts at each of them."""
    temperature: float = Field(default=1.0, gt=0)
    """At which they are sampled."""
    max_share: float = Field(default=0.5, gt=0, lt=1)
    """Largest share of the second round's demonstrations that were failed attempts; of more, some
    are left out by the seed."""
    steps: int = Field(default=100, ge=1)
    """Optimizer steps of the second round, with the batch and the optimizer of the first. Its
    weights are kept only where they answer more dev questions than those of the first."""


class PreferenceOptimizerConfig(OptimizerConfig):
    """The same, with defaults of the preference phase that hold where a profile sets one key."""

    learning_rate: float = Field(default=3e-4, gt=0)
    weight_decay: float = Field(default=0.0, ge=0)


class PreferencesConfig(Section):
    """A last phase of the warm start: DPO on preference pairs of your own, without sampling.

    Rafailov et al. 2023, arXiv:2305.18290; the reference is the policy that the phase begins with.
    """

    path: Path
    """JSON lines of {"prompt": ..., "chosen": ..., "rejected": ...}, as TRL has them: texts, or
    lists of messages in OpenAI's chat shape."""
    steps: int = Field(default=60, ge=1)
    """Optimizer steps."""
    pairs_per_step: int = Field(default=8, ge=1)
    """Pairs in a batch."""
    beta: float = Field(default=0.1, gt=0)
    """How much a nat of margin over the reference counts; the paper's 0.1. More stays nearer to
    the reference."""
    optimizer: PreferenceOptimizerConfig = PreferenceOptimizerConfig()


class WarmStartConfig(Section):
    """Masked SFT on the teacher's trajectories, and on demonstrations of your own."""

    steps: int = Field(default=300, ge=1)
    """Optimizer steps."""
    trajectories_per_step: int = Field(default=16, ge=1)
    """Demonstrations in a batch."""
    optimizer: OptimizerConfig = OptimizerConfig()
    """Without this table the tiny policy gets Muon, at a rate of 1.5e-3."""
    evaluate_every: int = Field(default=50, ge=1)
    """Dev questions are answered, and a checkpoint is written, every so many steps."""
    dev_questions: int = Field(default=200, ge=1)
    """Dev questions that choose the best weights: of each kind the first of `synthesis.dev_tasks`,
    as large a share as of the held-out questions."""
    renamed_share: float = Field(default=0.6, ge=0, le=1)
    """Share of the names in a demonstration that become invented ones, anew each time it is shown,
    where the family knows what is a name: a plan then follows from a question's words alone."""
    max_epochs: int = Field(default=20, ge=1, exclude_if=lambda it: it == 20)
    """Own knowledge: fewer steps where they would show a demonstration more often than this."""
    demonstrations: Path | None = Field(default=None, exclude_if=lambda it: it is None)
    """Demonstrations of your own: JSON lines of {"messages": [...]} in OpenAI's chat shape, with
    tool calls. Each is shown as often as one of the teacher's, and the assistant's messages alone
    are trained on. It counts by its content."""
    teacher: bool = Field(default=True, exclude_if=lambda it: it)
    """Whether the teacher's demonstrations are shown as well; without them `demonstrations` take
    their place."""
    hindsight: HindsightConfig | None = Field(default=None, exclude_if=lambda it: it is None)
    preferences: PreferencesConfig | None = Field(default=None, exclude_if=lambda it: it is None)

    def external_files(self) -> dict[str, Path | None]:
        """The user's own files, by the key that names them."""
        return {
            "warm_start.demonstrations": self.demonstrations,
            "warm_start.preferences.path": self.preferences and self.preferences.path,
        }

    @model_validator(mode="after")
    def _somebody_demonstrates(self) -> Self:
        if not self.teacher and self.demonstrations is None:
            raise ValueError(
                "warm_start.teacher=false leaves nothing to imitate: name a file of "
                "warm_start.demonstrations, or let the teacher demonstrate"
            )
        return self


class CurriculumConfig(Section):
    """Which training tasks are worth sampling, judged by the warm-started policy."""

    enabled: bool = True
    """Whether tasks are chosen by pass rate; without it training draws from all tasks alike."""
    candidates: int = Field(default=1500, ge=1)
    """Training tasks whose pass rate is estimated."""
    rollouts_per_task: int = Field(default=4, ge=2)
    """Attempts at each candidate, from which its pass rate is estimated."""
    draw: Literal["band", "kinds", "uniform", "patterns", "predicted", "frontier"] = "kinds"
    """How training chooses tasks: "band" those whose estimated pass rate lies inside
    `pass_rate_band`; "kinds" the same, with each group that reports show (kind of question, number
    of steps) as often as any other, but for groups of less than a twentieth of the tasks: drawn by
    "band", where 3 steps were asked six times as often as 4, RL halved the EM of 4; "uniform" all
    alike; "patterns" all patterns alike and then their tasks; "predicted" by the chance that their
    rollouts hold both outcomes, as a regression over pattern, kind and lengths and the task's own
    attempts predict it; "frontier" tasks never tried, of the patterns whose predicted pass rate is
    0.2 to 0.8."""
    pass_rate_band: tuple[float, float] = (0.05, 0.90)
    """Tasks with a pass rate inside are kept; a task at 0 or at 1 gives a group no gradient."""
    screening_rollouts: int = Field(default=4, ge=0)
    """Rollouts of a task in training before the rest of its group: where all of them or none solve
    it, the group is dropped (SPEED-RL, arXiv:2506.09016). 0 samples whole groups at once."""
    refresh_every: int = Field(default=20, ge=1)
    """Optimizer steps between refreshes of the band from the rollouts of training itself."""
    explore_share: float = Field(default=0.15, ge=0, le=1)
    """Share of a step's tasks drawn from outside the kept band, so that it can be refreshed."""
    preference: Literal["even", "r_zero", "absolute_zero", "absolute_zero_code"] = "even"
    """Which tasks of the band are drawn more often: none, those solved every other time (R-Zero's
    reward of a challenger), or the hard ones (Absolute Zero's; in the public code not those that
    nobody solved). The weight of a task follows its pass rate as training goes on."""

    @property
    def active_screening(self) -> int:
        """Rollouts of the screening, 0 where the curriculum is off."""
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
                    "curriculum.enabled=false draws from all tasks alike, and curriculum."
                    f'{key}="{value}" chooses among them; leave one of them out'
                )
        return self

    @model_validator(mode="after")
    def _preference_is_of_the_band(self) -> Self:
        if self.preference != "even" and self.draw not in ("band", "kinds"):
            raise ValueError(
                f'curriculum.preference="{self.preference}" weighs the tasks of the band, from '
                f'which draw="{self.draw}" does not draw; leave one of them out'
            )
        return self


class RegistryConfig(Section):
    """Where the model version goes, and what it must show before it becomes champion."""

    model_name: str = Field(default="espalier-search-agent", min_length=1)
    """Where it is not set, a profile with knowledge of its own names the model after that: after
    the folder, dump, database or problem file."""
    experiment: str = Field(default="espalier", min_length=1)
    """MLflow experiment of the tracked run."""
    min_gain: float = Field(default=0.0, ge=-1, le=1)
    """The lower end of the paired interval (challenger - champion, EM 0-1) must exceed this."""
    min_questions: int = Field(default=500, ge=1)
    """Fewer held-out questions than this never pass the gate."""
    must_not_fall: tuple[str, ...] = Field(default=(), exclude_if=lambda it: not it)
    """Names of suites of [evaluation.suites] on which a challenger must not fall behind either."""
    max_fall: float = Field(default=0.05, ge=0, lt=1, exclude_if=lambda it: it == 0.05)
    """On those, the lower end of the paired interval of the headline score (challenger - champion,
    0-1) must lie above minus this."""
    contaminated: Literal["exclude", "refuse"] = Field(
        default="exclude", exclude_if=lambda it: it == "exclude"
    )
    """Questions that either version was trained on: "exclude" compares on the others, "refuse"
    promotes nothing where there are any."""
    unknown_training: Literal["allow", "refuse"] = Field(
        default="allow", exclude_if=lambda it: it == "allow"
    )
    """Whether a version may be promoted where it cannot be said what the two were trained on."""

    def named_after(self, own: Path | str) -> Self:
        """The same settings, the model named after a folder, file, database or environment."""
        words = re.findall("[a-z0-9]+", Path(own).absolute().name.partition(".")[0].lower())
        name = "-".join(["espalier", *(words or ["agent"])])
        return self.model_copy(update={"model_name": name})
