"""Engines: token ids in, token ids and their log-probs out; never text tokenised again."""

from espalier.rollout.engines.decoder import Decoder
from espalier.rollout.engines.hf_decoder import HfDecoder
from espalier.rollout.engines.lfm2_decoder import Lfm2Decoder
from espalier.rollout.engines.lockstep import LockstepEngine, Row, Sampling

__all__ = ["Decoder", "HfDecoder", "Lfm2Decoder", "LockstepEngine", "Row", "Sampling"]
