"""A loopback server of chat completions that answers as it is told, well or badly."""

import json
import threading
import time
from contextlib import contextmanager

from pydantic import BaseModel

from espalier.completions import Request
from espalier.config import EndpointConfig
from tests.fakes.loopback import Handler, Server, serving


class Town(BaseModel, frozen=True, extra="forbid"):
    """What the tests ask about."""

    name: str


class Capital(BaseModel, frozen=True, extra="forbid"):
    """What the tests ask for."""

    city: str
    inhabitants: int


PARIS = '{"city": "Paris", "inhabitants": 2}'


def request(name="France", **fields):
    return Request(
        call="capital",
        instructions="Name the capital.",
        material=Town(name=name),
        answer=Capital,
        **fields,
    )


def completion(content, *, finish_reason="stop", refusal=None, usage=(10, 5)):
    """The body of a chat completion."""
    body = {
        "id": "x",
        "object": "chat.completion",
        "choices": [
            {
                "index": 0,
                "finish_reason": finish_reason,
                "message": {"role": "assistant", "content": content, "refusal": refusal},
            }
        ],
    }
    if usage:
        body["usage"] = {"prompt_tokens": usage[0], "completion_tokens": usage[1]}
    return body


class Scripted:
    """One response: status, headers, body, and what goes wrong on the way.

    `hangs`: nothing is sent, and the client has to hang up. `drip_s`: the body comes byte by byte.
    """

    def __init__(
        self, body, status=200, *, headers=(), delay_s=0.0, drip_s=0.0, cut=False, hangs=False
    ):
        self.body = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.status = status
        self.headers = dict(headers)
        self.delay_s = delay_s
        self.drip_s = drip_s
        self.cut = cut
        self.hangs = hangs


def of_small_context(answer, *, most=4000, status=400):
    """A `respond` of a model that refuses longer messages, and otherwise gives `answer`."""
    error = {"error": {"message": f"maximum context length is {most}", "type": "bad_request"}}

    def respond(body):
        size = sum(len(message["content"]) for message in body["messages"])
        return Scripted(error, status) if size > most else answer

    return respond


class EndpointDouble(Server):
    """Gives out `script` one by one, then `usual` for ever."""

    def __init__(self):
        super().__init__(_Handler)
        self.url = f"{self.address}/v1"
        self.script = []
        self.usual = Scripted(completion(PARIS))
        self.respond = None
        """Request body -> completion or response, instead of `usual`."""
        self.is_dead = False
        """Dead: every connection is closed without an answer, also that of a request under way."""
        self.health = Scripted({})
        """The response to GET /health."""
        self.seen = []
        """(path, body, Authorization) of every request."""
        self.hosts = set()
        """Host headers of all requests."""
        self.under_way = 0
        self.most_under_way = 0
        self.lock = threading.Lock()

    def handle_error(self, request, client_address):
        """A client that hangs up is what some tests are about."""


class _Handler(Handler):
    def do_GET(self):
        double = self.server
        if double.is_dead or self.path != "/health":
            self.close_connection = True
        else:
            time.sleep(double.health.delay_s)
            self._respond(double.health)

    def do_POST(self):
        double = self.server
        body = json.loads(self.read_body())
        with double.lock:
            double.hosts.add(self.headers["Host"])
            double.seen.append((self.path, body, self.headers["Authorization"]))
            double.under_way += 1
            double.most_under_way = max(double.most_under_way, double.under_way)
            response = double.script.pop(0) if double.script else double.usual
            if double.respond is not None:
                response = double.respond(body)
                response = response if isinstance(response, Scripted) else Scripted(response)
        try:
            time.sleep(response.delay_s)
            if response.hangs:
                self.rfile.read(1)  # returns once the client is gone
        finally:
            with double.lock:
                double.under_way -= 1
        if double.is_dead or response.hangs:
            self.close_connection = True
        else:
            self._respond(response)

    def _respond(self, response):
        self.send_response(response.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(response.body)))
        for name, value in response.headers.items():
            self.send_header(name, value)
        self.end_headers()
        if response.cut:
            self.wfile.write(response.body[: len(response.body) // 2])
            self.wfile.flush()
            self.close_connection = True
            self.connection.shutdown(2)
        elif response.drip_s:
            for byte in response.body:
                self.wfile.write(bytes([byte]))
                self.wfile.flush()
                time.sleep(response.drip_s)
        else:
            self.wfile.write(response.body)


@contextmanager
def running_double():
    double = EndpointDouble()
    with serving(double):
        yield double


def config(double, **fields):
    return EndpointConfig(url=double.url, model="small", **fields)
