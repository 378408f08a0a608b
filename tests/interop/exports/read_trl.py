"""Prepares exported rows with TRL's own trainer, and trains a step on them.

    python read_trl.py TOKENS CONVERSATIONS TOKENIZER WORK

Prints one JSON object: the labels of the tokenised rows, what is trained of each conversation, and
the loss of a step on the tokenised ones.
"""

import json
import sys

import torch
from datasets import load_dataset
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from trl import SFTConfig, SFTTrainer

TOKENS, CONVERSATIONS, TOKENIZER, WORK = sys.argv[1:]
VOCABULARY = 1000


def trainer(path, tokenizer, **settings):
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2, head_dim=16,
    )  # fmt: skip
    return SFTTrainer(
        model=Qwen3ForCausalLM(config),
        args=SFTConfig(
            output_dir=WORK, max_steps=1, max_length=None, use_cpu=True, report_to="none",
            save_strategy="no", per_device_train_batch_size=8, bf16=False, **settings,
        ),
        train_dataset=load_dataset("json", data_files=path, split="train", cache_dir=WORK),
        processing_class=tokenizer,
    )  # fmt: skip


def main():
    tokenizer = PreTrainedTokenizerFast.from_pretrained(TOKENIZER)
    tokens = trainer(TOKENS, tokenizer)
    loss = tokens.train().training_loss
    talks = trainer(CONVERSATIONS, tokenizer, assistant_only_loss=True)
    trained = [
        tokenizer.decode([one for one in row["labels"] if one != -100])
        for row in talks.train_dataset
    ]
    labels = [row["labels"] for row in tokens.train_dataset]
    print(json.dumps({"labels": labels, "trained": trained, "loss": loss}))


main()
