"""The directed relations of the GeoNames source, and how questions speak of them."""

from __future__ import annotations

from espalier.knowledge.graph import Relation

MAX_LISTED_COUNTRIES = 8
"""A currency or language of more countries gets no list: it would be too long to read."""

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
    """Every relation, in the order of the lines of a document."""
    rows = [("city", *row) for row in _CITY] + [("country", *row) for row in _COUNTRY]
    return [
        Relation(name, label, subject_kind, object_kind, functional, tuple(phrasings))
        for subject_kind, label, name, object_kind, functional, *phrasings in (*rows, *_OTHERS)
    ]
