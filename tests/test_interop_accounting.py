"""dpjax as an accountant of dp_accounting, against its own tests of an accountant, its PLD accountant, and jax_privacy."""

import copy
import math

import numpy as np
import pytest
from scipy import stats

import dpjax
from dpjax import interop

dp_accounting = pytest.importorskip("dp_accounting")
from dp_accounting import dp_event, privacy_accountant_test  # noqa: E402

BOTH, REPLACE, ZERO = (
    dp_accounting.NeighboringRelation[name] for name in ("ADD_OR_REMOVE_ONE", "REPLACE_ONE", "REPLACE_SPECIAL")
)
DISCRETISATION = 1e-4  # of the PLD accountant, for each run
GAUSSIAN, LAPLACE = dp_event.GaussianDpEvent, dp_event.LaplaceDpEvent


def poisson(q, inner):
    return dp_event.PoissonSampledDpEvent(q, inner)


class TestAsAnAccountant(privacy_accountant_test.PrivacyAccountantTest):
    """The tests that dp_accounting has for every accountant."""

    def _make_test_accountants(self):
        return [interop.DpjaxAccountant(relation) for relation in (BOTH, REPLACE, ZERO)]


RUNS = {
    "gaussians": ([(GAUSSIAN(1.0), 2), (GAUSSIAN(2.0), 3)], (BOTH, REPLACE, ZERO)),
    "laplace": ([(LAPLACE(4.0), 3)], (BOTH, ZERO)),
    "discrete-laplace": ([(dp_event.DiscreteLaplaceDpEvent(0.3, 2), 3)], (BOTH, ZERO)),
    "randomized-response": ([(dp_event.RandomizedResponseDpEvent(0.6, 4), 5)], (REPLACE, ZERO)),
    "poisson-gaussian": ([(poisson(0.2, GAUSSIAN(1.0)), 5)], (BOTH, REPLACE, ZERO)),
    "poisson-laplace": ([(poisson(0.2, LAPLACE(1.0)), 3)], (BOTH, ZERO)),
    "truncated, never full": (
        [(dp_event.TruncatedSubsampledGaussianDpEvent(4, 0.2, 4, 1.0), 5)],
        (BOTH, REPLACE, ZERO),
    ),
    "mixture": ([(dp_event.MixtureOfGaussiansDpEvent(1.0, [0.0, 1.0, 2.0], [0.2, 0.6, 0.2]), 3)], (BOTH, ZERO)),
}
QUICK = {"gaussians"}
TRUNCATED = dp_event.TruncatedSubsampledGaussianDpEvent(4, 0.5, 2, 1.0)


def both(run, relation):
    pld, own = dp_accounting.pld.PLDAccountant(relation), interop.DpjaxAccountant(relation)
    for event, count in run:
        for _ in range(count):  # dp_accounting 0.6.0 forgets the count of randomised response
            pld.compose(event)
        own.compose(event, count)
    return pld, own


class TestBesideThePldAccountant:
    """Its answers are above the truth by at most its discretisation; so no answer here is above theirs."""

    @pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in RUNS])
    def test_within_its_discretisation(self, name):
        run, relations = RUNS[name]
        for relation in relations:
            pld, own = both(run, relation)
            delta = np.array([1e-3, 1e-6])
            found = dpjax.epsilon_bounds(own.mechanism, delta, adjacency=own.adjacency)
            theirs = np.array([pld.get_epsilon(d) for d in delta])
            assert own.get_epsilon(1e-6) == pytest.approx(found.upper[1], rel=1e-9)
            assert (found.lower <= theirs + 1e-9).all(), (relation, found.lower - theirs)
            assert (theirs <= found.upper + DISCRETISATION * sum(n for _, n in run)).all(), (
                relation,
                theirs - found.upper,
            )
            width = found.upper - found.lower
            assert (found.upper <= theirs + width + 1e-9).all(), (relation, found.upper - theirs)

    @pytest.mark.parametrize("relation", [BOTH, REPLACE, ZERO])
    def test_truncated_batches_are_theirs_but_for_the_full_ones(self, relation):
        """Of full batches they take the replace-one pair of sensitivity 4, (1-k) N_0 + k N_2 and (1-k) N_0 + k N_-2."""
        size, rate, limit, sigma = 4, 0.5, 2, 1.0
        full = float(stats.binom.sf(limit - 1, size - 1, rate))
        kept = float(stats.binom.sf(limit, size, rate)) * limit / size / full
        pld = dp_accounting.pld.PLDAccountant(relation).compose(TRUNCATED)
        for epsilon in (0.5, 2.0):
            loose = dpjax.delta(
                dpjax.PoissonSampled(kept, dpjax.Gaussian(sigma / 2)), epsilon, adjacency=dpjax.Adjacency.REPLACE_ONE
            )
            adjacency = interop.from_neighboring_relation(relation)
            rest = dpjax.delta(dpjax.PoissonSampled(rate, dpjax.Gaussian(sigma)), epsilon, adjacency=adjacency)
            assert pld.get_delta(epsilon) == pytest.approx(full * loose + (1 - full) * rest, rel=1e-5)

    @pytest.mark.slow
    @pytest.mark.parametrize("relation", [BOTH, REPLACE, ZERO])
    def test_truncated_batches_cost_no_more(self, relation):
        """Their pair for a full batch is that of sensitivity 4, "slightly loose", whatever the relation is."""
        pld, own = both([(TRUNCATED, 3)], relation)
        least = 0.3 if relation is ZERO else 0.8
        assert least * pld.get_epsilon(1e-6) < own.get_epsilon(1e-6) <= pld.get_epsilon(1e-6)


