r"""One line per turn: thought, and call or answer, after labels in words (ReAct, arXiv:2210.03629).

    Thought: country; search: lyon country            thought and call
    Result: lyon | country: france                    a result, in the same message
    Thought: answer; Answer: france                   the final answer

A line break ends the policy's turn, and the result is the next line. Where tags are no tokens of
the vocabulary, a turn takes half as many tokens as in the tag dialect. A tool with one text
argument takes the rest of the line, any other a JSON object; text that does not fit into a line (a
program) is a JSON string.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from espalier.dialects.syntax import (
    WRITES_RESULT,
    Syntax,
    compact_json,
    json_called,
    parsed_json,
    required_tool,
)
from espalier.records import Action, FinalAnswer, JsonObject, Malformed, ToolCall, ToolCalls
from espalier.records.message import ToolSpec

_THOUGHT, _ANSWER, _RESULT = "Thought:", "Answer:", "Result:"
_END = "\n"


class ReAct(Syntax):
    """The ReAct dialect."""

    name = "react"
    inline_results = True
    stops_inside_tokens = True

    def _parsed(self, text: str, tools: Sequence[ToolSpec]) -> Action:
        line = text.strip()
        if line.startswith(_RESULT):
            return Malformed(WRITES_RESULT, text)
        if _END in line:
            return Malformed("more than one line", text)
        match = re.search(rf"(?:^|; ?)({_alternatives(tools)})", line)
        if match is None:
            return Malformed("neither a call nor an answer", text)
        before, body = line[: match.start()].strip(), line[match.end() :].strip()
        if before and not before.startswith(_THOUGHT):
            return Malformed(f"no {_THOUGHT} before {match[1]}", text)
        thought = before.removeprefix(_THOUGHT).strip() if before else None
        if not body:
            return Malformed(f"nothing behind {match[1]}", text)
        if match[1] == _ANSWER:
            return FinalAnswer(_one_line(body), thought)
        tool = next(tool for tool in tools if _label(tool) == match[1])
        if tool.text_argument is None:
            return json_called(tool, body, thought, text)
        arguments: JsonObject = {tool.text_argument: _text(body)}
        return ToolCalls((ToolCall(name=tool.name, arguments=arguments),), thought)

    def write(self, action: ToolCalls | FinalAnswer, tools: Sequence[ToolSpec]) -> str:
        """Return the message that `parse` reads as `action`.

        Only the first of several calls is written: a line break ends the turn.

        Raises:
            PolicyError: a call of an unknown tool.
        """
        if isinstance(action, FinalAnswer):
            said = f"{_ANSWER} {_one_line(action.text)}"
        else:
            call = action.calls[0]
            tool = required_tool(call.name, tools)
            text = call.arguments.get(tool.text_argument or "")
            if isinstance(text, str):
                is_plain = text == text.strip() != "" and _END not in text and text[0] != '"'
                body = text if is_plain else compact_json(text)
            else:
                body = compact_json(call.arguments)
            said = f"{_label(tool)} {body}"
        if action.thought is None:
            return f"{said}{_END}"
        # the first label after a semicolon ends the thought
        thought = re.sub(rf";(?= ?(?:{_alternatives(tools)}))", ",", _one_line(action.thought))
        return f"{_THOUGHT} {thought}; {said}{_END}"

    def markers(self, tools: Sequence[ToolSpec]) -> tuple[str, ...]:
        """Return texts that are single tokens of a tiny policy's tokenizer."""
        return (_THOUGHT, *self.kind_markers(tools), _RESULT, _END)

    def stop_texts(self, tools: Sequence[ToolSpec]) -> tuple[str, ...]:
        """Return texts that end a message; () where the end-of-turn token does."""
        return (_END,)

    def kind_markers(self, tools: Sequence[ToolSpec]) -> tuple[str, ...]:
        """Return the texts of which one follows a thought and tells the kind of the action."""
        return (*map(_label, tools), _ANSWER)

    def defused(self, content: str) -> str:
        """Return a tool's result without text that a policy could take for a turn of its own.

        On one line it stands behind its label.
        """
        return _one_line(content)

    def write_result(self, content: str, tools: Sequence[ToolSpec]) -> str:
        """Return a tool's result as a tiny policy reads it."""
        return f"{_RESULT} {self.defused(content)}{_END}"

    def instructions(self, tools: Sequence[ToolSpec]) -> str:
        """Return how to write calls, for a policy whose chat template does not teach it."""
        ways = [
            f'"{_label(tool)} {tool.text_argument or "arguments as a JSON object"}" '
            f"({tool.description})"
            for tool in tools
        ]
        return (
            f'Write one line: "{_THOUGHT} ...; " and then either a call, {" or ".join(ways)}, '
            f'whose result comes back in a line "{_RESULT} ...", or the final answer, '
            f'"{_ANSWER} answer".\n'
        )


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _label(tool: ToolSpec) -> str:
    label = f"{tool.tag}:"
    return f"call {label}" if label in (_THOUGHT, _ANSWER, _RESULT) else label


def _alternatives(tools: Sequence[ToolSpec]) -> str:
    """Return a regular expression of all labels that open a call or an answer."""
    return "|".join(map(re.escape, (*map(_label, tools), _ANSWER)))


def _text(body: str) -> str:
    """Return the text argument in `body`: a JSON string, or else `body` itself."""
    if body[0] != '"':
        return body
    try:
        return str(parsed_json(body))
    except ValueError:
        return body
