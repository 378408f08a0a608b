"""The trajectories that every trainer is given; standard library alone, as `rollout.script`."""

from __future__ import annotations

import json
import random
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

PROMPT_TOKENS = (40, 110)
ACTION_TOKENS = (12, 40)
RESULT_TOKENS = (20, 60)
MAX_TURNS = 4
FIRST_WORD_ID, LAST_WORD_ID = 16, 2047


@dataclass(frozen=True)
class Attempt:
    """One trajectory: P P P A A R R A; actions are learned."""

    token_ids: list[int]
    action_mask: list[int]
    spans: list[tuple[int, int, int]]
    """Start and end of each action, and the end of the tool result after it."""
    reward: float

    @property
    def prompt_tokens(self) -> int:
        """Tokens before the first action."""
        return self.spans[0][0]


@dataclass(frozen=True)
class Material:
    """What is trained on, and how."""

    policy_dir: str
    threads: int
    group_size: int
    attempts: tuple[Attempt, ...]
    sft_batch: int
    """Sequences of an optimizer step of SFT, and rows of a GRPO micro-batch where rows count."""
    warm_steps: int
    steps: int
    lora: dict[str, Any] | None = None
    """`policy.lora` of the run that recorded the trajectories; without, all weights are trained."""
    micro_batch_tokens: int = 8192
    """Of this project's trainers; the default of a profile."""
    activation_checkpointing: bool = False
    """Of this project's policy update."""


def attempts(groups: int, group_size: int, seed: int) -> tuple[Attempt, ...]:
    """Ragged trajectories, group by group: 1 to MAX_TURNS turns, as search episodes are."""
    rng = random.Random(seed)
    found = []
    for _ in range(groups):
        prompt = _words(rng, PROMPT_TOKENS)
        for number in range(group_size):
            token_ids, mask, spans = list(prompt), [0] * len(prompt), []
            turns = rng.randint(1, MAX_TURNS)
            for turn in range(turns):
                start = len(token_ids)
                token_ids += _words(rng, ACTION_TOKENS)
                end = len(token_ids)
                token_ids += _words(rng, RESULT_TOKENS) if turn + 1 < turns else []
                mask += [1] * (end - start) + [0] * (len(token_ids) - end)
                spans.append((start, end, len(token_ids)))
            found.append(Attempt(token_ids, mask, spans, float(number % 2)))
    return tuple(found)


def write_material(path: Path, material: Material) -> None:
    """Keep what a trainer is given."""
    path.write_text(json.dumps(asdict(material)))


def read_material(path: Path) -> Material:
    """What `write_material` wrote."""
    fields = json.loads(path.read_text())
    rows = [
        Attempt(
            row["token_ids"], row["action_mask"], [tuple(s) for s in row["spans"]], row["reward"]
        )
        for row in fields["attempts"]
    ]
    return Material(**(fields | {"attempts": tuple(rows)}))


def _words(rng: random.Random, between: tuple[int, int]) -> list[int]:
    return [rng.randint(FIRST_WORD_ID, LAST_WORD_ID) for _ in range(rng.randint(*between))]
