import pytest

from espalier.dialects.assistant_mask import Segment, assistant_segments, encode_conversation
from espalier.records import PolicyError
from tests.factories.byte_tokenizer import byte_tokenizer

MARKED = (
    "{% for m in messages %}[{{ m.role }}]"
    "{% if m.role == 'assistant' %}"
    "{% generation %}{{ m.content }}{% endgeneration %}{% generation %}.{% endgeneration %}"
    "{% else %}{{ m.content }}{% endif %}{% endfor %}"
)
CONVERSATION = [
    {"role": "user", "content": "name?"},
    {"role": "assistant", "content": "Lyon"},
    {"role": "user", "content": "sure?"},
    {"role": "assistant", "content": "yes"},
]


def test_only_what_the_template_marks_is_the_assistants():
    assert assistant_segments(byte_tokenizer(MARKED), CONVERSATION) == (
        Segment("[user]name?[assistant]", written=False),
        Segment("Lyon.", written=True),
        Segment("[user]sure?[assistant]", written=False),
        Segment("yes.", written=True),
    )


def test_the_mask_is_that_of_the_reference_library():
    tokenizer = byte_tokenizer(MARKED)
    ours = encode_conversation(tokenizer, CONVERSATION)
    theirs = tokenizer.apply_chat_template(
        CONVERSATION, return_assistant_tokens_mask=True, return_dict=True
    )
    assert list(ours.token_ids) == theirs["input_ids"]
    assert list(ours.assistant_mask) == theirs["assistant_masks"]
    assert sum(ours.assistant_mask) == len("Lyon.yes.")
    assert set(encode_conversation(tokenizer, CONVERSATION[:1]).assistant_mask) == {0}


def test_a_template_that_marks_nothing_is_refused_with_the_remedy():
    tokenizer = byte_tokenizer("{% for m in messages %}{{ m.content }}{% endfor %}")
    with pytest.raises(PolicyError, match=r"\{% generation %\}"):
        encode_conversation(tokenizer, CONVERSATION)
