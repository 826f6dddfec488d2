"""Ledgers: every mechanism comes back bit for bit; what is wrong in a file is named with its place."""

import dataclasses
import json
import math
import os
import sys
import tomllib

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import dpjax
from dpjax import Adjacency, ledger


def numbers(low=0.0, high=math.inf, infinite=None, **options):
    """A number, or an array of up to two axes."""
    if infinite is None:
        infinite = high == math.inf
    one = st.floats(low, high, allow_infinity=infinite, **options)
    shape = arrays.array_shapes(max_dims=2, max_side=3)
    return one | arrays.arrays(np.float64, shape, elements=one)


def whole(low, high=10**6):
    return st.integers(low, high).map(float)


@st.composite
def masses(draw):
    weights = draw(st.lists(st.integers(1, 100), min_size=1, max_size=4))
    return np.array(weights) / sum(weights)


def distributions(make, *others):
    """Records of two event arrays of one length."""
    return st.integers(1, 4).flatmap(lambda n: st.builds(make, *(other(n) for other in others)))


def events(low, high, **options):
    return lambda n: arrays.arrays(np.float64, (n,), elements=st.floats(low, high, **options))


def weights(n):
    return arrays.arrays(np.float64, (n,), elements=st.integers(1, 100)).map(lambda w: w / w.sum())


POSITIVE = numbers(exclude_max=False)
FINITE = numbers(infinite=False)
UNIT = numbers(0.0, 1.0)
SIMPLE = {
    "ApproximateDP": st.builds(dpjax.ApproximateDP, FINITE, st.floats(0, 1)),
    "BoundedRange": st.builds(dpjax.BoundedRange, FINITE)
    | st.floats(0, 5).flatmap(lambda e: st.builds(dpjax.BoundedRange, st.just(e), st.floats(0, e))),
    "DiscreteGaussian": st.builds(dpjax.DiscreteGaussian, POSITIVE, st.integers(1, 9)),
    "DiscreteLaplace": st.builds(dpjax.DiscreteLaplace, FINITE, st.integers(1, 9)),
    "DiscreteLoss": distributions(dpjax.DiscreteLoss, weights, weights),
    "Gaussian": st.builds(dpjax.Gaussian, POSITIVE),
    "Laplace": st.builds(dpjax.Laplace, POSITIVE),
    "MatrixFactorization": st.builds(
        dpjax.MatrixFactorization, POSITIVE, st.floats(0, 1e300, exclude_min=True)
    ),
    "MassAtInfinity": st.builds(dpjax.MassAtInfinity, UNIT),
    "MixtureOfGaussians": distributions(
        lambda c, p: dpjax.MixtureOfGaussians(1.5, c, p), events(0, 1e300), weights
    ),
    "PermuteAndFlip": st.builds(dpjax.PermuteAndFlip, FINITE),
    "PrivacyProfile": distributions(dpjax.PrivacyProfile, events(-1e300, 1e300), events(0, 1)),
    "PureDP": st.builds(dpjax.PureDP, FINITE),
    "RandomizedResponse": st.builds(dpjax.RandomizedResponse, FINITE, st.integers(2, 9)),
    "RenyiDP": distributions(dpjax.RenyiDP, events(0.5, 1e300), events(0, math.inf)),
    "ReportNoisyMax": st.builds(lambda b: dpjax.ReportNoisyMax(dpjax.Laplace(b)), POSITIVE),
    "TreeAggregation": st.builds(
        dpjax.TreeAggregation, st.floats(0, math.inf), st.integers(0, 10**6) | st.lists(whole(0), min_size=1, max_size=3)
    ),
    "ZCDP": st.builds(dpjax.ZCDP, FINITE, st.floats(0, 1)),
}  # fmt: skip
UNSAMPLED = st.one_of(*SIMPLE.values())
MECHANISMS = {
    **SIMPLE,
    "Composed": st.lists(UNSAMPLED, max_size=3).map(dpjax.Composed),
    "ComposedOver": st.builds(dpjax.ComposedOver, UNSAMPLED, st.integers(-3, 3)),
    "FixedSizeSampled": st.integers(1, 100).flatmap(
        lambda n: st.builds(dpjax.FixedSizeSampled, st.just(n), whole(0, n), UNSAMPLED)
    ),
    "PoissonSampled": st.builds(dpjax.PoissonSampled, UNIT, UNSAMPLED),
    "RandomAllocation": st.integers(1, 100).flatmap(
        lambda n: st.builds(dpjax.RandomAllocation, st.just(n), UNSAMPLED, whole(1, n))
    ),
    "SelfComposed": st.builds(dpjax.SelfComposed, UNSAMPLED, FINITE),
    "TruncatedPoissonSampled": st.builds(dpjax.TruncatedPoissonSampled, whole(1), UNIT, whole(1), UNSAMPLED),
}


