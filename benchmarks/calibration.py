"""A thousand calibrations of DP-SGD in one batch against two of dp_accounting's.

    python benchmarks/calibration.py [--calibrations 1000]

The batch is seeded: epsilon 0.3 to 10, log-uniform, at delta 1e-5, sampling probability 1e-3 to 0.05, steps 1e2 to 1e4. The first
call, which compiles, is timed apart; the peer is asked for the first two of the same questions.
"""

import argparse

import numpy as np
from measuring import headline, log_uniform, machine, once, timed

import dpjax

DELTA = 1e-5


def questions(n, seed=0):
    """(epsilons, sampling probabilities, steps), log-uniform."""
    rng = np.random.default_rng(seed)
    epsilons, qs = log_uniform(rng, 0.3, 10, n), log_uniform(rng, 1e-3, 0.05, n)
    return epsilons, qs, np.round(log_uniform(rng, 1e2, 1e4, n))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calibrations", type=int, default=1000)
    epsilons, qs, steps = questions(parser.parse_args().calibrations)
    make = lambda sigma: dpjax.dpsgd(sigma, qs, steps)
    calibrate = lambda: dpjax.calibrate(make, epsilon=epsilons, delta=DELTA)
    print(headline(machine()))
    first, warm, processor, noise = timed(calibrate, repeats=1)
    spent = dpjax.epsilon(make(noise), delta=DELTA)
    print(
        f"dpjax: {noise.size} calibrations in {warm:.2f} s, {processor:.2f} s of processor time (first call {first:.1f} s)"
    )
    print(f"  1 - spent / target: {np.min(1 - spent / epsilons):.2e} to {np.max(1 - spent / epsilons):.2e}")
    try:
        import dp_accounting
        from dp_accounting import pld
    except ImportError:
        raise SystemExit("dp_accounting is not installed: pip install dp-accounting") from None

    def peer():
        found = []
        for epsilon, q, k in zip(epsilons[:2], qs[:2], steps[:2], strict=True):

            def event(sigma, q=q, k=k):
                step = dp_accounting.PoissonSampledDpEvent(float(q), dp_accounting.GaussianDpEvent(sigma))
                return dp_accounting.SelfComposedDpEvent(step, int(k))

            found.append(dp_accounting.calibrate_dp_mechanism(pld.PLDAccountant, event, float(epsilon), DELTA))
        return np.array(found)

    _, other, other_processor, theirs = once(peer)
    print(f"dp_accounting: 2 calibrations in {other:.2f} s, {other_processor:.2f} s of processor time")
    print(f"  noise relative to dpjax's: {theirs / noise[:2]}")
    print(f"ratio: {noise.size} in one batch take {warm / other:.2f} of the time of the other's 2")


if __name__ == "__main__":
    main()
