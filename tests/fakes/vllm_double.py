"""A server that speaks vLLM's protocol and samples from nothing: tokens count up from the seed."""

import json
import threading
import time
from contextlib import contextmanager
from pathlib import Path

from tests.fakes.loopback import Handler, Server, serving

STOP_ID, THOUGHT_ID, KIND_IDS = 9, 5, (7, 8)


class VllmDouble(Server):
    """Knows every end point that the engine uses; `answers` puts another answer in its place."""

    def __init__(self, root):
        super().__init__(_Handler)
        self.url = self.address
        self.root = root
        self.version = "default"
        self.weights = root
        self.on_cpu = False
        self.ready = True
        self.is_paused = False
        self.pauses = 0
        self.turn_s = 0.0
        """How long a completion takes; a pause or `finish` ends it sooner."""
        self.under_way = 0
        """Number of completions that it has begun and not ended."""
        self.changed = threading.Condition()
        """Notified when it is paused or resumed, and when a completion ends."""
        self.on_request = lambda path: None
        """Called with the path of each request before it is answered."""
        self.is_dead = False
        """Dead: every connection is closed without an answer."""
        self.adapters = {}
        self.starts = 1
        """Number of its processes so far; a connection lasts as long as its process."""
        self.logprob = -0.25
        self.logprob_of = lambda body: self.logprob
        """What it says of every token of an answer."""
        self.cache = {}
        """(salt, ids) -> the weights that keys of this prompt and its action were computed with."""
        self.keeps_cache = False
        """Whether /reset_prefix_cache does nothing, and says that it did."""
        self.cache_hits = 0
        self.answers = {}
        """Path -> list of (status, body) given out one by one before the usual answer."""
        self.seen = []
        """(method and path, body, Authorization) of every request."""
        self.hosts = set()
        """Whom the requests were for."""

    def read(self, body):
        """Read a prompt; log-probs are off by a nat where the cache's keys are of other weights."""
        salt, prompt = body.get("cache_salt"), tuple(body["prompt"])
        answer = completion(body, self.logprob_of(body))
        keys = [weights for (of, ids), weights in self.cache.items()
                if of == salt and ids == prompt[: len(ids)]]  # fmt: skip
        if any(weights != self.weights for weights in keys):
            answer = completion(body, self.logprob - 1.0)
        self.cache_hits += bool(keys)
        self.cache[salt, (*prompt, *answer["choices"][0]["token_ids"])] = self.weights
        return answer

    def complete(self, body):
        """Answer as vLLM: a paused server keeps new requests waiting, and breaks old ones off."""
        with self.changed:
            self.changed.wait_for(lambda: not self.is_paused, timeout=30)
            before = self.pauses
            self.under_way += 1
            self.changed.wait_for(
                lambda: self.pauses > before or not self.turn_s, timeout=self.turn_s
            )
            answer, is_cut = self.read(body), self.pauses > before
            self.under_way -= 1
            self.changed.notify_all()
        if is_cut:
            [choice] = answer["choices"]
            kept = len(choice["token_ids"]) // 2
            choice |= {"token_ids": choice["token_ids"][:kept], "finish_reason": "abort"}
            del choice["logprobs"]["token_logprobs"][kept:]
        return answer

    def finish(self):
        """End the completions under way, and take no time for others."""
        with self.changed:
            self.turn_s = 0.0
            self.changed.notify_all()

    def asked(self, path):
        return [body for seen, body, _ in self.seen if seen.endswith(path)]

    def restart(self):
        """Come back as a new process: with the weights that it starts on, and no connections."""
        self.version, self.weights, self.adapters, self.is_dead = "default", self.root, {}, False
        self.cache = {}
        self.starts += 1


