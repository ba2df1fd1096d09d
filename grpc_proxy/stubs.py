"""The messages and enumerations of RocketMQ's gRPC service, from the package `rocketmq-python-client`.

Only its generated modules are imported. The package itself is a client that opens a log file below the home directory
and loads its telemetry when it is imported; a server must do neither. Its generated modules import each other by
absolute names, so an empty package takes the place of the client's while they are loaded, and none afterwards: a later
`import rocketmq` of the same process gets the client, with these modules.
Invariant: no module of the client is executed here. Thread rule: imported before threads are started.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import sys
import types
from typing import Any

from remoting.protocol.errors import LocalMisuse

PACKAGE = "rocketmq"
GENERATED = f"{PACKAGE}.grpc_protocol"


class StubsMissing(LocalMisuse):
    """The optional packages that gRPC needs are not installed."""


def _folders() -> list[str] | None:
    """Where the package is; None when it is missing or another package of that name is installed."""
    spec = importlib.util.find_spec(PACKAGE)
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    finder = importlib.machinery.PathFinder
    return folders if folders and finder.find_spec(GENERATED, folders) is not None else None


def _load(*names: str) -> list[Any]:
    folders = _folders()
    if folders is None:
        raise StubsMissing("gRPC needs the package rocketmq-python-client: install the extra `grpc`")
    if PACKAGE in sys.modules:
        return [importlib.import_module(f"{GENERATED}.{name}") for name in names]
    package, generated = types.ModuleType(PACKAGE), types.ModuleType(GENERATED)
    spec = importlib.machinery.PathFinder.find_spec(GENERATED, folders)
    assert spec is not None, "_folders has found it"
    package.__path__, generated.__path__ = folders, list(spec.submodule_search_locations or ())
    sys.modules |= {PACKAGE: package, GENERATED: generated}
    try:
        return [importlib.import_module(f"{GENERATED}.{name}") for name in names]
    finally:
        del sys.modules[PACKAGE], sys.modules[GENERATED]


definition, service = _load("definition_pb2", "service_pb2")
