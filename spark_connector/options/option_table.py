"""How an option is declared, and the options every reader and writer has: how to find and talk to the brokers.

Invariant: a declared option carries its parser, its default and its text, so that parsing and the generated page need
nothing else. Pure.

How the text of an option becomes a value; each function raises ValueError with a half sentence.

Invariant: a value that passes here needs no further check of its shape. Pure.

Which topics a query may name, and which it may write to.

Invariant: what passes here a broker can have. Pure.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import Field, dataclass, field, fields
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from remoting.filtering import expressions
from remoting.protocol.errors import LocalMisuse
from remoting.protocol.records import topics
from remoting.protocol.records.names import GROUP_CHARS_MAX, is_system_topic, valid_group, valid_rocketmq_topic
from remoting.transport.signature import Signer
from spark_connector.errors import OptionError
from spark_connector.options.schema import nearest

if TYPE_CHECKING:
    from remoting.client.tls import ClientTls


PARTITIONS_MAX = 100_000
"""Tasks that one batch may be cut into; Spark's driver keeps something of each."""
SINK_NAME_BYTES_MAX = 255
SYSTEM_GROUPS = "CID_RMQ_SYS_"
EARLIEST, LATEST = -2, -1
"""The two symbolic offsets, as numbers inside JSON offsets."""


class QueueName(NamedTuple):
    """A queue as users name it; broker None means whichever broker has it."""

    topic: str
    broker: str | None
    queue: int


EVERY_QUEUE = -1
"""Stands for all queues of a topic where only the topic was named."""


class TimePoint(NamedTuple):
    """A moment in ms since 1970 in every queue: `default` (None where none is given) except for the queues named."""

    default: int | None
    named: Mapping[QueueName, int]

    def of(self, topic: str, broker: str, queue: int) -> int | None:
        """The moment for one queue; the most precise name wins."""
        for name in (
            QueueName(topic, broker, queue),
            QueueName(topic, None, queue),
            QueueName(topic, None, EVERY_QUEUE),
        ):
            if name in self.named:
                return self.named[name]
        return self.default


class StartingPoint(NamedTuple):
    """A point in every queue: `default` (EARLIEST or LATEST) except for the queues named."""

    default: int
    named: Mapping[QueueName, int]


def count(text: str) -> int:
    """Parse a whole number >= 0."""
    try:
        number = int(text)
    except ValueError:
        raise ValueError("a whole number is needed") from None
    if number < 0:
        raise ValueError("a number that is not negative is needed")
    return number


def positive(text: str) -> int:
    """Parse a whole number >= 1."""
    number = count(text)
    if number == 0:
        raise ValueError("a number above 0 is needed")
    return number


def speed(text: str) -> float:
    """Parse a number above 1, which may have a fraction."""
    try:
        number = float(text)
    except ValueError:
        raise ValueError("a number is needed") from None
    if not 1 < number < math.inf:
        raise ValueError("a number above 1 is needed, or the replay would never catch up")
    return number


def quality(text: str) -> int:
    """Parse an MQTT quality of service."""
    if text not in {"0", "1", "2"}:
        raise ValueError("0, 1 or 2 is needed")
    return int(text)


def flag(text: str) -> bool:
    """Parse true or false."""
    folded = text.strip().lower()
    if folded not in {"true", "false"}:
        raise ValueError(f"true or false is needed{nearest(folded, ('true', 'false'))}")
    return folded == "true"


def duration_ms(text: str) -> int:
    """Parse a time span: `500ms`, `30s`, `15m`, `1h`, or a plain number of ms."""
    found = re.fullmatch(r"(\d+)\s*(ms|s|m|h|)", text.strip().lower())
    if found is None:
        raise ValueError("a time such as 500ms, 30s, 15m or 1h is needed")
    return int(found[1]) * {"ms": 1, "": 1, "s": 1_000, "m": 60_000, "h": 3_600_000}[found[2]]


