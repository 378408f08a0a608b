"""What the episodes of the rollout benchmark are: prompts, turn lengths and tool outputs.

Only these are scripted. Which tokens an action holds is sampled, one by one, by every contestant.
Written for the standard library alone, because every contestant's python reads it.
"""

from __future__ import annotations

import json
import random
from dataclasses import asdict, dataclass
from pathlib import Path

TOOL_TURNS = 3
PROMPT_WORDS = (24, 48)
CALL_TOKENS = (16, 40)
ANSWER_TOKENS = (8, 24)
RESULT_WORDS = (16, 48)
SYLLABLES = [c + v for c in "bdfgklmnprstvz" for v in "aeiou"]

TOOL = {
    "type": "function",
    "function": {
        "name": "lookup",
        "description": "Look a key up.",
        "parameters": {
            "type": "object",
            "properties": {"key": {"type": "string", "description": "What to look up."}},
            "required": ["key"],
        },
        "return": {"type": "string", "description": "What was found."},
    },
}
"""The tool as transformers derives it from the signature of `trl_grpo.Lookup.lookup`."""


@dataclass(frozen=True)
class Episode:
    """One row: its group's prompt, and of each turn the length and what the tool then says."""

    prompt: str
    action_tokens: tuple[int, ...]
    """TOOL_TURNS calls and the answer; the closing tag is the last token of each."""
    results: tuple[str, ...]


@dataclass(frozen=True)
class Work:
    """All that a contestant is given."""

    policy_dir: str
    tool_s: float
    threads: int
    seed: int
    group_size: int
    episodes: tuple[Episode, ...]

    @property
    def action_tokens(self) -> int:
        """Tokens that every contestant samples."""
        return sum(sum(episode.action_tokens) for episode in self.episodes)


def words(rng: random.Random, count: int) -> str:
    """`count` pronounceable words."""
    return " ".join("".join(rng.choices(SYLLABLES, k=rng.choice((1, 2, 3)))) for _ in range(count))


def episodes(groups: int, group_size: int, seed: int) -> tuple[Episode, ...]:
    """The rows of all groups, group by group; equal prompts within a group, nothing else."""
    rng = random.Random(seed)
    rows = []
    for _ in range(groups):
        prompt = words(rng, rng.randint(*PROMPT_WORDS))
        for _ in range(group_size):
            calls = [rng.randint(*CALL_TOKENS) for _ in range(TOOL_TURNS)]
            results = [words(rng, rng.randint(*RESULT_WORDS)) for _ in range(TOOL_TURNS)]
            lengths = (*calls, rng.randint(*ANSWER_TOKENS))
            rows.append(Episode(prompt, lengths, tuple(results)))
    return tuple(rows)


def write_work(path: Path, work: Work) -> None:
    """Keep what a contestant is given as JSON."""
    path.write_text(json.dumps(asdict(work)))


def read_work(path: Path) -> Work:
    """What `write_work` wrote."""
    fields = json.loads(path.read_text())
    rows = [
        Episode(row["prompt"], tuple(row["action_tokens"]), tuple(row["results"]))
        for row in fields["episodes"]
    ]
    return Work(**(fields | {"episodes": tuple(rows)}))
