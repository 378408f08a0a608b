"""Assistant masks of TRL's training templates: by segments, and by rendering where TRL is found."""

from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import pytest

from espalier.dialects.assistant_mask import Segment, assistant_segments, token_mask
from tests.factories.byte_tokenizer import byte_tokenizer
from tests.unit.algorithms.golden import Topic

BESIDE_THE_REPOSITORY = Path(__file__).resolve().parents[4]
SITE_PACKAGES = "peers/trl/lib/python*/site-packages/trl/chat_templates"
"""An environment of TRL's own, beside the repository."""


def _segments(case):
    return tuple(Segment(s["text"], bool(s["mask"])) for s in case.expected["segments"])


def _offsets(tokens):
    """Where each token's text lies; byte-level tokens write blank and newline as other letters."""
    ends = [0]
    for token in tokens:
        ends.append(ends[-1] + len(token))
    return list(pairwise(ends))


def _by_segments(case):
    assert "".join(segment.text for segment in _segments(case)) == case.expected["rendered"]
    mask = token_mask(_offsets(case.expected["tokens"]), _segments(case))
    assert list(mask) == case.expected["assistant_mask"]
    assert sum(mask) == case.expected["num_assistant_tokens"]


CHAT_MASKS = Topic(
    "chat_masks",
    runners={"qwen2_5": _by_segments, "qwen3": _by_segments, "qwen3_instruct_2507": _by_segments},
    excluded={},
)


def _trl_template(name):
    found = find_spec("trl")
    folders = [Path(found.origin).parent / "chat_templates"] if found and found.origin else []
    folders += BESIDE_THE_REPOSITORY.glob(SITE_PACKAGES)
    path = next((f for folder in folders if (f := folder / f"{name}.jinja").is_file()), None)
    if path is None:
        pytest.skip(f"TRL's template {name} is not installed")
    return path.read_text()


def test_every_case_is_run_or_excluded_by_name():
    CHAT_MASKS.check_accounts()


@CHAT_MASKS.each_case()
def test_tokens_of_written_segments_are_the_assistants(case):
    CHAT_MASKS.run(case)


@pytest.mark.parametrize("case", CHAT_MASKS.cases, ids=lambda case: case.name)
def test_trls_template_is_cut_into_the_same_segments(case):
    tokenizer = byte_tokenizer(_trl_template(case.params["template"]))
    segments = assistant_segments(tokenizer, case.inputs["messages"], case.inputs["tools"])
    assert segments == _segments(case)
