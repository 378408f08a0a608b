"""The figures that reinforcement learning keeps for each step: what each is, and what it is per.

They are the columns of the history, and a few that trackers and the viewer alone have. Trainer,
report, metrics and the documentation take a figure's meaning from this table. A name may hold words
in capitals, which stand for what the profile names: `reward/NAME`, `NAME/kappa/CRITERION`.
"""

from __future__ import annotations

import enum
import re
from typing import NamedTuple


class Per(enum.Enum):
    """The denominator of a figure: a short name, and what exactly is counted."""

    TRAJECTORY = (
        "trajectory",
        "the trajectories that were sampled for the step and scored, before any filter: groups "
        "that the screening or a filter drops count, lost episodes, greedy baselines and replayed "
        "trajectories do not",
    )
    TERM = ("trajectory with the term", "those of these trajectories that have the term")
    GROUP = (
        "group",
        "the groups of these trajectories, by task; a group that lost all its episodes is none, "
        "and of one that the screening dropped only the screened attempts are compared",
    )
    ANSWER = ("answer", "those of these trajectories that gave an answer")
    RIGHT = ("right answer", "those of these answers whose outcome is right")
    WRONG = ("wrong trajectory", "those of these trajectories without a right outcome")
    WRONG_TERM = (
        "wrong trajectory with the term",
        "those of these trajectories that have the term",
    )
    CALL = ("tool call", "the tool calls of these trajectories that have a result")
    ROW = (
        "trained trajectory",
        "the trajectories that the step learns from: admitted and replayed ones, after all group "
        "filters; one in two preference pairs counts twice",
    )
    ROW_TOKEN = (
        "trained token",
        "the tokens in the loss of these trajectories, each once, before off-policy rules and "
        "token filters drop some",
    )
    ROW_SEQUENCE = (
        "trained sequence",
        "the trained trajectories with such a token; at sequence level of `importance_weights` all",
    )
    KEPT_TOKEN = ("kept token", "the trained tokens that no rule dropped, each once")
    FRESH_TOKEN = (
        "fresh token",
        "the action tokens of trained trajectories that the current weights sampled and the "
        "trainer scored before it changed a weight; only the first minibatch's, unless the "
        "algorithm scores all before the update",
    )
    ACTION_TOKEN = (
        "action token",
        "the tokens that the policy sampled, dropped ones included, over all applied updates of "
        "the step: each epoch counts them again",
    )
    LOSS_TOKEN = (
        "loss token",
        "the tokens in the loss, without those that off-policy rules and token filters dropped, "
        "over all applied updates of the step: each epoch counts them again",
    )
    SEQUENCE = ("sequence", "the trajectories with a loss token, over all applied updates")
    PAIR = ("pair", "the preference pairs, over all applied updates")
    CRITIC_TOKEN = (
        "critic token",
        "the tokens in the critic's loss, which no rule drops, over its applied updates",
    )
    UPDATE = (
        "update",
        "the optimizer updates of the step that were applied, large or small, each once",
    )
    QUESTION = ("dev question", "all dev questions; lost ones count as wrong")
    ATTEMPT = ("attempt", "all attempts since the run began or was resumed")
    STEP = ("step", "nothing: a count or a value of the step")
    RUN = ("run", "nothing: a count since the run began")

    def __init__(self, unit: str, covers: str) -> None:
        self.unit = unit
        self.units = f"{unit.removesuffix('y')}ies" if unit.endswith("y") else f"{unit}s"
        self.covers = covers


UNREAD_CALLS, UNKNOWN_TOOL = "unread_calls", "unknown_tool"
"""Calls that were not run as written, by their cause, of which one is an unknown tool."""


class StepFigure(NamedTuple):
    """A figure of a training step."""

    what: str
    unit: str
    """"share", or what the figure counts or measures, in the plural."""
    per: Per

    @property
    def scale(self) -> str:
        """Unit and denominator, as on an axis."""
        if self.unit == "share":
            return f"share of {self.per.units}"
        return self.unit if self.per in (Per.STEP, Per.RUN) else f"{self.unit} per {self.per.unit}"


OVERVIEW = (
    "reward",
    "pass_rate",
    "dev_em",
    "entropy",
    "zero_variance_share",
    "grad_norm",
    "mismatch_kl",
    "clipped_share",
    "loss",
    "action_tokens",
    "tool_calls",
    "kl",
    "staleness_mean",
    "step_s",
)
"""The curves of a run's overview, in its order; a run has about twelve of them."""

