"""What the endpoint gives its clients: requests a second, and the wait for the first token.

    python -m tests.benchmarks.serving

A policy of a million parameters with random weights (LFM2, as the tiny one) answers clients
that each ask again as soon as they are answered: 64 tokens of prompt, every one another, 64 tokens
of answer, streamed over HTTP on loopback. Beside it, in the same run, plain transformers `generate`
in the process of its clients, one answer at a time and without HTTP: what one writes first.

Each finished round of a contestant is kept with its commit (--out), and a restarted run goes on
after it. The last line is one JSON object: medians over the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.benchmarks.keeping import keep, kept, provenance

CONTESTANTS = ("endpoint", "generate")
CLIENTS = (1, 8, 32)
PROMPT_TOKENS, ANSWER_TOKENS = 64, 64
SIZE = "1m"
MODEL = "benchmark-policy"
"""Folder of the policy, and so the name that it is served under."""


@dataclass(frozen=True)
class Point:
    """One contestant with so many clients, in one round."""

    contestant: str
    clients: int
    requests_per_s: float
    tokens_per_s: float
    first_token_p50_ms: float
    first_token_p99_ms: float
    answer_p50_ms: float


@dataclass(frozen=True)
class TimedRequest:
    """When a request was sent, had its first token, and was answered."""

    sent_s: float
    first_s: float
    done_s: float


Ask = Callable[[list[int]], Awaitable[TimedRequest]]


def main() -> None:
    """Measure what is missing, then tabulate."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--clients", nargs="+", type=int, default=CLIENTS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=3, help="of each client; 8 in all at least")
    parser.add_argument("--threads", type=int, default=1, help="of torch")
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks/serving"))
    parser.add_argument("--measure", choices=CONTESTANTS, help=argparse.SUPPRESS)
    parser.add_argument("--round", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.measure:
        measure(options)
        return
    for number in range(options.rounds):
        for contestant in CONTESTANTS:
            if kept(place(options, contestant, number), question(options)) is None:
                command = [sys.executable, "-m", "tests.benchmarks.serving", *sys.argv[1:]]
                command += ["--measure", contestant, "--round", str(number)]
                environment = {**os.environ, "OMP_NUM_THREADS": str(options.threads)}
                subprocess.run(command, check=True, env=environment)
    report(options)


def question(options: argparse.Namespace) -> dict[str, object]:
    """What a kept result must have been asked."""
    return {
        "clients": list(options.clients),
        "requests": options.requests,
        "threads": options.threads,
        "tokens": [PROMPT_TOKENS, ANSWER_TOKENS],
        "size": SIZE,
    }


def place(options: argparse.Namespace, contestant: str, number: int) -> Path:
    """File of a contestant's round."""
    return options.out / f"{contestant}-{number}.json"


def measure(options: argparse.Namespace) -> None:
    """One contestant, one round, all numbers of clients."""
    opened = endpoint if options.measure == "endpoint" else generate
    points = []
    with opened(policy_dir(options.out), options.threads) as ask:
        asyncio.run(load(ask, clients=1, requests=4, seed=0))  # what is compiled or cached once
        for clients in options.clients:
            requests = max(options.requests, -(-8 // clients))
            asked = asyncio.run(load(ask, clients=clients, requests=requests, seed=clients))
            points.append(point(options.measure, clients, asked))
            print(row(points[-1]), flush=True)
    path = place(options, options.measure, options.round)
    keep(path, question(options), [asdict(p) for p in points], provenance(options.threads))


async def load(ask: Ask, *, clients: int, requests: int, seed: int) -> list[TimedRequest]:
    """Clients that each send their next request when the one before is answered."""

    async def client(number: int) -> list[TimedRequest]:
        dice = random.Random(f"{seed}:{number}")
        return [await ask(prompt(dice)) for _ in range(requests)]

    answered = await asyncio.gather(*(client(number) for number in range(clients)))
    return [one for several in answered for one in several]


def prompt(dice: random.Random) -> list[int]:
    """Token ids that nobody else asks."""
    return [dice.randrange(20, 2000) for _ in range(PROMPT_TOKENS)]


def point(contestant: str, clients: int, asked: list[TimedRequest]) -> Point:
    """Sum a load up."""
    wall_s = max(a.done_s for a in asked) - min(a.sent_s for a in asked)
    waits_ms = sorted(1000 * (a.first_s - a.sent_s) for a in asked)
    return Point(
        contestant=contestant,
        clients=clients,
        requests_per_s=round(len(asked) / wall_s, 2),
        tokens_per_s=round(len(asked) * ANSWER_TOKENS / wall_s, 1),
        first_token_p50_ms=round(statistics.median(waits_ms), 1),
        first_token_p99_ms=round(waits_ms[min(len(waits_ms) - 1, int(0.99 * len(waits_ms)))], 1),
        answer_p50_ms=round(statistics.median(1000 * (a.done_s - a.sent_s) for a in asked), 1),
    )


def policy_dir(out: Path) -> Path:
    """The policy that both serve; made once."""
    directory = out / MODEL
    if not (directory / "config.json").is_file():
        from espalier.policy.loading import Policy, save_policy
        from tests.benchmarks.rollout.model import benchmark_tokenizer, build_model

        tokenizer = benchmark_tokenizer()
        save_policy(Policy(build_model("lfm2", SIZE, tokenizer), tokenizer), directory)
    return directory


@contextmanager
def endpoint(directory: Path, threads: int) -> Iterator[Ask]:
    """`espalier serve` as a process of its own."""
    import httpx2

    command = [sys.executable, "-c", "from espalier.cli import main; main()", "serve"]
    command += [str(directory), "--port", "0", "--set", f"threads={threads}"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    try:
        said = ""
        while "serving" not in said:
            line = server.stderr.readline()
            assert line, f"the server did not start:\n{said}"
            said += line
        (url,) = re.findall(r"http://\S+", said)

        async def ask(prompt_ids: list[int]) -> TimedRequest:
            asked = {"model": MODEL, "prompt": prompt_ids, "max_tokens": ANSWER_TOKENS}
            body = {**asked, "ignore_eos": True, "stream": True, "return_token_ids": True}
            sent_s, first_s, tokens = time.perf_counter(), None, 0
            async with client_of(url).stream("POST", "/v1/completions", json=body) as answer:
                assert answer.status_code == httpx2.codes.OK, await answer.aread()
                async for line in answer.aiter_lines():
                    if line.startswith("data: {"):
                        first_s = first_s or time.perf_counter()
                        tokens += len(json.loads(line[6:])["choices"][0]["token_ids"])
            assert first_s is not None
            assert tokens == ANSWER_TOKENS
            return TimedRequest(sent_s, first_s, time.perf_counter())

        clients: dict[object, httpx2.AsyncClient] = {}

        def client_of(base_url: str) -> httpx2.AsyncClient:
            loop = asyncio.get_running_loop()
            if loop not in clients:
                limits = httpx2.Limits(max_connections=None)
                clients[loop] = httpx2.AsyncClient(base_url=base_url, timeout=600, limits=limits)
            return clients[loop]

        yield ask
    finally:
        server.terminate()
        server.wait()


@contextmanager
def generate(directory: Path, threads: int) -> Iterator[Ask]:
    """Plain transformers: one answer at a time, the others wait for it."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(threads)
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()

    class FirstToken:
        """A streamer: is given the prompt, then each token."""

        def __init__(self) -> None:
            self.at_s: list[float] = []

        def put(self, _: object) -> None:
            self.at_s.append(time.perf_counter())

        def end(self) -> None:
            """Nothing is held back."""

    def write(prompt_ids: list[int]) -> float:
        streamer = FirstToken()
        ids = torch.tensor([prompt_ids])
        tokens = {"max_new_tokens": ANSWER_TOKENS, "min_new_tokens": ANSWER_TOKENS}
        mask = torch.ones_like(ids)
        written = model.generate(
            ids, attention_mask=mask, do_sample=True, pad_token_id=0, streamer=streamer, **tokens
        )
        assert written.shape[1] == PROMPT_TOKENS + ANSWER_TOKENS
        return streamer.at_s[1]

    turn: dict[object, asyncio.Lock] = {}

    async def ask(prompt_ids: list[int]) -> TimedRequest:
        sent_s = time.perf_counter()
        async with turn.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
            first_s = await asyncio.to_thread(write, prompt_ids)
        return TimedRequest(sent_s, first_s, time.perf_counter())

    yield ask


def report(options: argparse.Namespace) -> None:
    """Medians over the rounds, and how the contestants compare."""
    rounds = [
        Point(**line)
        for contestant in CONTESTANTS
        for number in range(options.rounds)
        for line in kept(place(options, contestant, number), question(options)) or []
    ]
    medians = [
        _median([p for p in rounds if (p.contestant, p.clients) == (contestant, clients)])
        for contestant in CONTESTANTS
        for clients in options.clients
    ]
    print(f"\nmedians of {options.rounds} rounds, {options.threads} thread(s) of torch")
    for p in medians:
        print(row(p))
    of = {(p.contestant, p.clients): p for p in medians}
    ratios = {
        str(clients): round(
            of["endpoint", clients].requests_per_s / of["generate", clients].requests_per_s, 2
        )
        for clients in options.clients
    }
    figures = {"points": [asdict(p) for p in medians], "requests_per_s_ratio": ratios}
    print(json.dumps({**figures, **provenance(options.threads)}))


def row(p: Point) -> str:
    """A line of the table."""
    return (
        f"{p.contestant:9s} {p.clients:3d} clients  {p.requests_per_s:8.2f} requests/s  "
        f"{p.tokens_per_s:8.0f} tokens/s  first token p50 {p.first_token_p50_ms:8.1f} ms  "
        f"p99 {p.first_token_p99_ms:8.1f} ms  answer p50 {p.answer_p50_ms:8.1f} ms"
    )


def _median(points: list[Point]) -> Point:
    measured = [name for name in asdict(points[0]) if name not in ("contestant", "clients")]
    medians = {name: statistics.median(getattr(p, name) for p in points) for name in measured}
    return Point(contestant=points[0].contestant, clients=points[0].clients, **medians)


if __name__ == "__main__":
    main()
