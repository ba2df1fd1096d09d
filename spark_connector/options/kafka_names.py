"""What Kafka's Spark source and sink call things, and what they are called here.

Invariant: a name of Kafka's that has another one here is answered with it, never with "unknown"; with the option
`schema` = kafka the names that mean the same are taken as they are. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

TAKEN = {
    "kafka.bootstrap.servers": "nameserver",
    "kafka.group.id": "consumergroup",
    "fetchoffset.numretries": "fetchretries",
    "fetchoffset.retryintervalms": "fetchretryintervalms",
    "kafkaconsumer.polltimeoutms": "pulltimeoutms",
}
"""Options that `schema` = kafka takes under Kafka's name."""
OPTIONS = {
    "kafka.bootstrap.servers": "the address (host:port of a name server or broker) is the option 'nameServer' here",
    "kafka.group.id": "the group whose progress brokers show is the option 'consumerGroup' here",
    "groupidprefix": "queries need no group here; 'consumerGroup' names one whose progress the broker shows",
    "fetchoffset.numretries": "it is the option 'fetchRetries' here",
    "fetchoffset.retryintervalms": "it is the option 'fetchRetryIntervalMs' here",
    "kafkaconsumer.polltimeoutms": "it is the option 'pullTimeoutMs' here",
    "kafka.security.protocol": "TLS is the option 'tls' here, keys are 'accessKey' and 'secretKey'",
    "kafka.acks": "what was acknowledged is durable here, the option 'delivery' chooses how often rows may appear",
}
"""Kafka's options, in lower case → what to use instead."""
PREFIXES = {
    "kafka.ssl.": "TLS is the options 'tls', 'tlsCaFile', 'tlsCertificateFile' and 'tlsKeyFile' here",
    "kafka.sasl.": "keys are the options 'accessKey' and 'secretKey' here",
    "kafkaconsumer.": "connections are pooled without settings here: leave it out",
    "kafka.": "there are no options of Kafka's clients here: leave it out",
}
READ_COLUMNS = {
    "value": "the payload is the column 'body' here",
    "partition": "it is the column 'queueId' here",
    "offset": "it is the column 'queueOffset' here",
    "timestamp": "it is the column 'storeTimestamp' (when the broker wrote it) or 'bornTimestamp' (the publisher) here",
    "timestamptype": "there are two columns instead, 'storeTimestamp' and 'bornTimestamp'",
}
WRITE_COLUMNS = dict.fromkeys(
    ("offset", "timestamp", "timestamptype"), "Kafka's source has it and no sink needs it: drop it"
)
ALL_COLUMNS = "; the option 'schema' = kafka gives all of Kafka's columns"


def option_hint(name: str) -> str:
    """What to use instead of an option of Kafka's; empty for a name that is none."""
    lower = name.lower()
    if lower in OPTIONS:
        return OPTIONS[lower]
    return next((hint for prefix, hint in PREFIXES.items() if lower.startswith(prefix)), "")


def column_hint(name: str) -> str:
    """The same for a column that is asked for."""
    hint = READ_COLUMNS.get(name.lower(), "")
    return hint and hint + ALL_COLUMNS


def translated(options: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """(name as given, name here, value) of every option; the names differ with `schema` = kafka alone."""
    is_kafka = any(name.lower() == "schema" and value.strip().lower() == "kafka" for name, value in options.items())
    for name, value in options.items():
        yield name, TAKEN.get(name.lower(), name) if is_kafka else name, value
