"""Built-in kinds against the models of the Kubernetes client, which are made from its OpenAPI.

They are of the client's version (30: Kubernetes 1.30). Names of fields, their types and what is
required are checked; what values mean is the API server's to say (server-side dry run).
"""

import re
from datetime import datetime

from kubernetes.client import models

SCALARS = {"str": str, "int": int, "bool": bool, "float": (int, float), "datetime": (str, datetime)}


def faults(manifest):
    """What the client's model of the kind does not know, misses or types otherwise."""
    version = manifest["apiVersion"].rpartition("/")[2]
    return list(_faults(manifest, f"{version.capitalize()}{manifest['kind']}", manifest["kind"]))


def template_faults(template):
    """The same for a pod template inside an object of another kind."""
    return list(_faults(template, "V1PodTemplateSpec", "template"))


def _faults(value, kind, where):
    if found := re.fullmatch(r"list\[(.+)\]", kind):
        if not isinstance(value, list):
            yield f"{where} is no list"
        else:
            for number, item in enumerate(value):
                yield from _faults(item, found[1], f"{where}[{number}]")
    elif found := re.fullmatch(r"dict\(str, (.+)\)", kind):
        for key, item in value.items():
            yield from _faults(item, found[1], f"{where}.{key}")
    elif kind in SCALARS:
        is_bool = isinstance(value, bool)
        if not isinstance(value, SCALARS[kind]) or (is_bool and kind != "bool"):
            yield f"{where}={value!r} is no {kind}"
    elif kind != "object":  # an int or a string: ports, shares
        yield from _model_faults(value, getattr(models, kind), where)


def _model_faults(value, model, where):
    if not isinstance(value, dict):
        yield f"{where} is no object"
        return
    fields = {spelling: name for name, spelling in model.attribute_map.items()}
    for spelling, item in value.items():
        if spelling not in fields:
            yield f"{where}.{spelling} is no field of {model.__name__}"
        else:
            yield from _faults(item, model.openapi_types[fields[spelling]], f"{where}.{spelling}")
    try:
        model(**{fields[key]: item for key, item in value.items() if key in fields})
    except ValueError as error:
        yield f"{where}: {error}"
