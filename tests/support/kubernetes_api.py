"""An API server of Kubernetes that has secrets, in a table, and the account of a pod that may use it."""

from __future__ import annotations

import base64
import json
import ssl
import threading
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from cryptography import x509

from lightmq import certificates
from lightmq.kubernetes_secrets import main


class Cluster:
    """Secrets by name; a write must name the version that it read."""

    def __init__(self, folder: Path) -> None:
        self.secrets: dict[str, dict[str, Any]] = {}
        self.writes: list[str] = []
        self.folder = folder
        certificates.make(folder, ["127.0.0.1"], days=9, now=datetime.now(UTC))
        (folder / "token").write_text("token-of-the-account\n")
        cluster = self

        class Api(BaseHTTPRequestHandler):
            def answer(self) -> None:
                size = int(self.headers.get("Content-Length") or 0)
                status, body = cluster.serve(self.command, self.path, self.headers, self.rfile.read(size))
                content = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = do_PUT = answer  # noqa: N815 - the library's names

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Api)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def serve(self, method: str, path: str, headers: Any, content: bytes) -> tuple[int, dict[str, Any]]:
        head, _, name = path.partition("/secrets")
        assert (head, headers["Authorization"]) == ("/api/v1/namespaces/iot", "Bearer token-of-the-account")
        known = self.secrets.get(name[1:])
        if method == "GET":
            return (404, {"message": "not found"}) if known is None else (200, known)
        given = json.loads(content)
        name = given["metadata"]["name"]
        known = self.secrets.get(name)
        version = None if known is None else known["metadata"]["resourceVersion"]
        if (method == "POST") != (known is None) or given["metadata"].get("resourceVersion") != version:
            return 409, {"message": f"{name} is another one"}
        given["metadata"]["resourceVersion"] = str(int(version or 0) + 1)
        self.secrets[name] = given
        self.writes.append(name)
        return 201 if method == "POST" else 200, given

    def data(self, name: str) -> dict[str, str]:
        return {item: base64.b64decode(value).decode() for item, value in self.secrets[name]["data"].items()}

    def put(self, name: str, **data: str) -> None:
        encoded = {item: base64.b64encode(value.encode()).decode() for item, value in data.items()}
        self.secrets[name] = {"metadata": {"name": name, "resourceVersion": "1"}, "type": "Opaque", "data": encoded}

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def run(self, plan: dict[str, Any]) -> int:
        path = self.folder / "plan.json"
        path.write_text(json.dumps(plan))
        host, port = self.server.server_address[:2]
        environ = {"KUBERNETES_SERVICE_HOST": str(host), "KUBERNETES_SERVICE_PORT": str(port)}
        return main([str(path)], environ, self.folder)


def names_of(pem: str) -> set[str]:
    certificate = x509.load_pem_x509_certificate(pem.encode())
    found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return {*found.get_values_for_type(x509.DNSName), *map(str, found.get_values_for_type(x509.IPAddress))}
