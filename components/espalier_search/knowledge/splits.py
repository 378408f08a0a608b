"""The assignment of entities to splits, and which entities can be asked about.

Regions (countries, US states) are assigned to splits in strata of size, and whatever lies in a
region follows it. Names decide the rest: an entity of the training split whose name contains a
held-out name moves to the held-out split, so that no training text can show that name.
"""

from __future__ import annotations

import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from espalier.config import SplitsConfig
from espalier.records.folding import NameIndex, folded_name, spans_fields, words
from espalier.records.knowledge import Entity, EntitySplit, KnowledgeGraph
from espalier_search.knowledge.sources import KnowledgeSource, SourceEntity

MAX_MOVED_BY_A_NAME = 10
"""A name inside more names than this ("San", "Santa") is an ordinary word and cannot be hidden."""

_SIZE_TIERS = (1000, 300, 100, 30, 5, 0)
"""Minimum number of dependants per stratum: large and small countries are drawn separately."""

_SHOWN_BESIDE: dict[EntitySplit, tuple[EntitySplit, ...]] = {
    "heldout": ("train", "dev", "hub"),
    "dev": ("train", "hub"),
}
"""Split -> splits whose names a view shows while it hides this one's."""

Group = Sequence[str]
"""Ids of entities that share a split."""


@dataclass(frozen=True, slots=True)
class Splits:
    """The split of every entity, and the names that cannot be hidden."""

    by_entity: Mapping[str, EntitySplit]
    common_names: frozenset[str]
    """Folded dev and held-out names that are also words of labels, phrasings or regions, or parts
    of many names. Their entities are never asked about, and views are not checked for these names.
    """
    moved: int
    """Number of entities moved out of the training or dev split because of their names."""


def draw_splits(source: KnowledgeSource, config: SplitsConfig, seed: int) -> Splits:
    """Draw the split of every entity of `source`."""
    dependants = Counter(entity.region for entity in source.entities if entity.region)
    own = [entity for entity in source.entities if not entity.region and not entity.hub]
    regions = [entity for entity in own if entity.kind in source.region_kinds]
    shown = NameIndex(entity.name for entity in regions)
    public = set().union(*(shown.found_in(text) for text in _public_texts(source)))
    pinned = source.pinned | {e.entity_id for e in regions if folded_name(e.name) in public}
    decks = _strata(regions, dependants)
    others = [entity for entity in own if entity.kind not in source.region_kinds]
    decks.append([[entity.entity_id] for entity in others])
    splits = deal(decks, config, random.Random(f"splits-{seed}"), pinned)
    for entity in source.entities:
        if entity.hub:
            splits[entity.entity_id] = "hub"
        elif entity.region:
            splits[entity.entity_id] = splits[entity.region]
    return _without_shared_names(source, splits, regions)


def deal(
    decks: Iterable[Sequence[Group]],
    config: SplitsConfig,
    rng: random.Random,
    pinned: frozenset[str] = frozenset(),
) -> dict[str, EntitySplit]:
    """Assign the groups of each deck in random order to the split furthest below its share."""
    shares: dict[EntitySplit, float] = {
        "train": 1.0 - config.heldout_share - config.dev_share,
        "dev": config.dev_share,
        "heldout": config.heldout_share,
    }
    owed: dict[EntitySplit, float] = {
        split: rng.random() * share for split, share in shares.items()
    }
    dealt: dict[str, EntitySplit] = {}
    for deck in decks:
        for group in rng.sample(list(deck), len(deck)):
            for split, share in shares.items():
                owed[split] += share * len(group)
            most_owed = max(owed, key=lambda split: owed[split])
            chosen: EntitySplit = "train" if pinned.intersection(group) else most_owed
            owed[chosen] -= len(group)
            dealt.update(dict.fromkeys(group, chosen))
    return dealt


def _public_texts(source: KnowledgeSource) -> list[str]:
    """Return texts that all splits show: labels, phrasings, names of facts, and public hubs."""
    texts = [relation.label for relation in source.relations]
    texts += [text.format(x=" ; ") for relation in source.relations for text in relation.phrasings]
    texts += {fact.partition(":")[0] for entity in source.entities for fact in entity.facts}
    texts += [entity.name for entity in source.entities if entity.entity_id in source.public]
    return texts


