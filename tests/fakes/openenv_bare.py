"""An OpenEnv server of the standard library alone, as a sandbox can run it.

python3 openenv_bare.py PORT

An episode counts: `act` with `do = "add"` adds `by`; `do = "answer"` ends it, rewarded where `by`
is the sum. Other values of `do` misbehave.
"""

import base64
import hashlib
import json
import os
import socket
import struct
import sys
import threading
import time

MAGIC = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
SCHEMA = {
    "action": {
        "type": "object",
        "properties": {"do": {"type": "string"}, "by": {"type": "integer"}},
        "required": ["do"],
    }
}


def receive(stream):
    """The text of the next frame; None at its end."""
    head = stream.read(2)
    if len(head) < 2 or head[0] & 15 == 8:
        return None
    size = head[1] & 127
    if size == 126:
        (size,) = struct.unpack("!H", stream.read(2))
    elif size == 127:
        (size,) = struct.unpack("!Q", stream.read(8))
    mask = stream.read(4)
    content = stream.read(size)
    if head[0] & 15 == 10:  # the pong of a ping
        return receive(stream)
    return bytes(byte ^ mask[at % 4] for at, byte in enumerate(content)).decode()


def frame(content, kind=1, *, last=True):
    size = len(content)
    first = (128 if last else 0) | kind
    if size < 126:
        return struct.pack("!BB", first, size) + content
    if size < 1 << 16:
        return struct.pack("!BBH", first, 126, size) + content
    return struct.pack("!BBQ", first, 127, size) + content


def observation(*, done=False, reward=None, **fields):
    data = {"observation": fields, "reward": reward, "done": done}
    return json.dumps({"type": "observation", "data": data}).encode()


def end_itself():
    print("the policy ended me", flush=True)
    os._exit(3)


def spoil_the_session():
    with open(f"/proc/{os.getppid()}/fd/1", "w") as session:
        session.write("no answer\n")


MISDEEDS = {"exit": end_itself, "sleep": lambda: time.sleep(60), "spoil": spoil_the_session}


class Episode:
    def __init__(self):
        self.total = 0

    def answer(self, message):
        """The frames that answer a message."""
        data = message["data"]
        if message["type"] == "reset":
            self.total = data["seed"] % 100
            asked = f"start with {self.total}; which episode is {data['seed']} of {data['split']}?"
            return frame(observation(prompt=asked))
        do, by = data["do"], data.get("by", 0)
        if do == "add":
            self.total += by
        elif do == "answer":
            right = float(by == self.total)
            return frame(observation(done=True, reward=right, result="over"))
        elif do in MISDEEDS:
            MISDEEDS[do]()
        elif do == "close":
            return frame(b"", 8)
        elif do == "nonsense":
            return frame(b"no message")
        elif do == "pieces":
            whole = observation(result=str(self.total))
            return frame(b"hello", 9) + frame(whole[:9], 1, last=False) + frame(whole[9:], 0)
        elif do == "long":
            return frame(observation(result="x" * 300_000))
        return frame(observation(result=str(self.total)))


def serve(connection):
    stream = connection.makefile("rb")
    asked, headers = stream.readline().split()[1], {}
    while line := stream.readline().strip():
        name, _, value = line.partition(b":")
        headers[name.lower()] = value.strip()
    if asked == b"/schema":
        body = json.dumps(SCHEMA).encode()
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        connection.sendall(head.encode() + body)
        connection.close()
        return
    key = base64.b64encode(hashlib.sha1(headers[b"sec-websocket-key"] + MAGIC).digest())
    connection.sendall(
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Accept: " + key + b"\r\n\r\n"
    )
    episode = Episode()
    while (text := receive(stream)) is not None:
        connection.sendall(episode.answer(json.loads(text)))


if __name__ == "__main__":
    listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=serve, args=(connection,), daemon=True).start()