class TestKnownValues:
    """The cases of dp_accounting's tests of its PLD accountant, with what is exact in closed form."""

    def compose(self, *run, relation=BOTH):
        accountant = interop.DpjaxAccountant(relation)
        for event, count in run:
            accountant.compose(event, count)
        return accountant

    def test_gaussians(self):
        """Three of noise sqrt(3) are one of noise 1."""
        accountant = self.compose((GAUSSIAN(math.sqrt(3)), 1), (GAUSSIAN(math.sqrt(3)), 2))
        assert accountant.get_delta(1.0) == pytest.approx(0.12693673750664397, rel=1e-9)
        assert accountant.get_epsilon(0.12693673750664397) == pytest.approx(1.0, abs=1e-9)

    @pytest.mark.slow
    def test_laplace(self):
        accountant = self.compose((LAPLACE(1.0), 3), (LAPLACE(2.0), 2))
        assert accountant.get_delta(4.0) < 1e-6 and accountant.get_epsilon(0.0) == pytest.approx(4.0, abs=1e-9)

    def test_discrete_laplace(self):
        one, half = (dp_event.DiscreteLaplaceDpEvent(a, 1) for a in (1.0, 0.5))
        accountant = self.compose((one, 3), (half, 2))
        assert accountant.get_delta(4.0) < 1e-6 and accountant.get_epsilon(0.0) == pytest.approx(4.0, abs=1e-9)

    @pytest.mark.slow
    def test_poisson_sampled_gaussian(self):
        step = poisson(0.2, GAUSSIAN(0.5))
        for run in ([(step, 1), (step, 2)], [(dp_event.SelfComposedDpEvent(step, 3), 1)]):
            accountant = self.compose(*run)
            assert accountant.get_delta(1.0) == pytest.approx(0.15594, abs=1e-5)
            assert accountant.get_epsilon(0.15594) == pytest.approx(1.0, abs=1e-3)

    @pytest.mark.slow
    def test_poisson_sampled_laplace(self):
        accountant = self.compose((poisson(0.2, LAPLACE(0.5)), 3))
        largest = 3 * math.log1p(0.2 * math.expm1(2.0))
        assert largest == pytest.approx(2.46964, abs=1e-4)
        assert accountant.get_delta(largest + 1e-6) < 1e-6 and accountant.get_epsilon(0.0) == pytest.approx(
            largest, abs=1e-3
        )

    @pytest.mark.parametrize(
        ("relation", "p", "k"),
        [(REPLACE, 4 / (3 + math.e), 4), (ZERO, (4 - math.e) / 3, 4), (ZERO, 1 / math.e, 2)],
    )
    def test_randomized_response_is_pure(self, relation, p, k):
        """Of epsilon 1."""
        accountant = self.compose((dp_event.RandomizedResponseDpEvent(p, k), 1), relation=relation)
        assert accountant.get_delta(1.0) < 1e-12 and accountant.get_epsilon(0.0) == pytest.approx(1.0, abs=1e-9)

    @pytest.mark.parametrize(
        "event",
        [
            GAUSSIAN(0), LAPLACE(0), dp_event.DiscreteLaplaceDpEvent(0, 1), dp_event.NonPrivateDpEvent(),
            dp_event.MixtureOfGaussiansDpEvent(0, [1, 2], [0.5, 0.5]),
        ],
    )  # fmt: skip
    def test_no_noise(self, event):
        accountant = self.compose((event, 1))
        assert accountant.get_delta(1.0) == 1 and accountant.get_epsilon(0.01) == math.inf

    @pytest.mark.slow
    @pytest.mark.parametrize("inner", [GAUSSIAN(0), LAPLACE(0)])
    def test_no_noise_in_a_batch(self, inner):
        """They call that non-private; it is so with the batch's probability."""
        accountant = self.compose((poisson(0.1, inner), 1))
        assert accountant.get_epsilon(0.01) == math.inf and accountant.get_delta(1.0) == pytest.approx(0.1)

    @pytest.mark.parametrize(
        "event",
        [
            poisson(0, GAUSSIAN(1)), poisson(0, LAPLACE(0)), dp_event.MixtureOfGaussiansDpEvent(1, [0], [1.0]),
            dp_event.MixtureOfGaussiansDpEvent(0, [0], [1.0]), dp_event.SelfComposedDpEvent(dp_event.NoOpDpEvent(), 3),
        ],
    )  # fmt: skip
    def test_nothing_seen(self, event):
        accountant = self.compose((event, 1))
        assert accountant.get_delta(0.0) == 0 and accountant.get_epsilon(0.0) == 0

    def test_randomized_response_at_its_ends(self):
        accountant = self.compose((dp_event.RandomizedResponseDpEvent(0.0, 3), 1), relation=ZERO)
        assert accountant.get_delta(1.0) == 1 and accountant.get_epsilon(0.01) == math.inf
        accountant = self.compose((dp_event.RandomizedResponseDpEvent(0.0, 1), 1), relation=ZERO)
        assert accountant.get_delta(0.0) == 0 and accountant.get_epsilon(0.0) == 0

    @pytest.mark.parametrize("count", [0, -1])
    def test_counts_are_positive(self, count):
        with pytest.raises(ValueError, match="positive"):
            self.compose((GAUSSIAN(1.0), count))


