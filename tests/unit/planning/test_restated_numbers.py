"""A plan imports no torch, so it restates numbers of trainer and engine: they are the same."""

from transformers import Lfm2Config

from espalier.planning import memory, sizes, work
from espalier.rollout.engines import contexts, lockstep, pages
from espalier.stages import filter_curriculum
from espalier.training import scoring
from espalier.training.rl import rows


def test_numbers_of_the_engine():
    assert memory._PAGE == pages.PAGE
    assert memory._STEP_TOKENS == contexts._MAX_STEP_TOKENS
    assert memory._FUSED_BELOW == lockstep._FUSED_BELOW


def test_numbers_of_the_trainer_and_the_policy():
    assert memory._LOGITS_AT_ONCE == scoring.LOGITS_AT_ONCE
    assert work._READ_AGAIN == rows._READ_AGAIN
    assert work._CHUNK_TASKS == filter_curriculum._CHUNK_TASKS
    assert Lfm2Config().conv_L_cache == sizes._CONVOLUTION_TAPS
