"""dpjax in the place of other accountants: events, dp_accounting's own tests of an accountant, calibration, Opacus' methods."""

import copy
import math
import subprocess
import sys
from types import SimpleNamespace

import mpmath as mp
import numpy as np
import pytest

import dpjax
from dpjax import Adjacency, interop

BASE = [Adjacency.ADD_OR_REMOVE_ONE, Adjacency.REPLACE_ONE, Adjacency.REPLACE_SPECIAL]


def event(name, **fields):
    """What the readers of events see of one: no dp_accounting is needed for it, of any version."""
    return SimpleNamespace(class_name=f"{name}DpEvent", **fields)


def gaussian(sigma=2.0):
    return event("Gaussian", noise_multiplier=sigma)


def same(a, b):
    return dpjax.ledger.to_dict(a) == dpjax.ledger.to_dict(b)


STEP = dpjax.PoissonSampled(0.1, dpjax.Gaussian(2.0))
EVENTS = [
    (event("NoOp"), dpjax.Composed(())),
    (event("NonPrivate"), dpjax.MassAtInfinity(1.0)),
    (gaussian(), dpjax.Gaussian(2.0)),
    (event("Laplace", noise_multiplier=3.0), dpjax.Laplace(3.0)),
    (event("DiscreteLaplace", noise_parameter=0.5, sensitivity=2), dpjax.DiscreteLaplace(0.5, 2)),
    (event("DiscreteLaplace", noise_parameter=0.0, sensitivity=2), dpjax.MassAtInfinity(1.0)),
    (event("MixtureOfGaussians", standard_deviation=1.0, sensitivities=[0, 2], sampling_probs=[0.5, 0.5]),
     dpjax.MixtureOfGaussians(1.0, [0.0, 2.0], [0.5, 0.5])),
    (event("MixtureOfGaussians", standard_deviation=0.0, sensitivities=[0, 2], sampling_probs=[0.25, 0.75]),
     dpjax.MixtureOfGaussians(0.0, [0.0, 2.0], [0.25, 0.75])),
    (event("MixtureOfGaussians", standard_deviation=0.0, sensitivities=[0], sampling_probs=[1.0]), dpjax.Composed(())),
    (event("ZC", rho=0.1, xi=0.0), None),
    (event("Composed", events=[gaussian(), event("NoOp")]), dpjax.Composed([dpjax.Gaussian(2.0), dpjax.Composed(())])),
    (event("SelfComposed", event=gaussian(), count=7), dpjax.Gaussian(2.0) * 7),
    (event("PoissonSampled", sampling_probability=0.1, event=gaussian()), STEP),
    (event("PoissonSampled", sampling_probability=0.1, event=event("NoOp")), dpjax.Composed(())),
    (event("PoissonSampled", sampling_probability=0.1, event=event("SelfComposed", event=gaussian(), count=1)), STEP),
    (event("PoissonSampled", sampling_probability=0.1, event=event("NonPrivate")),
     dpjax.PoissonSampled(0.1, dpjax.MassAtInfinity(1.0))),
    (event("SampledWithoutReplacement", source_dataset_size=9, sample_size=2, event=gaussian()),
     dpjax.FixedSizeSampled(9, 2, dpjax.Gaussian(2.0))),
    (event("TruncatedSubsampledGaussian", dataset_size=9, sampling_probability=0.1, truncated_batch_size=3,
           noise_multiplier=2.0), dpjax.TruncatedPoissonSampled(9, 0.1, 3, dpjax.Gaussian(2.0))),
    (event("TruncatedSubsampledGaussian", dataset_size=9, sampling_probability=0.1, truncated_batch_size=0,
           noise_multiplier=2.0), dpjax.Composed(())),
    # of versions after 0.6
    (event("EpsilonDelta", epsilon=0.5, delta=1e-6), dpjax.ApproximateDP(0.5, 1e-6)),
    (event("EpsilonDelta", epsilon=math.inf, delta=0.0), dpjax.MassAtInfinity(1.0)),
    (event("DiscreteGaussian", sigma=4.0, sensitivity=2.0, dimension=1), dpjax.DiscreteGaussian(4.0, 2)),
    (event("ExponentialMechanism", epsilon=0.5), dpjax.BoundedRange(0.5)),
    (event("PermuteAndFlip", epsilon=0.5), dpjax.PermuteAndFlip(0.5)),
    (event("RandomAllocation", event=gaussian(), num_selected=2, num_steps=10),
     dpjax.RandomAllocation(10, dpjax.Gaussian(2.0), 2)),
]  # fmt: skip


