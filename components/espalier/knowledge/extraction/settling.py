"""What is kept of all mentions: once each, often enough, and without contradiction."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence

from espalier.config import ExtractionConfig
from espalier.knowledge.extraction.checking import Mention

KEPT = "kept"


def settled(
    mentions: Sequence[Mention], config: ExtractionConfig, count: Callable[[str, int], None]
) -> list[Mention]:
    """The mentions that make the graph, in their order; `count` learns why others do not."""
    by_place = {
        (mention.folded, mention.document_id, mention.span): mention for mention in mentions
    }
    once = list(by_place.values())
    count("repeated", len(mentions) - len(once))
    frequent = once if config.relations else _frequent(once, config.min_mentions)
    count("rare_relation", len(once) - len(frequent))
    functional = {relation.name for relation in config.relations if relation.functional}
    kept = _without_contradictions(frequent, functional)
    count("contradicted", len(frequent) - len(kept))
    count(KEPT, len(kept))
    return kept


def _frequent(mentions: Sequence[Mention], least: int) -> list[Mention]:
    counts = Counter(mention.relation for mention in mentions)
    return [mention for mention in mentions if counts[mention.relation] >= least]


def _without_contradictions(mentions: Iterable[Mention], functional: set[str]) -> list[Mention]:
    """Of a subject with several objects of a functional relation, none: any could be the wrong."""
    mentions = list(mentions)
    objects: dict[tuple[str, str], set[str]] = defaultdict(set)
    for mention in mentions:
        subject, relation, object_ = mention.folded
        objects[subject, relation].add(object_)
    return [
        mention
        for mention in mentions
        if mention.relation not in functional or len(objects[mention.folded[:2]]) == 1
    ]
