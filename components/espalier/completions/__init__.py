"""Structured answers of a language model: asked for by type, cached, counted, within limits.

`EndpointModel` is the one door to an OpenAI-compatible server; `VllmModel` answers in batches,
without one; `opened_model` is whichever a profile names. Whatever else implements `Model` answers
the same requests without either, as synthesis's embedded teacher does.
"""

from espalier.completions.answers import PlainText, Refusal, parsed_answer
from espalier.completions.asking import all_answers
from espalier.completions.cache import AnswerCache
from espalier.completions.endpoint import EndpointModel
from espalier.completions.ledger import Ledger, Usage
from espalier.completions.opening import OpenedModel, opened_model
from espalier.completions.request import Model, Request, StrictModel
from espalier.completions.vllm_batch import VllmModel
from espalier.completions.windowed import in_order

__all__ = [
    "AnswerCache",
    "EndpointModel",
    "Ledger",
    "Model",
    "OpenedModel",
    "PlainText",
    "Refusal",
    "Request",
    "StrictModel",
    "Usage",
    "VllmModel",
    "all_answers",
    "in_order",
    "opened_model",
    "parsed_answer",
]
