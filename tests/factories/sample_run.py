"""A finished run in miniature, made by hand: every artifact that a report or a summary reads."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from pathlib import Path

import pandas as pd

from espalier.records import (
    AgentText,
    Message,
    Provenance,
    Task,
    TaskMetadata,
    ToolCall,
    Verifier,
    publishing,
    write_agent_texts,
    write_tasks,
)
from espalier.records.trajectory import (
    FinishReason,
    ToolResult,
    Trajectory,
    Turn,
    write_trajectories,
)

HOSTILE = '<script>alert("owned")</script><img src=x onerror=alert(1)>\u202egnp.exe'


def publish(run: Path, folder: str, stage: str, fill: Callable[[Path], dict[str, int]]) -> None:
    provenance = Provenance(
        producer=stage, config_digest="c0" * 32, seed=7, inputs={"x": "ab" * 32}
    )
    with publishing(run / folder, provenance) as draft:
        draft.rows.update(fill(draft.path))


def write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")


def measured(path: Path, seconds: float, **more: object) -> None:
    write_json(path / "run.json", {"seconds": seconds, "peak_rss_mb": 900.0 + seconds, **more})


def policy(em: float) -> dict[str, object]:
    by_hops = [(str(h), max(em - 0.18 * (h - 2), 0.0) if em else 0.0) for h in (1, 2, 3, 4)]
    hops = {h: {"em": share, "n": 250, "ci95": [0.0, 0.5]} for h, share in by_hops}
    return {
        "em": em, "f1": em + 0.04, "n": 1000, "ci95": [em - 0.03, em + 0.03],
        "pass_at_1": em - 0.05, "pass_at_4": em + 0.12, "tool_calls": 2.41, "by_hops": hops,
        "by_family": {"chain": {"em": em, "n": 900}, "union": {"em": em / 2, "n": 100}},
        "finish_reasons": {"answered": 950, "max_turns": 30, "parse_error": 20},
    }  # fmt: skip


RESULTS = {
    "suite": {"digest": "5e" * 32, "n": 1000, "sampled_n": 500, "samples_per_task": 4},
    "eval": {
        "untrained": policy(0.0) | {"ci95": [0.0, 0.0], "pass_at_1": 0.0},
        "warm_start": policy(0.412),
        "trained": policy(0.684),
        "gain": {"em": 0.272, "ci95": [0.231, 0.313], "baseline": "warm_start"},
    },
}


def trajectory(number: int, observation: str, answer: str) -> Trajectory:
    """A question, one search, one answer: 8 prompt, 9 action, 6 observed, 5 action tokens."""
    mask = (0,) * 8 + (1,) * 9 + (0,) * 6 + (1,) * 5
    correct = number % 3 != 0
    search = ToolCall(name="search", arguments={"query": "Lyon country"})
    return Trajectory(
        task_id=f"task-{number}",
        group_id=f"trained-{number}",
        messages=(
            Message(role="user", content="What is the capital of the country that Lyon lies in?"),
            Message(role="assistant", thought="find the country", tool_calls=(search,)),
            Message(role="tool", content=observation),
            Message(role="assistant", thought="done", content=answer),
        ),
        tool_results=(ToolResult(call=search, content=observation, succeeded=True),),
        reward={"outcome": 1.0 if correct else 0.0, "format": 0.1},
        answer=answer,
        finish_reason=FinishReason.ANSWERED,
        policy_version=100,
        token_ids=tuple(range(28)),
        action_mask=mask,
        behavior_logprobs=tuple(-0.5 * m for m in mask),
        turns=(
            Turn(action_start=8, action_end=17, observation_end=23),
            Turn(action_start=23, action_end=28, observation_end=28),
        ),
    )  # fmt: skip


EXTRACTION = {
    "read": {"documents": 31, "chunks": 47, "lines_too_long": 0},
    "statements": {"kept": 812, "evidence_not_in_document": 93},
    "proven.relations": {"born_in": 850, f"met_{HOSTILE}": 1},
    "kept.relations": {"born_in": 812},
}


def ingest(path: Path) -> dict[str, int]:
    kinds = [("city", s) for s in ("train", "train", "dev", "heldout")] + [("continent", "hub")] * 2
    pd.DataFrame(kinds, columns=["kind", "split"]).to_parquet(path / "entities.parquet")
    (path / "attribution.txt").write_text(
        "GeoNames (https://example.org), CC BY 4.0", encoding="utf-8"
    )
    write_json(path / "extraction.json", EXTRACTION)
    measured(path, 21.4)
    return {"triples": 212_345, "documents": 32_017, "entities": 33_000}


def mix(count: int) -> dict[str, dict[str, int]]:
    hops = {"1": count // 5, "2": count // 2, "3": count // 5, "4": count // 10}
    return {
        "hops": hops,
        "families": {"chain": count},
        "patterns": {"capital(country(C))": count},
    }


FUNNEL = {
    "asked": {"dev": 300, "heldout": 1000, "train": 6000, "trajectories": 300},
    "reached": {"dev": 300, "heldout": 1000, "train": 5600, "trajectories": 300},
    "splits": {"dev": mix(300), "heldout": mix(1000), "train": mix(5600)},
    "hub_kinds": ["continent", "currency"],
    "funnel": {
        "train.drawn": {"accepted": 5600, "not_unique": 13_693, "answer_on_chain": 15_216},
        "dev.drawn": {"accepted": 300, "not_unique": 752},
        "heldout.drawn": {"accepted": 1000, "not_unique": 1531},
        "teacher.detours": {"none": 255, "bad_query": 45},
        "remarks": ["train: 5600 of 6000 tasks; the source yields no more"],
    },
}


def task(number: int, split: str, source: str = "webshaper") -> Task:
    """Every third question is hostile, and longer than the others."""
    text = f"What is the capital of land {number}?" + (HOSTILE if number % 3 == 0 else "")
    return Task(
        task_id=f"{split}-{number}",
        prompt=(Message(role="user", content=text),),
        environment="search_qa",
        verifier=Verifier(gold=(f"Gold {number}",)),
        metadata=TaskMetadata(
            split=split,
            source=source,
            difficulty=1 + number % 2,
            extra={
                "kind": "chain",
                "hops": 1 + number % 2,
                "query": f"capital([{HOSTILE}])",
                "evidence": ["country:FR"],
            },
        ),
    )


def agent_text(number: int, kind: str, style: str) -> AgentText:
    return AgentText(
        text_id=f"{kind}-{number}", kind=kind, style=style,
        prompt=(Message(role="user", content=f"{kind} {number}: what now?"),),
        pieces=(
            Message(role="assistant", content=f"<think> {HOSTILE} </think> <search> x </search>"),
            Message(role="tool", content=HOSTILE),
        ),
        sources=(HOSTILE,),
    )  # fmt: skip


TEXTS = [
    *(agent_text(n, "planning", style) for n in range(5) for style in ("numeric", "multi_hop")),
    *(agent_text(n, "reasoning", "right") for n in range(4)),
    *(agent_text(n, "decision", style) for n in range(3) for style in ("correct", "incorrect")),
]
NEGATIVES = [agent_text(n, "negative", "not_offered") for n in range(7)]


def rows(path: Path, *, train: int) -> None:
    """Tasks, texts and demonstrations, as synthesis writes them and validation keeps them."""
    (path / "tasks").mkdir()
    made = [task(n, "train") for n in range(train)] + [task(99, "train", "expansion")]
    write_tasks(path / "tasks" / "train.jsonl", made)
    for split in ("dev", "heldout"):
        write_tasks(path / "tasks" / f"{split}.jsonl", [task(n, split) for n in range(4)])
    teacher = trajectory(1, "Lyon | country: France", "Paris")
    write_trajectories(path / "trajectories.parquet", [teacher])
    write_agent_texts(path / "negatives.jsonl", NEGATIVES)


def synthesize(path: Path) -> dict[str, int]:
    write_json(path / "funnel.json", FUNNEL)
    rows(path, train=20)
    write_agent_texts(path / "agent_texts.jsonl", TEXTS)
    measured(path, 14.2)
    return {"train_tasks": 5600, "dev_tasks": 300, "heldout_tasks": 1000, "trajectories": 300}


def verdict(*, success: bool) -> dict[str, object]:
    expectation = {
        "name": "answer_is_in_evidence", "weight": "critical", "success": success,
        "failing_rows": 0 if success else 2, "examples": [] if success else ["task-1", "task-2"],
        "reason": "a question must be answerable from what is found", "problem": "",
    }  # fmt: skip
    return {
        "verdict": "accepted" if success else "stopped",
        "faults": [] if success else ["tasks: expectation answer_is_in_evidence failed: task-1"],
        "accepted": {"train": 5600, "trajectories": 300},
        "hub_kinds_exempt_from_splits": {"continent": 7},
        "suites": {"tasks": {"rows": 6900, "dropped": 0, "expectations": [expectation]}},
    }


CURATION = {
    "training_questions": {"before": 20, "after": 12, "near_duplicate": 8, "dropped_rows": [{}]},
    "agent_texts": {"before": 27, "after": 26, "secret": 1, "dropped_rows": []},
    "kinds_of_text": {"planning": 9, HOSTILE: 1},
    "diversity_of_questions": {"rows": 12, "mean_words": 8.25},
}


def validate(path: Path) -> dict[str, int]:
    write_json(path / "validation.json", verdict(success=True))
    write_json(path / "curation.json", CURATION)
    rows(path, train=12)
    write_agent_texts(path / "agent_texts.jsonl", TEXTS[1:])
    measured(path, 6.0)
    return {"train": 5600, "trajectories": 300}


def refuse(path: Path) -> dict[str, int]:
    write_json(path / "validation.json", verdict(success=False))
    return {}


def warm_start(path: Path) -> dict[str, int]:
    draw = random.Random(1)
    rows = [
        {"step": s, "loss": 2.2 * math.exp(-s / 60) + 0.2 + 0.05 * draw.random(),
         "dev_em": 0.4 * (1 - math.exp(-s / 90)) if s % 50 == 0 else None}
        for s in range(1, 301)
    ]  # fmt: skip
    pd.DataFrame(rows).to_parquet(path / "history.parquet")
    measured(path, 48.0, sft_tokens_per_s=10_400.0)
    return {"trajectories": 300, "steps": 300}


def filter_curriculum(path: Path) -> dict[str, int]:
    draw = random.Random(2)
    wins = [
        sum(draw.random() < skill for _ in range(4))
        for skill in (draw.random() for _ in range(600))
    ]
    rows = [
        {"task_id": f"t{i}", "attempts": 4, "successes": w, "pass_rate": w / 4, "kept": 0 < w < 4}
        for i, w in enumerate(wins)
    ]
    pd.DataFrame(rows).to_parquet(path / "pass_rates.parquet")
    measured(path, 31.0)
    return {"candidates": 600, "kept": sum(0 < w < 4 for w in wins)}


def train(path: Path) -> dict[str, int]:
    draw = random.Random(3)
    rows = []
    for s in range(1, 101):
        rate = 0.4 + 0.3 * (1 - math.exp(-s / 40)) + 0.06 * (draw.random() - 0.5)
        rows.append(
            {"step": s, "reward": rate + 0.1, "pass_rate": rate,
             "zero_variance_share": 0.2 + 0.2 * draw.random(),
             "clipped_share": 0.01 + 0.01 * draw.random(),
             "entropy": 0.4 - 0.002 * s + 0.02 * draw.random(),
             "mismatch_kl": 1e-6 * draw.random(),
             "tool_calls": 2.2 + 0.003 * s + 0.1 * draw.random(),
             "dev_em": rate if s % 20 == 0 else None}
        )  # fmt: skip
    pd.DataFrame(rows).to_parquet(path / "history.parquet")
    speed = {"update_tokens_per_s": 21_300.0, "update_matmul_share": 0.314}
    speed |= {"drafted_tokens": 63_000, "accepted_tokens": 61_000}
    measured(path, 311.0, rollout_tokens_per_s=15_900.0, best_step=80, start_dev_em=0.31, **speed)
    return {"steps": 100, "rollouts": 31_232}


PHASES = [
    {"step": 20, "failed": 31, "posed": 70, "kept": 40, "reward": 0.25,
     "refused": {"too_hard": 21, "asked_before": 6, "shorter_chain": 3}},
    {"step": 50, "failed": 12, "posed": 66, "kept": 28, "reward": None,
     "refused": {"too_easy": 36, "asked_before": 2}},
]  # fmt: skip


def train_in_phases(path: Path) -> dict[str, int]:
    """As `train`, with self-play after 20 and after 50 of the 100 steps."""
    (path / "posed").mkdir()
    write_json(path / "posed" / "phases.json", PHASES)
    return train(path) | {"posed_tasks": 68}


def evaluate(path: Path) -> dict[str, int]:
    write_json(path / "results.json", RESULTS)
    gold = [{"task_id": f"task-{n}", "policy": "trained", "gold": "Paris"} for n in range(22)]
    pd.DataFrame(gold).to_parquet(path / "questions.parquet")
    kept = [
        trajectory(n, "Lyon | country: France | time zone: Europe/Paris", "Paris")
        for n in range(21)
    ]
    write_trajectories(path / "trajectories.parquet", [trajectory(21, HOSTILE, HOSTILE), *kept])
    measured(path, 66.0)
    return {"questions": 1000, "trajectories": 22}


def register(path: Path) -> dict[str, int]:
    identity = {"policy_digest": "9d" * 32, "data_digest": "da" * 32}
    write_json(path / "registered.json", {"model_name": "espalier-search-agent", **identity})
    measured(path, 4.0, name="espalier-search-agent", version="3")
    return {}


def prepare_policy(path: Path) -> dict[str, int]:
    measured(path, 71.0)
    return {"browsing_logs": 12_000}


def continue_pretraining(path: Path) -> dict[str, int]:
    rows = [{"step": s, "loss": 3.0 * math.exp(-s / 80) + 0.9} for s in range(1, 101)]
    pd.DataFrame(rows).to_parquet(path / "history.parquet")
    measured(path, 20.0, pretraining_tokens_per_s=9_900.0)
    return {"texts": 640}


STAGES: dict[str, tuple[str, Callable[[Path], dict[str, int]]]] = {
    "ingest": ("knowledge", ingest),
    "synthesize": ("synthetic", synthesize),
    "validate": ("accepted", validate),
    "prepare_policy": ("base_policy", prepare_policy),
    "continue_pretraining": ("pretrained_policy", continue_pretraining),
    "warm_start": ("warm_policy", warm_start),
    "filter_curriculum": ("curriculum", filter_curriculum),
    "train": ("trained_policy", train),
    "evaluate": ("evaluation", evaluate),
    "register": ("registration", register),
}


def make_run(run: Path, *, last_stage: str = "register") -> Path:
    """Publish the artifacts of every stage up to `last_stage`."""
    run.mkdir(parents=True)
    profile = {
        "name": "laptop", "seed": 7, "curriculum": {"pass_rate_band": [0.05, 0.9]},
        "agent_texts": {"memories": 4, "questions_per_memory": 4, "negatives": 7},
    }  # fmt: skip
    write_json(run / "profile.json", profile)
    for stage, (folder, fill) in STAGES.items():
        publish(run, folder, stage, fill)
        if stage == last_stage:
            break
    return run
