"""Addresses of a profile, which is in reports, in MLflow and in artifacts that others may read."""

import re

import pytest
from pydantic import ValidationError

from espalier.config import KnowledgeConfig, KubeflowConfig, Profile
from espalier.config.inference import VllmConfig
from espalier.config.teacher import EndpointConfig
from espalier_interop.mcp.config import ServerConfig
from espalier_interop.openenv.config import OpenEnvConfig

SECRET = "hush-4711"
WEB = ["http://me:{}@host:8000", "https://{}@host/v1", "http://:{}@host"]
IN_A_QUERY = ["https://host/v1?api_key={}", "https://host/#{}"]
DATABASES = [
    "postgresql://me:{}@host/db", "postgresql://me:{}/x@host/db", "postgresql://me:{}@x@host/db",
    "postgresql+psycopg://:{}@host:5432/db", "postgresql://host/db?user=me&password={}",
    "mysql+pymysql://host/db?passwd={}", "mssql+pyodbc://host/db?UID=me&PWD={}",
    "snowflake://me@account/db?token={}", "postgresql://host/db?sslpassword={}",
    "snowflake://me@account/db?private_key_passphrase={}",
]  # fmt: skip
ASKED = {"source": "sql", "documents_query": "q"}
SECTIONS = {
    "KubeflowConfig.endpoint": (KubeflowConfig, "endpoint", {}, WEB + IN_A_QUERY),
    "KubeflowConfig.ui": (KubeflowConfig, "ui", {}, WEB + IN_A_QUERY),
    "VllmConfig.urls": (VllmConfig, "urls", {}, WEB),
    "EndpointConfig.url": (EndpointConfig, "url", {}, WEB + IN_A_QUERY),
    "KnowledgeConfig.database": (KnowledgeConfig, "database", ASKED, DATABASES),
    "of an MCP server": (ServerConfig, "url", {}, WEB),
    "of OpenEnv": (OpenEnvConfig, "url", {}, WEB),
}
NO_ADDRESSES = {
    "EvaluatedEndpointConfig.url",  # an EndpointConfig
    "VerifiersConfig.address",  # a server on this machine, without users
}


def test_every_address_of_a_profile_is_listed_here():
    found = {
        f"{section}.{key}"
        for section, schema in Profile.model_json_schema()["$defs"].items()
        for key, kind in schema.get("properties", {}).items()
        if re.search(r"url|uri|^ui$|address|endpoint$|database$", key)
        and "string"
        in {one.get("type") for one in (kind, kind.get("items", {}), *kind.get("anyOf", ()))}
    }
    assert found - NO_ADDRESSES == {name for name in SECTIONS if "." in name}


@pytest.mark.parametrize("name", SECTIONS)
def test_no_address_of_a_profile_holds_a_secret(name):
    """Kubeflow's pages show artifacts of others (kubeflow/pipelines#12373)."""
    section, key, others, forms = SECTIONS[name]
    for form in forms:
        with pytest.raises(ValidationError):
            section.model_validate({**others, key: form.format(SECRET)})


@pytest.mark.parametrize(
    "database",
    [
        "sqlite:///file.db", "sqlite:////data/a:b@c.db", "sqlite://", "postgresql://me@host:5432/db",
        "postgresql://host/db?sslmode=require", "mysql://me@host/db?charset=utf8mb4",
        "duckdb:///x.db?read_only=true", "postgresql://host/db?passfile=/run/pgpass",
    ],
)  # fmt: skip
def test_an_address_without_a_password_is_taken(database):
    assert KnowledgeConfig(database=database, **ASKED).database == database
