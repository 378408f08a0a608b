"""Structured answers of a language model: asked for by type, cached, counted, within limits.

`EndpointModel` is the one door to an OpenAI-compatible server; `VllmModel` answers in batches,
without one; `opened_model` is whichever a profile names. Whatever else implements `Model` answers
the same requests without either, as synthesis's embedded teacher does.
"""

from espalier.completions.answering import AnswerCache, CallUsage, Ledger
from espalier.completions.endpoint import EndpointModel
from espalier.completions.opening import OpenedModel, all_answers, in_order, opened_model
from espalier.completions.request import (
    Model,
    ModelRefusal,
    PlainText,
    Request,
    StrictModel,
    parsed_answer,
)
from espalier.completions.vllm_batch import VllmModel

__all__ = [
    "AnswerCache",
    "CallUsage",
    "EndpointModel",
    "Ledger",
    "Model",
    "ModelRefusal",
    "OpenedModel",
    "PlainText",
    "Request",
    "StrictModel",
    "VllmModel",
    "all_answers",
    "in_order",
    "opened_model",
    "parsed_answer",
]
