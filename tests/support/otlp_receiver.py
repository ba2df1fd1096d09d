"""A receiver of OTLP over HTTP: a real server that keeps the spans it is sent, in OpenTelemetry's published messages.

`status` is what it answers with; 200 takes the spans. Thread rule: `spans` may be read from any thread.
"""

from __future__ import annotations

import gzip
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

DEADLINE_S = 20.0


class OtlpReceiver:
    """Listens on a free port of this machine."""

    def __init__(self) -> None:
        self.status = 200
        self.requests = 0
        self.changed = threading.Condition()
        self._spans: list[tuple[str, Span]] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                status = receiver.take(self.path, body)
                self.send_response(status)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *_args: object) -> None:  # noqa: A002 - the base's own name
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def endpoint(self) -> str:
        """Its base address."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def take(self, path: str, body: bytes) -> int:
        """Keep the spans of one request; the status of its answer."""
        with self.changed:
            self.requests += 1
            self.changed.notify_all()
            if path != "/v1/traces":
                return 404
            if self.status == 200:
                request = ExportTraceServiceRequest.FromString(body)
                for resource in request.resource_spans:
                    (service,) = (
                        one.value.string_value for one in resource.resource.attributes if one.key == "service.name"
                    )
                    self._spans += [(service, span) for scope in resource.scope_spans for span in scope.spans]
                self.changed.notify_all()
            return self.status

    def spans(self) -> list[tuple[str, Span]]:
        """(service, span) of everything taken so far."""
        with self.changed:
            return list(self._spans)

    def until(self, reached: Callable[[list[tuple[str, Span]]], bool]) -> list[tuple[str, Span]]:
        """Wait until the spans are as wanted; returns them."""
        with self.changed:
            assert self.changed.wait_for(lambda: reached(self._spans), DEADLINE_S), sorted(
                (service, span.name) for service, span in self._spans
            )
            return list(self._spans)
