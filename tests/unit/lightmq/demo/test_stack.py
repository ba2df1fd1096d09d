"""The stack starts as one process or as three, prints its ports, and has ended after `stop`."""

from __future__ import annotations

import os
import sys
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from lightmq.demo import stack
from lightmq.demo.stack import (
    NICENESS,
    VARIABLE,
    BrokerFigures,
    Compilation,
    Installation,
    InstallationFailed,
    Ports,
    Stack,
    StackFailed,
    totals,
)
from lightmq.spark_session import JavaNotFound

pytestmark = pytest.mark.processes


@pytest.mark.parametrize(("processes", "children"), [(False, 1), (True, 3)])
def test_start_and_stop(tmp_path: Path, processes: bool, children: int) -> None:
    """Every port is real and every child ends."""
    stack = Stack(tmp_path / "data")
    ports = stack.start(processes=processes)
    assert len(stack.pids) == children
    assert ports.mqtt > 0
    assert ports.nameserver > 0
    assert all(ports.admin)
    if not processes:
        key = {"Authorization": f"Bearer {ports.console_token}"}
        page = urllib.request.Request(f"http://127.0.0.1:{ports.admin[0]}/api/v1/overview", headers=key)
        with urllib.request.urlopen(page, timeout=10) as answer:
            assert answer.status == 200
    stack.stop()
    for pid in stack.pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_the_link_to_the_console_signs_in_and_keeps_the_filter() -> None:
    """A server started again gives no token, and then the link leads to the page that asks for one."""
    ports = Ports(1, 2, (8080,), console_token="lmq_a")
    assert ports.console_link("a/+/#") == (
        "http://127.0.0.1:8080/console/#token=lmq_a&to=%2Flive%3Ffilter%3Da%252F%252B%252F%2523"
    )
    assert Ports(1, 2, (8080,)).console_link("a/#") == "http://127.0.0.1:8080/console/#/live?filter=a%2F%23"


def test_killed_and_started_again_on_the_same_ports(tmp_path: Path) -> None:
    """Clients of the killed one find the next one where it was."""
    stack = Stack(tmp_path / "data")
    ports = stack.start(processes=False)
    stack.kill()
    with pytest.raises(ProcessLookupError):
        os.kill(stack.pids[0], 0)
    assert stack.start(processes=False, ports=ports) == ports
    stack.stop()


def test_a_failed_start_has_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The child's own text is in the message."""
    stack = Stack(tmp_path / "data")
    stack._folder.mkdir()
    monkeypatch.setenv("LIGHTMQ_NO_SUCH__KEY", "1")
    with pytest.raises(StackFailed, match=r"(?s)did not become ready.*NO_SUCH__KEY"):
        stack.start(processes=False)
    stack.stop()


def test_nothing_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With all modules importable it is over at once."""
    monkeypatch.setattr(stack, "NEEDED", ("json", "http.client"))
    subject = Installation(tmp_path / "installation.log")
    subject.begin()
    assert subject.done.is_set()
    subject.wait()


def test_a_java_runtime_is_installed_where_none_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if all of Spark's modules are installed."""
    monkeypatch.setattr(stack, "NEEDED", ("json",))

    def none_here() -> None:
        raise JavaNotFound("none")

    monkeypatch.setattr(stack.spark_session, "choose_java", none_here)
    assert stack.requirements() == [stack.JAVA_REQUIREMENT]


def test_missing_modules_are_found_without_importing() -> None:
    """A module whose parent is missing is missing too."""
    assert not stack.importable("no_such_package.inside")
    assert stack.importable("json.decoder")


def test_uv_is_used_where_it_is_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The one of this environment before that of the machine; pip without either."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(stack.shutil, "which", lambda _: None)
    assert stack.installer()[1:4] == ["-m", "pip", "install"]
    monkeypatch.setattr(stack.shutil, "which", lambda _: "/elsewhere/uv")
    assert stack.installer()[:3] == ["/elsewhere/uv", "pip", "install"]
    (tmp_path / "uv").touch()
    assert stack.installer() == [str(tmp_path / "uv"), "pip", "install", "--python", str(tmp_path / "python")]


def test_a_failed_installation_has_its_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The message has what the installer printed."""
    installer = tmp_path / "python"
    installer.write_text("#!/bin/sh\necho 'no matching distribution'\nexit 1\n")
    installer.chmod(0o755)
    monkeypatch.setattr(stack, "NEEDED", ("no_such_package",))
    monkeypatch.setattr(stack.shutil, "which", lambda *_, **__: None)
    monkeypatch.setattr(sys, "executable", str(installer))
    subject = Installation(tmp_path / "installation.log")
    subject.begin()
    with pytest.raises(InstallationFailed, match="no matching distribution"):
        subject.wait()


def compilation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> Compilation:
    """A compilation with this script."""
    path = tmp_path / "script.py"
    path.write_text(script)
    monkeypatch.setenv(VARIABLE, str(path))
    subject = Compilation(tmp_path / "compilation.log")
    subject.begin()
    return subject


def finished(subject: Compilation) -> list[str]:
    """Its output once it has ended."""
    notes: list[str] = []
    deadline = time.monotonic() + 60
    while not notes:
        subject.tell(notes.append)
        assert time.monotonic() < deadline
        time.sleep(0.02)
    subject.tell(notes.append)
    return notes


def test_without_a_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing runs, nothing is printed."""
    monkeypatch.delenv(VARIABLE, raising=False)
    subject = Compilation(tmp_path / "log")
    subject.begin()
    subject.tell(lambda text: pytest.fail(text))
    subject.stop()
    assert not subject.running
    assert not (tmp_path / "log").exists()


def test_it_runs_at_the_lowest_priority_and_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Children of the demo do not start it again."""
    subject = compilation(tmp_path, monkeypatch, "import os, sys; print(os.nice(0), sys.argv[1:])")
    assert VARIABLE not in os.environ
    assert finished(subject) == ["the compiled core is ready; the next start uses it"]
    assert (tmp_path / "compilation.log").read_text() == f"{max(NICENESS, os.nice(0))} ['compiled']\n"


def test_a_failure_names_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo continues in pure Python."""
    (note,) = finished(compilation(tmp_path, monkeypatch, "raise SystemExit(1)"))
    assert "compilation.log" in note


def test_stopping_it_ends_its_children_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler left running would write into the tree unexpectedly."""
    child = "['sh', '-c', 'trap \"\" INT; sleep 300']"
    script = f"import subprocess, time\nprint(subprocess.Popen({child}).pid, flush=True)\ntime.sleep(300)\n"
    subject = compilation(tmp_path, monkeypatch, script)
    log, deadline = tmp_path / "compilation.log", time.monotonic() + 60
    while not log.read_text().strip():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    grandchild = int(log.read_text())
    subject.stop()
    assert not subject.running
    deadline = time.monotonic() + 20
    while Path(f"/proc/{grandchild}").exists() and "State:\tZ" not in Path(f"/proc/{grandchild}/status").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.02)


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
    """The last figures stay when the page is unavailable."""

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
    figures = BrokerFigures([server.server_port], interval_s=0)
    assert figures.read() == (7, 0, 96)
    server.shutdown()
    server.server_close()
    thread.join()
    assert figures.read() == (7, 0, 96)