TREE = dp_event.SingleEpochTreeAggregationDpEvent
WITHOUT = dp_event.SampledWithoutReplacementDpEvent
MIXTURE = dp_event.MixtureOfGaussiansDpEvent(1.0, [0.0, 1.0], [0.5, 0.5])
RESPONSE = dp_event.RandomizedResponseDpEvent(0.1, 3)


class TestSupport:
    @pytest.mark.parametrize(
        ("event", "relations"),
        [
            (RESPONSE, {REPLACE, ZERO}),
            (LAPLACE(1.0), {BOTH, REPLACE, ZERO}),
            (poisson(0.1, LAPLACE(1.0)), {BOTH, REPLACE, ZERO}),
            (poisson(0.1, GAUSSIAN(1.0)), {BOTH, REPLACE, ZERO}),
            (poisson(0.1, RESPONSE), {ZERO}),
            (MIXTURE, {BOTH, ZERO}),
            (WITHOUT(9, 3, GAUSSIAN(1.0)), {BOTH, REPLACE, ZERO}),
            (WITHOUT(9, 3, poisson(0.1, RESPONSE)), set()),
            (TRUNCATED, {BOTH, REPLACE, ZERO}),
            (TREE(1.0, [3, 4]), {REPLACE, ZERO}),
            (dp_event.ComposedDpEvent([TRUNCATED, MIXTURE]), {BOTH, ZERO}),
            (dp_event.ComposedDpEvent([TRUNCATED, RESPONSE]), {REPLACE, ZERO}),
            (dp_event.SampledWithReplacementDpEvent(9, 3, GAUSSIAN(1.0)), set()),
            (dp_event.RepeatAndSelectDpEvent(GAUSSIAN(1.0), 2.0, 1.0), set()),
        ],
    )
    def test_by_relation(self, event, relations):
        assert {r for r in (BOTH, REPLACE, ZERO) if interop.DpjaxAccountant(r).supports(event)} == relations

    def test_zero_records_have_pairs_of_their_own(self):
        accountant = interop.DpjaxAccountant(ZERO).compose(MIXTURE).compose(TRUNCATED)
        assert accountant.adjacency is dpjax.Adjacency.REPLACE_SPECIAL
        with pytest.raises(dp_accounting.UnsupportedEventError):  # a batch of known size needs a replacement's analysis
            accountant.compose(WITHOUT(9, 3, MIXTURE))

    @pytest.mark.slow
    def test_a_zero_record_costs_less_than_another_one(self):
        one = interop.DpjaxAccountant(ZERO).compose(WITHOUT(9, 3, GAUSSIAN(1.0)))
        expected = dpjax.epsilon(dpjax.FixedSizeSampled(9, 3, dpjax.Gaussian(1.0)), 1e-3, adjacency=one.adjacency)
        assert one.get_epsilon(1e-3) == pytest.approx(expected, rel=1e-12)
        replaced = interop.DpjaxAccountant(REPLACE).compose(WITHOUT(9, 3, GAUSSIAN(1.0)))
        assert one.get_epsilon(1e-3) < 0.6 * replaced.get_epsilon(1e-3)

    def test_tree(self):
        accountant = interop.DpjaxAccountant(ZERO).compose(TREE(4.0, [10, 3]), 2)
        expected = dpjax.epsilon(dpjax.Gaussian(2.0) * 2, 1e-5)
        assert accountant.get_epsilon(1e-5) == pytest.approx(expected, rel=1e-9)
        orders = dp_accounting.rdp.RdpAccountant(neighboring_relation=ZERO).compose(TREE(4.0, [10, 3]), 2)
        assert expected <= orders.get_epsilon(1e-5)

    def test_relations(self):
        for relation in (BOTH, REPLACE, ZERO):
            adjacency = interop.from_neighboring_relation(relation)
            assert adjacency.name == relation.name and interop.to_neighboring_relation(adjacency) is relation
        for bad in ("REPLACE_ONE", 1, dpjax.Adjacency.REPLACE_ONE, None):
            with pytest.raises(ValueError, match="neighboring_relation"):
                interop.DpjaxAccountant(bad)
        with pytest.raises(ValueError, match="no single directions"):
            interop.to_neighboring_relation(dpjax.Adjacency.ADD)


