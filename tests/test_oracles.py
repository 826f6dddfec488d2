"""The stored reference tables: well formed, and right wherever a closed form or a quick recomputation can tell."""

import importlib
import json
import sys
from pathlib import Path

import mpmath as mp
import pytest

ORACLES = Path(__file__).parent / "oracles"
sys.path.append(str(ORACLES))
closed_forms = importlib.import_module("closed_forms")

FILES = {name: json.loads((ORACLES / f"{name}.json").read_text(), parse_float=str) for name in
         ("psg", "reference", "generated", "field_cases")}  # fmt: skip
TABLES = [(file, table) for file, data in FILES.items() for table in data["tables"]]
MECHANISM = ("noise_multiplier", "sampling_probability", "steps")
VARIABLES = {"epsilon_derivatives": (*MECHANISM, "log_delta"), "delta_derivatives": (*MECHANISM, "epsilon")}


@pytest.fixture(autouse=True)
def forty_digits():
    with mp.workdps(40):
        yield


def number(x):
    return mp.mpf(str(x))


def rows_of(*names):
    """(name, row) of the named tables."""
    return [(table, row) for file, table in TABLES for row in FILES[file][table] if f"{file}.{table}" in names]


def closed_delta(row, epsilon):
    """delta of a row that has a closed form: a plain Gaussian, or one step."""
    sigma, q, k = (number(row[name]) for name in MECHANISM)
    if q == 1:
        sensitivity = 2 if row["direction"] == "replace" else 1
        return closed_forms.gaussian_delta(sensitivity * mp.sqrt(k) / sigma, epsilon)
    assert k == 1
    return closed_forms.single_step_delta(row["direction"], sigma, q, epsilon)


def assert_epsilon(row, digits):
    """The profile crosses delta within `digits` digits of the stored epsilon."""
    epsilon, delta = number(row["epsilon"]), number(row["delta"])
    if epsilon == 0:
        assert closed_delta(row, mp.mpf(0)) <= delta
        return
    slack = mp.mpf(10) ** -digits
    assert closed_delta(row, epsilon * (1 + slack)) < delta < closed_delta(row, epsilon * (1 - slack))


@pytest.mark.parametrize("name", FILES)
def test_a_file_lists_its_tables_and_says_what_they_are(name):
    data = FILES[name]
    assert set(data) == {"about", "tables", *data["tables"]}
    assert data["about"] and all(table["about"] and table["answer"] for table in data["tables"].values())


def test_ids_are_unique():
    ids = [row["id"] for file, table in TABLES for row in FILES[file][table]]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize(("file", "table"), [x for x in TABLES if x[1] not in ("renyi", "zcdp_epsilon", "cases")])
def test_rows_have_one_schema(file, table):
    for row in FILES[file][table]:
        assert {*MECHANISM, "direction", "epsilon", "delta"} <= set(row), row["id"]
        assert row["direction"] in ("remove", "add", "replace", "both"), row["id"]
        fields = [row[name] if isinstance(row[name], list) else [row[name]] for name in MECHANISM]
        for sigma, q, k in zip(*fields, strict=True):
            assert number(sigma) > 0 and 0 < number(q) <= 1 and number(k) >= 1, row["id"]
        assert number(row["epsilon"]) >= 0 and 0 <= number(row["delta"]) < 1, row["id"]


@pytest.mark.parametrize(("file", "table"), [x for x in TABLES if x[0] == "generated"])
def test_generated_rows_measured_their_accuracy(file, table):
    for row in FILES[file][table]:
        if row["agreement"] not in ("exact", "closed form"):
            assert float(row["agreement"]) < (1e-12 if table == "derivatives" else 1e-17), row["id"]


def test_plain_gaussians():
    for _, row in rows_of("reference.gaussian_epsilon", "reference.gaussian_epsilon_at_1e-4"):
        assert_epsilon(row, 16)
    for _, row in rows_of("reference.gaussian_delta", "generated.gaussian_limit"):
        assert mp.almosteq(closed_delta(row, number(row["epsilon"])), number(row["delta"]), 1e-16), row["id"]


def test_single_steps():
    for _, row in rows_of("reference.single_step_epsilon"):
        assert_epsilon(row, 15)
    single = [r for _, r in rows_of("generated.replace_one_delta", "generated.edge", "psg.rows") if r["steps"] == 1]
    for row in [r for _, r in rows_of("reference.single_step_delta")] + single:
        assert mp.almosteq(closed_delta(row, number(row["epsilon"])), number(row["delta"]), 1e-15), row["id"]


def test_two_steps_by_averaging_over_the_first():
    pairs = [row for _, row in rows_of("generated.few_steps") if row["steps"] == 2]
    assert pairs
    with mp.workdps(25):
        for row in pairs:
            step = (number(row["noise_multiplier"]), number(row["sampling_probability"]))
            value = closed_forms.two_step_delta(row["direction"], step, step, number(row["epsilon"]))
            assert mp.almosteq(value, number(row["delta"]), 1e-14), row["id"]