def assert_same(a, b):
    """Bit for bit, and of the same structure."""
    (x, one), (y, other) = jax.tree.flatten(a), jax.tree.flatten(b)
    assert one == other
    for u, v in zip(x, y, strict=True):
        u, v = np.asarray(u, np.float64), np.asarray(v, np.float64)
        assert u.shape == v.shape and u.tobytes() == v.tobytes()


def test_every_record_is_in_the_table():
    assert set(MECHANISMS) == {cls.__name__ for cls in ledger._RECORDS.values()}


@pytest.mark.parametrize("name", sorted(MECHANISMS))
def test_round_trip(name):
    @given(MECHANISMS[name], st.sampled_from(Adjacency))
    def check(mechanism, adjacency):
        text = json.dumps(ledger.to_dict(mechanism, adjacency), allow_nan=False)
        found = ledger.from_dict(json.loads(text))
        assert_same(found.mechanism, mechanism)
        assert found.adjacency is adjacency and found.note == ""

    check()


class TestFiles:
    RUN = dpjax.dpsgd([1.0, math.inf, 0.1], 0.1 + 0.2, 1000) + dpjax.BoundedRange(5e-324) * 3

    def test_write_and_read(self, tmp_path):
        path = tmp_path / "run.json"
        ledger.write(path, self.RUN, adjacency=Adjacency.REPLACE_ONE, note="ε of the run")
        mechanism, adjacency, note = ledger.read(path)
        assert_same(mechanism, self.RUN)
        assert adjacency is Adjacency.REPLACE_ONE and note == "ε of the run"

    def test_is_strict_json(self, tmp_path):
        ledger.write(tmp_path / "run.json", self.RUN)
        fail = lambda name: pytest.fail(name)
        json.loads((tmp_path / "run.json").read_text(), parse_constant=fail)

    def test_failing_write_leaves_the_old_file(self, tmp_path, monkeypatch):
        path = tmp_path / "run.json"
        ledger.write(path, self.RUN)
        before = path.read_bytes()

        def full(_):
            raise OSError("no space left")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="no space"):
            ledger.write(path, dpjax.Gaussian(1.0))
        assert path.read_bytes() == before
        assert [p.name for p in tmp_path.iterdir()] == ["run.json"]

    def test_toml_by_hand(self, tmp_path):
        path = tmp_path / "run.toml"
        path.write_text("""
            version = 1
            adjacency = "replace_special"
            [[mechanisms]]
            type = "PoissonSampled"
            sampling_probability = 0.01
            mechanism = { type = "Gaussian", noise_multiplier = [1, 1.5, inf] }
            count = 1000
            [[mechanisms]]
            type = "ExponentialMechanism"
            epsilon = 0.1
        """)
        found = ledger.read(path)
        assert_same(
            found.mechanism, dpjax.Composed([dpjax.dpsgd([1, 1.5, math.inf], 0.01, 1000), dpjax.BoundedRange(0.1)])
        )
        assert found.adjacency is Adjacency.REPLACE_SPECIAL

    def test_the_forms_in_the_docstring_are_one_mechanism(self):
        _, first, second = ledger.__doc__.split("::\n\n")
        of_json = ledger.from_dict(json.loads(first.partition("\n\nand")[0]))
        of_toml = ledger.from_dict(tomllib.loads(second.partition("\n\n|")[0]))
        assert_same(of_json.mechanism, dpjax.dpsgd(1.1, 0.01, 1000))
        assert_same(of_toml.mechanism, dpjax.Composed([dpjax.dpsgd(1.1, 0.01, 1000)]))

    @pytest.mark.parametrize("name", ["run.txt", "run", "run.toml"])
    def test_names(self, tmp_path, name):
        with pytest.raises(ValueError, match="json"):
            ledger.write(tmp_path / name, self.RUN)


def gaussian(**fields):
    return {"version": 1, "mechanism": {"type": "Gaussian", "noise_multiplier": 1.0} | fields}


def nested(record):
    return {"version": 1, "mechanisms": [{"type": "Gaussian", "noise_multiplier": 1.0}, {
        "type": "PoissonSampled", "sampling_probability": 0.1, "mechanism": record,
    }]}  # fmt: skip


