import random
import re
from collections import Counter

from espalier.config import SynthesisConfig
from espalier.environments.funnel import Funnel
from espalier_environments.python_math.arithmetic import calculation_split
from espalier_environments.python_math.stories import StoryGenerator, story_text

SPLITS = ("train", "dev", "heldout")
CONFIG = SynthesisConfig(chain_weights=(0.25, 0.25, 0.25, 0.25))


def chains(split, count=80, seed=0):
    return list(StoryGenerator(split, CONFIG, seed, Funnel()).calculations(count))


def test_splits_share_no_calculation_under_any_seed():
    by_split = {
        split: {chain.canonical for seed in (0, 1) for chain in chains(split, seed=seed)}
        for split in SPLITS
    }
    assert all(len(found) > 100 for found in by_split.values())
    assert sum(map(len, by_split.values())) == len(set.union(*by_split.values()))


def test_every_chain_belongs_to_its_split_and_is_drawn_once():
    found = chains("heldout", 200)
    assert len({chain.canonical for chain in found}) == len(found) == 200
    assert {calculation_split(chain) for chain in found} == {"heldout"}
    assert Counter(len(chain.changes) for chain in chains("train")) == {1: 20, 2: 20, 3: 20, 4: 20}
    assert chains("heldout", 200) == found != chains("heldout", 200, seed=1)


def test_no_answer_stands_in_the_story_or_comes_early():
    for number, chain in enumerate(chains("train", 200)):
        *earlier, answer = chain.values
        assert answer not in earlier
        assert answer not in chain.numbers
        assert all(0 < value < 10_000 for value in chain.values)
        story = story_text(chain, random.Random(number))
        assert tuple(map(int, re.findall(r"\d+", story))) == chain.numbers


def test_a_split_that_cannot_yield_more_says_so():
    funnel = Funnel()
    config = SynthesisConfig(chain_weights=(1.0, 0.0, 0.0, 0.0))
    found = list(StoryGenerator("dev", config, 0, funnel).calculations(10_000))
    assert len(found) < 10_000
    assert funnel.counts("dev.families_run_dry") == {"story-1": 1}
