"""Lossless speculation: rows read a draft of what they will draw, and draw several tokens at once.

A draw is a function of the session's seed, the position, and the distribution. So a row can read a
draft in one pass with its unread tokens, draw after each of the draft's tokens with the random
number of that position, and keep its draws up to the first that differs from the draft: these are
the draws of decoding token by token, with the same log-probs up to rounding. The rest of the draft
is taken back. (Leviathan et al. 2023, arXiv:2211.17192, draft by a smaller model.)

    the row has read P P, A is unread, and its draft is B C D

    read     A B C D       drawn behind each   B C X Y
    kept     B C X         D is taken back, X is unread

A wrong draft costs the pass over its tokens, so a draft's length depends on how many tokens of
earlier drafts were kept, counted separately for each combination of sampling parameters.

Axes: S slots, N rows of a step, D tokens that they draw.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from espalier.rollout.engines.contexts import SharedContexts
from espalier.rollout.engines.drawing import DrawnTokens
from espalier.rollout.engines.earlier_rollouts import EarlierRollouts, FollowedContext
from espalier.rollout.engines.engine import Sampling, StopRule
from espalier.rollout.engines.pages import Ints
from espalier.rollout.engines.rows import DraftedPositions, RowState

_LONGEST = 64
"""Most tokens of a draft."""
_PAYS = 0.45
"""Chance of being kept from which a token is worth reading. A kept one saves about 45 us and a
rejected one costs 35 us in the tiny policy, with 200 rows on one core."""
_PROBE_EVERY, _PROBE = 32, 4
"""Where drafts do not pay, one in `_PROBE_EVERY` is still made, `_PROBE` tokens long."""
_FORGETS = 0.995
"""Weight of the kept-token count so far when the next draft is counted."""
_TRIES_AGAIN = 3
"""Number of tokens after which a row that found no draft within its action looks again."""


_MAX_LOGITS = 1 << 24
"""Logits of drafted tokens at one time, 64 MiB: those of 8192 tokens of the tiny policy, and of
256 where the vocabulary has 65,536."""
_MAX_KINDS = 64
"""Number of combinations of sampling parameters that acceptance is remembered for."""
_NEVER = 1 << 40


SpeculatedSessions: TypeAlias = Literal["off", "greedy", "all"]
"""Which sessions get drafts. Sessions at temperature 0 write mostly what they wrote before. With
"all" the tiny policy's attempts at temperature 1 take 3 to 7% longer: few rows are alone in
their context, and two thirds of their drafts are kept."""


class AcceptedDraws(NamedTuple):
    """The draws of a step's rows that are kept."""

    is_stop_N: NDArray[np.bool_]
    """Whether the stop rule ended the action."""
    drafted_N: Ints
    """Number of tokens in a row's draft."""
    accepted_N: Ints
    """Number of draft tokens that the row drew, too."""


class Acceptance:
    """How many tokens of recent drafts were kept, for one combination of sampling parameters."""

    def __init__(self) -> None:
        self._kept, self._rejections = 16.0, 0.0  # optimistic start: the first drafts are long
        self._unasked = 0

    def most(self) -> int:
        """Return the most tokens that the next draft should have."""
        chance = self._kept / (self._kept + self._rejections)
        if chance**_LONGEST > _PAYS:
            return _LONGEST
        most = int(math.log(_PAYS) / math.log(max(chance, 1e-3)))
        if most >= 2:
            return most
        self._unasked += 1
        return _PROBE if self._unasked % _PROBE_EVERY == 0 else 0

    def learn(self, drafted: int, kept: int) -> None:
        """Count a draft."""
        self._kept = _FORGETS * self._kept + kept
        self._rejections = _FORGETS * self._rejections + (kept < drafted)


