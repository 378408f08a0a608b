"""Every figure of a step, computed again from its trajectories by other means than the trainer's.

The oracle scores one trajectory at a time with the weights of each update in float64, and knows the
formulas of its four runs alone. Times are not in the history. Figures of losses and rules that no
run here has are in the golden cases of the algorithms; those of judges, reward models and self-play
in their own tests.
"""

import itertools
import math
import re
from collections import Counter
from statistics import fmean, pvariance

import pytest
import torch

from espalier.records.step_figures import STEP_FIGURES, step_figure
from tests.factories.recorded_steps import FlakySearch, recorded_run
from tests.factories.tiny_training import profile_of, write_inputs

pytestmark = pytest.mark.slow

FAST = {"learning_rate": 2e-3, "warmup_share": 0.0}
"""Weights move within a step, so that ratios leave the clip."""
SMALL = {"steps": 3, "evaluate_every": 2, "optimizer": FAST, "minibatches": 3}
IN_TURNS = profile_of(
    max_staleness=0,
    curriculum={"screening_rollouts": 0, "refresh_every": 1},
    hardware={"micro_batch_tokens": 150},
    training=SMALL
    | {
        "layout": "packed",
        "tasks_per_step": 3,
        "group_size": 5,
        "epochs": 2,
        "temperature": 1.3,
        "algorithm": {
            "preset": "grpo",
            "filters": [
                {"name": "zero_variance", "action": "clamp"},
                {"name": "high_entropy_tokens", "share": 0.5},
            ],
        },
    },
)
AHEAD = profile_of(
    max_staleness=2,
    training=SMALL
    | {
        "steps": 5,
        "minibatches": 2,
        "asynchronous": {"max_staleness": 2},
        "algorithm": {
            "proximal": "recomputed",
            "off_policy": [
                {"name": "importance_weights", "upper": 1.1},
                {"name": "rejection", "level": "seq_max", "upper": 1.22},
            ],
        },
    },
)
REPLAYED = profile_of(
    max_staleness=0,
    curriculum={"screening_rollouts": 0},
    hardware={"micro_batch_tokens": 150},
    reward={"terms": [{"name": "turn_penalty"}]},
    training=SMALL
    | {
        "steps": 4,
        "layout": "packed",
        "tasks_per_step": 4,
        "replay": {"capacity": 8},
        "minibatches": 4,
        "algorithm": {
            "preset": "rloo",
            "entropy_coefficient": 0.01,
            "filters": [{"name": "group_top_k", "fraction": 0.7}],
        },
    },
)
CRITIC = profile_of(
    max_staleness=0,
    curriculum={"screening_rollouts": 0},
    training=SMALL
    | {"algorithm": {"preset": "ppo", "critic": {"warmup_steps": 0, "learning_rate": 0.05}}},
)
ALONE = profile_of(
    max_staleness=0,
    curriculum={"screening_rollouts": 0},
    training=SMALL
    | {
        "tasks_per_step": 9,
        "group_size": 1,
        "algorithm": {"preset": "spo", "loss": {"clip_low": 0.1, "clip_high": 0.1}},
    },
)
_OF_ONE_TOKEN = ("logprob_gap_max", "importance_ratio_min", "importance_ratio_max")
TOLERANCES = dict.fromkeys(("grad_norm", "head_grad_norm", "value_grad_norm", *_OF_ONE_TOKEN), 1e-5)
"""A norm is a sum over thousands of float32 gradients, and what one token shows has the
rounding of one float32 log-prob, which a mean does not have."""
RUNS = {
    "in turns": IN_TURNS,
    "ahead": AHEAD,
    "replayed": REPLAYED,
    "critic": CRITIC,
    "alone": ALONE,
}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    write_inputs(folder)
    return folder


