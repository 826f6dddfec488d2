"""Accountants of DP-SGD, dpjax among them, asked in one way: each as its documentation shows, with its default accuracy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class Accountant(NamedTuple):
    """One accountant's functions; what they pass on to each other is its own.

    Attributes:
      step: of (noise multiplier, sampling probability).
      run: of (step, number of steps).
      epsilon: of (run, delta); of both directions, add and remove, the larger.
      delta: of (run, epsilon), or None if it has no such query.
    """

    step: Callable[[float, float], Any]
    run: Callable[[Any, int], Any]
    epsilon: Callable[[Any, float], float]
    delta: Callable[[Any, float], float] | None = None

    def ask(self, kind: str, sigma: float, q: float, steps: int, given: float) -> float:
        """One question from scratch."""
        query = self.epsilon if kind == "epsilon" else self.delta
        if query is None:
            raise NotImplementedError(f"no query for {kind}")
        return float(query(self.run(self.step(sigma, q), steps), given))


# Each returns an Accountant, or raises ImportError.


def dpjax(rtol: float = 1e-10) -> Accountant:
    import dpjax

    return Accountant(
        step=lambda sigma, q: dpjax.PoissonSampled(q, dpjax.Gaussian(sigma)),
        run=lambda step, k: step * k,
        epsilon=lambda run, delta: dpjax.epsilon(run, delta=delta, rtol=rtol),
        delta=lambda run, epsilon: dpjax.delta(run, epsilon=epsilon, rtol=rtol),
    )


def dp_accounting_pld() -> Accountant:
    from dp_accounting.pld import privacy_loss_distribution as pld

    return Accountant(
        step=lambda sigma, q: pld.from_gaussian_mechanism(sigma, sampling_prob=q),
        run=lambda step, k: step.self_compose(k),
        epsilon=lambda run, delta: run.get_epsilon_for_delta(delta),
        delta=lambda run, epsilon: run.get_delta_for_epsilon(epsilon),
    )


def dp_accounting_rdp() -> Accountant:
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    return Accountant(
        step=lambda sigma, q: dp_accounting.PoissonSampledDpEvent(q, dp_accounting.GaussianDpEvent(sigma)),
        run=lambda step, k: RdpAccountant().compose(dp_accounting.SelfComposedDpEvent(step, k)),
        epsilon=lambda run, delta: run.get_epsilon(delta),
        delta=lambda run, epsilon: run.get_delta(epsilon),
    )


def prv_accountant() -> Accountant:
    from prv_accountant import PoissonSubsampledGaussianMechanism, PRVAccountant

    def accountant(run, delta_error):  # the accuracy is part of the accountant, and the question of the accuracy
        step, k = run
        return PRVAccountant([step], eps_error=0.01, delta_error=delta_error, max_self_compositions=[k])

    return Accountant(
        step=lambda sigma, q: PoissonSubsampledGaussianMechanism(sampling_probability=q, noise_multiplier=sigma),
        run=lambda step, k: (step, k),
        epsilon=lambda run, delta: accountant(run, delta / 1000).compute_epsilon(delta, [run[1]])[2],
        delta=lambda run, epsilon: accountant(run, 1e-10).compute_delta(epsilon, [run[1]])[2],
    )


def opake() -> Accountant:
    try:
        from opake.dpsgd import accounting
    except TypeError as error:  # opake 0.16 does not import on some Pythons, 3.11.7 and 3.12.1 among them
        raise ImportError(f"opake: {error}") from None

    return Accountant(
        step=lambda sigma, q: accounting.poisson(accounting.gaussian(sigma), sample_rate=q),
        run=lambda step, k: step * k,
        epsilon=lambda run, delta: run.epsilon_at(delta),
        delta=lambda run, epsilon: run.delta_at(epsilon),
    )


def opacus(kind: str) -> Accountant:
    from opacus.accountants import PRVAccountant, RDPAccountant

    def run(step, k):
        accountant = {"prv": PRVAccountant, "rdp": RDPAccountant}[kind]()
        accountant.history = [(*step, k)]
        return accountant

    return Accountant(lambda sigma, q: (sigma, q), run, lambda run, delta: run.get_epsilon(delta))


def autodp() -> Accountant:
    from autodp.mechanism_zoo import SubsampleGaussianMechanism

    return Accountant(
        step=lambda sigma, q: {"sigma": sigma, "prob": q},
        run=lambda step, k: SubsampleGaussianMechanism(step | {"coeff": k}),
        epsilon=lambda run, delta: run.get_approxDP(delta),
        delta=lambda run, epsilon: run.approx_delta(epsilon),
    )


ACCOUNTANTS: dict[str, Callable[[], Accountant]] = {
    "dpjax": dpjax,
    "dpjax rtol=1e-6": lambda: dpjax(1e-6),
    "dp_accounting_pld": dp_accounting_pld,
    "dp_accounting_rdp": dp_accounting_rdp,
    "prv_accountant": prv_accountant,
    "opake": opake,
    "opacus_prv": lambda: opacus("prv"),
    "opacus_rdp": lambda: opacus("rdp"),
    "autodp_rdp": autodp,
}
