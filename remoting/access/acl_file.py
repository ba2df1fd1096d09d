"""The access list: the topics that clients may read and write, one rule per line; Mosquitto's lists are valid.

    # a comment                           blank lines and comments are ignored
    topic read public/#                   before any section: clients without a proven name
    user ann                              the lines below are for the user ann
    topic readwrite plant/7/#             readwrite is the default
    topic deny plant/7/secret/#           no reading, no writing, even if other lines allow it
    topic deny-write plant/7/state        no writing only; deny-read likewise
    topic write qos=1 retain=no cmd/#     up to QoS 1, not retained; also will=no
    topic read retained=no history=no a/# live messages only
    group line-3                          for identities with this group (tokens and hooks name groups)
    anonymous                             back to clients without a proven name
    role proxy                            in a user section, at brokers and controllers only: this key is an MQTT proxy
    role broker group-a group-b           this key is a broker and may register under these broker names
    role admin                            likewise `controller`, and `monitor` for the administration pages
    pattern readwrite dev/%c/#            for all clients, in any section; %c or ${clientid}: the client id,
                                          %u or ${username}: the proven user name

Invariant: a file with any malformed line gives no rules at all, because the line may have been a deny; errors name the
line's number. An empty file allows nothing. Thread rule: no state; `load` blocks.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from remoting.access.rules import PLACEHOLDER, Rule, RuleSet
from remoting.protocol.errors import LightMQError
from remoting.protocol.records.topics import validate_filter

FILE_SIZE_BYTES_MAX = 16 * 1_048_576
"""Largest access list read, some 300,000 rules; a larger one is refused as a mistake."""

PROBLEMS_SHOWN_MAX = 20
"""Problems of one file that are reported in full; the others are counted."""

VERBS: Mapping[str, tuple[bool, bool, bool]] = {
    "read": (True, True, False),
    "write": (True, False, True),
    "readwrite": (True, True, True),
    "deny": (False, True, True),
    "deny-read": (False, True, False),
    "deny-write": (False, False, True),
}
"""Verb -> (allows, applies to reading, applies to writing)."""

ROLES = ("proxy", "admin", "broker", "controller", "monitor")
"""Roles of a key besides reading and writing topics; used by brokers and controllers."""

OPTIONS = ("qos", "retain", "retained", "will", "history")
SWITCH = {"yes": True, "no": False}
CONCERNS_WRITING = ("retain", "will")


class AclError(LightMQError):
    """The file is invalid; `problems` has the reasons, line by line."""

    def __init__(self, path: Path | str, problems: list[str]) -> None:
        shown = "; ".join(problems[:PROBLEMS_SHOWN_MAX])
        more = len(problems) - PROBLEMS_SHOWN_MAX
        super().__init__(f"access list {path}: {shown}" + (f"; and {more} more" if more > 0 else ""))
        self.problems = problems


class _LineError(Exception):
    """What is wrong with a line."""


@dataclass(slots=True)
class _AclParser:
    """The rules parsed so far, and the section of the next line."""

    name: str
    rules: RuleSet = field(default_factory=RuleSet)
    section: list[Rule] = field(default_factory=list)
    user: str | None = None
    """The user of the current section; None in any other."""

    def __post_init__(self) -> None:
        self.section = self.rules.anonymous

    def line(self, number: int, raw: bytes) -> None:
        """Parse one line. Raises _LineError."""
        try:
            text = raw.rstrip(b"\r").decode().strip()
        except UnicodeDecodeError:
            raise _LineError("not UTF-8") from None
        if not text or text.startswith("#"):
            return
        word, _, rest = text.partition(" ")
        rest = rest.strip()
        match word:
            case "topic" | "pattern":
                rule = parse_rule(f"{self.name}:{number}", text, rest, pattern=word == "pattern")
                (self.rules.everyone if rule.pattern else self.section).append(rule)
            case "user" | "group":
                if not rest:
                    raise _LineError(f"{word} without a name")
                named = self.rules.users if word == "user" else self.rules.groups
                self.section = named.setdefault(rest, [])
                self.user = rest if word == "user" else None
            case "role" if rest:
                self._role(rest, number)
            case "anonymous" if not rest:
                self.section, self.user = self.rules.anonymous, None
            case _:
                raise _LineError(f"begins with {word[:20]!r}, not with topic, pattern, user, group, role or anonymous")

    def _role(self, words: str, number: int) -> None:
        role, *names = words.split()
        if role not in ROLES:
            raise _LineError(f"{role[:20]!r} is none of the roles {', '.join(ROLES)}")
        if self.user is None:
            raise _LineError("a role belongs in the section of a user")
        if (role == "broker") != bool(names):
            raise _LineError(
                f"role {role} takes no names" if names else "role broker needs the broker names it may register under"
            )
        self.rules.roles.setdefault(self.user, set()).add(role)
        self.rules.role_places[self.user, role] = f"{self.name}:{number}"
        if names:
            self.rules.brokers.setdefault(self.user, set()).update(names)


def load(path: Path) -> RuleSet:
    """Read the file. Raises AclError when it is invalid."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe must not block the start
    except OSError as error:
        raise AclError(path, [str(error.strerror)]) from error
    try:
        problem = _problem_of_file(path, os.fstat(descriptor))
        if problem is not None:
            raise AclError(path, [problem])
        with os.fdopen(descriptor, "rb", closefd=False) as opened:
            data = opened.read(FILE_SIZE_BYTES_MAX)
    finally:
        os.close(descriptor)
    return parse(data, name=str(path))


