"""The wire formats: one module each, chosen by the path of a request."""

from collections.abc import Mapping

from espalier.rollout.recording.asked import WireFormat
from espalier.rollout.recording.formats.chat import ChatFormat
from espalier.rollout.recording.formats.messages import MessagesFormat
from espalier.rollout.recording.formats.responses import ResponsesFormat

FORMATS: Mapping[str, WireFormat] = {
    "chat/completions": ChatFormat(),
    "responses": ResponsesFormat(),
    "messages": MessagesFormat(),
}
"""Path below an attempt's `/v1/` -> format."""

__all__ = ["FORMATS"]
