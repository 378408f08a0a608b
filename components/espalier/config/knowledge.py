"""Profile section `knowledge`: documents and triples, given or extracted by a model."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from espalier.config.data import Section
from espalier.config.teacher import EndpointConfig, VllmBatchConfig

_SECRET_OPTION = re.compile(r"(pass|pwd|secret|token)(?!_?file)", re.IGNORECASE)
_WORDS = r"^[^\W\d_]\w*( \w+)*$"


class RelationConfig(Section):
    """A relation of triples that a model extracts."""

    name: str = Field(pattern=_WORDS, max_length=40)
    """Name in words or with underscores, such as born_in; documents and questions use it."""
    subject_type: str = Field(default="", pattern=f"{_WORDS}|^$", max_length=40)
    """Type of the subjects; unset if they have none, or another relation gives it."""
    object_type: str = Field(default="", pattern=f"{_WORDS}|^$", max_length=40)
    """Type of the objects; unset if they have none, or another relation gives it."""
    functional: bool = False
    """Whether a subject has at most one object; contradictory triples are then dropped."""


class ExtractionConfig(Section):
    """Extraction of triples from the documents by a model, each proven by a quotation."""

    endpoint: EndpointConfig | None = None
    """Server of the model. With `cache` set, a killed ingest resumes after the cached answers."""
    vllm: VllmBatchConfig | None = None
    """Model in this process instead of a server's, if vLLM is installed."""
    relations: tuple[RelationConfig, ...] = ()
    """Relations that are extracted; empty extracts any that is found twice, with their names
    normalized."""

    @property
    def model(self) -> EndpointConfig | VllmBatchConfig:
        """The model: `endpoint` or `vllm`, whichever is set."""
        model = self.endpoint or self.vllm
        assert model is not None, "the validator below requires one"
        return model

    @model_validator(mode="after")
    def _the_model_and_every_relation_are_named(self) -> Self:
        is_one = (self.endpoint is None) != (self.vllm is None)
        if not is_one or not self.model.model or (self.endpoint and not self.endpoint.url):
            raise ValueError(
                'knowledge.extraction needs one model: endpoint.url = "https://host/v1" with '
                'endpoint.model, or vllm.model = "DIR"'
            )
        names = [folded_relation(relation.name) for relation in self.relations]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(
                f"knowledge.extraction.relations names {', '.join(twice)} more than once; keep one "
                "entry for each relation"
            )
        return self


def folded_relation(name: str) -> str:
    """Normalized name of a relation: "Born in" and "born-in" become born_in."""
    return "_".join(name.replace("_", " ").replace("-", " ").lower().split())