def pattern(text: str) -> re.Pattern[str]:
    """Parse a regular expression."""
    if not text:
        raise ValueError("a regular expression is needed; '.*' matches every topic")
    try:
        return re.compile(text)
    except re.error as failure:
        raise ValueError(f"it is no regular expression: {failure}") from None


def one_of(*choices: str) -> Callable[[str], str]:
    """Return a parser that accepts the given words."""

    def parse(text: str) -> str:
        folded = text.strip().lower().replace("_", "-")
        if folded not in choices:
            raise ValueError(f"one of {', '.join(choices)} is needed{nearest(folded, choices)}")
        return folded

    return parse


def names(text: str) -> tuple[str, ...]:
    """Parse a comma list, or a JSON list of strings for names that contain commas; order kept, repeats dropped."""
    if text.lstrip().startswith("["):
        try:
            parts = json.loads(text)
        except json.JSONDecodeError as failure:
            raise ValueError(f"it begins like a JSON list but is none ({failure})") from None
        if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
            raise ValueError("a JSON list of strings is needed")
    else:
        parts = [part.strip() for part in text.split(",")]
    found = tuple(dict.fromkeys(part for part in parts if part))
    if not found:
        raise ValueError("at least one name is needed")
    return found


def group_name(text: str) -> str:
    """Parse the name of a consumer group, as RocketMQ's brokers check it."""
    if not valid_group(text):
        raise ValueError(f"1 to {GROUP_CHARS_MAX} letters, digits and the signs % | - _ are needed")
    if text.startswith(SYSTEM_GROUPS):
        raise ValueError(f"groups whose names begin with {SYSTEM_GROUPS} are the server's own")
    return text


def sink_name(text: str) -> str:
    """Parse the name under which a broker remembers a sink."""
    if not text or "\0" in text or len(text.encode()) > SINK_NAME_BYTES_MAX:
        raise ValueError(f"1 to {SINK_NAME_BYTES_MAX} bytes are needed, none of them zero")
    return text


def column_name(text: str) -> str:
    """Parse the name of a column that can be asked for without quotes around it."""
    if not text.strip() or any(sign in text for sign in ".`"):
        raise ValueError("the name of a column is needed, without dots and backquotes")
    return text


def one_line(text: str) -> str:
    """Parse a text without control characters."""
    if not text or not text.isprintable():
        raise ValueError("a text of one line, without control characters, is needed")
    return text


def partition_count(text: str) -> int:
    """Parse how many tasks a batch is cut into."""
    number = positive(text)
    if number > PARTITIONS_MAX:
        raise ValueError(f"at most {PARTITIONS_MAX} tasks are made of one batch")
    return number


def local_path(text: str) -> str:
    """Parse the path of a local file, also as a URL `file:`; those of other file systems are refused."""
    scheme, colon, rest = text.partition(":")
    if colon and scheme.lower() == "file":
        if not rest.startswith("/"):
            raise ValueError("a URL file: names a path from the root, as in file:///var/lib/columns")
        text = "/" + rest.lstrip("/")
    elif colon and rest.startswith("/") and len(scheme) > 1 and re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*", scheme):
        raise ValueError(
            f"it is read and written by Python, which does not know the file systems of Hadoop ({scheme}): give the "
            "path of a file on a disk, for example on a mounted volume, which outlives the driver"
        )
    if not text.strip():
        raise ValueError("the path of a file is needed")
    return text


def local_file(text: str) -> Path:
    """The path of a local file, as `local_path` returns it, for what reads files. Raises its errors."""
    return Path(local_path(text))


def schema_or_path(text: str) -> str:
    """Parse a schema, or the path of a local file with one; `file:string` is a column, `file:/x` a path."""
    is_schema = text.lstrip().startswith(("{", "[", '"')) or re.match(r"\s*file\s*:\s*[^/\s]", text, re.IGNORECASE)
    return text if is_schema else local_path(text)