class TestFromEvents:
    @pytest.mark.parametrize(("given", "expected"), EVENTS, ids=lambda x: getattr(x, "class_name", ""))
    def test_by_names(self, given, expected):
        if given.class_name == "ZCDpEvent":
            expected, given = dpjax.ZCDP(0.1), event("Z", rho=0.1, xi=0.0)
            given.class_name = "ZCDpEvent"
        assert same(interop.from_dp_event(given), expected)

    @pytest.mark.parametrize("p", [1e-6, 0.1, 0.5, 1 - 1e-12])
    @pytest.mark.parametrize("k", [2, 5])
    def test_randomized_response(self, p, k):
        """The largest ratio, under replace-one of two buckets, under zero-out of a bucket and a uniform answer."""
        given = event("RandomizedResponse", noise_parameter=p, num_buckets=k)
        found = interop.from_dp_event(given, Adjacency.REPLACE_ONE)
        with mp.workdps(50):
            exact = mp.log((1 - mp.mpf(p) + mp.mpf(p) / k) / (mp.mpf(p) / k))
            assert found.num_buckets == k and exact <= found.epsilon <= exact * (1 + mp.mpf(1e-14))
        found = interop.from_dp_event(given, Adjacency.REPLACE_SPECIAL)
        np.testing.assert_allclose(found.p, [1 - p + p / k, (k - 1) * p / k], rtol=1e-12)
        np.testing.assert_allclose(found.q, [1 / k, (k - 1) / k], rtol=1e-12)
        with pytest.raises(interop.UnsupportedEvent, match="`REPLACE_ONE` or `REPLACE_SPECIAL`"):
            interop.from_dp_event(given)

    @pytest.mark.parametrize("adjacency", [Adjacency.REPLACE_ONE, Adjacency.REPLACE_SPECIAL])
    def test_randomized_response_at_its_ends(self, adjacency):
        read = lambda p, k: interop.from_dp_event(
            event("RandomizedResponse", noise_parameter=p, num_buckets=k), adjacency
        )
        assert same(read(0.0, 3), dpjax.MassAtInfinity(1.0)) and same(read(0.0, 1), dpjax.Composed(()))
        assert dpjax.epsilon(read(1.0, 3), 0.0, adjacency=adjacency) < 1e-15

    def test_gaussians_inside_a_sampler_are_one(self):
        inner = event("Composed", events=[event("SelfComposed", event=gaussian(2.0), count=3), gaussian(1.0)])
        found = interop.from_dp_event(event("PoissonSampled", sampling_probability=0.1, event=inner))
        total = found.mechanism.noise_multiplier
        exact = 1 / math.sqrt(3 / 4 + 1)
        assert exact * (1 - 1e-14) <= total < exact

    def test_concentrated_with_an_offset(self):
        found = interop.from_dp_event(SimpleNamespace(class_name=b"ZCDpEvent", rho=0.01, xi=0.1))
        assert (found.epsilons >= 0.1 + 0.01 * found.orders).all() and (found.orders > 1).all()

    def test_discrete_gaussian_of_unknown_dimension_is_concentrated(self):
        read = lambda a: interop.from_dp_event(event("DiscreteGaussian", sigma=4.0, sensitivity=2.0, dimension=None), a)
        assert read(Adjacency.ADD_OR_REMOVE_ONE).rho == pytest.approx(1 / 8) and read(Adjacency.REPLACE_ONE).rho > 1 / 2

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            (event("SampledWithReplacement", source_dataset_size=9, sample_size=2, event=gaussian()), "sample without replac"),
            (event("RepeatAndSelect", event=gaussian(), mean=2.0, shape=1.0), "RepeatAndSelectDpEvent .*report-noisy-max"),
            (event("Unsupported"), "UnsupportedDpEvent .*describe what was run"),
            (event("Brand New"), "Brand NewDpEvent is no event that dpjax knows"),
            (event("Gaussian"), "GaussianDpEvent lacks the field 'noise_multiplier'"),
            (1.0, "float is no event"),
            (
                event("PoissonSampled", sampling_probability=0.1,
                      event=event("SelfComposed", event=event("Laplace", noise_multiplier=1.0), count=2)),
                "over a composition is known of Gaussians alone",
            ),
        ],
    )  # fmt: skip
    def test_refused_by_name(self, given, message):
        for nested, inner in ((given, given), (event("Composed", events=[gaussian(), given]), given)):
            with pytest.raises(interop.UnsupportedEvent, match=message) as raised:
                interop.from_dp_event(nested)
            assert raised.value.event is inner

    @pytest.mark.parametrize(
        "given",
        [
            gaussian(-1.0), event("SelfComposed", event=gaussian(), count=1.5), event("SelfComposed", event=gaussian(), count=-1),
            event("PoissonSampled", sampling_probability=1.5, event=gaussian()), SimpleNamespace(class_name="ZCDpEvent", rho=1, xi=-1),
            event("DiscreteLaplace", noise_parameter=1.0, sensitivity=1.5), event("EpsilonDelta", epsilon=-math.inf, delta=0.0),
            event("MixtureOfGaussians", standard_deviation=1.0, sensitivities=[1.0], sampling_probs=[0.5]),
            event("DiscreteGaussian", sigma=-1.0, sensitivity=1.0, dimension=None),
        ],
    )  # fmt: skip
    def test_bad_parameters(self, given):
        with pytest.raises(ValueError):
            interop.from_dp_event(given)


