import numpy as np

from espalier_search.knowledge.geonames import nearest_larger


def _names(graph, relation, subject_id):
    return [graph.entities[found].name for found in graph.objects(relation, subject_id)]


def test_facts_of_france_and_its_capital_are_in_the_graph(geonames_graph):
    assert _names(geonames_graph, "capital", "country:FR") == ["Paris"]
    assert _names(geonames_graph, "currency", "country:FR") == ["Euro"]
    # of equal name are several currencies
    assert _names(geonames_graph, "currency", "country:GA") == ["Franc XAF"]
    assert _names(geonames_graph, "language", "country:FR") == ["French"]
    assert "Spain" in _names(geonames_graph, "neighbours", "country:FR")
    (paris,) = geonames_graph.objects("capital", "country:FR")
    assert _names(geonames_graph, "capital_of", paris) == ["France"]
    assert _names(geonames_graph, "time_zone", paris) == ["Europe/Paris"]


def test_every_triple_has_the_kinds_and_number_of_its_relation(geonames_graph):
    for subject, name, object_ in geonames_graph.triples():
        relation = geonames_graph.relations[name]
        assert geonames_graph.entities[subject].kind == relation.subject_kind
        assert geonames_graph.entities[object_].kind == relation.object_kind
        if relation.functional:
            assert geonames_graph.objects(name, subject) == (object_,)


def test_nearest_larger_city_agrees_with_a_search_over_all_pairs():
    rng = np.random.default_rng(0)
    latitudes, longitudes = rng.uniform(-90, 90, 300), rng.uniform(-180, 180, 300)
    populations = rng.integers(1, 100, 300)
    nearest = nearest_larger(latitudes, longitudes, populations)
    phi, lam = np.radians(latitudes), np.radians(longitudes)
    for place in range(300):
        haversine = (
            np.sin((phi - phi[place]) / 2) ** 2
            + np.cos(phi) * np.cos(phi[place]) * np.sin((lam - lam[place]) / 2) ** 2
        )
        haversine[populations <= populations[place]] = np.inf
        expected = -1 if np.isinf(haversine).all() else int(haversine.argmin())
        assert nearest[place] == expected


def test_askable_names_are_unique_and_speakable(geonames_graph):
    by_id = geonames_graph.entities
    assert by_id["country:FR"].askable
    assert not by_id["country:SG"].askable  # its capital has the same name
    assert not by_id["calling code:+33"].askable
    assert by_id["domain:.fr"].askable
