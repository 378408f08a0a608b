"""Structured answers of a language model: asked for by type, cached, counted, within limits.

`EndpointModel` is the one door to an OpenAI-compatible server. Whatever else implements `Model`
answers the same requests without one, as synthesis's embedded teacher does.
"""

from espalier.completions.answers import PlainText, Refusal, parsed_answer
from espalier.completions.cache import AnswerCache
from espalier.completions.endpoint import EndpointModel
from espalier.completions.ledger import Ledger, Usage
from espalier.completions.request import Model, Request
from espalier.completions.windowed import in_order

__all__ = [
    "AnswerCache",
    "EndpointModel",
    "Ledger",
    "Model",
    "PlainText",
    "Refusal",
    "Request",
    "Usage",
    "in_order",
    "parsed_answer",
]