def test_delta_vanishes_at_the_largest_loss_and_not_before():
    for _, row in rows_of("generated.edge"):
        largest = -row["steps"] * mp.log(1 - number(row["sampling_probability"]))
        assert (number(row["epsilon"]) >= largest) == (number(row["delta"]) == 0), row["id"]


def test_renyi_by_the_binomial_sum():
    checked = 0
    for _, row in rows_of("reference.renyi"):
        order, sigma, q = (number(row[name]) for name in ("order", "noise_multiplier", "sampling_probability"))
        if row["direction"] == "remove" and mp.isint(order):
            one = lambda j, n=int(order), q=q, s=sigma: (
                mp.binomial(n, j) * (1 - q) ** (n - j) * q**j * mp.exp(j * (j - 1) / (2 * s**2))
            )
            total = mp.fsum(one(j) for j in range(int(order) + 1))
            assert mp.almosteq(mp.log(total) / (order - 1), number(row["renyi"]), 1e-15), row["id"]
            checked += 1
    assert checked


def test_zcdp_conversion():
    for _, row in rows_of("reference.zcdp_epsilon"):
        rho = number(row["rho"])
        value = rho + 2 * mp.sqrt(rho * -mp.log(number(row["delta"])))
        assert mp.almosteq(value, number(row["epsilon"]), 1e-16), row["id"]


def test_derivatives_obey_the_implicit_function_theorem():
    for _, row in rows_of("generated.derivatives"):
        for field, names in VARIABLES.items():
            pairs = {f"{a},{b}" for i, a in enumerate(names) for b in names[i:]}
            assert set(row[field]) == {*names, *pairs}, row["id"]
        e, d = ({k: number(v) for k, v in row[field].items()} for field in VARIABLES)
        delta = number(row["delta"])
        assert mp.almosteq(e["log_delta"], delta / d["epsilon"], 1e-14), row["id"]
        for i, a in enumerate(MECHANISM):
            assert mp.almosteq(e[a], -d[a] / d["epsilon"], 1e-14), row["id"]
            for b in MECHANISM[i:]:  # d/db of  d_a + d_epsilon e_a = 0, epsilon moving with b
                cross = [d[f"{x},epsilon"] * e[y] for x, y in ((a, b), (b, a))]
                terms = [d[f"{a},{b}"], *cross, d["epsilon,epsilon"] * e[a] * e[b], d["epsilon"] * e[f"{a},{b}"]]
                assert abs(mp.fsum(terms)) < 1e-13 * max(abs(x) for x in terms), (row["id"], a, b)


def test_gaussian_field_cases():
    for row in FILES["field_cases"]["cases"]:
        if row["mechanism"] != "Gaussian":
            continue
        sigma = number(row["value"] if row["kind"] == "noise" else row["noise_multiplier"])
        epsilon = number(row["epsilon"] if row["kind"] == "noise" else row["value"])
        mu = mp.sqrt(row["steps"]) / sigma * (2 if row.get("adjacency") == "REPLACE_ONE" else 1)
        slack = mp.mpf(10) ** -len(row["value"].replace(".", "").lstrip("0"))  # one digit more than a rounding moves
        near = [closed_forms.gaussian_delta(mu * (1 - t), epsilon * (1 + t)) for t in (5 * slack, -5 * slack)]
        assert near[0] < number(row["delta"]) < near[1], row["id"]


@pytest.fixture(scope="module")
def program():
    """The contour program: a few rows are recomputed here, every one by its own `--check --all`."""
    pytest.importorskip("flint")
    return importlib.import_module("poisson_gaussian")


@pytest.mark.parametrize(
    ("file", "table", "id"),
    [
        ("psg", "rows", "dense007-add"),
        ("psg", "sparse_rows", "sparse000-remove"),
        ("reference", "composed_epsilon", "composed-eps130-remove"),
        ("generated", "replace_one_epsilon", "replace-eps0"),
        ("generated", "schedules", "schedule5-add"),
    ],
)
def test_row_recomputed(program, file, table, id):
    (row,) = [r for r in FILES[file][table] if r["id"] == id]
    stored, value = program.recompute(row, FILES[file]["tables"][table]["answer"])
    assert abs(float(value / stored - 1)) < 1e-15


def test_sampled_field_cases_recomputed(program):
    checked = 0
    for row in FILES["field_cases"]["cases"]:
        if row["mechanism"] != "dpsgd" or not 0 < mp.mpf(row.get("value", 0)) < mp.inf:
            continue
        direction = "replace" if row.get("adjacency") == "REPLACE_ONE" else "remove"
        value = program.recompute({**row, "direction": direction, row["kind"]: row["value"]}, row["kind"])[1]
        digits = len(row["value"].split("e")[0].replace(".", "").lstrip("0"))
        assert abs(float(value) / float(row["value"]) - 1) < 10.0 ** (1 - digits), row["id"]
        checked += 1
    assert checked == 6
