"""Every pair of options: it loads and both hold, or it is refused by a message that names both."""

import json
import re
from pathlib import Path

import pytest

from espalier.config import Profile, parse_profile
from espalier.config.profile import override_tables
from espalier.records import ProfileError
from tests.unit.config.options import all_options, pairs

PAID = {"url": "https://host/v1", "model": "m", "prompt_price": 1.0}
NEEDS = {
    "material=pairs": {"training.algorithm.preset": "dpo"},
    "material=successes": {"training.algorithm.preset": "rft"},
    "advantage=gae": {"training.algorithm.critic": {}},
    "advantage=length_adaptive_gae": {"training.algorithm.critic": {}},
    "advantage=turn_gae": {"training.algorithm.critic": {}},
    "advantage=v_trace": {"training.algorithm.preset": "v_trace"},
    "loss=dpo": {"training.algorithm.preset": "dpo"},
    "off_policy=importance_weights": {"training.algorithm.proximal": "recomputed"},
    "critic": {"training.algorithm.advantage": {"name": "gae"}},
    "order=priority": {"training.replay.capacity": 8},
    "successes_only=True": {"training.replay.capacity": 8, "training.algorithm.preset": "rft"},
    "publish_every=2": {"training.asynchronous.max_staleness": 2},
    "sharded=True": {"training.processes": 2},
    "engine=vllm": {"rollout.vllm.urls": "http://host:8000"},
    "self_play=webrl/teacher": {"teacher.kind": "endpoint", "teacher.endpoint": PAID},
    "self_play=webrl/critic": {"training.algorithm.preset": "ppo"},
    "self_play=absolute_zero": {"environment.name": "python_math"},
    "self_play=absolute_zero/teacher": {
        **{"environment.name": "python_math"},
        **{"teacher.kind": "endpoint", "teacher.endpoint": PAID},
    },
    "judges/max_cost": {
        "reward.judges.models": [{**PAID, "model": str(number)} for number in range(3)]
    },
    "self_critique/max_cost": {"reward.self_critique.endpoint": PAID},
}
"""What an option needs beside it, so that alone it loads."""


def tag_of(option):
    """The option in short: last key, chosen rule, and what is changed of the rule."""
    [value] = option.value if isinstance(option.value, list) else [option.value]
    last = option.key.rpartition(".")[2]
    if not isinstance(value, dict):
        return f"{last}={value}"
    changed = [key if isinstance(one, float) else str(one) for key, one in value.items()]
    name = value.get("name")
    rest = changed[1:] if name else [key for key in value if key not in ("models", "endpoint")]
    return "/".join([f"{last}={name}" if name else last, *rest])


def needs_of(option):
    tag = tag_of(option)
    return NEEDS.get(tag) or NEEDS.get(tag.partition("/")[0]) or {}


def tables_of(options):
    """Those of a profile with all of them, and with what they need where none of them says it."""
    tables = {}
    keys = [option.key for option in options]
    for option in options:
        override_tables(tables, [(option.key, json.loads(json.dumps(option.value)))])
    for option in options:
        for key, value in needs_of(option).items():
            if key not in keys and not _has(tables, key):
                override_tables(tables, [(key, json.loads(json.dumps(value)))])
    return tables


def _has(tables, key):
    if key.startswith(("reward.judges.", "reward.self_critique.")):
        return False  # of the option itself
    for part in key.split("."):
        if not isinstance(tables, dict) or part not in tables:
            return False
        tables = tables[part]
    return True


def names_of(option):
    """Words of which a message must have one to name the option, or what was set for it."""
    words = set()
    for key, value in {option.key: option.value, **needs_of(option)}.items():
        words |= {key, key.rpartition(".")[2], ".".join(key.split(".")[-2:])}
        for one in value if isinstance(value, list) else [value]:
            words |= set(map(str, one.values())) if isinstance(one, dict) else {str(one)}
    return words - {"True", "False", "1", "2", "name", "kind"}


def is_named(option, message):
    return any(
        re.search(rf"(?<![\w]){re.escape(word)}(?![\w])", message) for word in names_of(option)
    )


def parsed(options):
    return parse_profile(tables_of(options), [], Path("pair.toml"))


def holds(option, dumped):
    """Whether the profile has what the option asked."""
    for part in option.key.split("."):
        dumped = dumped[part]
    asked, found = (
        one[0] if isinstance(one, list) and one else one for one in (option.value, dumped)
    )
    if isinstance(asked, dict):
        # models of judges have further keys
        return all(found[key] == one or isinstance(one, dict | list) for key, one in asked.items())
    return found == asked


OPTIONS = all_options()


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.shown)
def test_every_option_alone_loads_and_holds(option):
    assert holds(option, parsed([option]).model_dump(mode="json"))


@pytest.mark.slow
def test_every_pair_of_options_holds_or_names_both():
    unnamed, dropped = [], []
    for pair in pairs(OPTIONS):
        try:
            dumped = parsed(pair).model_dump(mode="json", exclude={"kubernetes", "serving"})
        except ProfileError as error:
            said = str(error).partition("\n")[2]
            unnamed += [(*pair, said) for option in pair if not is_named(option, said)]
        else:
            dropped += [pair for option in pair if not holds(option, dumped)]
    assert not dropped
    assert not unnamed


def test_the_walk_has_options_of_every_kind():
    keys = {option.key for option in OPTIONS}
    assert keys >= {
        *("training.algorithm.loss", "training.asynchronous.max_staleness", "rollout.engine"),
        *("reward.judges", "curriculum.draw", "self_play", "episode.retry", "policy.model"),
    }
    assert Profile.model_fields.keys() >= {key.partition(".")[0] for key in keys}
