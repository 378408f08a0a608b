"""A finished run of sums in a moment: what `chat` and `serve --run` read of one."""

from espalier.config import PolicyConfig, Profile
from espalier.dialects import SYNTAXES
from espalier.policy.embedded import build_policy, train_tokenizer
from espalier.policy.loading import Policy, save_policy
from espalier.records import Provenance, publishing, write_tasks
from tests.factories.sums import Sums

PROVENANCE = Provenance(producer="test", config_digest="c", seed=0, inputs={})


def untaught_policy(family, words):
    """A policy of a few thousand parameters that knows nothing; `words` are in its vocabulary."""
    tags, texts = SYNTAXES["tags"], [words] * 20
    tokenizer = train_tokenizer(texts, 400, tags, family.specs, splits_digits=True)
    config = PolicyConfig(
        vocab_size=400, hidden_size=32, attention_heads=2, feed_forward_size=48,
        layers=("conv", "attention", "conv"),
    )  # fmt: skip
    model = build_policy(config, tokenizer, tags.stop_texts(family.specs), max_tokens=96, seed=0)
    return Policy(model, tokenizer)


def write_sums_run(folder, *, trained=True, states=False):
    """Write the run; `states` gives every task arguments of its own."""
    profile = Profile.model_validate(
        {
            "environment": {"name": Sums.name},
            "threads": 1,
            "episode": {"max_turns": 3, "max_tokens": 96, "max_turn_tokens": 12},
            "serving": {"linger_s": 0.0},
        }
    )
    family = Sums(profile)
    folder.mkdir(parents=True)
    (folder / "profile.json").write_text(profile.model_dump_json(), encoding="utf-8")
    with publishing(folder / "knowledge", PROVENANCE) as draft:
        (draft.path / "attribution.txt").write_text("sums", encoding="utf-8")
    with publishing(folder / "accepted", PROVENANCE) as draft:
        (draft.path / "tasks").mkdir()
        for split in ("train", "dev", "heldout"):
            tasks = family.tasks(split, 3)
            if states:
                tasks = [
                    task.model_copy(update={"arguments": {"world": number}})
                    for number, task in enumerate(tasks)
                ]
            write_tasks(draft.path / "tasks" / f"{split}.jsonl", tasks)
    if trained:
        with publishing(folder / "trained_policy", PROVENANCE) as draft:
            policy = untaught_policy(family, "what is 1 + 1 ? 0 1 2 3 4 5 6 7 8 9 add")
            save_policy(policy, draft.path / "policy")
    return profile