UNITS = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
"""Unit of time → how many of it a second has."""
LETTERS = {
    "yyyy": r"(?P<year>\d{4})", "MM": r"(?P<month>\d\d)", "dd": r"(?P<day>\d\d)", "HH": r"(?P<hour>\d\d)",
    "mm": r"(?P<minute>\d\d)", "ss": r"(?P<second>\d\d)", "S": r"(?P<fraction>\d{1,9})",
    "X": r"(?P<zone>Z|[+-]\d\d(?::?\d\d)?)", "M": r"(?P<month>\d\d?)", "d": r"(?P<day>\d\d?)",
    "H": r"(?P<hour>\d\d?)", "m": r"(?P<minute>\d\d?)", "s": r"(?P<second>\d\d?)",
}  # fmt: skip
"""Letters of a form of time, as Spark has them → what they stand for; a run of S or X is one S or X."""
_RUN = re.compile(r"'([^']*)'|([A-Za-z])\2*|[^A-Za-z']")


@lru_cache(maxsize=64)
def moment_form(text: str) -> re.Pattern[str]:
    """Return what matches a form of time such as `yyyy-MM-dd HH:mm:ss.SSS`; raises ValueError for another letter."""
    made, at = "", 0
    while at < len(text):
        found = _RUN.match(text, at)
        if found is None:
            raise ValueError("a quote in it has no end")
        at = found.end()
        run = found[0]
        letters = run[0] if run[0] in "SX" else run
        if found[1] is not None:
            made += re.escape(found[1] or "'")
        elif found[2] is None:
            made += re.escape(run)
        elif letters not in LETTERS:
            raise ValueError(f"{run!r} is none of {', '.join(LETTERS)}; put text between quotes, as in yyyy'T'HH")
        else:
            made += LETTERS[letters]
    try:
        return re.compile(made, re.ASCII)
    except re.error:
        raise ValueError("a part of the time is in it twice") from None


def moment_text(text: str) -> str:
    """Parse a form of time."""
    if "(?P<year>" not in moment_form(text).pattern:
        raise ValueError("a form with a year is needed, such as yyyy-MM-dd HH:mm:ss")
    return text


def addresses(text: str) -> tuple[tuple[str, int], ...]:
    """Parse `host:port`, several separated by `;` or `,`; IPv6 hosts in brackets."""
    found = []
    for part in text.replace(",", ";").split(";"):
        if not part.strip():
            continue
        host, colon, port = part.strip().rpartition(":")
        if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise ValueError(f"{part.strip()!r} is not host:port")
        found.append((host.removeprefix("[").removesuffix("]"), int(port)))
    if not found:
        raise ValueError("an address host:port is needed")
    return tuple(found)


def starting_point(text: str) -> StartingPoint:
    """Parse `earliest`, `latest` or JSON offsets by topic, broker (optional) and queue."""
    folded = text.strip().lower()
    if folded in {"earliest", "latest"}:
        return StartingPoint(EARLIEST if folded == "earliest" else LATEST, {})
    try:
        nested = json.loads(text)
    except json.JSONDecodeError:
        near = nearest(folded, ("earliest", "latest"))
        raise ValueError(f"earliest, latest or JSON {{topic: {{broker: {{queue: offset}}}}}} is needed{near}") from None
    topics = {topic: _mapping(below, f"topic {topic!r}") for topic, below in _mapping(nested, "the JSON").items()}
    return StartingPoint(EARLIEST, {name: _offset(value) for name, value in _by_queue(topics)})


def time_point(text: str) -> TimePoint:
    """Parse ms since 1970, or JSON `{topic: ms}`, `{topic: {queue: ms}}` or `{topic: {broker: {queue: ms}}}`."""
    if text.strip().isdigit():
        return TimePoint(int(text), {})
    try:
        nested = json.loads(text)
    except json.JSONDecodeError:
        raise ValueError("ms since 1970 or JSON {topic: {queue: ms}} is needed") from None
    return TimePoint(None, {name: _moment(value) for name, value in _by_queue(_mapping(nested, "the JSON"))})


