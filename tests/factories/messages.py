"""Tools and messages that every dialect can spell."""

from hypothesis import strategies as st

from espalier.records import FinalAnswer, ToolCall, ToolCalls
from espalier.records.message import ToolSpec

NOTE = ToolSpec(
    name="note",
    description="Keep something.",
    parameters={
        "type": "object",
        "properties": {"text": {"type": "string"}, "data": {}},
        "required": ["text"],
    },
)
LOOKUP = ToolSpec(
    name="look_up",
    parameters={"type": "object", "properties": {"query": {"type": "string"}}},
)
BOTH = (NOTE, LOOKUP)


def note(text, data=None, thought="keep it"):
    return ToolCalls((ToolCall(name="note", arguments={"text": text, "data": data}),), thought)


WORDS = st.text(
    st.characters(codec="utf-8", exclude_characters="<>", exclude_categories=("C", "Z")),
    min_size=1,
    max_size=12,
)
"""Text that no dialect can take for the beginning or the end of a call."""
THOUGHTS = st.lists(WORDS, max_size=6).map(" ".join)
ANSWERS = st.lists(WORDS, min_size=1, max_size=6).map(lambda words: "answer: " + " ".join(words))
NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
DATA = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(max_size=20),
    lambda below: st.lists(below, max_size=4) | st.dictionaries(st.text(max_size=8), below),
    max_leaves=12,
)
NO_TEXT = DATA.filter(lambda value: not isinstance(value, str))
"""Text where the schema does not ask for text reads as JSON in Qwen3-Coder's dialect."""
CALLS = st.builds(
    lambda text, data: ToolCall(name="note", arguments={"text": text, "data": data}),
    st.text(max_size=40),
    NO_TEXT,
)
ACTIONS = st.one_of(
    st.builds(lambda call, thought: ToolCalls((call,), thought), CALLS, THOUGHTS),
    st.builds(FinalAnswer, ANSWERS, THOUGHTS),
)
