"""The page of the HTTP API, docs/http-api.md, from the operations that the console declares.

    python -m tools.http_api        write the page again

Invariant: every operation is there with its parameters, its body and its answer, as the OpenAPI document has them;
examples are made from the declared structures, so they always fit. `tests/arch` compares the page with them.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import textwrap
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args, get_origin

import msgspec
from msgspec import inspect as forms

from console.api import openapi, table
from console.api.operations import PAGE as PAGE_PARAMETERS
from console.api.operations import Operation, Parameter

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "http-api.md"
TIME_MS = 1_767_225_600_000
INTRODUCTION = """\
# HTTP API

Every operation of the [console's](howto/console.md) HTTP API. Paths are below `/api/v1`; the same as an OpenAPI 3.1
document is at `/api/v1/openapi.json`. The [guide](howto/console.md#http-api) shows how programs sign in, and the event
stream and the WebSocket for live messages. This page is written from the declarations by `python -m tools.http_api`.

**Rights.** Operations that change something need `role admin`, or an access key whose own rules allow it, and are in
the audit record. All others need `role monitor`, or a key whose rules allow what they show.

**Lists** are pages: `limit` is the most items of one (50, at most 200), `cursor` is `next` of the page before. `next`
is empty on the last page, `total` is null where it is not known, `missing` names broker groups that did not answer.

**Errors** are `application/problem+json`: a `detail` for people and a `reason` for programs ([status codes](#errors)).
"""
EXAMPLES: dict[str, Any] = {
    "ClientRow.id": "press-7", "SessionRow.id": "press-7", "EndedClient.id": "press-7", "client_id": "press-7",
    "Alarm.id": "disk_nearly_full", "severity": "warning", "text": "the disk of broker-a has 4 % left",
    "target": "broker-a", "counter": "rocketmq_requests_refused_total", "reason": "flow_control",
    "address": "10.0.0.7", "version": "5", "protocol": "tcp", "proxy": "proxy-1", "keep_alive_s": 60,
    "topic": "plant/7/temp", "level": "temp", "payload": "21.5", "payload_bytes": 4, "encoding": "text", "qos": 1,
    "message_id": "broker-a:1234", "broker": "broker-a", "content_type": "text/plain", "handle": "timer-7",
    "user": "anna", "GroupRow.topics": ["orders"], "GroupRow.name": "billing", "GroupDetail.name": "billing",
    "MovedGroup.name": "billing", "GroupQueue.topic": "orders", "MovedQueue.topic": "orders", "Queue.topic": "orders",
    "ResetForm.topic": "orders", "Skip.topic": "orders", "ResetForm.to": "earliest", "Member.client": "10.0.0.9@4711",
    "language": "JAVA", "BrokerGroup.name": "broker-a", "MasterNow.name": "broker-a",
    "SeenRoleChange.name": "broker-a", "cluster": "DefaultCluster", "state": "ok", "role": "master",
    "sync_state_set": [1, 2, 3], "epochs": [], "ControllerRow.id": "n1", "ProxyRow.name": "proxy-1",
    "ProxyRow.version": "0.1.0", "Overview.version": "0.1.0", "mode": "all in one process", "node": "broker-a",
    "flush_mode": "sync", "SparkQuery.id": "0f5ae0f2", "SparkQuery.name": "alarms", "last_error": "", "history": [],
    "place": "acl:12", "rule": "user boss topic readwrite #", "action": "publish",
    "AccessAnswer.reason": "a rule allows it", "Quota.name": "sessions_max", "where": "broker", "limit": 1_000_000,
    "AuditRecord.role": "admin", "who": "boss", "act": "MQTT_KICK", "AuditRecord.target": "press-7",
    "outcome": "done", "road": "console", "DeadLetter.id": "billing:0:17", "DeadLetter.group": "billing",
    "DeadLetter.topic": "orders", "TraceStep.where": "log", "what": "stored", "detail": "position 1234, 224 bytes",
    "message": {"topic": "plant/7/temp"}, "ReplicaRow.address": "10.0.0.7:10911",
    "MasterNow.address": "10.0.0.7:10911", "response_topic": "", "BrokerGroup.address": "10.0.0.7:10911",
    "ControllerRow.address": "10.0.0.1:9876", "correlation_data": "", "payload_base64": "", "expiry_s": 0,
    "properties": {"unit": "C"}, "next": "", "total": 1, "missing": {},
    "RuleRow.on": "MQTT", "Quota.used": 12, "keys": "A-17", "tags": "paid", "DeadLetter.payload": "paid by card",
    "DeadLetter.payload_bytes": 12, "DeadLetter.properties": {"TRACE": "7"}, "SentAgain.topic": "%RETRY%billing",
}  # fmt: skip
"""Values of fields in examples, by `Structure.field` or for any structure; others follow from their type."""


def page(operations: Iterable[Operation] = table.OPERATIONS) -> str:
    """The whole page."""
    lines = [INTRODUCTION]
    tag = ""
    for one in operations:
        if one.tag != tag:
            tag = one.tag
            lines.append(f"## {tag}\n")
        lines += _operation(one)
    answers = [f"| {status} | {text} |" for status, text in openapi.ERRORS.items()]
    return "\n".join([*lines, "## Errors\n", "| status | means |", "|---|---|", *answers]) + "\n"


def _operation(one: Operation) -> list[str]:
    lines = [f"### {one.method} {one.path}\n", f"{one.summary}.\n"]
    asked = [each for each in one.query if each not in PAGE_PARAMETERS]
    given = [(each, "path") for each in one.in_path] + [(each, "query") for each in asked]
    if given:
        lines += ["| parameter | in | type | |", "|---|---|---|---|"]
        lines += [f"| `{each.name}` | {where} | {_kind(each)} | {_meaning(each, where)} |" for each, where in given]
        lines.append("")
    if one.body is not None:
        lines += [f"Body: {_lowered(_said(one.body))}\n", *_notes(one.body), _block(example(one.body)), ""]
    if one.answer is None:
        return [*lines, "Answer: 204, without a body.\n"]
    shown = get_args(one.answer)[0] if get_origin(one.answer) else one.answer
    lead = "Answer, a page of a list: " if get_origin(one.answer) else "Answer: "
    return [*lines, f"{lead}{_lowered(_said(shown))}\n", *_notes(shown), _block(example(one.answer)), ""]


def _kind(one: Parameter) -> str:
    if one.choices:
        named = [choice for choice in one.choices if not choice.startswith("-")]
        falling = ", each also with `-` before it" if len(named) < len(one.choices) else ""
        return " or ".join(f"`{choice}`" for choice in named) + falling
    return {"string": "text", "integer": "whole number", "boolean": "`true` or `false`"}[one.kind]


def _meaning(one: Parameter, where: str) -> str:
    extra = []
    if one.required and where != "path":
        extra.append("Required.")
    if one.default not in (None, ""):
        extra.append(f"Default {one.default}, at most {one.maximum:,}." if one.kind == "integer" else "")
    return " ".join([one.summary, *filter(None, extra)])


def _said(form: type[Any]) -> str:
    return " ".join((inspect.getdoc(form) or "").split())


def _lowered(text: str) -> str:
    """The text as the rest of a sentence; abbreviations stay as they are."""
    return text if text[1:2].isupper() else text[:1].lower() + text[1:]


def _notes(form: type[Any]) -> list[str]:
    """What a structure says about its fields."""
    found = []
    body = ast.parse(textwrap.dedent(inspect.getsource(form))).body[0].body  # type: ignore[attr-defined]
    for field, note in pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(note, ast.Expr) and isinstance(note.value, ast.Constant):
            text = " ".join(str(note.value.value).split())
            found.append(f"- `{ast.unparse(field.target)}`: {_lowered(text)}")
    return [*found, ""] if found else []


def _block(value: Any) -> str:
    text = json.dumps(value, indent=2, ensure_ascii=False)
    # What fits on a line stays on one: lists of numbers and small objects.
    text = re.sub(r"[\[{]\n[^\[\]{}]{0,160}?\n\s*[\]}]", lambda found: re.sub(r"\n\s*", " ", found[0]), text)
    return f"```json\n{text}\n```"


def example(form: Any) -> Any:
    """A value of a declared type, as JSON has it."""
    return _example(forms.type_info(form), "", "")


def _example(kind: Any, structure: str, name: str) -> Any:
    for key in (f"{structure}.{name}", name):
        if key in EXAMPLES:
            return EXAMPLES[key]
    if isinstance(kind, forms.StructType):
        return {field.encode_name: _example(field.type, kind.cls.__name__, field.encode_name) for field in kind.fields}
    if isinstance(kind, forms.ListType):
        return [_example(kind.item_type, structure, "")]
    if isinstance(kind, forms.UnionType):
        return _example(kind.types[0], structure, name)
    return _plain(kind, name)


def _plain(kind: Any, name: str) -> Any:
    if isinstance(kind, forms.IntType | forms.FloatType):
        number = TIME_MS if name.endswith("_ms") and name not in {"batch_ms", "delay_ms"} else 1
        return number if isinstance(kind, forms.IntType) else 1.5
    if isinstance(kind, forms.BoolType):
        return name not in {"truncated", "damaged"}
    return {} if isinstance(kind, forms.DictType | forms.AnyType) else ""


def check(one: Operation) -> None:
    """Raise msgspec.ValidationError when an example does not fit its declaration."""
    for form in filter(None, (one.body, one.answer)):
        msgspec.convert(example(form), form)


def main() -> int:
    """Write the page."""
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