class TestBookkeeping:
    def test_many_different_steps_are_one_schedule(self):
        accountant = interop.DpjaxAccountant()
        for sigma in (1.0, 1.5, 2.0, 1.0, 3.0, 2.5):
            accountant.compose(GAUSSIAN(sigma), 2)
        run = accountant.mechanism
        assert isinstance(run, dpjax.ComposedOver)
        assert list(run.mechanism.count) == [4.0, 2.0, 2.0, 2.0, 2.0, 0.0, 0.0, 0.0]
        exact = dpjax.epsilon(dpjax.Gaussian(1 / math.sqrt(sum(n / s**2 for s, n in
            ((1.0, 4), (1.5, 2), (2.0, 2), (3.0, 2), (2.5, 2))))), 1e-5)  # fmt: skip
        assert accountant.get_epsilon(1e-5) == pytest.approx(exact, rel=1e-9)

    def test_order_of_bounded_ranges_is_kept(self):
        """Their adaptive composition depends on it."""
        from dpjax.interop._run import Run

        run = Run()
        ranges = [dpjax.BoundedRange(0.5), dpjax.BoundedRange(0.2), dpjax.BoundedRange(0.2), dpjax.BoundedRange(0.5)]
        for record in ranges:
            run.add(record, 1)
        assert repr(run.mechanism()) == repr(dpjax.Composed([ranges[0] * 1, ranges[1] * 2, ranges[3] * 1]))

    def test_copies_are_apart(self):
        first = interop.DpjaxAccountant().compose(GAUSSIAN(1.0))
        second = copy.deepcopy(first).compose(GAUSSIAN(1.0))
        assert first.get_epsilon(1e-5) < second.get_epsilon(1e-5)


class TestCalibration:
    def test_noise(self):
        make = lambda sigma: dp_event.SelfComposedDpEvent(GAUSSIAN(sigma), 10)
        found = dp_accounting.calibrate_dp_mechanism(interop.DpjaxAccountant, make, 1.0, 1e-5, tol=1e-8)
        assert 1 - 1e-6 < dpjax.epsilon(dpjax.Gaussian(found) * 10, 1e-5) <= 1

    def test_steps(self):
        make = lambda n: dp_event.SelfComposedDpEvent(GAUSSIAN(10.0), n)
        bracket = dp_accounting.LowerEndpointAndGuess(1, 8)
        found = dp_accounting.calibrate_dp_mechanism(interop.DpjaxAccountant, make, 2.0, 1e-5, bracket, discrete=True)
        spent = dpjax.epsilon(dpjax.Gaussian(10.0) * np.array([found, found + 1.0]), 1e-5)
        assert spent[0] <= 2.0 < spent[1]