STEP_FIGURES = {
    "step": StepFigure("optimizer steps done, this one included", "steps", Per.RUN),
    "reward": StepFigure("mean of the whole rewards, all terms added", "reward", Per.TRAJECTORY),
    "pass_rate": StepFigure("those with a right outcome", "share", Per.TRAJECTORY),
    "zero_variance_share": StepFigure(
        "groups whose whole rewards are all equal, compared exactly: a term that differs between "
        "equally right answers (length, format, turns) makes a group count as differing, and so "
        "does a verifier's noise. A group that losses left with one attempt counts as equal; where "
        "`group_size` is 1, the right ones count",
        "share",
        Per.GROUP,
    ),
    "equal_outcomes_share": StepFigure(
        "groups whose outcomes are all equal, whatever the other terms of the reward; a noisy "
        "verifier lowers it as well, as it judges equal answers differently. A group of one counts",
        "share",
        Per.GROUP,
    ),
    "rollouts": StepFigure("scored trajectories so far", "trajectories", Per.RUN),
    "informative_share": StepFigure(
        "those in groups whose whole rewards differ; where `group_size` is 1, all",
        "share",
        Per.TRAJECTORY,
    ),
    "lost_episodes": StepFigure(
        "episodes that infrastructure lost: they have no reward and enter no other figure",
        "episodes",
        Per.STEP,
    ),
    "broke_sandbox_episodes": StepFigure(
        "scored trajectories whose own program ended its sandbox: wrong answers",
        "episodes",
        Per.STEP,
    ),
    "action_tokens": StepFigure(
        "mean number of tokens that the policy sampled", "tokens", Per.TRAJECTORY
    ),
    "tool_calls": StepFigure(
        "mean number of tool calls with a result, failed ones included", "calls", Per.TRAJECTORY
    ),
    "unread_calls/WHY": StepFigure(
        "those with a call that was not run as the policy wrote it; a column for each cause that "
        "occurs. The last message has it within a thought (`in_thought`), in another dialect (its "
        "name), or it cannot be read and names a tool (`broken`); `unknown_tool` called one that "
        "does not exist",
        "share",
        Per.TRAJECTORY,
    ),
    "failed_calls_share": StepFigure("calls whose tool reports a failure", "share", Per.CALL),
    "silent_groups_share": StepFigure(
        "groups in which no attempt made a call that was read, where tools are offered",
        "share",
        Per.GROUP,
    ),
    "grounded_share": StepFigure(
        "answers whose words occur in a row in a result of the attempt's own calls, after the "
        "normalisation of exact match; where tools are offered",
        "share",
        Per.ANSWER,
    ),
    "grounded_right_share": StepFigure(
        "right answers of which the same holds; where tools are offered", "share", Per.RIGHT
    ),
    "repeated_calls_share": StepFigure(
        "those that make a call a second time with the same arguments", "share", Per.TRAJECTORY
    ),
    "repeated_tokens_share": StepFigure(
        "mean share of the runs of four sampled tokens within an action that the attempt has "
        "sampled before",
        "share",
        Per.TRAJECTORY,
    ),
    "truncated_share": StepFigure("those that ran out of turns or tokens", "share", Per.TRAJECTORY),
    "reward_spread": StepFigure(
        "mean standard deviation (of the population) of the whole rewards in a group",
        "reward",
        Per.GROUP,
    ),
    "disputed_share": StepFigure(
        "groups in which equal answers have different outcomes: the verifier contradicts itself",
        "share",
        Per.GROUP,
    ),
    "scattered_share": StepFigure(
        "groups in which different answers are all right", "share", Per.GROUP
    ),
    "wrong_reward": StepFigure(
        "mean whole reward: what is paid without being right", "reward", Per.WRONG
    ),
    "wrong_reward/NAME": StepFigure(
        "mean of the term, for each term but the outcome",
        "reward",
        Per.WRONG_TERM,
    ),
    "own_task_share": StepFigure(
        "those whose first action is most like that of another attempt at the same task, by the "
        "cosine of their counted pairs of tokens; equally like ones count by their share. It "
        "falls to chance where the policy writes the same whatever the task",
        "share",
        Per.TRAJECTORY,
    ),
    "kept_tasks": StepFigure(
        "tasks within the curriculum's band after the step, for the next one", "tasks", Per.STEP
    ),
    "temperature": StepFigure("temperature that the step samples at", "", Per.STEP),
    "idle_steps": StepFigure("steps in a row up to this one without credit", "steps", Per.STEP),
    "reward/NAME": StepFigure("mean of the term", "reward", Per.TERM),
    "NAME/kappa/CRITERION": StepFigure("Fleiss' kappa of the judges so far", "kappa", Per.ATTEMPT),
    "NAME/kappa_with_rule": StepFigure(
        "Cohen's kappa of the judges' majority with the rule so far", "kappa", Per.ATTEMPT
    ),
    "NAME/refused_share": StepFigure(
        "invalid answers of judges; every judge of every attempt counts", "share", Per.ATTEMPT
    ),
    "NAME/cost": StepFigure(
        "cost of the judges since the run began or was resumed, in the prices' currency",
        "cost",
        Per.RUN,
    ),
    "outcome_model/agreement": StepFigure(
        "those on which the outcome model and the rule agree", "share", Per.ATTEMPT
    ),
    "posed_tasks": StepFigure(
        "tasks that self-play proposed after the step, refused ones included", "tasks", Per.STEP
    ),
    "kept_posed_tasks": StepFigure("those of them that were kept", "tasks", Per.STEP),
    "credited_share": StepFigure(
        "those with an advantage beyond rounding (1e-6) on some token", "share", Per.ROW
    ),
    "staleness_mean": StepFigure(
        "mean of how many steps older than the current weights those that sampled it were",
        "steps",
        Per.ROW,
    ),
    "staleness_max": StepFigure("the largest such age of a trained trajectory", "steps", Per.STEP),
    "explained_variance": StepFigure(
        "the part of the outcomes' variance that was predicted, 1 - Var[outcome - expected] / "
        "Var[outcome], over the trained trajectories; none where outcomes are all equal",
        "",
        Per.STEP,
    ),
    "observation_share": StepFigure(
        "observations among the tokens in the loss; 0 but for an ablation", "share", Per.KEPT_TOKEN
    ),
    "loss": StepFigure(
        "mean of what an update minimises: loss, KL penalty and entropy bonus by the algorithm's "
        "`aggregation`",
        "loss",
        Per.UPDATE,
    ),
    "grad_norm": StepFigure(
        "mean norm of the policy's gradient before it is clipped", "norm", Per.UPDATE
    ),
    "head_grad_norm": StepFigure(
        "mean norm of the gradient of the policy's output head before it is clipped, embeddings "
        "included where they are tied to it; none where it is not trained",
        "norm",
        Per.UPDATE,
    ),
    "skipped_updates": StepFigure(
        "updates of policy and critic whose gradient was not finite", "updates", Per.STEP
    ),
    "gated": StepFigure(
        "1 where a surge of the head's gradient ended the step's updates, else 0; only while a "
        "response to a health notice watches it",
        "steps",
        Per.STEP,
    ),
    "skipped_step": StepFigure(
        "1 where the policy stayed as it was, as engine and trainer disagreed by far more than in "
        "the run's first steps, else 0; only with responses to health notices, after these steps",
        "steps",
        Per.STEP,
    ),
    "update_tokens": StepFigure(
        "tokens of the trajectories that went through the policy, forwards and backwards; each "
        "epoch counts them again",
        "tokens",
        Per.STEP,
    ),
    "update_positions": StepFigure(
        "positions forwarded for them: fewer where trajectories share their beginnings",
        "positions",
        Per.STEP,
    ),
    "entropy": StepFigure(
        "mean entropy of the distribution that the token is drawn from (after temperature, top-k "
        "and top-p, without exploration of kinds), under the weights before the update",
        "nats",
        Per.ACTION_TOKEN,
    ),
    "clipped_share": StepFigure(
        "tokens whose importance ratio the loss clips", "share", Per.LOSS_TOKEN
    ),
    "clipped_high_share": StepFigure(
        "tokens whose ratio is clipped at the upper bound", "share", Per.LOSS_TOKEN
    ),
    "dual_clipped_share": StepFigure("tokens held by the dual clip", "share", Per.LOSS_TOKEN),
    "clipped_sequence_share": StepFigure(
        "trajectories whose ratio, or a token of whose, is clipped", "share", Per.SEQUENCE
    ),
    "dropped_share": StepFigure(
        "tokens that clip_cov leaves without gradient", "share", Per.LOSS_TOKEN
    ),
    "penalized_share": StepFigure("tokens that kl_cov penalises", "share", Per.LOSS_TOKEN),
    "outside_share": StepFigure("tokens outside the loss's region", "share", Per.LOSS_TOKEN),
    "outside_mismatch_kl": StepFigure(
        "what tokens outside the region add to the mean KL of sampler and policy",
        "nats",
        Per.LOSS_TOKEN,
    ),
    "inside_mismatch_kl": StepFigure(
        "what tokens inside the region add to it", "nats", Per.LOSS_TOKEN
    ),
    "kernel_mean": StepFigure("mean of vespo's kernel", "weight", Per.SEQUENCE),
    "pair_accuracy": StepFigure("pairs in the right order", "share", Per.PAIR),
    "pair_margin": StepFigure("mean margin of rewards, times beta", "nats", Per.PAIR),
    "kl": StepFigure(
        "mean KL of policy and reference by the penalty's estimator, within its convention's "
        "bounds; with a penalty in the reward, under the proximal policy and over the action "
        "tokens of the trained trajectories, each once",
        "nats",
        Per.LOSS_TOKEN,
    ),
    "mismatch_kl": StepFigure(
        "mean KL (k3) of the sampling engine and the trainer", "nats", Per.FRESH_TOKEN
    ),
    "logprob_gap_mean": StepFigure(
        "mean distance of the engine's log-prob from the trainer's", "nats", Per.FRESH_TOKEN
    ),
    "logprob_gap_max": StepFigure("the largest such distance of a fresh token", "nats", Per.STEP),
    "importance_ratio_mean": StepFigure(
        "mean ratio of trainer and sampler, before truncation", "ratio", Per.ROW_TOKEN
    ),
    "importance_ratio_min": StepFigure("the smallest such ratio", "ratio", Per.STEP),
    "importance_ratio_max": StepFigure("the largest such ratio", "ratio", Per.STEP),
    "importance_above_share": StepFigure(
        "ratios above the upper bound; at sequence level a share of the trained trajectories",
        "share",
        Per.ROW_TOKEN,
    ),
    "importance_weight_mean": StepFigure(
        "mean weight after truncation, before normalisation", "weight", Per.ROW_TOKEN
    ),
    "importance_effective_share": StepFigure(
        "Kish's effective sample size of the weights", "share", Per.ROW_TOKEN
    ),
    "rejected_share_KIND": StepFigure("tokens that `rejection` drops", "share", Per.ROW_TOKEN),
    "rejected_sequence_share_KIND": StepFigure(
        "trajectories that lose a token by it", "share", Per.ROW_SEQUENCE
    ),
    "silenced_share": StepFigure(
        "tokens to which `off_policy_sequence_mask` gives the weight 0", "share", Per.ROW_TOKEN
    ),
    "value_loss": StepFigure("mean of what an update of the critic minimises", "loss", Per.UPDATE),
    "value_clipped_share": StepFigure(
        "tokens whose value the critic's loss clips", "share", Per.CRITIC_TOKEN
    ),
    "value_grad_norm": StepFigure(
        "mean norm of the critic's gradient before it is clipped", "norm", Per.UPDATE
    ),
    "dev_em": StepFigure("questions whose greedy answer is right", "share", Per.QUESTION),
    "dev_lost_episodes": StepFigure(
        "dev episodes that stayed lost to infrastructure", "episodes", Per.STEP
    ),
    "dev_broke_sandbox_episodes": StepFigure(
        "dev episodes whose own program ended its sandbox", "episodes", Per.STEP
    ),
    "dev_canaries_right": StepFigure(
        "canaries (dev questions whose answer nobody can find) that count as right; where the "
        "family has them",
        "share",
        Per.QUESTION,
    ),
    "step_s": StepFigure(
        "duration of the step, with its evaluation and checkpoint; not in the history",
        "s",
        Per.STEP,
    ),
    "rollout_s": StepFigure(
        "part of it in which the learner waits for rollouts; not in the history", "s", Per.STEP
    ),
    "update_s": StepFigure(
        "part of it in which policy and critic are scored and updated; not in the history",
        "s",
        Per.STEP,
    ),
    "tokens_per_s": StepFigure(
        "action tokens of the step's scored trajectories, over its duration; not in the history",
        "tokens per second",
        Per.STEP,
    ),
    "update_tokens_per_s": StepFigure(
        "`update_tokens` over the time of the updates, scoring included; not in the history",
        "tokens per second",
        Per.STEP,
    ),
    "checkpoint_step": StepFigure(
        "step of the newest checkpoint; not in the history", "", Per.STEP
    ),
}
"""In the order of the documentation."""

_PATTERNS = {
    re.compile(re.sub(r"[A-Z]+", "[^/]+", name)): figure
    for name, figure in STEP_FIGURES.items()
    if name != name.lower()
}


def step_figure(name: str) -> StepFigure | None:
    """Return what the table says of a column; None for one of a loss of your own."""
    if name in STEP_FIGURES:
        return STEP_FIGURES[name]
    return next((figure for made, figure in _PATTERNS.items() if made.fullmatch(name)), None)
