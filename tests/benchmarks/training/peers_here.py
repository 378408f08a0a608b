"""transformers' Trainer, TRL's trainers and an update by hand on the same material.

Rows are padded to the longest of their batch. TRL's GRPO gets its trajectories from `rollout_func`,
whose time is taken out: what is timed is the update. Runs in TRL's environment
(`python -m tests.benchmarks.peers trl`).
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"

import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)
from trl import GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer

from tests.benchmarks.training.material import Material, read_material
from tests.benchmarks.training.metering import Meter, options_of, write_throughput


def main() -> None:
    """Train and report."""
    options = options_of(argparse.ArgumentParser(description=__doc__))
    material = read_material(options.material)
    torch.set_num_threads(material.threads)
    model = AutoModelForCausalLM.from_pretrained(material.policy_dir, dtype=torch.float32)
    meter = Meter(model)
    train: Callable[[Material, PreTrainedModel, Meter, str], int] = {
        "trainer-sft": plain_sft,
        "trl-sft": trl_sft,
        "trl-grpo": trl_grpo,
        "eager-grpo": eager_grpo,
    }[options.trainer]
    with tempfile.TemporaryDirectory() as scratch:
        tokens = train(material, model, meter, scratch)
    write_throughput(options.out, meter.throughput(options.trainer, tokens))


class Clock(TrainerCallback):
    """Starts the meter after the warm-up steps and stops it after the last."""

    def __init__(self, meter: Meter, material: Material) -> None:
        self._meter = meter
        self._first = material.warm_steps
        self._last = material.warm_steps + material.steps

    def on_step_end(self, args, state, control, **_):
        if state.global_step == self._first:
            self._meter.start()
        if state.global_step == self._last:
            self._meter.pause()


def settings(material: Material, scratch: str) -> dict[str, object]:
    """Arguments that every trainer gets: float32 on the CPU, nothing saved, nothing reported."""
    return {
        "output_dir": scratch,
        "per_device_train_batch_size": material.sft_batch,
        "max_steps": material.warm_steps + material.steps,
        "use_cpu": True,
        "bf16": False,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "gradient_checkpointing": False,
        "seed": 0,
    }


def sft_tokens(material: Material) -> int:
    """Real tokens of the timed steps on average: batches are drawn in a random order."""
    lengths = [len(attempt.token_ids) for attempt in material.attempts]
    return round(sum(lengths) / len(lengths) * material.steps * material.sft_batch)


def labelled(material: Material) -> Dataset:
    """Ids, and labels on actions alone."""
    rows = [
        {
            "input_ids": attempt.token_ids,
            "labels": [
                token_id if on else -100
                for token_id, on in zip(attempt.token_ids, attempt.action_mask, strict=True)
            ],
        }
        for attempt in material.attempts
    ]
    return Dataset.from_list(rows)


def padded(rows: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
    """What a plain data collator does: right padding to the longest row."""
    width = max(len(row["input_ids"]) for row in rows)

    def filled(values: list[int], filler: int) -> list[int]:
        return values + [filler] * (width - len(values))

    return {
        "input_ids": torch.tensor([filled(row["input_ids"], 0) for row in rows]),
        "labels": torch.tensor([filled(row["labels"], -100) for row in rows]),
        "attention_mask": torch.tensor([filled([1] * len(row["labels"]), 0) for row in rows]),
    }


def plain_sft(material: Material, model: PreTrainedModel, meter: Meter, scratch: str) -> int:
    """transformers' Trainer."""
    trainer = Trainer(
        model=model,
        args=TrainingArguments(**settings(material, scratch)),
        train_dataset=labelled(material),
        data_collator=padded,
        callbacks=[Clock(meter, material)],
    )
    trainer.train()
    return sft_tokens(material)


def trl_sft(material: Material, model: PreTrainedModel, meter: Meter, scratch: str) -> int:
    """TRL's SFTTrainer; its packing wants flash attention, which a CPU has not."""
    trainer = SFTTrainer(
        model=model,
        args=SFTConfig(**settings(material, scratch), max_length=None),
        train_dataset=labelled(material),
        processing_class=AutoTokenizer.from_pretrained(material.policy_dir),
        callbacks=[Clock(meter, material)],
    )
    trainer.train()
    return sft_tokens(material)


