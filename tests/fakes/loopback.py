"""HTTP servers of the tests' own on loopback: what every stand-in and double has in common."""

import asyncio
import json
import socket
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, handler):
        super().__init__(("127.0.0.1", 0), handler)

    @property
    def address(self):
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # one packet an answer: a second one waits 40 ms for an acknowledgement

    def log_message(self, *_):
        pass

    def read_body(self):
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def say(self, status, content, headers=()):
        """Answer with bytes as they are, or with anything else as JSON."""
        text = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        named = {"Content-Type": "application/json", **dict(headers)}
        for name, value in {**named, "Content-Length": str(len(text))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(text)


@contextmanager
def serving(server):
    """Serve in a thread; nothing of it is left afterwards."""
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def answers_at_once(listener):
    """Whether what asyncio accepts there sends without waiting for acknowledgements."""

    async def ask():
        accepted = asyncio.get_running_loop().create_future()
        async with await asyncio.start_server(
            lambda _, writer: accepted.set_result(writer), sock=listener
        ):
            _, asking = await asyncio.open_connection(*listener.getsockname())
            writer = await accepted
            seen = writer.get_extra_info("socket")
            no_delay = seen.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            for one in (writer, asking):
                one.close()
        return bool(no_delay)

    return asyncio.run(ask())
