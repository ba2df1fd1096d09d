"""The compiled twin is put in place of the pure one where it was built."""

from tests.unit.broker.store.conftest import twin

__all__ = ["twin"]
