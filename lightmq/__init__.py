"""LightMQ for programs: producers, consumers, administration and their errors, for threads and for asyncio.

    from lightmq import Message, Producer

    with Producer("127.0.0.1:9876") as producer:
        print(producer.send(Message(topic="orders", body=b"one")).result())

These names are the stable interface; the packages they come from may be divided differently in any version.
Invariant: importing this package imports nothing else; a name is imported at its first use.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as typing's, without its import
if TYPE_CHECKING:
    from lightmq.version import VERSION as __version__  # noqa: N811 - the name that Python's packages have
    from remoting.batches.unpack import ArrowMissing
    from remoting.client.admin import AsyncAdmin
    from remoting.client.batching import AsyncProducer, Message, ProducerSettings, Sent
    from remoting.client.connection import read_signer
    from remoting.client.consumer import AsyncConsumer, PullResult
    from remoting.client.threads import Admin, Consumer, Producer
    from remoting.client.tls import ClientTls
    from remoting.client.uplink import connect
    from remoting.protocol.errors import CorruptRecord, LightMQError, LocalMisuse, Refused, RemoteViolation
    from remoting.protocol.records.stored_message import StoredMessage
    from remoting.transport.failures import ConnectionLost, NotMaster, RequestTimeout, TlsFailed, Unreachable
    from remoting.transport.signature import Signer

__all__ = [
    "Admin",
    "ArrowMissing",
    "AsyncAdmin",
    "AsyncConsumer",
    "AsyncProducer",
    "ClientTls",
    "ConnectionLost",
    "Consumer",
    "CorruptRecord",
    "LightMQError",
    "LocalMisuse",
    "Message",
    "NotMaster",
    "Producer",
    "ProducerSettings",
    "PullResult",
    "Refused",
    "RemoteViolation",
    "RequestTimeout",
    "Sent",
    "Signer",
    "StoredMessage",
    "TlsFailed",
    "Unreachable",
    "__version__",
    "connect",
    "read_signer",
]

_HOMES = {
    "lightmq.version": ("__version__",),
    "remoting.batches.unpack": ("ArrowMissing",),
    "remoting.client.admin": ("AsyncAdmin",),
    "remoting.client.batching": ("AsyncProducer", "Message", "ProducerSettings", "Sent"),
    "remoting.client.connection": ("read_signer",),
    "remoting.client.consumer": ("AsyncConsumer", "PullResult"),
    "remoting.client.threads": ("Admin", "Consumer", "Producer"),
    "remoting.client.uplink": ("connect",),
    "remoting.client.tls": ("ClientTls",),
    "remoting.protocol.errors": ("CorruptRecord", "LightMQError", "LocalMisuse", "Refused", "RemoteViolation"),
    "remoting.protocol.records.stored_message": ("StoredMessage",),
    "remoting.transport.failures": ("ConnectionLost", "NotMaster", "RequestTimeout", "TlsFailed", "Unreachable"),
    "remoting.transport.signature": ("Signer",),
}
"""The module of each name."""


if not TYPE_CHECKING:  # a type checker would accept every name

    def __getattr__(name: str) -> object:
        """Import the requested name, once."""
        for module, names in _HOMES.items():
            if name in names:
                from importlib import import_module

                found: object = getattr(import_module(module), "VERSION" if name == "__version__" else name)
                globals()[name] = found
                return found
        message = f"module 'lightmq' has no attribute {name!r}"
        raise AttributeError(message)


def __dir__() -> list[str]:
    """The available names, imported already or not."""
    return sorted({*globals(), *__all__})
