"""The OpenAPI 3.1 document of the HTTP API, made from the declared operations and their structures.

Invariant: what is served is described, and what is described is served; signing in, the event stream and the live
socket are described here by hand because they are no operations. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from console.api.operations import FLAG, INTEGER, TEXT, Operation, Parameter
from console.api.problems import CONTENT_TYPE
from runtime.problems import Problem

VERSION = "1"
JSON = "application/json"
ERRORS = {
    400: "The request does not fit.",
    401: "Nobody is signed in.",
    403: "The viewer may not do this.",
    404: "There is no such thing.",
    405: "The path has no such method.",
    409: "The broker refused.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    429: "This sign-in failed, and too many before it from this address.",
    431: "The request's head is longer than 8,192 bytes.",
    501: "The brokers of this installation do not offer this.",
    502: "A broker's answer cannot be read.",
    503: "A broker or controller does not answer.",
    504: "A broker did not answer in time.",
}
TYPES = {TEXT: "string", INTEGER: "integer", FLAG: "boolean"}
INTRODUCTION = """\
Everything that the console shows and does. Lists are pages: `items`, `next` (the cursor of the next page, empty on the
last), `total` where it is known, `missing` (broker groups that did not answer). Times are in ms since 1970. Errors are
`application/problem+json`. Programs send `Authorization: Bearer TOKEN`, or basic authentication with the name and
secret of an access key; a browser has a session, and sends `X-CSRF-Token` with everything that changes something."""


def document(operations: Iterable[Operation]) -> bytes:
    """Return the document as JSON."""
    operations = tuple(operations)
    forms = [form for one in operations for form in (one.body, one.answer) if form is not None]
    schemas, components = msgspec.json.schema_components(
        [*forms, Problem], ref_template="#/components/schemas/{name}"
    )  # fmt: skip
    named = iter(schemas)
    paths: dict[str, dict[str, Any]] = {}
    for one in operations:
        body = next(named) if one.body is not None else None
        answer = next(named) if one.answer is not None else None
        paths.setdefault(one.path, {})[one.method.lower()] = _operation(one, body, answer)
    described = {
        "openapi": "3.1.0",
        "info": {"title": "LightMQ console", "version": VERSION, "description": INTRODUCTION},
        "servers": [{"url": "/api/v1"}],
        "security": [{"token": []}, {"key": []}, {"session": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "responses": {
                f"Error{status}": {
                    "description": text,
                    "content": {CONTENT_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
                }
                for status, text in ERRORS.items()
            },
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "key": {"type": "http", "scheme": "basic"},
                "session": {"type": "apiKey", "in": "cookie", "name": "lightmq_session"},
            },
        },
    }
    return msgspec.json.format(msgspec.json.encode(described), indent=1)


def _operation(one: Operation, body: Any, answer: Any) -> dict[str, Any]:
    success: dict[str, Any] = {"204": {"description": "Done."}}
    if answer is not None:
        success = {"200": {"description": one.summary + ".", "content": {JSON: {"schema": answer}}}}
    described: dict[str, Any] = {
        "operationId": one.name,
        "summary": one.summary,
        "tags": [one.tag],
        "parameters": [_parameter(each, "path") for each in one.in_path]
        + [_parameter(each, "query") for each in one.query],
        "responses": {
            **success,
            **{str(status): {"$ref": f"#/components/responses/Error{status}"} for status in ERRORS},
        },
    }
    if body is not None:
        described["requestBody"] = {"required": True, "content": {JSON: {"schema": body}}}
    return described


def _parameter(one: Parameter, where: str) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": TYPES[one.kind]}
    if one.kind == INTEGER:
        schema |= {"minimum": one.minimum, "maximum": one.maximum}
    elif one.kind == TEXT:
        schema |= {"maxLength": one.characters_max} | ({"minLength": 1} if where == "path" else {})
    if one.choices:
        schema = {"type": "string", "enum": list(one.choices)}
    if one.default not in (None, ""):
        schema["default"] = one.default
    return {
        "name": one.name, "in": where, "description": one.summary, "required": one.required or where == "path",
        "schema": schema,
    }  # fmt: skip
