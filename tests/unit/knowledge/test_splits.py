import json
import random

from espalier.config import SplitsConfig
from espalier.records.folding import folded_name
from espalier.records.knowledge import Document, load_documents
from espalier_search.knowledge.search import documents_path
from espalier_search.knowledge.sources import KnowledgeSource, SourceEntity
from espalier_search.knowledge.splits import deal, draw_splits
from espalier_search.knowledge.views import forbidden_names, leaks


def _source(*names, kind="person", region_kinds=frozenset()):
    entities = [SourceEntity(f"{kind}:{name}", name, kind) for name in names]
    return KnowledgeSource("", entities=entities, region_kinds=region_kinds)


def test_no_hidden_name_stands_in_the_train_or_dev_view(geonames_dir, geonames_graph):
    common = frozenset(json.loads((geonames_dir / "names.json").read_text())["common_names"])
    for view, hidden in (("train", ("dev", "heldout")), ("dev", ("heldout",))):
        documents = load_documents(documents_path(geonames_dir, view))
        names = {
            entity.name
            for entity in geonames_graph.entities.values()
            if entity.split in hidden and folded_name(entity.name) not in common
        }
        texts = [
            f" {folded_name(part)} "
            for document in documents
            for text in (document.title, *document.lines)
            for part in text.replace(": ", "; ").split("; ")
        ]
        shown = "\n".join(set(texts))
        assert not [name for name in names if f" {folded_name(name)} " in shown]
        assert not leaks(documents, forbidden_names(geonames_graph, view, common))
        assert not [document for document in documents if document.split in hidden]


def test_leaks_finds_whole_names_whatever_their_case_and_accents():
    document = Document("d", "Notes", ("lies near SAO TOME today", "Tomelloso"), "train")
    found = leaks([document], ["São Tomé", "Tome llo", "Me"])
    assert [(leak.text, leak.name) for leak in found] == [("lies near SAO TOME today", "sao tome")]
    # a name does not span two fields
    document = Document("d", "t", ("neighbours: San; Marino", "state: New"), "train")
    assert not leaks([document], ["San Marino", "state new"])


def test_cities_follow_their_country_unless_their_name_forbids_it(geonames_graph):
    entities = geonames_graph.entities
    cities = [e for e in entities.values() if e.kind == "city"]
    followed = 0
    for city in cities:
        states = geonames_graph.objects("state", city.entity_id)
        (country,) = geonames_graph.objects("country", city.entity_id)
        region = entities[states[0] if states else country]
        followed += city.split == region.split
        assert not (region.split == "heldout" and city.split != "heldout")
    assert followed > 0.9 * len(cities)


def test_the_united_states_are_never_held_out():
    config = SplitsConfig(heldout_share=0.7, dev_share=0.1)
    regions = _source("Fiji", "Tonga", "Nauru", kind="country", region_kinds=frozenset({"country"}))
    regions.pinned = frozenset({"country:Fiji"})
    assert all(
        draw_splits(regions, config, s).by_entity["country:Fiji"] == "train" for s in range(9)
    )


def test_regions_whose_names_contain_each_other_share_a_split():
    source = _source(
        "Mexico", "New Mexico", "Peru", "Mexico City State", "Chad",
        kind="state", region_kinds=frozenset({"state"}),
    )  # fmt: skip
    for seed in range(10):
        splits = draw_splits(source, SplitsConfig(), seed).by_entity
        assert splits["state:Mexico"] == splits["state:New Mexico"]
        assert splits["state:Mexico"] == splits["state:Mexico City State"]


def test_an_entity_containing_a_heldout_name_is_held_out():
    names = [f"Person {number}" for number in range(40)]
    source = _source(*names, *(f"{name} Junior" for name in names))
    splits = draw_splits(source, SplitsConfig(), 1)
    assert splits.moved > 0
    for name in names:
        if splits.by_entity[f"person:{name}"] == "heldout":
            assert splits.by_entity[f"person:{name} Junior"] == "heldout"


def test_a_name_inside_many_names_counts_as_common():
    others = [f"San Lugar {chr(97 + number)}" for number in range(26)]
    for seed in range(12):
        source = _source("San", *others)
        splits = draw_splits(source, SplitsConfig(), seed)
        if splits.by_entity["person:San"] == "heldout":
            assert splits.common_names == {"san"}
            assert splits.moved == 0
            return
    raise AssertionError("no seed held San out")


def test_dealing_keeps_the_shares_and_repeats_itself_under_a_seed():
    deck = [[f"e{number}"] for number in range(200)]
    dealt = deal([deck], SplitsConfig(), random.Random(5))
    assert dealt == deal([deck], SplitsConfig(), random.Random(5))
    assert dealt != deal([deck], SplitsConfig(), random.Random(6))
    assert list(dealt.values()).count("heldout") == 50
    assert list(dealt.values()).count("dev") == 20
