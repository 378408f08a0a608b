"""Structured answers of a language model: typed, cached, counted, within limits.

`EndpointModel` queries OpenAI-compatible servers of a model, `ChatEndpoint` holds a conversation
with them, tools included, and `VllmModel` answers in batches without a server. `opened_model` opens
whichever of them a profile names. Any other class that implements `Model` can answer the same
requests, as the embedded teacher of synthesis does.
"""

from espalier.completions.answering import AnswerCache, CallUsage, Ledger
from espalier.completions.chat import ChatEndpoint, ChatReply, ToolNames, sent_message
from espalier.completions.endpoint import EndpointModel, RefusedTextError
from espalier.completions.opening import OpenedModel, all_answers, in_order, opened_model
from espalier.completions.request import (
    Model,
    ModelRefusal,
    PlainText,
    Request,
    StrictModel,
    parsed_answer,
)
from espalier.completions.servers import EndpointFault
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
    "RefusedTextError",
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