class TestPackaging:
    def test_imports_nothing_of_others(self):
        code = (
            "import sys\nfrom dpjax import interop\ninterop.from_dp_event; interop.to_dp_event; interop.OpacusAccountant\n"
            "assert not {'dp_accounting', 'torch', 'opacus', 'jax_privacy'} & set(sys.modules)"
        )
        subprocess.run([sys.executable, "-c", code], check=True)

    @pytest.mark.parametrize(
        ("name", "package"), [("DpjaxAccountant", "dp_accounting"), ("JaxPrivacyConfig", "jax_privacy")]
    )
    def test_what_is_missing_is_named(self, name, package):
        """In an interpreter in which the other package cannot be found."""
        code = (
            f"import sys\nsys.modules[{package!r}] = None\nfrom dpjax import interop\n"
            f"try:\n    interop.{name}\nexcept ImportError as e:\n    assert 'pip install' in str(e), e\nelse:\n    raise SystemExit(1)"
        )
        subprocess.run([sys.executable, "-c", code], check=True)

    def test_unknown_name(self):
        with pytest.raises(AttributeError, match="no attribute 'Accountant'"):
            interop.Accountant  # noqa: B018


class TestOpacus:
    def run(self):
        accountant = interop.OpacusAccountant()
        for sigma, rate, steps in ((1.0, 0.01, 3), (1.5, 0.01, 2), (1.0, 0.01, 1)):
            for _ in range(steps):
                accountant.step(noise_multiplier=sigma, sample_rate=rate)
        return accountant

    def test_counts_steps(self):
        accountant = self.run()
        assert len(accountant) == 6 and accountant.history == [(1.0, 0.01, 3), (1.5, 0.01, 2), (1.0, 0.01, 1)]
        steps = dpjax.PoissonSampled([0.01, 0.01], dpjax.Gaussian([1.0, 1.5]))
        assert same(accountant.run, dpjax.ComposedOver(steps * np.array([4.0, 2.0]), axis=0))
        assert interop.OpacusAccountant().get_epsilon(delta=1e-5) == 0

    def test_state(self):
        first, second = self.run(), interop.OpacusAccountant()
        state = copy.deepcopy(first.state_dict())
        first.step(noise_multiplier=1.0, sample_rate=0.01)
        second.load_state_dict(state)
        assert len(first) == 7 and second.state_dict() == state and second.history == self.run().history
        assert first.state_dict({"other": 1})["other"] == 1
        for bad in (None, {}, {"history": []}, {"mechanism": "dpjax"}, {"history": [], "mechanism": "rdp"}):
            with pytest.raises(ValueError, match="state_dict"):
                second.load_state_dict(bad)

    def test_hook_counts_accumulated_batches(self):
        accountant = interop.OpacusAccountant()
        accountant.get_optimizer_hook_fn(0.01)(SimpleNamespace(noise_multiplier=1.0, accumulated_iterations=4))
        assert accountant.history == [(1.0, 0.04, 1)]
        with pytest.raises(ValueError, match="sampling_probability"):
            accountant.step(noise_multiplier=1.0, sample_rate=1.5)

    def test_calibration_sets_the_history(self):
        """As Opacus' get_noise_multiplier does."""
        accountant = interop.OpacusAccountant()
        accountant.history = [(1.0, 0.01, 1000)]
        assert accountant.get_epsilon(delta=1e-5) == pytest.approx(1.82823666651658, rel=1e-9)
        assert interop.OpacusAccountant.mechanism() == "dpjax"
