"""MCP servers that lie: what a session reads of their answers, and of streams of events."""

import json

from espalier.environments.contract import EnvironmentLostError
from espalier.environments.server_process import read_object
from espalier.environments.tools import ToolError
from espalier.records import DataError
from espalier_interop.mcp.config import McpConfig
from espalier_interop.mcp.inside import reply_to
from espalier_interop.mcp.session import McpSession
from espalier_interop.mcp.transports import NoAnswerError, _events
from tests.fuzz.campaign import Violation
from tests.fuzz.mutations import changed_bytes, changed_json, odd_value, written_json
from tests.fuzz.parsers import ParserTarget

_SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
_TOOL = {"name": "add", "description": "Add.", "inputSchema": _SCHEMA}
_RESULTS = [
    {"protocolVersion": "2025-06-18", "capabilities": {}, "serverInfo": {"name": "x"}},
    {"tools": [_TOOL], "nextCursor": "1"},
    {"tools": [{**_TOOL, "name": "list"}]},
    {"content": [{"type": "text", "text": "note 1"}], "isError": False},
    {"content": [{"type": "resource", "resource": {"uri": "a:b", "text": "c"}}]},
    {"content": [], "structuredContent": {"n": 1}},
]
_CONFIG = McpConfig.model_validate({"servers": {"notes": {"url": "http://h/mcp"}}})
_MOST_CHARACTERS = 10_000


class McpServers(ParserTarget):
    """`McpSession` over answers of another server, and the reader of event streams."""

    name = "mcp"

    def make(self, dice):
        """The answers to a few requests, one a line, most of them as they should be."""
        lines = []
        for number, result in enumerate(_RESULTS, start=1):
            message = {"jsonrpc": "2.0", "id": number, "result": result}
            if dice.random() < 0.1:
                error = {"code": -1, "message": "no"}
                message = {"jsonrpc": "2.0", "id": number, "error": error}
            if dice.random() < 0.2:
                message = changed_json(dice, message)
            if dice.random() < 0.05:
                message = odd_value(dice)
            line = written_json(dice, message)
            lines.append(changed_bytes(dice, line) if dice.random() < 0.05 else line)
        return b"\n".join(lines)

    def read(self, case):
        """See `ParserTarget`."""
        answers = case.split(b"\n")
        streamed = _at_once(_streamed(case))
        for data in streamed:
            message = read_object(data)
            if message is not None and (reply := reply_to(message)) is not None:
                json.loads(reply)
        session = McpSession("notes", _Liar(answers), _CONFIG)
        try:
            specs = _at_once(session.list_tools())
        except (DataError, EnvironmentLostError) as error:
            _expect(len(str(error)) < _MOST_CHARACTERS, "an error as long as what was sent")
            return f"no tools: {type(error).__name__}"
        _expect(0 < len(specs) <= 128, f"{len(specs)} tools")
        outcomes = []
        for _ in range(2):
            try:
                said = _at_once(session.call("add", {"text": "x"}))
            except (ToolError, EnvironmentLostError) as error:
                outcomes.append(type(error).__name__)
                continue
            _expect(isinstance(said.content, str), "an observation that is no text")
            _expect(len(said.content) <= _CONFIG.max_result_characters, "a long observation")
            outcomes.append("said")
        return f"tools, {', '.join(outcomes)}"


class _Liar:
    def __init__(self, answers):
        self._answers = answers

    async def ask(self, message, number, within_s):
        json.loads(message)
        if number > len(self._answers):
            raise NoAnswerError(f"no answer in {within_s:g} s")
        return self._answers[number - 1].decode("utf-8", "replace")

    async def tell(self, message):
        json.loads(message)

    def end(self):
        pass


async def _streamed(case):
    async def chunks():
        for start in range(0, len(case), 97):
            yield case[start : start + 97]

    try:
        return [data async for data in _events(chunks())]
    except NoAnswerError:
        return []


def _at_once(work):
    """The result of a coroutine that waits for nothing."""
    try:
        work.send(None)
    except StopIteration as ended:
        return ended.value
    raise Violation("it waits for something that nobody sends")


def _expect(holds, what):
    if not holds:
        raise Violation(what)
