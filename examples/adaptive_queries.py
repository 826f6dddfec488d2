"""A private training loop that chooses its next epsilon from what it has seen, and stops when its filter refuses.

It finds the coefficients of a linear model from 20,000 records. Every step asks for the noisy gradient: Laplace noise on
clipped gradients, so each step is epsilon-DP for an epsilon that the loop picks. A large gradient needs little
precision, so steps are cheap at first; when the noise begins to hide the gradient, the next step buys twice as much.
Nothing is known beforehand about how many steps that will be: only a filter makes the total valid, and an odometer says
what was lost along the way.

Run with: python examples/adaptive_queries.py
"""

import numpy as np

from dpjax.adaptive import ApproxDPFilter, MixtureOdometer

RECORDS, TRUTH = 20_000, np.array([0.8, -0.5, 0.3])
EPSILON, DELTA = 1.0, 1e-6
SMALLEST = 0.01  # a step with a smaller epsilon would be all noise

rng = np.random.default_rng(0)
features = rng.uniform(-1, 1, (RECORDS, 3))
targets = features @ TRUTH + 0.1 * rng.normal(size=RECORDS)

# All queries are pure, so the whole delta is slack: what the composition itself may fail with.
filt = ApproxDPFilter(epsilon=EPSILON, delta=DELTA, slack=DELTA)
odometer = MixtureOdometer.tightest_at(filt.remaining(filt.init()) ** 2 / 4, delta=DELTA, slack=DELTA)
print(filt)

state, meter = filt.init(), odometer.init()
weights, epsilon, step = np.zeros(3), SMALLEST, 0
while not filt.would_exceed(state, epsilon=SMALLEST):
    epsilon = min(epsilon, float(filt.remaining(state)))  # the last step takes all that is left
    state, granted = filt.request(state, epsilon=epsilon)
    assert granted, "what remains is granted"
    meter = odometer.update(meter, epsilon=epsilon)

    residuals = targets - features @ weights
    gradients = np.clip(residuals[:, None] * features, -1.0, 1.0)  # of L1 norm at most 3 for one record
    scale = 3.0 / epsilon
    noisy = (gradients.sum(axis=0) + rng.laplace(scale=scale, size=3)) / RECORDS
    weights, step = weights + 1.5 * noisy, step + 1

    signal, noise = np.abs(noisy).max(), scale / RECORDS
    print(
        f"step {step:2d}  epsilon {epsilon:.4f}  gradient {signal:.4f}  noise {noise:.4f}  "
        f"spent {float(filt.spent(state)):.4f}  odometer {float(odometer.bound(meter)):.4f}"
    )
    if signal < 3 * noise:  # what was seen decides what is asked next
        epsilon = 2 * epsilon

print(f"\nstopped by the filter after {step} steps: everything above is {filt.guarantee}")
print(
    f"spent {float(filt.spent(state)):.4f} of {EPSILON:g}; the next step could have had {float(filt.remaining(state)):.4f}"
)
print(f"the odometer's bound on the privacy loss: {float(odometer.bound(meter)):.4f}")
print(f"largest error of the weights: {np.abs(weights - TRUTH).max():.4f}")