@pytest.mark.parametrize("name", RUNS)
def test_every_figure_follows_from_the_trajectories(inputs, tmp_path, name):
    recording = recorded_run(inputs, tmp_path, RUNS[name], FlakySearch())
    before = {"rollouts": 0, "idle_steps": 0}
    wrong = []
    for number, step in enumerate(recording.steps):
        expected = _sampled(recording, step, number, before)
        if step.trained:
            oracle = _Oracle(recording, step, number)
            expected |= oracle.figures()
        expected["idle_steps"] = _idle_steps(expected, before, bool(step.scored))
        assert expected.keys() == step.row.keys()
        wrong += [
            (number, figure, step.row[figure], value)
            for figure, value in expected.items()
            if not _is_close(figure, step.row[figure], value)
        ]
        before = expected
    assert wrong == []
    rows = [step.row for step in recording.steps]
    assert all(step_figure(figure) for row in rows for figure in row)
    _assert_the_run_shows_what_it_is_for(name, rows)


def _is_close(figure, found, expected):
    tolerance = TOLERANCES.get(figure, 1e-6)
    return found == pytest.approx(expected, rel=tolerance, abs=tolerance)


def test_every_figure_has_a_name_and_a_denominator():
    assert all(one.what and one.scale is not None for one in STEP_FIGURES.values())
    for known, found in (
        ("reward/turns", "reward/NAME"),
        ("judges/kappa/helpful", "NAME/kappa/CRITERION"),
        ("unread_calls/in_thought", "unread_calls/WHY"),
        ("self_critique/cost", "NAME/cost"),
        ("rejected_share_seq_max_k1", "rejected_share_KIND"),
        ("rejected_sequence_share_token_k3", "rejected_sequence_share_KIND"),
        ("outcome_model/agreement", "outcome_model/agreement"),
    ):
        assert step_figure(known) is STEP_FIGURES[found]
    assert step_figure("own_share") is None


def _assert_the_run_shows_what_it_is_for(name, rows):
    """A figure that is 0 in every row proves little."""
    shown = {
        "in turns": ("clipped_share", "kl", "lost_episodes", "mismatch_kl", "tool_calls"),
        "ahead": ("staleness_max", "rejected_share_seq_max_k1", "importance_above_share"),
        "replayed": ("clipped_sequence_share", "kl", "reward/turns", "staleness_max"),
        "critic": ("value_loss", "value_clipped_share", "kl", "clipped_share"),
        "alone": ("explained_variance", "clipped_share", "equal_outcomes_share"),
    }
    assert [figure for figure in shown[name] if not any(row.get(figure) for row in rows)] == []


# ------------------------------------------------------------------------- of what was sampled


def _sampled(recording, step, number, before):
    """Figures over all episodes of a step, before anything chose among them."""
    scored = [one for one in step.episodes if not one.finish_reason.value.endswith("_lost")]
    groups = step.scored
    counted = [one for group in groups for one in group]
    assert sorted(one.token_ids for one in scored) == sorted(one.token_ids for one in counted)
    rewards = [[sum(one.reward.values()) for one in group] for group in groups]
    flat = [len(set(group)) == 1 for group in rewards]
    is_alone = recording.profile.training.group_size == 1
    right = [one.reward["outcome"] > 0 for one in counted]
    teaching = sum(len(group) for group, same in zip(groups, flat, strict=True) if not same)
    count, whole = max(1, len(counted)), max(1, len(groups))
    row = {
        "step": number + 1,
        "reward": sum(map(sum, rewards)) / count,
        "pass_rate": sum(right) / count,
        "zero_variance_share": sum(right if is_alone else flat) / whole,
        "equal_outcomes_share": sum(
            len({one.reward["outcome"] for one in group}) == 1 for group in groups
        )
        / whole,
        "rollouts": before["rollouts"] + len(counted),
        "informative_share": (len(counted) if is_alone else teaching) / count,
        "lost_episodes": len(step.episodes) - len(scored),
        "broke_sandbox_episodes": 0,
        "action_tokens": sum(sum(one.action_mask) for one in counted) / count,
        "tool_calls": sum(len(one.tool_results) for one in counted) / count,
        "kept_tasks": step.kept_tasks,
        "temperature": recording.profile.training.temperature,
    }
    for why, is_so in (("in_thought", _thinks_a_call), ("broken", _breaks_a_call)):
        if any(map(is_so, counted)):
            row[f"unread_calls/{why}"] = sum(map(is_so, counted)) / count
    for term in {term for one in counted for term in one.reward}:
        row[f"reward/{term}"] = fmean(one.reward[term] for one in counted if term in one.reward)
    row |= _of_attempts(counted)
    if "dev_em" in step.row:
        canaries = [one for one in step.dev if one.task_id.startswith("canary-")]
        dev = [one for one in step.dev if one not in canaries]
        for name, asked in (("dev_em", dev), ("dev_canaries_right", canaries)):
            row[name] = sum(one.reward.get("outcome", 0) > 0 for one in asked) / len(asked)
        row["dev_lost_episodes"] = row["dev_broke_sandbox_episodes"] = 0
    return row


