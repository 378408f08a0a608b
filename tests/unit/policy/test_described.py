"""What a run says of its base policy before it is trained."""

import pytest

from espalier.dialects.dialect import Dialect
from espalier.policy.loading import Policy
from espalier.stages.prepare_policy import described
from tests.factories.byte_tokenizer import byte_tokenizer
from tests.factories.records import make_task
from tests.factories.tiny import TOOLS, tiny_policy

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\\n{{ m.content }}<|im_end|>\\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\\n{% endif %}"
)


@pytest.fixture(scope="module")
def policy():
    return tiny_policy()


def of(policy, question, setting="auto"):
    dialect = Dialect(policy.tokenizer, TOOLS)
    task = make_task("train-1", question)
    return described(policy, dialect, task, setting=setting)


def test_model_dialect_and_first_prompt_are_in_two_lines(policy):
    found = of(policy, "Where is Lyon?")
    first, second = found.lines()
    assert first.startswith(f"model {policy.model.config.model_type}, ")
    assert "dialect tags (its own, trained from scratch)" in first
    assert "train-1" in second
    assert "where is lyon?" in second
    assert f"{found.prompt_tokens} tokens" in second


@pytest.mark.parametrize(
    ("sign", "setting", "said"),
    [
        ("", "auto", "dialect tags (the fallback: its chat template has no known call format)"),
        ("", "hermes", "dialect hermes (policy.dialect)"),
        ("[TOOL_CALLS]", "auto", "dialect mistral (its chat template)"),
        ("<tool_call>", "auto", "dialect hermes (its chat template)"),
    ],
)
def test_what_decided_on_the_dialect_is_said(sign, setting, said):
    tokenizer = byte_tokenizer("{# " + sign + " #}" + CHATML)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    given = Policy(tiny_policy().model, tokenizer)
    dialect = Dialect(tokenizer, TOOLS, name=setting)
    assert said in described(given, dialect, make_task("t", "q"), setting=setting).lines()[0]


@pytest.mark.parametrize("question", ["word " * 5000, "a\nb\x1b[2Jc\u202ed" * 900])
def test_a_long_prompt_is_cut_and_stays_one_line(policy, question):
    _, line = of(policy, question).lines()
    assert len(line) < 1000
    assert "characters left out" in line
    assert "\n" not in line
    assert line.isprintable()