HEAD = (dpjax.BoundedRange, dpjax.PermuteAndFlip, dpjax.DiscreteGaussian, dpjax.ApproximateDP, dpjax.RandomAllocation)
RECORDS = [
    dpjax.Composed(()), dpjax.MassAtInfinity(1.0), dpjax.Gaussian(1.5), dpjax.Laplace(1.5), dpjax.DiscreteLaplace(0.5, 2),
    dpjax.MixtureOfGaussians(1.0, [0.0, 1.0], [0.5, 0.5]), dpjax.ZCDP(0.1), dpjax.Gaussian(1.0) * 3,
    dpjax.Composed([dpjax.Gaussian(1.0), dpjax.Laplace(2.0)]), dpjax.PoissonSampled(0.1, dpjax.Laplace(2.0)) * 3,
    dpjax.FixedSizeSampled(9, 3, dpjax.Gaussian(1.0)), dpjax.TruncatedPoissonSampled(9, 0.1, 3, dpjax.Gaussian(1.0)),
    dpjax.TreeAggregation(2.0, [3, 4]), dpjax.BoundedRange(0.5), dpjax.PermuteAndFlip(0.5), dpjax.DiscreteGaussian(2.0, 3),
    dpjax.ApproximateDP(0.5, 1e-6), dpjax.RandomAllocation(10, dpjax.Gaussian(1.0), 2),
]  # fmt: skip


class TestToEvents:
    @pytest.mark.parametrize("record", RECORDS, ids=repr)
    def test_round_trip(self, record):
        try:
            event = interop.to_dp_event(record)
        except NotImplementedError as error:
            assert isinstance(record, HEAD) and "a newer one may" in str(error)  # an event that this version lacks
            return
        for described in (event, event.to_named_tuple()):
            found = interop.from_dp_event(described, dpjax.Adjacency.REPLACE_SPECIAL)
            assert dpjax.ledger.to_dict(found) == dpjax.ledger.to_dict(record)

    def test_randomized_response(self):
        event = interop.to_dp_event(dpjax.RandomizedResponse(1.0, 3))
        back = interop.from_dp_event(event, dpjax.Adjacency.REPLACE_ONE)
        assert back.num_buckets == 3 and 1.0 <= back.epsilon <= 1.0 + 1e-13
        assert interop.to_dp_event(dpjax.RandomizedResponse(800.0)).noise_parameter == 0
        assert interop.to_dp_event(dpjax.RandomizedResponse(0.0)).noise_parameter == 1

    def test_schedules_are_written_out(self):
        schedule = dpjax.ComposedOver(dpjax.PoissonSampled([0.1, 0.2], dpjax.Gaussian([1.0, 2.0])) * np.array([3, 0]))
        steps = [dp_event.SelfComposedDpEvent(poisson(0.1, GAUSSIAN(1.0)), 3), dp_event.NoOpDpEvent()]
        assert interop.to_dp_event(schedule) == dp_event.ComposedDpEvent(steps)

    def test_what_a_factorisation_is(self):
        sigma = interop.to_dp_event(dpjax.MatrixFactorization(3.0, 1.5)).noise_multiplier
        assert 2 * (1 - 1e-15) <= sigma < 2

    @pytest.mark.parametrize(
        ("record", "error", "message"),
        [
            (1.0, TypeError, "mechanism must be"),
            (dpjax.Gaussian([1.0, 2.0]), ValueError, "a batch of mechanisms"),
            (dpjax.SelfComposed(dpjax.Gaussian(1.0), 1.5), ValueError, "count = 1.5"),
            (dpjax.PrivacyProfile([1.0], [0.1]), NotImplementedError, "no event for PrivacyProfile"),
            (dpjax.ZCDP(0.1, 0.1), NotImplementedError, "ZCDP with a delta"),
            (dpjax.TruncatedPoissonSampled(9, 0.1, 3, dpjax.Laplace(1.0)), NotImplementedError, "over Gaussian only"),
        ],
    )
    def test_refused_by_name(self, record, error, message):
        with pytest.raises(error, match=message):
            interop.to_dp_event(record)
