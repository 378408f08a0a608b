"""Structured answers of a language model: asked for by type, cached, counted, within limits.

`EndpointModel` asks an OpenAI-compatible server, and `ChatEndpoint` talks with one, tools included;
`VllmModel` answers in batches, without one; `opened_model` is whichever a profile names. Whatever
else implements `Model` answers the same requests without either, as synthesis's embedded teacher
does.
"""

from espalier.completions.answering import AnswerCache, CallUsage, Ledger
from espalier.completions.chat import ChatEndpoint, ChatReply, ToolNames, sent_message
from espalier.completions.endpoint import EndpointFault, EndpointModel
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
    "ChatEndpoint",
    "ChatReply",
    "EndpointFault",
    "EndpointModel",
    "Ledger",
    "Model",
    "ModelRefusal",
    "OpenedModel",
    "PlainText",
    "Request",
    "StrictModel",
    "ToolNames",
    "VllmModel",
    "all_answers",
    "in_order",
    "opened_model",
    "parsed_answer",
    "sent_message",
]
