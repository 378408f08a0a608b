"""The notes of `mcp_notes` behind streamable HTTP, on loopback: a session of its own for each."""

import json
from contextlib import contextmanager
from uuid import uuid4

from tests.fakes.loopback import Handler, Server, serving
from tests.fakes.mcp_notes import Notes, written


@contextmanager
def served_notes(*, streams, key=None):
    """Yields the address and the sessions, by id; answers are events of a stream if asked for."""
    sessions = {}

    class McpHandler(Handler):
        def do_POST(self):
            body = json.loads(self.read_body())
            if key is not None and self.headers.get("Authorization") != f"Bearer {key}":
                return self.say(401, {"error": "no key"})
            session = self.headers.get("Mcp-Session-Id")
            if body.get("method") == "initialize":
                session = uuid4().hex
                sessions[session] = Notes()
            if session not in sessions:
                return self.say(404, {"error": "no such session"})
            named = {"Mcp-Session-Id": session}
            answers = sessions[session].answer(body)
            if not answers:
                return self.say(202, b"", named)
            if streams:
                events = "".join(f"event: message\r\ndata: {written(a)}\r\n\r\n" for a in answers)
                named["Content-Type"] = "text/event-stream"
                return self.say(200, f": hello\r\n\r\n{events}".encode(), named)
            return self.say(200, written(answers[-1]).encode(), named)

        def do_DELETE(self):
            sessions.pop(self.headers.get("Mcp-Session-Id"), None)
            self.say(200, b"")

    with serving(Server(McpHandler)) as server:
        yield f"{server.address}/mcp", sessions
