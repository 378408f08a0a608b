r"""Calls between tags named after the tool (Search-R1, arXiv:2503.09516; ReTool, arXiv:2504.11536).

    <think> country </think> <search> lyon country </search>      thought and call
    <information> lyon | country: france </information>           a result, in the same message
    <think> answer </think> <answer> france </answer>             the final answer

A closing tag ends the policy's turn, and the result follows directly. A tool with one text argument
takes the text between its tags, any other a JSON object. Where a tool takes programs, as ReTool's
does, free text may replace the thought.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence

from espalier.dialects.syntax import (
    THINK,
    WRITES_RESULT,
    Syntax,
    compact_json,
    json_called,
    required_tool,
)
from espalier.records import Action, FinalAnswer, JsonObject, Malformed, ToolCall, ToolCalls
from espalier.records.message import ToolSpec

ANSWER = ("<answer>", "</answer>")
_FENCE = "```"
_STRICT = re.compile(
    r"\s*<think>(?P<thought>[^<>]*)</think>\s*<(?P<tag>[^<>/\s]+)>(?P<body>[^<>]*)</(?P=tag)>\s*"
)


class Tags(Syntax):
    """The tag dialect."""

    name = "tags"
    inline_results = True

    def _parsed(self, text: str, tools: Sequence[ToolSpec]) -> Action:
        if any(tool.takes_code for tool in tools):
            return _parsed_freely(text, tools)
        return _parsed_strictly(text, tools)

    def write(self, action: ToolCalls | FinalAnswer, tools: Sequence[ToolSpec]) -> str:
        """Return the message that `parse` reads as `action`.

        Only the first of several calls is written: a closing tag ends the turn.

        Raises:
            PolicyError: a call of an unknown tool.
        """
        if isinstance(action, FinalAnswer):
            block = f"{ANSWER[0]} {action.text} {ANSWER[1]}"
        else:
            call = action.calls[0]
            tool = required_tool(call.name, tools)
            body = call.arguments.get(tool.text_argument or "")
            if not isinstance(body, str):
                # no text in the JSON can be read as a tag
                body = compact_json(call.arguments)
                body = body.replace("<", "\\u003c").replace(">", "\\u003e")
            block = f"<{tool.tag}> {body} </{tool.tag}>"
        return (
            block if action.thought is None else f"{THINK[0]} {action.thought} {THINK[1]} {block}"
        )

    def markers(self, tools: Sequence[ToolSpec]) -> tuple[str, ...]:
        """Return texts that are single tokens of a tiny policy's tokenizer."""
        calls = [tag for tool in tools for tag in (f"<{tool.tag}>", f"</{tool.tag}>")]
        return (*THINK, *calls, *_result_tags(tools), *ANSWER)

    def stop_texts(self, tools: Sequence[ToolSpec]) -> tuple[str, ...]:
        """Return texts that end a message; () where the end-of-turn token does."""
        return (*(f"</{tool.tag}>" for tool in tools), ANSWER[1])

    def kind_markers(self, tools: Sequence[ToolSpec]) -> tuple[str, ...]:
        """Return the texts of which one follows a thought and tells the kind of the action."""
        return (*(f"<{tool.tag}>" for tool in tools), ANSWER[0])

    def defused(self, content: str) -> str:
        """Return a tool's result without text that a policy could take for a turn of its own.

        A tag in it reaches the policy as text, not as control.
        """
        return content.replace("<", "(").replace(">", ")")

    def write_result(self, content: str, tools: Sequence[ToolSpec]) -> str:
        """Return a tool's result as a tiny policy reads it."""
        opening, closing = _result_tags(tools)
        return f"{opening} {self.defused(content)} {closing}"

    def instructions(self, tools: Sequence[ToolSpec]) -> str:
        """Return how to write calls, for a policy whose chat template does not teach it."""
        ways = [
            f"<{tool.tag}> {tool.text_argument or 'arguments as a JSON object'} </{tool.tag}> "
            f"({tool.description})"
            for tool in tools
        ]
        opening, closing = _result_tags(tools)
        return (
            f"First reason inside {THINK[0]} and {THINK[1]}. Then either call a tool by writing "
            f"{' or '.join(ways)}, whose result comes back between {opening} and {closing}, or "
            f"give the final answer as {ANSWER[0]} answer {ANSWER[1]}.\n"
        )


def _result_tags(tools: Sequence[ToolSpec]) -> tuple[str, str]:
    tag = tools[0].result_tag if tools else "result"
    return f"<{tag}>", f"</{tag}>"


def _parsed_strictly(text: str, tools: Sequence[ToolSpec]) -> Action:
    match = _STRICT.fullmatch(text)
    tags = {tool.tag: tool for tool in tools}
    if match is None or match["tag"] not in (*tags, "answer"):
        return Malformed("not one think block followed by one call or answer block", text)
    thought, body = match["thought"].strip(), match["body"]
    if not body.strip():
        return Malformed(f"empty {match['tag']} block", text)
    if match["tag"] == "answer":
        return FinalAnswer(" ".join(body.split()), thought)
    return _called(tags[match["tag"]], body, thought, text)


def _parsed_freely(text: str, tools: Sequence[ToolSpec]) -> Action:
    if any(tag in text for tag in _result_tags(tools)):
        return Malformed(WRITES_RESULT, text)
    openings = {f"<{tool.tag}>": tool for tool in tools}
    found = [(text.find(tag), tag) for tag in (*openings, ANSWER[0]) if tag in text]
    if not found:
        return Malformed("neither a call block nor an answer block", text)
    start, opening = min(found)
    closing = opening.replace("<", "</")
    body, closed, rest = text[start + len(opening) :].rpartition(closing)
    if not closed or rest.strip():
        return Malformed(f"no {closing} at its end", text)
    thought = text[:start].strip().removeprefix(THINK[0]).removesuffix(THINK[1]).strip() or None
    if opening == ANSWER[0]:
        answer = " ".join(body.split())
        return FinalAnswer(answer, thought) if answer else Malformed("empty answer block", text)
    tool = openings[opening]
    content = body
    if tool.takes_code:
        # without a Markdown fence around it, and without common indentation
        fenced = body.strip()
        if fenced.startswith(_FENCE) and fenced.endswith(_FENCE) and "\n" in fenced:
            content = fenced.partition("\n")[2].removesuffix(_FENCE)
        content = textwrap.dedent(content.strip("\n")).strip()
    if not content.strip():
        return Malformed(f"empty {tool.tag} block", text)
    return _called(tool, content, thought, text)


def _called(tool: ToolSpec, body: str, thought: str | None, text: str) -> ToolCalls | Malformed:
    if tool.text_argument is None:
        return json_called(tool, body, thought, text)
    written = body if tool.takes_code else " ".join(body.split())
    arguments: JsonObject = {tool.text_argument: written}
    return ToolCalls((ToolCall(name=tool.name, arguments=arguments),), thought)
