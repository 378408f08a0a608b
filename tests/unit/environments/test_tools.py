"""Typed functions as tools: their schema, and what becomes of arguments that do not fit."""

import asyncio
import functools
import inspect
import random
from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, Field

from espalier.environments import Tool, ToolError, ToolOutput, make_task
from espalier.environments.tools import (
    ToolSignatureError,
    refuse_ambiguous_tools,
)
from espalier.records import ToolCall
from espalier.records.message import ToolSpec

TASK = make_task("any", "?", gold=("1",), split="train", source="test", key="k")


def convert(amount: float, currency: Literal["crown", "franc"] = "crown") -> str:
    """Convert euros
    into another currency.

    What follows is for whoever reads the code.
    """
    return f"{amount * 2:g} {currency}s"


def call(tool, **arguments):
    result = tool.call(ToolCall(name=tool.spec.name, arguments=arguments, call_id="c1"), TASK)
    return asyncio.run(_awaited(result)) if inspect.isawaitable(result) else result


async def _awaited(result):
    return await result


def test_a_typed_function_is_its_own_schema():
    spec = Tool(convert).spec
    assert spec.name == "convert"
    assert spec.description == "Convert euros into another currency."
    assert spec.parameters == {
        "type": "object",
        "properties": {
            "amount": {"type": "number"},
            "currency": {"type": "string", "enum": ["crown", "franc"], "default": "crown"},
        },
        "required": ["amount"],
        "additionalProperties": False,
    }


def test_a_fault_of_a_tool_names_the_call():
    def price(item: str) -> int:
        return int(item)

    async def waited_price(item: str) -> int:
        return int(item)

    for tool in (Tool(price), Tool(waited_price)):
        with pytest.raises(ValueError, match="literal") as raised:
            call(tool, item="\u00b2")
        [note] = raised.value.__notes__
        assert note.startswith(f"in the tool {tool.spec.name}, called with {{'item': '\u00b2'}}")


@pytest.mark.parametrize("specs", [("one", "one"), ("answer",), ("think", "one"), ("result",)])
def test_names_that_mean_something_else_are_refused(specs):
    with pytest.raises(ToolSignatureError, match="|".join(specs)):
        refuse_ambiguous_tools(
            [ToolSpec(name=name, description="", parameters={}) for name in specs]
        )


def test_what_a_parameter_means_is_told_where_it_is_annotated():
    def weigh(grams: Annotated[int, Field(description="On the scale.", ge=0)]) -> int:
        return grams

    tool = Tool(weigh)
    assert tool.spec.parameters["properties"]["grams"]["description"] == "On the scale."
    assert tool.spec.description == ""
    assert not call(tool, grams=-1).succeeded


def test_a_tool_returns_text_or_json_or_a_failure():
    class Row(BaseModel):
        name: str

    def rows() -> list[Row]:
        return [Row(name="lyon")]

    def find() -> ToolOutput:
        return ToolOutput("nothing", succeeded=False)

    assert call(Tool(convert), amount=2).content == "4 crowns", "a default holds"
    assert call(Tool(convert), amount=2, currency="franc").content == "4 francs"
    assert call(Tool(rows)).content == '[{"name":"lyon"}]'
    result = call(Tool(find))
    assert (result.content, result.succeeded, result.call.call_id) == ("nothing", False, "c1")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({}, "amount"),
        ({"amount": "much"}, "amount"),
        ({"amount": 2, "currency": "shell"}, "currency"),
        ({"amount": 2, "rate": 3}, "rate"),
    ],
)
def test_arguments_that_do_not_fit_are_something_to_read(arguments, named):
    result = call(Tool(convert), **arguments)
    assert result.content.startswith(f"error: {named}: ")
    assert not result.succeeded
    assert result.call.arguments == arguments


def test_the_task_is_handed_over_and_cannot_be_given():
    def gold(task, digits: int = 1) -> str:
        """Cheat."""
        return task.verifier.gold[0] * digits

    tool = Tool(gold)
    assert tool.spec.parameters["properties"].keys() == {"digits"}
    assert call(tool, digits=2).content == "11"
    assert "task: Extra inputs" in call(tool, task="mine").content


def hidden(_what: int): ...
def positional(what: int, /): ...
def several(*what: int): ...
def unknown(what: "Nowhere"): ...  # noqa: F821
def no_schema(what: random.Random): ...
def untyped(what): ...


@pytest.mark.parametrize("function", [hidden, positional, several, unknown, no_schema, untyped])
def test_a_function_that_cannot_be_a_tool_is_refused(function):
    with pytest.raises(ToolSignatureError, match=rf"^tool {function.__name__}: [^\n]+$"):
        Tool(function)


def refuse(number: int) -> str:
    raise ToolError(f"not {number}")


async def refuse_later(number: int) -> str:
    raise ToolError(f"not {number}")


@pytest.mark.parametrize("function", [refuse, refuse_later])
def test_a_refusal_is_read_with_its_reason(function):
    result = call(Tool(function), number=3)
    assert (result.content, result.succeeded) == ("error: not 3", False)


def test_a_coroutine_function_is_waited_for_and_checked_at_once():
    async def double(number: int) -> int:
        await asyncio.sleep(0)
        return 2 * number

    @functools.wraps(double)
    def logged(*arguments, **named):
        return double(*arguments, **named)

    for tool in (Tool(double), Tool(logged)):
        assert call(tool, number=21).content == "42"
        assert not call(tool, number="x").succeeded
    assert Tool(double).is_async