def assignment(text: str) -> frozenset[QueueName]:
    """Parse the JSON `{topic: [queue, ...]}` or `{topic: {broker: [queue, ...]}}`."""
    try:
        nested = json.loads(text)
    except json.JSONDecodeError as failure:
        raise ValueError(f"JSON {{topic: [queue, ...]}} is needed ({failure})") from None
    found: set[QueueName] = set()
    for topic, below in _mapping(nested, "the JSON").items():
        by_broker = below if isinstance(below, dict) else {None: below}
        for broker, queues in by_broker.items():
            if not isinstance(queues, list) or not queues:
                raise ValueError(f"topic {topic!r}: a list of queues is needed")
            found |= {QueueName(topic, broker, _queue(str(queue))) for queue in queues}
    if not found:
        raise ValueError("at least one queue is needed")
    return frozenset(found)


def tag_expression(text: str) -> tuple[str, ...]:
    """Parse RocketMQ's tag expression; empty for every message."""
    try:
        found = expressions.parse_tags(text) or ()
    except LocalMisuse as failure:
        raise ValueError(str(failure)) from None
    for tag in found:
        if "|" in tag:
            raise ValueError(f"{tag!r} is one tag with a bar in it, which no message has: tags are divided by ' || '")
    return found


def sql_expression(text: str) -> str:
    """Check an SQL92 expression and return it as it is; empty for every message."""
    if text.strip():
        try:
            expressions.parse_sql92(text)
        except LocalMisuse as failure:
            raise ValueError(str(failure)) from None
    return text.strip()


