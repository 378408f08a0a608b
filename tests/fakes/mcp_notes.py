"""An MCP server of the tests' own, standard library alone: notes, and every way to misbehave.

python mcp_notes.py      speaks over standard input and output
"""

import json
import os
import sys
import time

TOOLS = {
    "add": {"text": "string"},
    "list": {},
    "misbehave": {"how": "string"},
}
GARBAGE = {
    "result_is_text": {"result": "text"},
    "content_is_text": {"result": {"content": "text"}},
    "no_result": {},
    "error_is_text": {"error": "text"},
}


class Notes:
    """The notes of one session."""

    def __init__(self):
        self.notes = []

    def answer(self, message):
        """The lines that answer a message, as JSON values or as text."""
        if "id" not in message or "method" not in message:
            return []
        said = {"jsonrpc": "2.0", "id": message["id"]}
        method, params = message["method"], message.get("params", {})
        if method == "initialize":
            return [{**said, "result": {
                "protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}},
                "serverInfo": {"name": "notes", "version": "1"},
            }}]  # fmt: skip
        if method == "tools/list":
            return [{**said, "result": self._page(params.get("cursor"))}]
        if method == "tools/call":
            arguments = params["arguments"]
            if params["name"] == "misbehave":
                return self._misbehaved(said, arguments.get("how"))
            return [{**said, "result": self._called(params["name"], arguments)}]
        return [{**said, "error": {"code": -32601, "message": "no such method"}}]

    @staticmethod
    def _page(cursor):
        """One tool a page."""
        names = list(TOOLS)
        place = int(cursor or 0)
        name = names[place]
        properties = {key: {"type": kind} for key, kind in TOOLS[name].items()}
        page = {
            "tools": [
                {
                    "name": name,
                    "description": f"To {name}.\n",
                    "inputSchema": {"type": "object", "properties": properties},
                }
            ]
        }
        return page | ({"nextCursor": str(place + 1)} if place + 1 < len(names) else {})

    def _called(self, name, arguments):
        if name == "add":
            if not isinstance(arguments.get("text"), str):
                return {"content": [{"type": "text", "text": "text is missing"}], "isError": True}
            self.notes.append(arguments["text"])
            return {"content": [{"type": "text", "text": f"note {len(self.notes)}"}]}
        picture = {"type": "image", "data": "", "mimeType": "image/png"}
        return {"content": [{"type": "text", "text": "; ".join(self.notes) or "none"}, picture]}

    def _misbehaved(self, said, how):
        right = {**said, "result": {"content": [{"type": "text", "text": "all is well"}]}}
        match how:
            case "exit":
                print("out of notes", file=sys.stderr, flush=True)
                os._exit(3)
            case "sleep":
                time.sleep(600)
            case "late":
                time.sleep(1.5)
            case "long":
                right["result"]["content"][0]["text"] = "x" * 300_000
            case "wide":
                right["result"]["content"][0]["text"] = "\u00e9" * 30_000
            case "chatter":
                ask = {"jsonrpc": "2.0", "id": 9, "method": "sampling/createMessage", "params": {}}
                told = {"jsonrpc": "2.0", "method": "notifications/message", "params": {}}
                ping = {"jsonrpc": "2.0", "id": "p", "method": "ping"}
                return ["a line of a log", told, ask, ping, [1, 2], {"id": 999}, right]
            case "refuse":
                return [{**said, "error": {"code": -32602, "message": "not so"}}]
            case _ if how in GARBAGE:
                return [{**said, **GARBAGE[how]}]
        return [right]


def written(line):
    return line if isinstance(line, str) else json.dumps(line)


def main():
    notes = Notes()
    for line in sys.stdin:
        for answer in notes.answer(json.loads(line)):
            print(written(answer), flush=True)


if __name__ == "__main__":
    main()