BAD = [
    ([], "a ledger must be a table"),
    ({}, "^version: missing"),
    (gaussian() | {"version": 2}, "^version: 2"),
    (gaussian() | {"version": True}, "^version: True"),
    (gaussian() | {"version": "1"}, "^version: '1'"),
    (gaussian() | {"format": "other"}, "^format: 'other'"),
    (gaussian() | {"adjacency": "ADD"}, "^adjacency: 'ADD', but it must be one of add_or_remove_one"),
    (gaussian() | {"note": 3}, "^note: 3"),
    (gaussian() | {"delta": 1e-5}, "^delta: unknown"),
    (gaussian() | {"mechanisms": []}, "exactly one of mechanism"),
    ({"version": 1}, "exactly one of mechanism"),
    ({"version": 1, "mechanism": []}, r"^mechanism: \[\], but it must be a record"),
    ({"version": 1, "mechanism": {}}, "^mechanism.type: None"),
    ({"version": 1, "mechanisms": {"type": "Gaussian"}}, "^mechanisms: .*list of records"),
    (gaussian(type="Gauss"), "^mechanism.type: 'Gauss', but it must be one of ApproximateDP"),
    (gaussian(type=["Gaussian"]), "^mechanism.type:"),
    (gaussian(sigma=1.0), "^mechanism.sigma: unknown; Gaussian has the fields noise_multiplier"),
    (gaussian(noise_multiplier=None), "^mechanism.noise_multiplier: missing"),
    (gaussian(noise_multiplier=True), "^mechanism.noise_multiplier: True"),
    (gaussian(noise_multiplier="1.0"), "^mechanism.noise_multiplier: '1.0'"),
    (gaussian(noise_multiplier=math.nan), "^mechanism.noise_multiplier: nan"),
    (gaussian(noise_multiplier=2**53 + 1), "^mechanism.noise_multiplier: 9007199254740993 is no number"),
    (gaussian(noise_multiplier=10**400), "^mechanism.noise_multiplier: 1000"),
    (gaussian(noise_multiplier=[1.0, "x"]), r"^mechanism.noise_multiplier\[1\]: 'x'"),
    (gaussian(noise_multiplier=[[1.0], [1.0, 2.0]]), "^mechanism.noise_multiplier: its lists have different lengths"),
    (gaussian(noise_multiplier=-1.0), "^mechanism: noise_multiplier = -1.0, but it must be a number >= 0"),
    (gaussian(count=-1), "^mechanism: count = -1.0"),
    (gaussian(count="x"), "^mechanism.count: 'x'"),
    (nested({"type": "Gaussian"}), r"^mechanisms\[1\].mechanism.noise_multiplier: missing"),
    (nested({"type": "Laplace", "noise_multiplier": -2}), r"^mechanisms\[1\].mechanism: noise_multiplier = -2.0"),
    (nested(3), r"^mechanisms\[1\].mechanism: mechanism must be a dpjax mechanism|^mechanisms\[1\]: mechanism must be"),
    (nested({"type": "DiscreteLaplace", "epsilon_per_unit": 1, "sensitivity": 1.0}), "sensitivity: 1.0, .*whole number"),
    (
        nested({"type": "FixedSizeSampled", "dataset_size": 9, "sample_size": 1, "mechanism": gaussian()["mechanism"]}),
        r"^mechanisms\[1\]: .*cannot sample for FixedSizeSampled",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("data", "message"), BAD)
def test_what_is_wrong_is_named(data, message):
    with pytest.raises(ValueError, match=message):
        ledger.from_dict(data)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("run.json", "{", r"run\.json: "),
        ("run.json", '{"version": 1, "version": 1}', r"run\.json: version: the key comes twice"),
        ("run.json", '{"version": NaN}', r"run\.json: NaN is no JSON"),
        ("run.json", b"\xff", r"run\.json: .*utf-8"),
        ("run.json", json.dumps(gaussian(noise_multiplier=-1)), r"run\.json: mechanism: noise_multiplier = -1"),
        ("run.json", '{"a":' * 100_000, r"run\.json: "),
        ("run.toml", "version = ", r"run\.toml: "),
        ("run.toml", "version = 1\nversion = 1", r"run\.toml: "),
        ("run.toml", "version = 1\nmechanism = {type='Gaussian', noise_multiplier=nan}", "noise_multiplier: nan"),
        ("run.yaml", "", "name ends in"),
    ],
)
def test_files_that_are_no_ledgers(tmp_path, name, text, message):
    (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError, match=message):
        ledger.read(tmp_path / name)


class TestWhatCannotBeWritten:
    def test_traced(self):
        with pytest.raises(TypeError, match="mechanism.noise_multiplier is traced"):
            jax.jit(lambda s: ledger.to_dict(dpjax.Gaussian(s)))(1.0)

    def test_put_there_by_a_transformation(self):
        with pytest.raises(ValueError, match="noise_multiplier = -1"):
            ledger.to_dict(jax.tree.map(lambda x: -x, dpjax.Gaussian(1.0)))

    @pytest.mark.parametrize("arguments", [(1.0,), (dpjax.Gaussian(1.0), Adjacency.ADD, 3)])
    def test_of_the_wrong_kind(self, arguments):
        with pytest.raises(TypeError):
            ledger.to_dict(*arguments)

    def test_foreign_record(self):
        @dataclasses.dataclass
        class Gaussian(dpjax.Mechanism):
            noise_multiplier: float

            def check(self):
                pass

        with pytest.raises(TypeError, match="no mechanism of dpjax"):
            ledger.to_dict(Gaussian(1.0))

    def test_deep_nesting(self):
        data = {"type": "Gaussian", "noise_multiplier": 1.0}
        for _ in range(sys.getrecursionlimit()):
            data = {"type": "SelfComposed", "mechanism": data, "count": 1}
        with pytest.raises(ValueError, match="nested too deeply"):
            ledger.from_dict({"version": 1, "mechanism": data})
