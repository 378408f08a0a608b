"""The lock-step engine: in this process, each step advances all rows that are not waiting.

A step forwards the unread tokens of its rows (one token each, or a whole prompt or observation) and
draws one token for each row. Rows that wait for their environment skip the step. A freed slot goes
to the next waiting session. No row forwards a token twice, and the common beginning of several
rows, a prompt and whole turns, is forwarded once (`contexts.py`). A row whose prompt was played
before may read a draft and draw several tokens (`speculation.py`).

Axes: N rows of a step, V vocabulary.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import Lfm2ForCausalLM, PreTrainedModel

from espalier.config import HardwareConfig
from espalier.policy.hardware import Hardware
from espalier.policy.loading import load_weights_into
from espalier.policy.plain_attention import NotPlainAttentionError, has_plain_attention
from espalier.rollout.engines.accelerator import unsorted_writes
from espalier.rollout.engines.contexts import SharedContexts
from espalier.rollout.engines.decoder import Decoder, RowwiseDecoder
from espalier.rollout.engines.drawing import DrawnTokens, draw
from espalier.rollout.engines.engine import Completion, EngineCounters, Sampling, StopRule
from espalier.rollout.engines.fused_decoder import FusedDecoder, is_fusible
from espalier.rollout.engines.hf_decoder import HfDecoder
from espalier.rollout.engines.pages import Ints
from espalier.rollout.engines.rows import DraftedPositions, Prompt, RowState, Slots
from espalier.rollout.engines.speculation import SpeculatedSessions, Speculation

_MAX_KNOWN = 100_000
"""Number of prompts remembered for counting unique ones; bounded, as a server runs for weeks."""


class LockstepSession:
    """One context of a `LockstepEngine`."""

    def __init__(self, engine: LockstepEngine, slot: int) -> None:
        self._engine = engine
        self._slot = slot
        self._is_open = True

    def observe(self, token_ids: Sequence[int]) -> None:
        """Append tokens that the policy did not sample; they are read before the next sample."""
        self._engine.observe(self._slot, token_ids)

    async def sample(self, *, max_tokens: int) -> Completion:
        """Sample one action of at least one token, until the stop rule or `max_tokens`."""
        return await self._engine.sample(self._slot, max_tokens)

    def close(self) -> None:
        """Free the slot for the next waiting `open`; a second call does nothing."""
        if self._is_open:
            self._is_open = False
            self._engine.close(self._slot)


class LockstepEngine:
    """Samples from `model`, which a trainer may change between rollouts."""

    def __init__(
        self,
        model: PreTrainedModel,
        decoder: Decoder,
        stop_rule: StopRule,
        *,
        max_rows: int,
        shares_turns: bool = True,
        speculation: SpeculatedSessions = "off",
    ) -> None:
        """Store the parts of the engine.

        Args:
            model: the decoder's model; its weights may change between rollouts.
            decoder: forwards tokens.
            stop_rule: ends actions.
            max_rows: number of sessions open at one time.
            shares_turns: False shares only prompts, for comparisons.
            speculation: which sessions draft from earlier ones, if the decoder
                can take tokens back (`speculation.py`).
        """
        self.policy_version = 0
        self.counters = EngineCounters()
        self._model = model
        self._device = model.device
        self._decoder = decoder
        self._stop_rule = stop_rule
        self._max_rows = max_rows
        self._shares_turns = shares_turns
        self._is_stop_V = np.zeros(model.config.get_text_config().vocab_size, bool)
        self._is_stop_V[list(stop_rule.stop_ids)] = True
        self._speculation: Speculation | None = None
        if speculation != "off" and decoder.rewinds:
            self._speculation = Speculation(stop_rule, self._is_stop_V, speculation)
        self._slots = Slots(max_rows)
        self._work = asyncio.Event()
        self._begin()

    @property
    def failure(self) -> BaseException | None:
        """The error of the step that failed, which ended all sampling; None without one."""
        return self._failure

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Return the context manager of one rollout in one event loop."""
        self._slots = Slots(self._max_rows)
        self._begin()
        self._work = asyncio.Event()
        driver = asyncio.create_task(self._drive())
        driver.add_done_callback(self._fail_waiters)
        try:
            yield
        finally:
            driver.cancel()
            self._decoder.end()

    async def open(self, prompt_ids: Sequence[int], sampling: Sampling) -> LockstepSession:
        """Begin a session; wait for a free slot, first come, first served."""
        prompt = tuple(prompt_ids)
        assert prompt, "a context begins with at least one token"
        slot = await self._slots.take(prompt)
        self._count_prompt(prompt)
        self._rows.open(slot, prompt, sampling)
        self._contexts.opened(slot, prompt)
        if self._speculation is not None:
            self._speculation.opened(slot, prompt, sampling)
        return LockstepSession(self, slot)

    async def load_weights(self, policy_dir: Path, version: int) -> None:
        """Sample from the weights in `policy_dir`; waits until the open sessions have ended."""
        await self._slots.pause()
        load_weights_into(self._model, policy_dir)
        self._begin()
        self.policy_version = version
        self._slots.resume()

    def observe(self, slot: int, token_ids: Sequence[int]) -> None:
        """Append tokens to a session's context, for `LockstepSession`."""
        if token_ids:
            self.counters.unique += len(token_ids)
            self._contexts.observed(slot)
            self._rows.append(slot, token_ids)
            if self._speculation is not None:
                self._speculation.observed(slot, token_ids)

    async def sample(self, slot: int, max_tokens: int) -> Completion:
        """Sample one action of a session, for `LockstepSession`."""
        if self._failure is not None:
            raise self._failure
        self._rows.start(slot, max_tokens)
        self._actions[slot] = asyncio.get_running_loop().create_future()
        self._work.set()
        return await self._actions[slot]

    def close(self, slot: int) -> None:
        """Free a session's slot, for `LockstepSession`."""
        self._rows.close(slot)
        self._actions.pop(slot, None)
        self._contexts.closed(slot)
        if self._speculation is not None:
            self._speculation.closed(slot)
        self._slots.give_back(slot)

    def _begin(self) -> None:
        """Discard every context."""
        self._decoder.begin()
        self._rows = RowState(self._max_rows)
        self._contexts = SharedContexts(
            self._decoder,
            self._slots,
            self._rows,
            max_rows=self._max_rows,
            shares_turns=self._shares_turns,
        )
        if self._speculation is not None:
            self._speculation.begin(self._max_rows)
        self._actions: dict[int, asyncio.Future[Completion]] = {}
        self._known: set[int] = set()
        self._failure: BaseException | None = None

    async def _drive(self) -> None:
        while True:
            await self._work.wait()
            self._step()
            # The first yield wakes the episodes that got their action: they act and sample again,
            # or close. The second one wakes sessions that take over a slot.
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            if not self._rows.is_sampling_S.any():
                self._work.clear()

    def _fail_waiters(self, driver: asyncio.Task[None]) -> None:
        """Raise a failed step's error in all sessions, which would otherwise wait forever."""
        if driver.cancelled():
            return
        self._failure = driver.exception()
        assert self._failure is not None, "the driver runs until it is cancelled"
        self._slots.fail(self._failure)
        for action in self._actions.values():
            if not action.done():
                action.set_exception(self._failure)

    def _step(self) -> None:
        active_N = np.nonzero(self._rows.is_sampling_S)[0]
        if not len(active_N):  # their sessions were closed while they waited
            return
        if self._speculation is not None:
            self._speculation.draft(active_N, self._rows, self._contexts)
        with unsorted_writes(self._device):
            slots_N, hidden_N, hidden_PH, forwarded = self._contexts.read(active_N)
            self.counters.forwarded += forwarded
            at = self._rows.positions(slots_N, hidden_N)
            sampling, groups_L = self._rows.sampling(at)
            logits_LV = self._decoder.logits(hidden_PH)
            if len(groups_L) > len(hidden_PH):  # rows of one group with different parameters
                of_group = torch.from_numpy(groups_L).to(logits_LV.device)
                logits_LV = logits_LV.index_select(0, of_group)
            drawn = draw(logits_LV, sampling)
        if self._speculation is not None and at.drafted is not None:
            is_stop_N = self._keep(self._speculation, slots_N, at.drafted, drawn)
        else:
            self._rows.write(slots_N, drawn)
            self._count_sampled(len(slots_N))
            is_stop_N = self._is_stop_V[drawn.token_ids_N]
            if self._stop_rule.stop_texts:
                is_stop_N |= np.array([self._ends_in_text(slot) for slot in slots_N.tolist()])
        is_over_N = is_stop_N | self._rows.is_full(slots_N)
        for row in np.nonzero(is_over_N)[0].tolist():
            slot = int(slots_N[row])
            completion = self._rows.finish(slot, stopped=bool(is_stop_N[row]))
            if self._speculation is not None:
                self._speculation.acted(slot, completion.token_ids)
            action = self._actions.pop(slot)
            if not action.done():  # its task was cancelled, and its session is not closed yet
                action.set_result(completion)

    def _keep(
        self, speculation: Speculation, slots_N: Ints, at: DraftedPositions, drawn: DrawnTokens
    ) -> NDArray[np.bool_]:
        """Keep the draws of token-by-token decoding; return [N], whether actions end."""
        is_stop_N, drafted_N, accepted_N = speculation.keep(slots_N, at, drawn, self._rows)
        self._count_sampled(len(slots_N) + int(accepted_N.sum()))
        self.counters.drafted += int(drafted_N.sum())
        self.counters.accepted += int(accepted_N.sum())
        is_wrong_N = accepted_N < drafted_N
        if is_wrong_N.any():
            self._contexts.rewind(slots_N[is_wrong_N], (drafted_N - accepted_N)[is_wrong_N])
        return is_stop_N

    def _count_sampled(self, tokens: int) -> None:
        self.counters.sampled += tokens
        self.counters.unique += tokens

    def _count_prompt(self, prompt: Prompt) -> None:
        """Count a prompt as unique work if no session had it yet; prompts are kept as hashes."""
        if len(self._known) >= _MAX_KNOWN:
            self._known.clear()
        if hash(prompt) not in self._known:
            self._known.add(hash(prompt))
            self.counters.unique += len(prompt)

    def _ends_in_text(self, slot: int) -> bool:
        return self._stop_rule.ends_action(self._rows.action_ids(slot))


