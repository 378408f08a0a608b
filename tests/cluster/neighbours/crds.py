"""What a CustomResourceDefinition says of its objects, as a schema that knows no other fields.

An API server drops fields that a schema does not name, without a word, so here each is refused.
What the schema says in CEL (x-kubernetes-validations) is left to the API server.
"""

import yaml

_COPIED = ("metadata",)
"""Fields that a CRD leaves to Kubernetes."""


def index(files):
    """(apiVersion, kind) -> schema as it is written, of every version that is served.

    Args:
        files: of CustomResourceDefinitions; others, and patches of some, are passed over.
    """
    found = {}
    for path in files:
        for one in yaml.load_all(path.read_text(), Loader=yaml.CSafeLoader):
            if not one or one.get("kind") != "CustomResourceDefinition":
                continue
            spec = one.get("spec", {})
            for version in spec.get("versions", ()):
                if version["served"]:
                    api_version = f"{spec['group']}/{version['name']}"
                    schema = version["schema"]["openAPIV3Schema"]
                    found[api_version, spec["names"]["kind"]] = schema
    return found


def closed(schema):
    """A structural schema as JSON schema, whose objects have the named fields and no others."""
    made = {key: value for key, value in schema.items() if not key.startswith("x-kubernetes-")}
    for key in ("description", "format", "default", "example"):
        made.pop(key, None)
    if schema.get("x-kubernetes-int-or-string"):
        made.pop("type", None)
        made["anyOf"] = [{"type": "integer"}, {"type": "string"}]
    if "properties" in schema:
        made["properties"] = {name: closed(one) for name, one in schema["properties"].items()}
        if not schema.get("x-kubernetes-preserve-unknown-fields"):
            made.setdefault("additionalProperties", False)
    elif isinstance(schema.get("additionalProperties"), dict):
        made["additionalProperties"] = closed(schema["additionalProperties"])
    if "items" in schema:
        made["items"] = closed(schema["items"])
    if made.pop("nullable", False):
        return {"anyOf": [made, {"type": "null"}]}
    return made


def repeated(schema, value, path="$"):
    """Entries of lists whose keys another entry has; an API server refuses them."""
    found = []
    if isinstance(value, dict):
        for name, one in value.items():
            inner = schema.get("properties", {}).get(name) or schema.get("additionalProperties")
            if isinstance(inner, dict):
                found += repeated(inner, one, f"{path}.{name}")
    if isinstance(value, list):
        keys = schema.get("x-kubernetes-list-map-keys", ())
        seen = [tuple(one.get(key) for key in keys) for one in value] if keys else []
        found += [f"{path}: {one} more than once" for one in {*seen} if seen.count(one) > 1]
        for one in value:
            found += repeated(schema["items"], one, f"{path}[]")
    return found


def whole(schema):
    """The closed schema of a whole object, with the fields that every object has."""
    schema = closed(schema)
    properties = {"apiVersion": {"type": "string"}, "kind": {"type": "string"}}
    properties |= {name: {"type": "object", "required": ["name"]} for name in _COPIED}
    own = {key: one for key, one in schema["properties"].items() if key not in properties}
    required = sorted({"apiVersion", "kind", "metadata", *schema.get("required", ())})
    return {**schema, "properties": properties | own, "required": required}
