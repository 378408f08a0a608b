"""Assistant masks of TRL's training templates, by their segments."""

from itertools import pairwise

import pytest

from espalier.dialects.assistant_mask import Segment, token_mask
from tests.unit.algorithms.golden import cases_of

CASES = cases_of("chat_masks")


def _segments(case):
    return tuple(Segment(s["text"], bool(s["mask"])) for s in case.expected["segments"])


def _offsets(tokens):
    """Where each token's text lies; byte-level tokens write blank and newline as other letters."""
    ends = [0]
    for token in tokens:
        ends.append(ends[-1] + len(token))
    return list(pairwise(ends))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_tokens_of_written_segments_are_the_assistants(case):
    assert "".join(segment.text for segment in _segments(case)) == case.expected["rendered"]
    mask = token_mask(_offsets(case.expected["tokens"]), _segments(case))
    assert list(mask) == case.expected["assistant_mask"]
    assert sum(mask) == case.expected["num_assistant_tokens"]