class Speculation:
    """Gives rows drafts, and decides which of their draws are kept; one for each engine.

    Earlier rollouts and acceptance outlive the weights: a policy that was trained for a few more
    steps still writes mostly the same tokens.
    """

    def __init__(
        self, stop_rule: StopRule, is_stop_V: NDArray[np.bool_], sessions: SpeculatedSessions
    ) -> None:
        self._greedy_only = sessions == "greedy"
        self._stop_rule = stop_rule
        self._is_stop_V = is_stop_V
        self._most_drafted = max(1, _MAX_LOGITS // len(is_stop_V))
        self._rollouts = EarlierRollouts()
        self._acceptance: dict[tuple[float, float, int], Acceptance] = {}
        self._begun: dict[int, FollowedContext] = {}
        self._kinds: dict[int, Acceptance] = {}
        self._next_S: Ints = np.zeros(0, np.int64)
        """Number of tokens an action must have before its row looks for a draft, by slot."""

    def begin(self, slots: int) -> None:
        """Discard every open session, and make room for `slots` rows."""
        self._begun.clear()
        self._next_S = np.full(slots, _NEVER)

    def opened(self, slot: int, prompt_ids: Sequence[int], sampling: Sampling) -> None:
        """Begin to follow a session, if its sampling may have drafts (`sessions = "greedy"`)."""
        if self._greedy_only and sampling.temperature > 0:
            return
        self._begun[slot] = FollowedContext.begin(prompt_ids, self._rollouts)
        kind = (sampling.temperature, sampling.top_p, sampling.top_k)
        if len(self._acceptance) > _MAX_KINDS:  # a server runs for weeks
            self._acceptance.clear()
        self._kinds[slot] = self._acceptance.setdefault(kind, Acceptance())
        self._next_S[slot] = 0 if self._begun[slot].earlier else _NEVER

    def observed(self, slot: int, token_ids: Sequence[int]) -> None:
        """Register an observation."""
        if slot in self._begun:
            self._begun[slot].observe(token_ids)

    def acted(self, slot: int, token_ids: Sequence[int]) -> None:
        """Register an action that has ended."""
        begun = self._begun.get(slot)
        if begun is not None:
            begun.act(token_ids)
            self._next_S[slot] = 0 if begun.earlier else _NEVER

    def closed(self, slot: int) -> None:
        """Keep the session's context for drafts."""
        begun = self._begun.pop(slot, None)
        self._next_S[slot] = _NEVER
        if begun is not None and begun.ends:
            self._rollouts.add(begun.prompt, begun.ended())

    def draft(self, active_N: Ints, rows: RowState, contexts: SharedContexts) -> None:
        """Give drafts to rows that are alone in their context."""
        asking_N = active_N[rows.num_written(active_N) >= self._next_S[active_N]]
        if not len(asking_N):
            return
        asking_N = asking_N[rows.num_drafted_S[asking_N] == 0]
        left = self._most_drafted - int(rows.num_drafted_S.sum())
        for slot in asking_N[contexts.are_alone(asking_N)].tolist():
            most = min(self._kinds[slot].most(), rows.room(slot) - 1, left)
            if most < 1:
                continue
            action_ids = rows.action_ids(slot)
            # without the last token: nothing is drawn after it
            draft = self._begun[slot].draft(action_ids)[:-1][:most]
            if draft:
                rows.draft(slot, draft)
                left -= len(draft)
            else:
                self._next_S[slot] = len(action_ids) + _TRIES_AGAIN

    def keep(
        self, slots_N: Ints, at: DraftedPositions, drawn: DrawnTokens, rows: RowState
    ) -> AcceptedDraws:
        """Write the draws that are kept.

        Args:
            slots_N: slots of the step's rows.
            at: positions where the rows drew.
            drawn: tokens that they drew.
            rows: state that the kept tokens are appended to.
        """
        tokens_D = drawn.token_ids_N
        drafted_N = np.diff(at.firsts_N, append=len(tokens_D)) - 1
        is_last_D = (tokens_D != at.expected_D) | self._is_stop_V[tokens_D]
        ends_D = np.where(is_last_D, at.offsets_D + 1, len(tokens_D))
        counts_N = np.minimum.reduceat(ends_D, at.firsts_N)
        is_stop_N = self._is_stop_V[tokens_D[at.firsts_N + counts_N - 1]]
        if self._stop_rule.stop_texts:
            for row, slot in enumerate(slots_N.tolist()):
                first, count = int(at.firsts_N[row]), int(counts_N[row])
                action_ids = [*rows.action_ids(slot), *tokens_D[first : first + count].tolist()]
                for short in range(count - 1, -1, -1):
                    if self._stop_rule.ends_action(action_ids[: len(action_ids) - short]):
                        counts_N[row], is_stop_N[row] = count - short, True
                        break
        is_kept_D = at.offsets_D < np.repeat(counts_N, drafted_N + 1)
        kept = DrawnTokens(tokens_D[is_kept_D], drawn.logprobs_N[is_kept_D])
        rows.write_drafted(slots_N, counts_N, kept)
        for row in np.nonzero(drafted_N)[0].tolist():
            slot = int(slots_N[row])
            self._kinds[slot].learn(int(drafted_N[row]), int(counts_N[row]) - 1)
        return AcceptedDraws(is_stop_N, drafted_N, counts_N - 1)