class _Handler(Handler):
    def setup(self):
        super().setup()
        self.started_with = self.server.starts

    def do_GET(self):
        self._respond(None)

    def do_POST(self):
        body = self.read_body()
        if len(body) < int(self.headers.get("Content-Length") or 0):  # the client has left
            self.close_connection = True
            return
        self._respond(json.loads(body or "null"))

    def _respond(self, body):
        double, path = self.server, self.path.split("?")[0]
        if double.is_dead or self.started_with != double.starts:
            self.close_connection = True
            return
        double.hosts.add(self.headers["Host"])
        double.seen.append((f"{self.command} {self.path}", body, self.headers["Authorization"]))
        double.on_request(path)
        scripted = double.answers.get(path)
        status, answer = scripted.pop(0) if scripted else _usual(double, path, body)
        if status == "slow":
            time.sleep(answer)
            status, answer = 200, {}
        if status == "break":
            self.close_connection = True
            return
        self.say(status, answer)


def _usual(double, path, body):
    if path == "/health":
        return (200, {}) if double.ready else (503, {})
    if path == "/v1/models":
        served = {"policy": double.root, **double.adapters}
        return 200, {"data": [{"id": name, "root": str(root)} for name, root in served.items()]}
    if path.endswith("_lora_adapter"):
        return _adapter_call(double, path, body)
    if path == "/weight_info":
        return 200, {"weight_version": double.version}
    if path == "/update_weight_version":
        double.version = body["new_version"]
        return 200, {"success": True}
    if path == "/collective_rpc":
        return _remote_call(double, body)
    if path in ("/reset_prefix_cache", "/pause", "/resume"):
        return _control(double, path)
    if path == "/v1/completions":
        return 200, double.complete(body)
    return 404, {"error": "no such route"}


def _control(double, path):
    if path != "/reset_prefix_cache":
        with double.changed:
            double.is_paused = path == "/pause"
            double.pauses += double.is_paused
            double.changed.notify_all()
            if double.is_paused:
                double.changed.wait_for(lambda: not double.under_way, timeout=30)
        return 200, {"status": path[1:]}
    if not double.keeps_cache:
        double.cache.clear()
    return 200, {"success": True}


def _adapter_call(double, path, body):
    if path == "/v1/load_lora_adapter":
        double.adapters[body["lora_name"]] = body["lora_path"]
    else:
        del double.adapters[body["lora_name"]]
    return 200, b"Success: as vLLM says it, in plain text."


def _remote_call(double, body):
    if body["method"] == "get_model_inspection":
        backend = "CPUAttentionBackendImpl" if double.on_cpu else "FlashAttentionImpl"
        return 200, {"results": [f"Qwen3ForCausalLM(attn: Attention(backend={backend}))"]}
    folder = body["kwargs"]["weights_path"]
    if not Path(folder).is_dir():
        return 500, {"error": f"FileNotFoundError: {folder}"}
    double.weights = folder
    return 200, {"results": [None]}


def completion(body, logprob=-0.25):
    """Counts up from the seed's last digit, modulo 10, until a stop id or `max_tokens`."""
    token_ids = []
    while len(token_ids) < body["max_tokens"]:
        token_ids.append((body["seed"] + len(token_ids)) % 10)
        if token_ids[-1] in body.get("stop_token_ids", ()):
            break
    stopped = token_ids[-1] in body.get("stop_token_ids", ())
    known = dict.fromkeys([token_ids[0], *body.get("logprob_token_ids", ())], logprob)
    value = 0.0 if body.get("top_k") == 1 else logprob
    return {
        "model": body.get("model", "policy"),
        "choices": [
            {
                "token_ids": token_ids,
                "logprobs": {
                    "token_logprobs": [value] * len(token_ids),
                    "top_logprobs": [{f"token_id:{i}": p for i, p in known.items()}],
                },
                "finish_reason": "stop" if stopped else "length",
            }
        ],
        "usage": {
            "prompt_tokens": len(body["prompt"]),
            "completion_tokens": len(token_ids),
            "prompt_tokens_details": {"cached_tokens": len(body["prompt"]) // 2},
        },
    }


@contextmanager
def running(root):
    """The double on a free port, in a thread of its own."""
    double = VllmDouble(root)
    with serving(double):
        yield double
