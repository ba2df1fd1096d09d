"""The names of `from lightmq import …`: complete, lazy, documented, and all that documents and examples use."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import lightmq
from tests.support.tree import ROOT

PAGE = ROOT / "docs" / "python-api.md"
IMPORT = re.compile(r"^\s*(?:from|import)\s+(remoting)\b", re.MULTILINE)


@pytest.mark.parametrize("name", lightmq.__all__)
def test_every_name_is_there_and_on_the_page(name: str) -> None:
    assert getattr(lightmq, name) is getattr(lightmq, name)
    assert name in dir(lightmq)
    assert f"`{name}`" in PAGE.read_text()


def test_every_name_has_one_home() -> None:
    assert sorted(name for names in lightmq._HOMES.values() for name in names) == sorted(lightmq.__all__)


def test_no_other_name_is_there() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Kafka'"):
        _ = lightmq.Kafka


def test_importing_it_imports_nothing_else() -> None:
    """The command line and Spark's workers import it at every start."""
    code = "import sys; before = set(sys.modules); import lightmq; print(sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() in ("['lightmq']", "['__future__', 'lightmq']")


def test_it_is_typed() -> None:
    """The marker that makes type checkers read the annotations of an installed package."""
    packages = ("lightmq", "pyspark_rocketmq", "remoting", "spark_connector")
    assert all((ROOT / package / "py.typed").is_file() for package in packages)


def callables(found: object) -> list[object]:
    """A function; the public methods of a class and what it is made with."""
    if not inspect.isclass(found):
        return [found] if callable(found) else []
    methods = [one for name, one in vars(found).items() if inspect.isfunction(one) and not name.startswith("_")]
    return [*methods, vars(found).get("__init__")] if inspect.isfunction(vars(found).get("__init__")) else methods


@pytest.mark.parametrize("name", lightmq.__all__)
def test_every_call_says_what_it_takes_and_gives(name: str) -> None:
    """A parameter without a type would be anything to its caller, and a result without one too."""
    for one in callables(getattr(lightmq, name)):
        signature = inspect.signature(one)  # type: ignore[arg-type]
        bare = [each.name for each in signature.parameters.values() if each.annotation is each.empty]
        assert set(bare) <= {"self"}, (one, bare)
        assert signature.return_annotation is not signature.empty, one


USER = """
import asyncio
from collections.abc import Sequence

import pyspark_rocketmq
import spark_connector
from lightmq import Admin, AsyncProducer, Consumer, Message, Producer, Refused, Sent, StoredMessage, connect
from lightmq.spark import session
from pyspark.sql import SparkSession

def sent(bodies: Sequence[bytes]) -> list[Sent]:
    with Producer("127.0.0.1:9876") as producer:
        return [producer.send(Message(topic="orders", body=body)).result() for body in bodies]

def read() -> list[StoredMessage]:
    with Admin("127.0.0.1:9876") as admin, Consumer("127.0.0.1:9876", group="g", topic="orders", queue=0) as consumer:
        admin.create_topic("orders", 2)
        return list(consumer.pull(consumer.min_offset(), wait_ms=1_000).messages)

def spark() -> SparkSession:
    spark_connector.register(session("readings"))
    return session("readings")
{wrong}
"""
WRONG = """
with Producer(9876) as wrong:
    number: int = wrong.send(Message(topic="orders", body="text")).result()
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_user_s_program_is_checked_strictly(tmp_path: Path) -> None:
    """One that is right passes `mypy --strict` outside this repository; wrong types in it are found."""
    found = []
    for number, wrong in enumerate(("", WRONG)):
        program = tmp_path / f"program{number}.py"
        program.write_text(USER.replace("{wrong}", wrong))
        command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), program.name]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        found.append(done.stdout)
    assert "Success" in found[0], found[0]
    assert [found[1].count(kind) for kind in ("[arg-type]", "[assignment]")] == [2, 1], found[1]


def test_documents_and_examples_import_from_here() -> None:
    """`remoting` is where the modules are today; users of a document must not depend on that."""
    texts = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "examples").rglob("*.*"))]
    found = [str(path.relative_to(ROOT)) for path in texts if IMPORT.search(_text(path))]
    assert found == []


def _text(path: Path) -> str:
    return path.read_text() if path.suffix in (".md", ".py") else ""