def _moment(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{value!r} is not a time in ms since 1970")
    return value


def _by_queue(nested: Mapping[str, object]) -> Iterator[tuple[QueueName, object]]:
    """The values of `{topic: value}`, `{topic: {queue: value}}` and `{topic: {broker: {queue: value}}}`."""
    for topic, below in nested.items():
        if not isinstance(below, dict):
            yield QueueName(topic, None, EVERY_QUEUE), below
            continue
        for key, value in below.items():
            if isinstance(value, dict):
                yield from ((QueueName(topic, key, _queue(queue)), one) for queue, one in value.items())
            else:
                yield QueueName(topic, None, _queue(key)), value


def _mapping(value: object, what: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise ValueError(f"{what} is not a JSON object")
    return value


def _queue(text: str) -> int:
    if not text.isdigit():
        raise ValueError(f"queue {text!r} is not a number")
    return int(text)


def _offset(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < EARLIEST:
        raise ValueError(f"offset {value!r} is not a whole number >= 0, -2 (earliest) or -1 (latest)")
    return value


def check_mqtt_topic(topic: str | bytes) -> str:
    """What keeps rows from being written to an MQTT topic; empty when nothing does."""
    if topic[:1] in ("$", b"$"):
        return "topics that begin with $ are the server's own, rows cannot be written to them"
    return topics.validate_topic_name(topic) or ""


def check_topic(topic: str, other_option: str, option: str = "topic") -> None:
    """Raise OptionError unless RocketMQ can have a topic of this name."""
    if topic.startswith("%LMQ%") or not valid_rocketmq_topic(topic):
        hint = f"; MQTT topics and filters go into the option {other_option!r}" if "/" in topic else ""
        raise OptionError(f"option {option!r}: {topic!r} is not a RocketMQ topic{hint}")


def check_written_topic(topic: str) -> str:
    """What keeps rows from being written to a RocketMQ topic; empty when nothing does."""
    if topic.startswith("%") or not valid_rocketmq_topic(topic):
        hint = "; an MQTT topic goes into the column or option 'mqttTopic'" if "/" in topic else ""
        return f"{topic!r} is not a RocketMQ topic{hint}"
    if is_system_topic(topic.encode()):
        return f"{topic!r} is a topic of RocketMQ's own, rows cannot be written to it"
    return ""


def option(
    parse: Callable[[str], Any], default: Any, text: str, *, aliases: tuple[str, ...] = (), secret: bool = False
) -> Any:
    """Declare one option: how its text is read, its default and what it is for; a secret one is never printed."""
    return field(default=default, repr=not secret, metadata={"parse": parse, "text": text, "aliases": aliases})


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionOptions:
    """How to find and talk to the brokers; for reading and writing."""

    name_server: tuple[tuple[str, int], ...] = option(
        addresses,
        (("127.0.0.1", 9876),),
        "Name server (controller) as `host:port`, several separated by `;`. The port `lightmq up` prints as remoting; "
        "a broker's own address works too.",
        aliases=("namesrvAddr",),
    )
    pull_timeout_ms: int = option(positive, 20_000, "Longest wait for one answer of a broker.")
    fetch_retries: int = option(
        count, 3, "How often a lost connection is made again before the task or the query fails."
    )
    fetch_retry_interval_ms: int = option(count, 200, "Pause before each of these attempts.")
    broker_wait_ms: int = option(
        duration_ms,
        120_000,
        "How long a running query waits for a broker that is gone (a restart, the election of a new master) before it "
        "fails; as a number of ms or `30s`, `5m`. A query that is only starting fails after `fetchRetries`, but "
        "waits for a broker group that the name server knows and that has no master.",
        aliases=("brokerWait",),
    )
    access_key: str | None = option(
        str,
        None,
        "Access key that requests are signed with; brokers on other machines ask for it. Together with `secretKey`.",
    )
    secret_key: str | None = option(str, None, "Secret of the access key; it signs and is never sent.", secret=True)
    tls: bool = option(
        flag,
        False,
        "Connect with TLS, to the name server and to every broker; their certificates and names are checked.",
    )
    tls_ca_file: Path | None = option(  # noqa: RUF009 - declares a field
        local_file,
        None,
        "Authorities that sign the brokers' certificates, PEM; by default those of the system. This file and the other "
        "two must be there, under the same path, on the driver and on every executor.",
    )
    tls_certificate_file: Path | None = option(  # noqa: RUF009 - declares a field
        local_file, None, "Certificate to show to brokers that ask for one (`broker.tls.client_ca`), PEM."
    )
    tls_key_file: Path | None = option(  # noqa: RUF009 - declares a field
        local_file, None, "Key of that certificate, PEM without a passphrase; by default it is in the same file."
    )
    tls_server_name: str = option(
        str, "", "Name that the certificates must have; by default the host that is connected to."
    )
    tls_insecure_skip_verify: bool = option(
        flag,
        False,
        "Take any certificate. Anyone on the network path can then read and change everything: for tests only.",
    )

    @property
    def client_tls(self) -> ClientTls | None:
        """How to connect with TLS; None without."""
        if not self.tls:
            return None
        from remoting.client.tls import ClientTls

        return ClientTls(
            self.tls_ca_file,
            self.tls_certificate_file,
            self.tls_key_file,
            self.tls_server_name,
            verify=not self.tls_insecure_skip_verify,
        )

    @property
    def signer(self) -> Signer | None:
        """What signs the requests; None when no key is given."""
        if self.access_key is None or self.secret_key is None:
            return None
        return Signer(self.access_key, self.secret_key)


def option_name(attribute: str) -> str:
    """`long_poll_ms` → `longPollMs`."""
    head, *rest = attribute.split("_")
    return head + "".join(part.capitalize() for part in rest)


def declared(table: type[ConnectionOptions]) -> list[tuple[str, Field[Any]]]:
    """(option name, field) of a table, in order of declaration."""
    return [(option_name(item.name), item) for item in fields(table)]


def spellings(table: type[ConnectionOptions]) -> dict[str, Field[Any]]:
    """Every accepted name of every option, in lower case → its field."""
    return {spelling.lower(): item for name, item in declared(table) for spelling in (name, *item.metadata["aliases"])}
