"""How an option is declared, and the options every reader and writer has: how to find and talk to the brokers.

Invariant: a declared option carries its parser, its default and its text, so that parsing and the generated page need
nothing else. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remoting.transport.signature import Signer
from spark_connector.options import parsers

if TYPE_CHECKING:
    from remoting.client.tls import ClientTls


def option(
    parse: Callable[[str], Any], default: Any, text: str, *, aliases: tuple[str, ...] = (), secret: bool = False
) -> Any:
    """Declare one option: how its text is read, its default and what it is for; a secret one is never printed."""
    return field(default=default, repr=not secret, metadata={"parse": parse, "text": text, "aliases": aliases})


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionOptions:
    """How to find and talk to the brokers; for reading and writing."""

    name_server: tuple[tuple[str, int], ...] = option(
        parsers.addresses,
        (("127.0.0.1", 9876),),
        "Name server (controller) as `host:port`, several separated by `;`. The port `lightmq up` prints as remoting; "
        "a broker's own address works too.",
        aliases=("namesrvAddr",),
    )
    pull_timeout_ms: int = option(parsers.positive, 20_000, "Longest wait for one answer of a broker.")
    fetch_retries: int = option(
        parsers.count, 3, "How often a lost connection is made again before the task or the query fails."
    )
    fetch_retry_interval_ms: int = option(parsers.count, 200, "Pause before each of these attempts.")
    broker_wait_ms: int = option(
        parsers.duration_ms,
        120_000,
        "How long a running query waits for a broker that is gone (a restart, the election of a new master) before it "
        "fails; as a number of ms or `30s`, `5m`. A query that is only starting fails after `fetchRetries`.",
        aliases=("brokerWait",),
    )
    access_key: str | None = option(
        str,
        None,
        "Access key that requests are signed with; brokers on other machines ask for it. Together with `secretKey`.",
    )
    secret_key: str | None = option(str, None, "Secret of the access key; it signs and is never sent.", secret=True)
    tls: bool = option(
        parsers.flag,
        False,
        "Connect with TLS, to the name server and to every broker; their certificates and names are checked.",
    )
    tls_ca_file: Path | None = option(  # noqa: RUF009 - declares a field
        Path,
        None,
        "Authorities that sign the brokers' certificates, PEM; by default those of the system. This file and the other "
        "two must be there, under the same path, on the driver and on every executor.",
    )
    tls_certificate_file: Path | None = option(  # noqa: RUF009 - declares a field
        Path, None, "Certificate to show to brokers that ask for one (`broker.tls.client_ca`), PEM."
    )
    tls_key_file: Path | None = option(  # noqa: RUF009 - declares a field
        Path, None, "Key of that certificate, PEM without a passphrase; by default it is in the same file."
    )
    tls_server_name: str = option(
        str, "", "Name that the certificates must have; by default the host that is connected to."
    )
    tls_insecure_skip_verify: bool = option(
        parsers.flag,
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
