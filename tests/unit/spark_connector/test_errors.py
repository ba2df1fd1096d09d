"""The errors belong to the project's families."""

from __future__ import annotations

import ast
import pickle
import re
from pathlib import Path

import pytest

from remoting.protocol.errors import LightMQError, LocalMisuse
from spark_connector import errors

PACKAGE = Path(errors.__file__).parent
KINDS = (
    errors.OptionError,
    errors.BrokerUnreachable,
    errors.BrokerMoved,
    errors.BrokerRefused,
    errors.DataLost,
    errors.BrokenRecord,
)
BROKEN = re.compile(r"[?!]\.|[^.]\.\.(?!\.)|[^.:?] (?:Set|Drop|Options are|Columns:) ")
"""Two ends of a sentence, or none before the next one begins."""


def test_families() -> None:
    assert issubclass(errors.OptionError, LocalMisuse)
    for kind in (errors.BrokerUnreachable, errors.BrokerRefused, errors.DataLost, errors.BrokenRecord):
        assert issubclass(kind, LightMQError)
        assert not issubclass(kind, LocalMisuse)


def texts() -> list[tuple[str, str]]:
    """(place, text with x for values) of every error of this package."""
    names = {kind.__name__ for kind in KINDS}
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names and node.args:
                text = node.args[0]
                parts = text.values if isinstance(text, ast.JoinedStr) else [text]
                said = "".join(str(part.value) if isinstance(part, ast.Constant) else "x" for part in parts)
                found.append((f"{path.name}:{node.lineno}", said))
    return found


def test_every_error_is_made_of_sentences() -> None:
    """They end with a full stop by construction; inside, a sentence ends before the next one begins."""
    found = texts()
    assert len(found) > 60
    filled = [(place, text.replace("xx ", "x. ")) for place, text in found]  # `nearest(...) or "."` ends a sentence
    assert not [(place, text) for place, text in filled if BROKEN.search(text)]


def test_what_the_check_finds() -> None:
    for wrong in ("is it another log?. Set x", "unknown option x Options are listed", "no use for x Drop it"):
        assert BROKEN.search(wrong)


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_ends_as_a_sentence(kind: type[Exception]) -> None:
    assert str(kind("no topic")) == "no topic."
    assert str(kind("did you mean 'a'?")) == "did you mean 'a'?"
    assert str(pickle.loads(pickle.dumps(kind("no topic")))) == "no topic."
    assert errors.phrase(kind("no topic")) == "no topic"