class KnowledgeConfig(Section):
    """Documents that the agent can search, and facts that questions are made from."""

    source: Literal["geonames", "folder", "dump", "sql"] = "geonames"
    """Source of the documents: the embedded GeoNames, a folder of files, a MediaWiki dump, or a
    database."""
    path: Path | None = None
    """"folder": folder of documents (.md, .txt, .jsonl, .csv, .tsv, and with an extra .pdf, .html,
    .docx, .pptx, .xlsx); "dump": MediaWiki XML export (.xml, .bz2, .gz)."""
    max_documents: int = Field(default=0, ge=0)
    """Number of a dump's articles that are read; 0 reads all."""
    database: str = ""
    """SQLAlchemy address without a password, such as sqlite:///file.db; only with source = "sql".
    Its content is not part of a run's digests: use another run folder after a change."""
    database_password_file: Path | None = None
    """File with the database's password; unset if it needs none."""
    documents_query: str = ""
    """SQL query that returns the columns title, text and, optionally, id."""
    triples_query: str = ""
    """SQL query that returns the columns subject, relation, object, subject_type, object_type."""
    triples: Path | None = None
    """JSON lines of {subject, relation, object, subject_type, object_type}, from which questions
    are made."""
    triple_lines: bool = Field(default=False, exclude_if=lambda it: not it)
    """Whether a line "label: object; object" is added to the user's document of a triple's subject.
    Otherwise a triple is asked about only if a sentence of that document states it."""
    questions: Path | None = None
    """JSON lines of {question, answer}, which are the tasks if there are no triples. Without either
    and without extraction, questions are made from the documents' sentences."""
    extraction: ExtractionConfig | None = Field(default=None, exclude_if=lambda it: it is None)
    """Triples from a model that reads the documents. Unset, it is in no digest."""
    min_city_population: Literal[500, 1000, 5000, 15000] = 15000
    """GeoNames: least population of a city."""
    max_cities: int = Field(default=0, ge=0)
    """GeoNames: number of cities, the most populous first; 0 keeps all."""

    @property
    def is_own(self) -> bool:
        """Whether the documents are the user's own."""
        return self.source != "geonames"

    @property
    def asks_documents_alone(self) -> bool:
        """Whether questions are made from the documents' sentences, for lack of other sources."""
        return self.is_own and not self.questions and not self.has_triples

    @property
    def has_triples(self) -> bool:
        """Whether the user's own source has triples, given or extracted."""
        return any((self.triples, self.triples_query, self.extraction))

    @property
    def reads_prose(self) -> bool:
        """Whether the user's triples are read in sentences, as no lines are added for them."""
        return self.has_triples and not self.triple_lines

    def external_files(self) -> dict[str, Path | None]:
        """Profile key -> the user's own file that it names."""
        return {
            "knowledge.path": self.path,
            "knowledge.triples": self.triples,
            "knowledge.questions": self.questions,
        }

    @model_validator(mode="after")
    def _a_source_has_documents_and_tasks(self) -> Self:
        asked = [self.triples, self.questions, self.triples_query, self.extraction]
        if self.source in ("folder", "dump") and self.path is None:
            what = "DIR" if self.source == "folder" else "FILE"
            raise ValueError(f'knowledge.source="{self.source}" needs knowledge.path = "{what}"')
        if self.source == "geonames" and any((self.path, *asked)):
            raise ValueError(
                "knowledge.path, .triples, .questions and .extraction go with knowledge.source = "
                '"folder", "dump" or "sql"; remove them, or change the source'
            )
        if self.triple_lines and not self.has_triples:
            raise ValueError(
                "knowledge.triple_lines goes with knowledge.triples, .triples_query or "
                ".extraction; remove it, or give triples"
            )
        if self.extraction and (self.triples or self.triples_query):
            raise ValueError(
                "knowledge.extraction excludes knowledge.triples and .triples_query: either give "
                "triples, or let a model extract them"
            )
        return self

    @model_validator(mode="after")
    def _a_database_is_asked_without_secrets(self) -> Self:
        if self.source == "sql" and not (self.database and self.documents_query):
            raise ValueError(
                'knowledge.source="sql" needs knowledge.database = "sqlite:///FILE" and '
                "knowledge.documents_query"
            )
        if self.source != "dump" and self.max_documents:
            raise ValueError('knowledge.max_documents goes with knowledge.source = "dump"')
        others = (self.database, self.documents_query, self.triples_query)
        if self.source != "sql" and any((*others, self.database_password_file)):
            raise ValueError(
                "knowledge.database, its password file and queries go with "
                'knowledge.source = "sql"; remove them, or change the source'
            )
        if self.triples and self.triples_query:
            raise ValueError("knowledge.triples and .triples_query exclude each other")
        if _has_password(self.database):
            raise ValueError(
                "knowledge.database must not carry a password: profiles are logged. Put it into a "
                "file and name that as knowledge.database_password_file"
            )
        return self


def _has_password(database: str) -> bool:
    """Whether an address of SQLAlchemy has a password, as its user's or as a driver's option."""
    place, _, options = database.partition("://")[2].partition("?")
    user = "" if place.startswith("/") else place.rpartition("@")[0]
    names = (option.partition("=")[0] for option in options.split("&"))
    return ":" in user or any(map(_SECRET_OPTION.search, names))
