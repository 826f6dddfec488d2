"""The stored references of adaptive composition, recomputed."""

import importlib.util
import json
from pathlib import Path

import pytest

PATH = Path(__file__).parents[1] / "oracles" / "adaptive.py"
spec = importlib.util.spec_from_file_location("adaptive_oracle", PATH)
assert spec is not None and spec.loader is not None
oracle = importlib.util.module_from_spec(spec)
spec.loader.exec_module(oracle)
DATA = json.loads(oracle.PATH.read_text())


def check(table, rows):
    for row in rows:
        for key, value in oracle.recompute(table, row).items():
            assert oracle.disagreement(row[key], value) < 1e-16, (row["id"], key)


@pytest.mark.parametrize("table", oracle.ANSWERS)
def test_stored_rows_are_what_the_formulas_give(table):
    rows = DATA[table]
    check(table, rows[::6] if table == "rdp_poisson_gaussian" else rows)


@pytest.mark.slow
def test_every_stored_divergence():
    check("rdp_poisson_gaussian", DATA["rdp_poisson_gaussian"])


def test_every_table_has_an_answer():
    assert set(oracle.ANSWERS) == set(DATA["tables"]) == set(DATA) - {"about", "tables"}