def trl_grpo(material: Material, model: PreTrainedModel, meter: Meter, scratch: str) -> int:
    """TRL's GRPOTrainer, one optimizer update on all trajectories a step."""
    attempts = material.attempts

    def given(prompts: list[str], _: GRPOTrainer) -> dict[str, list[list[float]]]:
        assert len(prompts) == len(attempts)
        return {
            "prompt_ids": [a.token_ids[: a.prompt_tokens] for a in attempts],
            "completion_ids": [a.token_ids[a.prompt_tokens :] for a in attempts],
            "env_mask": [a.action_mask[a.prompt_tokens :] for a in attempts],
            "logprobs": [[0.0] * (len(a.token_ids) - a.prompt_tokens) for a in attempts],
        }

    config = GRPOConfig(
        **settings(material, scratch),
        gradient_accumulation_steps=len(attempts) // material.sft_batch,
        num_generations=material.group_size,
        max_completion_length=2048,
    )
    trainer = GRPOTrainer(
        model=model,
        args=config,
        reward_funcs=lambda completions, **_: [float(n % 2) for n in range(len(completions))],
        train_dataset=Dataset.from_list(
            [{"prompt": str(n)} for n in range(len(attempts) // material.group_size)]
        ),
        processing_class=AutoTokenizer.from_pretrained(material.policy_dir),
        rollout_func=given,
        peft_config=adapter_of(material),
        callbacks=[Clock(meter, material)],
    )
    sample = trainer._generate

    def untimed(prompts: list[str]) -> tuple[object, ...]:
        meter.pause()
        sampled = sample(prompts)
        meter.resume()
        return sampled

    trainer._generate = untimed
    trainer.train()
    return material.steps * sum(len(attempt.token_ids) for attempt in attempts)


def eager_grpo(material: Material, model: PreTrainedModel, meter: Meter, scratch: str) -> int:
    """The same update by hand: padded batches, whole logits, the policy gradient, AdamW."""
    del scratch
    settings = adapter_of(material)
    trained = get_peft_model(model, settings) if settings is not None else model
    weights = [weight for weight in trained.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=1e-4)
    rows = [
        {
            "input_ids": attempt.token_ids,
            "labels": [int(on) for on in attempt.action_mask],
            "advantage": attempt.reward - 0.5,
        }
        for attempt in material.attempts
    ]
    batches = [
        rows[start : start + material.sft_batch]
        for start in range(0, len(rows), material.sft_batch)
    ]
    actions = sum(sum(attempt.action_mask) for attempt in material.attempts)
    for step in range(material.warm_steps + material.steps):
        if step == material.warm_steps:
            meter.start()
        for batch in batches:
            tensors = padded(batch)
            logits = trained(
                input_ids=tensors["input_ids"], attention_mask=tensors["attention_mask"]
            ).logits[:, :-1]
            taken = tensors["input_ids"][:, 1:, None]
            logprobs = torch.log_softmax(logits, dim=-1).gather(-1, taken).squeeze(-1)
            is_action = (tensors["labels"][:, 1:] == 1).float()
            advantages = torch.tensor([row["advantage"] for row in batch])[:, None]
            ratio = torch.exp(logprobs - logprobs.detach())
            (-(ratio * advantages * is_action).sum() / actions).backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        optimizer.zero_grad()
    meter.pause()
    return material.steps * sum(len(attempt.token_ids) for attempt in material.attempts)


def adapter_of(material: Material) -> LoraConfig | None:
    """peft's settings of the adapter that is trained, if it is one."""
    if material.lora is None:
        return None
    return LoraConfig(
        r=material.lora["rank"],
        lora_alpha=material.lora["alpha"],
        target_modules=list(material.lora["target"]),
        task_type="CAUSAL_LM",
    )


if __name__ == "__main__":
    main()