def _of_attempts(counted):
    """Figures of texts and verdicts; a group is all attempts of the step at one task."""
    if not counted:
        return {}
    tasks = list(dict.fromkeys(one.task_id for one in counted))
    groups = [[one for one in counted if one.task_id == task] for task in tasks]
    right = [one for one in counted if one.reward["outcome"] > 0]
    answered = [one for one in counted if one.answer is not None]
    results = [result for one in counted for result in one.tool_results]
    wrong = [sum(one.reward.values()) for one in counted if one not in right]
    ends = [one.finish_reason.value for one in counted]
    row = {
        "reward_spread": fmean(
            math.sqrt(pvariance([sum(one.reward.values()) for one in group])) for group in groups
        ),
        "disputed_share": fmean(
            any(
                one.answer is not None
                and one.answer == other.answer
                and (one in right) != (other in right)
                for one in group
                for other in group
            )
            for group in groups
        ),
        "scattered_share": fmean(
            len({one.answer for one in group if one in right}) > 1 for group in groups
        ),
        "truncated_share": (ends.count("max_turns") + ends.count("max_tokens")) / len(counted),
        "repeated_calls_share": fmean(
            any(a.call == b.call for a, b in itertools.combinations(one.tool_results, 2))
            for one in counted
        ),
        "repeated_tokens_share": fmean(map(_repeated, counted)),
        "silent_groups_share": fmean(
            sum(len(one.tool_results) for one in group) == 0 for group in groups
        ),
    }
    if results:
        row["failed_calls_share"] = 1 - fmean(result.succeeded for result in results)
    if answered:
        row["grounded_share"] = fmean(map(_is_found, answered))
    if right:
        row["grounded_right_share"] = fmean(map(_is_found, right))
    if wrong:
        row["wrong_reward"] = fmean(wrong)
        row |= _wrong_terms([one for one in counted if one not in right])
    if len(groups) > 1 and len(counted) > len(groups):
        row["own_task_share"] = fmean(_own_share(one, counted) for one in counted)
    return row


def _wrong_terms(wrong):
    paid = [(name, value) for one in wrong for name, value in one.reward.items()]
    return {
        f"wrong_reward/{term}": fmean(value for name, value in paid if name == term)
        for term in {name for name, _ in paid} - {"outcome"}
    }


def _repeated(episode):
    runs = []
    for turn in episode.turns:
        ids = episode.token_ids[turn.action_start : turn.action_end]
        runs += zip(ids, ids[1:], ids[2:], ids[3:], strict=False)
    return sum(run in runs[:place] for place, run in enumerate(runs)) / max(1, len(runs))


def _is_found(episode):
    """In this world an answer is one word, and results have no punctuation within words."""
    words = [word for one in episode.tool_results for word in one.content.lower().split()]
    answer = episode.answer.lower().split()
    return bool(answer) and all(word in words for word in answer)