def _strata(regions: Sequence[SourceEntity], dependants: Mapping[str, int]) -> list[list[Group]]:
    """Return decks by kind and size; regions whose names contain each other stay together."""
    index = NameIndex(entity.name for entity in regions)
    leader: dict[str, str] = {}
    for entity in regions:
        names = {folded_name(entity.name), *index.found_in(entity.name)}
        leaders = {leader.get(name, name) for name in names}
        first = min(leaders)
        for name, former in list(leader.items()):
            if former in leaders:
                leader[name] = first
        leader.update((name, first) for name in names)
    groups: dict[str, list[SourceEntity]] = defaultdict(list)
    for entity in regions:
        groups[leader[folded_name(entity.name)]].append(entity)
    decks: dict[tuple[str, int], list[Group]] = defaultdict(list)
    for members in groups.values():
        size = max(dependants[entity.entity_id] for entity in members)
        tier = next(place for place, least in enumerate(_SIZE_TIERS) if size >= least)
        decks[members[0].kind, tier].append([entity.entity_id for entity in members])
    return [decks[key] for key in sorted(decks)]


def _without_shared_names(
    source: KnowledgeSource, splits: dict[str, EntitySplit], regions: Sequence[SourceEntity]
) -> Splits:
    """Move entities whose names contain a name of a later split; except common names."""
    fixed = {entity.entity_id for entity in regions} | source.public
    common: set[str] = set()
    num_moved = 0
    for split, lower in _SHOWN_BESIDE.items():
        secret = [e for e in source.entities if splits[e.entity_id] == split]
        secret_regions = {folded_name(e.name) for e in secret if e.entity_id in fixed}
        index = NameIndex(entity.name for entity in secret)
        shown = [e for e in source.entities if splits[e.entity_id] in lower]
        texts = [*_public_texts(source), *(e.name for e in shown if e.entity_id in fixed)]
        unkeepable = set().union(*(index.found_in(text) for text in texts)) - secret_regions
        found = {
            e.entity_id: set(index.found_in(e.name)) for e in shown if e.entity_id not in fixed
        }
        moves = Counter(name for names in found.values() for name in names)
        unkeepable |= {n for n, count in moves.items() if count > MAX_MOVED_BY_A_NAME}
        unkeepable -= secret_regions
        common |= unkeepable
        moved = [entity_id for entity_id, names in found.items() if names - unkeepable]
        splits.update(dict.fromkeys(moved, split))
        num_moved += len(moved)
    return Splits(splits, frozenset(common), num_moved)


MAX_NAME_WORDS = 4
MAX_NAME_CHARACTERS = 24
_MIN_NAME_CHARACTERS = 3
_SPEAKABLE = re.compile(r"(?:[^\W\d_]|[ \-'\u2019./_])+")


def build_graph(source: KnowledgeSource, splits: Splits) -> KnowledgeGraph:
    """Return the graph of `source`, with each entity's split and whether it is askable."""
    bearers = Counter(map(_told_apart_by, source.entities))
    document_ids = source.entity_documents
    entities = []
    for entity in source.entities:
        is_common = folded_name(entity.name) in splits.common_names
        is_unique = bearers[_told_apart_by(entity)] == 1 and not is_common
        can_be_said = is_writable if entity.of_user else is_speakable
        split = splits.by_entity[entity.entity_id]
        own_document = entity.entity_id if entity.has_document else ""
        entities.append(
            Entity(
                entity_id=entity.entity_id,
                name=entity.name,
                kind=entity.kind,
                hub=split == "hub",
                split=split,
                askable=is_unique and can_be_said(entity.name),
                document_id=document_ids.get(entity.entity_id, own_document),
            )
        )
    return KnowledgeGraph(entities, source.relations, source.triples)


def _told_apart_by(entity: SourceEntity) -> str:
    """The key by which names have to differ: of names that are of letters only, the letters."""
    return folded_name(entity.name) if entity.of_user else " ".join(words(entity.name))


def is_speakable(name: str) -> bool:
    """Return whether a name is short and of letters only, so that any question can contain it."""
    is_long_enough = len(name) >= _MIN_NAME_CHARACTERS
    return is_long_enough and is_writable(name) and _SPEAKABLE.fullmatch(name) is not None


def is_writable(name: str) -> bool:
    """Return whether a name is short, is found by a search, and is read as one value of a line."""
    return (
        len(name) <= MAX_NAME_CHARACTERS
        and len(name.split()) <= MAX_NAME_WORDS
        and any(map(str.isalnum, name))
        and not spans_fields(name)
    )