def _problem_of_file(path: Path, found: os.stat_result) -> str | None:
    if not stat.S_ISREG(found.st_mode):
        return "not a regular file"
    if found.st_mode & stat.S_IWOTH:
        return f"writable by every user of the machine; run: chmod o-w {path}"
    if found.st_size > FILE_SIZE_BYTES_MAX:
        return f"{found.st_size} bytes, at most {FILE_SIZE_BYTES_MAX}"
    return None


def parse(data: bytes, *, name: str) -> RuleSet:
    """Return the rules in the file's bytes. Raises AclError when any line is malformed."""
    reader = _AclParser(name)
    problems = []
    for number, raw in enumerate(data.split(b"\n"), start=1):
        try:
            reader.line(number, raw)
        except _LineError as error:
            problems.append(f"line {number}: {error}")
    if problems:
        raise AclError(name, problems)
    return reader.rules


def parse_lines(lines: Sequence[str], place: str) -> tuple[Rule, ...]:
    """Return rules in the form of `pattern` lines, from another source. Raises AclError when one is malformed."""
    rules: list[Rule] = []
    problems = []
    for number, line in enumerate(lines, start=1):
        try:
            rules.append(parse_rule(f"{place}:{number}", line, line.strip(), pattern=True))
        except _LineError as error:
            problems.append(f"rule {number}: {error}")
    if problems:
        raise AclError(place, problems)
    return tuple(rules)


def parse_rule(place: str, text: str, rest: str, *, pattern: bool) -> Rule:
    """Return the rule after `topic` or `pattern`."""
    verb, _, behind = rest.partition(" ")
    if verb not in VERBS:
        if behind:
            raise _LineError(f"{verb[:20]!r} is none of {', '.join(VERBS)}")
        verb, behind = "readwrite", rest
    allow, read, write = VERBS[verb]
    options: dict[str, int | bool] = {}
    behind = behind.strip()
    while (option := behind.split(" ", 1)[0].partition("="))[1] and option[0] in OPTIONS:
        _option(option[0], option[2], verb, options)
        behind = behind.partition(" ")[2].strip()
    raw = behind.encode()
    problem = validate_filter(raw)
    if problem is not None:
        raise _LineError(problem)
    if raw.startswith((b"$share/", b"$history/")):
        raise _LineError("give the inner filter, which decides about shared and history subscriptions")
    if not pattern and PLACEHOLDER.search(raw):
        raise _LineError("a topic line has no placeholders; use pattern")
    rule = Rule(place, text, raw, allow=allow, read=read, write=write, pattern=pattern)
    return replace(rule, **options) if options else rule  # type: ignore[arg-type]


def _option(name: str, value: str, verb: str, options: dict[str, int | bool]) -> None:
    """Parse one `name=value` before the filter into `options`."""
    allow, read, write = VERBS[verb]
    if not allow:
        raise _LineError(f"{name}= restricts what is allowed; a deny cannot have it")
    if name == "qos":
        if value not in ("0", "1", "2"):
            raise _LineError("qos= must be 0, 1 or 2")
        options["qos_max"] = int(value)
        return
    if value not in SWITCH:
        raise _LineError(f"{name}= must be yes or no")
    if not (write if name in CONCERNS_WRITING else read):
        raise _LineError(f"{name}= does not apply to {verb}")
    options[name] = SWITCH[value]