def _own_share(episode, counted):
    likeness = [
        -1.0 if other is episode else _cosine(_pairs(episode), _pairs(other)) for other in counted
    ]
    nearest = [
        other
        for other, alike in zip(counted, likeness, strict=True)
        if other is not episode and alike >= max(likeness) - 1e-4
    ]
    return fmean(other.task_id == episode.task_id for other in nearest)


def _pairs(episode):
    turn = episode.turns[0]
    ids = episode.token_ids[turn.action_start : turn.action_end]
    return Counter((a * 1_000_003 + b) % 4099 for a, b in itertools.pairwise(ids))


def _cosine(one, other):
    dot = sum(count * other[pair] for pair, count in one.items())
    norms = [math.sqrt(sum(count**2 for count in counts.values())) for counts in (one, other)]
    return dot / math.prod(norms) if all(norms) else 0.0


def _thinks_a_call(episode):
    """In tags: from the first search that is opened to the end, one that is closed."""
    if episode.finish_reason.value != "parse_error":
        return "<search>" in (episode.messages[-1].thought or "")
    plain = re.sub("</?think>", "", episode.messages[-1].content)
    end = plain[plain.find("<search>") :]
    return bool(re.fullmatch(r"<search>[^<>]*[^<>\s][^<>]*</search>\s*", end))


def _breaks_a_call(episode):
    is_broken = episode.finish_reason.value == "parse_error" and not _thinks_a_call(episode)
    return is_broken and "search" in episode.messages[-1].content


def _idle_steps(row, before, has_sampled):
    if row.get("credited_share") and row["zero_variance_share"] < 0.97:
        return 0
    return before["idle_steps"] + has_sampled


def _mean(values):
    return fmean(values) if values else 0.0


# ------------------------------------------------------------------------- of the updates


