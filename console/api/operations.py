"""The form of the HTTP API: operations with their parameters, one declaration for serving and for its description.

    Operation("list_clients", "GET", "/clients", "List MQTT clients", list_clients, parameters=(SEARCH, *PAGE), ...)

Each resource declares its operations beside their functions. `console.api.table` is all of them; from it come the
routes, the checks of what a request contains, and the OpenAPI document. A function gets a `ApiCall`, whose values are
checked, and returns what is sent as JSON, or None for an answer without a body.
Invariants: what is not declared is not accepted; an operation that changes something is an act, and only acts change
anything. Pure, but for what the functions ask of the cluster.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from console.api.problems import ApiProblem
from console.cluster import BrokerGroupsView
from console.figures import OverviewFigures
from console.viewers import Viewer

LIMIT_MAX = 200
LIMIT_DEFAULT = 50
TEXT_CHARACTERS_MAX = 1_024
CURSOR_CHARACTERS_MAX = 2_048
INTEGER_MAX = 2**53 - 1
"""The largest integer that every JSON reader keeps exactly."""

TEXT, INTEGER, FLAG = "string", "integer", "boolean"
WORDS = {"true": True, "1": True, "false": False, "0": False}
Value = str | int | bool | None


@dataclass(frozen=True, slots=True)
class Parameter:
    """One value in the query or the path."""

    name: str
    summary: str
    kind: str = TEXT
    required: bool = False
    default: Value = None
    choices: tuple[str, ...] = ()
    minimum: int = 0
    maximum: int = INTEGER_MAX
    characters_max: int = TEXT_CHARACTERS_MAX

    def parse(self, text: str) -> Value:
        """Return the value of a text. Raises ApiProblem (400)."""
        if self.kind == INTEGER:
            return self._integer(text)
        if self.kind == FLAG:
            if text not in WORDS:
                raise self._wrong("is true or false")
            return WORDS[text]
        if len(text) > self.characters_max:
            raise self._wrong(f"may have {self.characters_max} characters")
        if "\x00" in text or any("\ud800" <= character <= "\udfff" for character in text):
            raise self._wrong("has characters that no name has")
        if self.choices and text not in self.choices:
            raise self._wrong(f"is one of {', '.join(self.choices)}")
        return text

    def _integer(self, text: str) -> int:
        digits = text.removeprefix("-")
        if not (digits.isascii() and digits.isdigit()) or len(digits) > len(str(INTEGER_MAX)):
            raise self._wrong("is a whole number")
        value = int(text)
        if not self.minimum <= value <= self.maximum:
            raise self._wrong(f"is from {self.minimum} to {self.maximum}")
        return value

    def _wrong(self, rule: str) -> ApiProblem:
        return ApiProblem(400, "bad_parameter", f"{self.name} {rule}")


LIMIT = Parameter(
    "limit", "The most items of a page.", INTEGER, default=LIMIT_DEFAULT, minimum=1, maximum=LIMIT_MAX
)  # fmt: skip
CURSOR = Parameter("cursor", "`next` of the page before.", default="", characters_max=CURSOR_CHARACTERS_MAX)
PAGE = (LIMIT, CURSOR)
SEARCH = Parameter("search", "Only items whose name contains this text.", default="")


@dataclass(frozen=True, slots=True)
class ApiCall:
    """One use of an operation."""

    viewer: Viewer
    cluster: BrokerGroupsView
    figures: OverviewFigures
    values: Mapping[str, Any]
    """Every declared parameter; None where it was not given and has no default."""
    body: Any = None
    """The declared structure, for operations with a body."""

    def text(self, name: str) -> str:
        """Return a text parameter; empty when it was not given."""
        return str(self.values.get(name) or "")

    def number(self, name: str) -> int:
        """Return a number that has a default or is required."""
        return int(self.values[name])


Function = Callable[[ApiCall], Awaitable[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One method of one path."""

    name: str
    method: str
    path: str
    """With parameters in braces, as `/clients/{id}`."""
    summary: str
    call: Function
    tag: str
    query: tuple[Parameter, ...] = ()
    in_path: tuple[Parameter, ...] = ()
    body: type[msgspec.Struct] | None = None
    answer: type[Any] | None = None
    """What is returned, for the description; None: nothing."""
    body_bytes_max: int = 65_536
    reads: bool = False
    """Whether it changes nothing although its method is not GET."""

    @property
    def acts(self) -> bool:
        """Whether it changes something: for administrators, and for keys whose own rules allow it."""
        return self.method != "GET" and not self.reads