_FUSED_BELOW = 200_000_000
"""Size, in parameters, up to which the fused decoder is used. Above it, matrix products take nearly
all the time of a step, and the fused decoder's copy of the weights nearly doubles the memory."""


def lockstep_engine(
    model: PreTrainedModel,
    stop_rule: StopRule,
    *,
    max_rows: int,
    speculation: SpeculatedSessions = "off",
    hardware: HardwareConfig | None = None,
) -> LockstepEngine:
    """Return an engine over `model`, in this process and on the model's device.

    Its decoder is that of `decoder_for`; the format of matrix products is the one of `hardware` on
    that device, or float32 without `hardware`.
    """
    autocast = (
        None if hardware is None else Hardware.from_config(hardware).autocast_on(model.device)
    )
    decoder = decoder_for(model, autocast)
    return LockstepEngine(model, decoder, stop_rule, max_rows=max_rows, speculation=speculation)


def decoder_for(model: PreTrainedModel, autocast: torch.dtype | None = None) -> Decoder:
    """Return the fastest decoder whose logits agree with plain transformers' on a short text.

    Args:
        model: the model; both decoders are compared in float32.
        autocast: format of the matrix products of an `HfDecoder`; other decoders use the weights'
            own.
    """
    is_small = model.num_parameters() < _FUSED_BELOW or isinstance(model, Lfm2ForCausalLM)
    if is_small and is_fusible(model) and _agrees(FusedDecoder(model), model):
        return FusedDecoder(model)
    if has_plain_attention(model) and _agrees(HfDecoder(model), model):
        return HfDecoder(model, autocast)
    return RowwiseDecoder(model)


@torch.inference_mode()
def _agrees(decoder: Decoder, model: PreTrainedModel) -> bool:
    token_ids = np.arange(12) % model.config.get_text_config().vocab_size
    slot = np.zeros(1, np.int64)
    was_training = model.training
    input_ids = torch.from_numpy(token_ids)[None].to(model.device)
    expected = model.eval()(input_ids, use_cache=False).logits[0, -1]
    model.train(was_training)
    decoder.begin()
    try:
        for part in (token_ids[:7], token_ids[7:11], token_ids[11:]):
            hidden = decoder.advance(slot, slot + len(part), part)
    except NotPlainAttentionError:
        return False
    got = decoder.logits(hidden)[0]
    decoder.end()
    # an accelerator may be set to products with 10-bit mantissas (TF32)
    tolerance = 1e-3 if model.device.type == "cpu" else 1e-2
    return torch.allclose(got, expected, rtol=tolerance, atol=tolerance)
