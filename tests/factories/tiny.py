"""A policy of a few thousand parameters and a search over a handful of lines, for unit tests."""

from functools import lru_cache

from espalier.config import PolicyConfig, Profile
from espalier.dialects import SYNTAXES
from espalier.dialects.dialect import Dialect
from espalier.policy.embedded import build_policy, train_tokenizer
from espalier.policy.loading import Policy
from espalier_search.search_qa import SearchQA
from espalier_search.search_qa.family import search_environments

TEXTS = (
    "Lyon country: France time zone: Europe/Paris",
    "France capital: Paris currency: Euro neighbours: Spain; Italy",
    "What is the currency of the country of Lyon?",
    "country , currency answer lookup",
)
TAGS = SYNTAXES["tags"]
TOOLS = SearchQA(Profile()).specs


@lru_cache(maxsize=1)
def tiny_tokenizer():
    return train_tokenizer(TEXTS * 20, 400, TAGS, TOOLS)


def tiny_dialect():
    return Dialect(tiny_tokenizer(), TOOLS)


def tiny_policy(seed=0):
    config = PolicyConfig(
        vocab_size=400,
        hidden_size=32,
        attention_heads=2,
        layers=("conv", "attention", "conv"),
        feed_forward_size=48,
    )
    tokenizer = tiny_tokenizer()
    model = build_policy(config, tokenizer, TAGS.stop_texts(TOOLS), max_tokens=256, seed=seed)
    return Policy(model, tokenizer)


class LookupSearch:
    """Answers a query with the line whose first word it starts with."""

    def __init__(self, lines):
        self._lines = {line.split()[0].lower(): line for line in lines}

    def observation(self, query):
        return self._lines.get(query.split()[0].lower(), "no results")


def lookup_environments(search, profile=None):
    """Question answering over `search`."""
    return search_environments(search, SearchQA(profile or Profile()))
