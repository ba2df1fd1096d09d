"""Claims: what has to be true after a run, with the figures that show it.

Invariant: a claim says which figures it compares; `--check` ends with status 1 if any does not hold.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lightmq.demo.accounting import committed_files

if TYPE_CHECKING:
    from kit.stage import Stage

    import pandas as pd


@dataclass(frozen=True, slots=True)
class Claim:
    """One sentence, the figures behind it, and whether it is true."""

    title: str
    figures: str
    holds: bool


class NothingWritten(RuntimeError):
    """A query has no rows to show; the text says what to do."""


def equal(title: str, **figures: float) -> Claim:
    """Claim that all figures are the same; `read_by_spark=7` is shown as `read by spark 7`."""
    shown = " = ".join(f"{name.replace('_', ' ')} {value:,}" for name, value in figures.items())
    same = len(set(figures.values())) == 1
    return Claim(title, shown if same else shown.replace(" = ", " / "), same)


def holds(title: str, is_true: object, figures: str) -> Claim:
    """Claim anything else."""
    return Claim(title, figures, bool(is_true))


def read_rows(stage: Stage, name: str) -> pd.DataFrame:
    """Rows that the query `name` committed to Parquet, times in UTC; what a failed attempt left is not among them.

    Raises NothingWritten.
    """
    import pyarrow as pa
    import pyarrow.parquet as parquet

    folder = stage.folder(name)
    committed = committed_files(folder) or sorted(folder.glob("*.parquet"))
    if not committed:
        raise NothingWritten(f"the query {name} has written nothing; tell a longer story with --seconds")
    rows = pa.concat_tables([parquet.read_table(path) for path in committed]).to_pandas()
    for column in rows.select_dtypes("datetime"):  # Spark writes UTC and does not say so
        rows[column] = rows[column].dt.tz_localize("UTC")
    return rows
