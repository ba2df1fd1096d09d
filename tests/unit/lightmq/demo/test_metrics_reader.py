"""Figures are summed over servers; a server that is gone leaves the last ones."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

from lightmq.demo.stack import BrokerFigures, totals

PAGE = """# TYPE rocketmq_messages_in_total counter
rocketmq_messages_in_total{topic="a"} 3
rocketmq_messages_in_total{topic="b"} 4
# TYPE rocketmq_confirm_lag_bytes gauge
rocketmq_confirm_lag_bytes 96
"""


def test_samples_are_summed_by_name() -> None:
    """Labels do not matter here."""
    assert totals(PAGE)["rocketmq_messages_in_total"] == 7


def test_reading_a_page_and_losing_it() -> None:
    """The last figures stay when the page is gone."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(PAGE.encode())

        def log_message(self, *_: object) -> None:
            """Stay quiet."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    figures = BrokerFigures([server.server_port])
    assert figures.read() == (7, 0, 96)
    server.shutdown()
    server.server_close()
    thread.join()
    assert figures.read() == (7, 0, 96)