class _Oracle:
    """Figures of a step's updates; a list per trajectory, of numbers per action token."""

    def __init__(self, recording, step, number):
        self.recording, self.step, self.number = recording, step, number
        self.config = recording.profile.training
        self.algorithm = self.config.algorithm
        self.rows = [one for group in step.trained for one in group.trajectories]
        self.places = [
            [place for place, acted in enumerate(one.action_mask) if acted] for one in self.rows
        ]
        self.behavior = [
            torch.tensor([one.behavior_logprobs[p] for p in places], dtype=torch.float64)
            for one, places in zip(self.rows, self.places, strict=True)
        ]
        self.everything = range(len(self.rows))

    def figures(self):
        first = self.step.updates[0].weights
        with torch.no_grad():
            self.start = self._scores(first, self.everything)
            if self.algorithm.needs_reference:
                self.reference = self._scores(self.recording.start, self.everything)
        found = self._assessed() | self._rows()
        critic = self._critic_figures() if self.recording.critic else {}
        return self._updated() | found | critic

    # the policy, one trajectory at a time

    def _scores(self, weights, rows):
        """(log-probs, entropies) of the action tokens of each of `rows`."""
        model = self.recording.model
        model.load_state_dict(weights)
        found = {}
        for row in rows:
            ids = torch.tensor([self.rows[row].token_ids])
            logits = model(input_ids=ids).logits[0] / self.config.temperature
            before = logits[[place - 1 for place in self.places[row]]].log_softmax(dim=-1)
            own = before.gather(1, ids[0, self.places[row]][:, None])[:, 0]
            found[row] = own, -(before.exp() * before).sum(dim=1)
        return found

    # before the update

    def _assessed(self):
        """Advantages, masks and weights, and the figures about them."""
        found = {}
        rewards = [sum(one.reward.values()) for one in self.rows]
        self.keep = [torch.ones(len(places), dtype=torch.bool) for places in self.places]
        self.weights = [torch.ones(len(places)).double() for places in self.places]
        penalties = [torch.zeros(len(places)).double() for places in self.places]
        kl = self.algorithm.kl
        if kl is not None and kl.place == "reward":
            nats = [self.behavior[row] - self.reference[row][0] for row in self.everything]
            penalties = [self.step.updates[0].kl_coefficient * one for one in nats]
            found["kl"] = float(torch.cat(nats).mean())
        outcomes = [
            reward - float(penalty.sum())
            for reward, penalty in zip(rewards, penalties, strict=True)
        ]
        self.advantages = self._advantages(outcomes, penalties)
        gaps = [self.start[row][0] - self.behavior[row] for row in self.everything]
        for rule in self.algorithm.off_policy:
            found |= getattr(self, f"_{rule.name}")(rule, gaps)
        for rule in self.algorithm.token_filters:
            self.keep = self._of_high_entropy(rule)
        return found | self._mismatch(gaps)

    def _of_high_entropy(self, rule):
        """What the rule kept: rounding decides, and differs by processor, only at its bound."""
        least = torch.cat([self.start[row][1] for row in self.everything]).quantile(1 - rule.share)
        for row, kept in enumerate(self.step.of_high_entropy):
            assert bool((self.start[row][1][kept] > least - 1e-5).all())
            assert bool((self.start[row][1][~kept] < least + 1e-5).all())
        return self.step.of_high_entropy

    def _advantages(self, outcomes, penalties):
        name = self.algorithm.advantage.name
        if name == "gae":
            return self._generalized(penalties)
        groups, numbers = [], iter(self.everything)
        for group in self.step.trained:
            groups.append([next(numbers) for _ in group.trajectories])
        one_each = {}
        if name == "spo":
            above = [
                outcomes[row] - group.expected_reward
                for group, [row] in zip(self.step.trained, groups, strict=True)
            ]
            values = torch.tensor(above, dtype=torch.float64)
            if len(set(outcomes)) > 1:
                values = (values - values.mean()) / (values.std() + 1e-8)
            one_each = dict(
                enumerate(values.tolist() if len(set(outcomes)) > 1 else [0] * len(values))
            )
        for group, rows in zip(self.step.trained, groups, strict=True):
            own = [outcomes[row] for row in rows]
            mean = fmean(own)
            for row in rows if name != "spo" else ():
                if len(set(own)) == 1:
                    one_each[row] = own[0] if len(own) == 1 else 0.0
                elif name == "grpo":
                    spread = math.sqrt(sum((value - mean) ** 2 for value in own) / (len(own) - 1))
                    one_each[row] = (outcomes[row] - mean) / (spread + 1e-6)
                else:
                    others = (sum(own) - outcomes[row]) / (len(own) - 1)
                    one_each[row] = outcomes[row] - others
                one_each[row] *= not group.is_silenced
        return [
            torch.full((len(places),), float(one_each[row]), dtype=torch.float64)
            for row, places in enumerate(self.places)
        ]

    def _generalized(self, penalties):
        """GAE over tokens, whitened; keeps values and returns for the critic's figures."""
        advantage = self.algorithm.advantage
        with torch.no_grad():
            self.values = self._values(self.step.critic_updates[0].weights, self.everything)
        raw, self.returns = [], []
        for row, one in enumerate(self.rows):
            earned = -penalties[row]
            earned[-1] += sum(one.reward.values())
            values = [*self.values[row].tolist(), 0.0]
            sums, carried = [], 0.0
            for place in reversed(range(len(earned))):
                delta = float(earned[place]) + advantage.gamma * values[place + 1] - values[place]
                carried = delta + advantage.gamma * advantage.gae_lambda * carried
                sums.insert(0, carried)
            raw.append(torch.tensor(sums, dtype=torch.float64))
            self.returns.append(raw[-1] + self.values[row])
        every = torch.cat(raw)
        return [(one - every.mean()) * (every.var() + 1e-8).rsqrt() for one in raw]

    def _importance_weights(self, rule, gaps):
        ratios = torch.cat(gaps).exp()
        self.weights = [gap.exp().clamp(max=rule.upper) for gap in gaps]
        weights = torch.cat(self.weights)
        return {
            "importance_ratio_mean": float(ratios.mean()),
            "importance_ratio_min": float(ratios.min()),
            "importance_ratio_max": float(ratios.max()),
            "importance_above_share": float((ratios > rule.upper).double().mean()),
            "importance_weight_mean": float(weights.mean()),
            "importance_effective_share": float(weights.mean() ** 2 / (weights**2).mean()),
        }

    def _rejection(self, rule, gaps):
        bound = math.log(rule.upper)
        inside = [-bound <= float((-gap).max()) <= bound for gap in gaps]
        self.keep = [keep & ok for keep, ok in zip(self.keep, inside, strict=True)]
        lost = sum(len(gap) for gap, ok in zip(gaps, inside, strict=True) if not ok)
        return {
            "rejected_share_seq_max_k1": lost / sum(map(len, gaps)),
            "rejected_sequence_share_seq_max_k1": inside.count(False) / len(gaps),
        }

    def _mismatch(self, gaps):
        rows = self.everything
        if not self.algorithm.scores_before_update:
            rows = self.step.updates[0].rows
        fresh = [gaps[row] for row in rows if self.rows[row].policy_version == self.number]
        if not fresh:
            return {}
        gap = torch.cat(fresh)
        return {
            "mismatch_kl": float((gap.exp() - gap - 1).mean()),
            "logprob_gap_mean": float(gap.abs().mean()),
            "logprob_gap_max": float(gap.abs().max()),
        }

    def _rows(self):
        ages = [self.number - one.policy_version for one in self.rows]
        found = {
            "credited_share": fmean(
                float(bool((one.abs() > 1e-6).any())) for one in self.advantages
            ),
            "observation_share": 0.0,
            "staleness_mean": fmean(ages),
            "staleness_max": max(ages),
        }
        if self.algorithm.predicts_rewards:
            expected = [g.expected_reward for g in self.step.trained for _ in g.trajectories]
            outcomes = [one.reward["outcome"] for one in self.rows]
            if len(set(outcomes)) > 1:
                errors = [o - e for o, e in zip(outcomes, expected, strict=True)]
                found["explained_variance"] = 1 - pvariance(errors) / pvariance(outcomes)
        return found

    # the update

    def _updated(self):
        losses, norms, of_head = [], [], []
        of_tokens, sampled, sequences = [], [], []
        for update in self.step.updates:
            self.recording.model.zero_grad()
            scores = self._scores(update.weights, update.rows)
            loss, flags, clipped_rows = self._objective(update, scores)
            loss.backward()
            squares = (p.grad.square().sum() for p in self.recording.model.parameters())
            norms.append(math.sqrt(float(sum(squares))))
            head = self.recording.model.get_output_embeddings().weight.grad
            of_head.append(math.sqrt(float(head.square().sum())))
            losses.append(loss.item())
            of_tokens.append(flags)
            sequences += clipped_rows
            sampled += [one for row in update.rows for one in scores[row][1].tolist()]
        names = self._flag_names()
        found = {name: _mean([v for flags in of_tokens for v in flags[name]]) for name in names}
        if sequences:
            found["clipped_sequence_share"] = fmean(sequences)
        tokens = [
            len(self.rows[row].token_ids) for update in self.step.updates for row in update.rows
        ]
        return found | {
            "loss": fmean(losses),
            "grad_norm": fmean(norms),
            "head_grad_norm": fmean(of_head),
            "entropy": fmean(sampled),
            "skipped_updates": sum(not math.isfinite(norm) for norm in norms),
            "update_tokens": sum(tokens),
            "update_positions": sum(map(self._positions, self.step.updates)),
        }

    def _positions(self, update):
        ids = [self.rows[row].token_ids for row in update.rows]
        if self.config.layout == "packed":
            return sum(map(len, ids))
        return len({one[: end + 1] for one in ids for end in range(len(one))})

    def _objective(self, update, scores):
        """The loss of a minibatch, its flags by token, and whether each sequence is clipped."""
        rows = [row for row in update.rows if bool(self.keep[row].any())]
        tokens = {row: [] for row in rows}
        flags, clipped_rows = {name: [] for name in self._flag_names()}, []
        entropies = []
        for row in rows:
            keep, advantages = self.keep[row], self.advantages[row]
            proximal = self.behavior[row]
            if self.algorithm.proximal == "recomputed":
                proximal = self.start[row][0]
            log_ratio = (scores[row][0] - proximal)[keep]
            if self.algorithm.loss.name == "sequence_ppo_clip":
                log_ratio = log_ratio.sum().expand(len(log_ratio))
            ratio, credit = log_ratio.exp(), advantages[keep]
            low, high = 1 - self.algorithm.loss.clip_low, 1 + self.algorithm.loss.clip_high
            plain, bounded = -ratio * credit, -ratio.clamp(low, high) * credit
            own = plain.maximum(bounded)
            is_clipped = bounded > plain
            if self.algorithm.loss.name == "sequence_ppo_clip":
                clipped_rows.append(float(is_clipped.any()))
            else:
                flags["clipped_share"].extend(is_clipped.double().tolist())
                upper = is_clipped & (credit > 0)
                flags["clipped_high_share"].extend(upper.double().tolist())
            own = own * self.weights[row][keep]
            if self.algorithm.kl is not None and self.algorithm.kl.place == "loss":
                away = (scores[row][0] - self.reference[row][0])[keep].clamp(-20, 20)
                nats = ((-away).exp() + away - 1).clamp(-10, 10)  # verl's bounds
                own = own + update.kl_coefficient * nats
                flags["kl"].extend(nats.tolist())
            bonus = self.algorithm.entropy_coefficient
            tokens[row] = own - bonus * scores[row][1][keep] if bonus else own
            entropies.append(scores[row][1][keep])
        if not rows:  # every token of the minibatch was dropped
            return sum(own.sum() for own, _ in scores.values()) * 0, flags, clipped_rows
        if (self.algorithm.loss.fixed_aggregation or self.algorithm.aggregation) == "token_mean":
            return torch.cat(list(tokens.values())).mean(), flags, clipped_rows
        return sum(one.mean() for one in tokens.values()) / len(rows), flags, clipped_rows

    def _flag_names(self):
        names = []
        if self.algorithm.loss.name == "ppo_clip":
            names += ["clipped_share", "clipped_high_share"]
        if self.algorithm.kl is not None and self.algorithm.kl.place == "loss":
            names.append("kl")
        return names

    # the critic

    def _values(self, weights, rows):
        critic = self.recording.critic
        critic.load_state_dict(weights)
        found = {}
        for row in rows:
            ids = torch.tensor([self.rows[row].token_ids])
            hidden = critic.body(input_ids=ids).last_hidden_state[0]
            found[row] = critic.head(hidden[[place - 1 for place in self.places[row]]])[:, 0]
        return found

    def _critic_figures(self):
        losses, norms, clipped = [], [], []
        for update in self.step.critic_updates:
            critic = self.recording.critic
            critic.zero_grad()
            values = self._values(update.weights, update.rows)
            now = torch.cat([values[row] for row in update.rows])
            old = torch.cat([self.values[row] for row in update.rows])
            returns = torch.cat([self.returns[row] for row in update.rows])
            held = now.clamp(old - 0.2, old + 0.2)
            errors, held_errors = (now - returns) ** 2, (held - returns) ** 2
            loss = errors.maximum(held_errors).mean() / 2
            loss.backward()
            gradients = (p.grad for p in critic.parameters() if p.grad is not None)
            norms.append(math.sqrt(float(sum(one.square().sum() for one in gradients))))
            losses.append(loss.item())
            clipped += (held_errors > errors).double().tolist()
        return {
            "value_loss": fmean(losses),
            "value_clipped_share": fmean(clipped),
            "value_grad_norm": fmean(norms),
        }
