"""Profile section `knowledge`: documents and triples, given or extracted by a model."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from espalier.config.data import Section
from espalier.config.teacher import EndpointConfig, VllmBatchConfig

_WORDS = r"^[^\W\d_]\w*( \w+)*$"


class RelationConfig(Section):
    """A relation that a model may state."""

    name: str = Field(pattern=_WORDS, max_length=40)
    """Words or one word with underscores, as born_in: documents and questions say it."""
    subject_type: str = Field(default="", pattern=f"{_WORDS}|^$", max_length=40)
    """Unset where the subjects are of no kind in particular, or another relation says it."""
    object_type: str = Field(default="", pattern=f"{_WORDS}|^$", max_length=40)
    """Unset where the objects are of no kind in particular, or another relation says it."""
    functional: bool = False
    """A subject has one object at most: statements that contradict each other are dropped."""


class ExtractionConfig(Section):
    """Triples that a model states about the documents, each proven by a quotation."""

    endpoint: EndpointConfig | None = None
    """A server's model. With `cache` set, a killed ingest goes on with what was answered."""
    vllm: VllmBatchConfig | None = None
    """A model in this process in its place, where vLLM is installed."""
    relations: tuple[RelationConfig, ...] = ()
    """What may be stated; empty takes any relation, its name evened out."""
    min_mentions: int = Field(default=2, ge=1)
    """With an open set of relations, one that is stated less often is left out."""
    chunk_words: int = Field(default=300, ge=30)
    """A request shows so many words of one document, in whole lines."""

    @property
    def model(self) -> EndpointConfig | VllmBatchConfig:
        """The one of the two that is set."""
        model = self.endpoint or self.vllm
        assert model is not None, "the validator below lets none pass"
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
                f"knowledge.extraction.relations names {', '.join(twice)} more than once; a "
                "relation has one entry"
            )
        return self


def folded_relation(name: str) -> str:
    """The spelling under which two names of relations are the same: "Born in" is born_in."""
    return "_".join(name.replace("_", " ").replace("-", " ").lower().split())


class KnowledgeConfig(Section):
    """What the agent can search, and what questions are made from."""

    source: Literal["geonames", "folder", "dump", "sql"] = "geonames"
    """Where documents come from: the embedded GeoNames, a folder of files, a MediaWiki dump, or a
    database."""
    path: Path | None = None
    """"folder": of .md, .txt and .jsonl documents; "dump": a MediaWiki XML export (.xml, .bz2,
    .gz)."""
    max_documents: int = Field(default=0, ge=0)
    """Articles that are read of a dump; 0 reads all."""
    database: str = ""
    """SQLAlchemy address without a password, as sqlite:///file.db; only with source = "sql". What
    it holds is not part of a run's digests: other content needs another run folder."""
    database_password_file: Path | None = None
    """File that holds the database's password; unset where it asks for none."""
    documents_query: str = ""
    """SQL that returns the columns title, text and, where there is one, id."""
    triples_query: str = ""
    """SQL that returns the columns subject, relation, object, subject_type, object_type."""
    triples: Path | None = None
    """JSON lines of {subject, relation, object, subject_type, object_type}: what is asked about."""
    questions: Path | None = None
    """JSON lines of {question, answer}; the tasks where there are no triples. Without either, and
    without extraction, questions are made from the documents' sentences."""
    extraction: ExtractionConfig | None = Field(default=None, exclude_if=lambda it: it is None)
    """Triples from a model that reads the documents. Where it is not set it is in no digest."""
    min_city_population: Literal[500, 1000, 5000, 15000] = 15000
    """GeoNames: cities with fewer inhabitants are left out."""
    max_cities: int = Field(default=0, ge=0)
    """Keep only the most populous cities; 0 keeps all."""

    @property
    def is_own(self) -> bool:
        """Whether the documents are the user's own."""
        return self.source != "geonames"

    @property
    def asks_documents_alone(self) -> bool:
        """Whether questions are made from the documents' sentences, as nothing else is given."""
        return self.is_own and not self.questions and not self.has_triples

    @property
    def has_triples(self) -> bool:
        """Whether the user's own source has triples, given or extracted."""
        return any((self.triples, self.triples_query, self.extraction))

    def external_files(self) -> dict[str, Path | None]:
        """The user's own files, by the key that names them."""
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
        if self.extraction and (self.triples or self.triples_query):
            raise ValueError(
                "knowledge.extraction excludes knowledge.triples and .triples_query: triples are "
                "given, or a model states them"
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
        if re.match(r"[^/]*://[^/@]*:[^/@]*@", self.database):
            raise ValueError(
                "knowledge.database must not carry a password: profiles are logged. Put it into a "
                "file and name that as knowledge.database_password_file"
            )
        return self
