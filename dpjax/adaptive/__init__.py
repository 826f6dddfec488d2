r"""Fully adaptive composition: privacy parameters that are chosen along the way, from what has been seen.

**Which tool?** The question is what the privacy parameters of a step may depend on.

* *Fixed in advance* (a schedule of noise, sampling rates and steps that does not look at the outputs): the accountant
  of ``dpjax.epsilon``, which is exact. The queries themselves may still depend on earlier outputs.
* *On earlier outputs, with a total to keep*: a **filter**. It must be asked before each query; when it refuses, that
  query is not run. The guarantee is the whole budget, however little is used.

  - DP-SGD with adaptive noise or sampling: ``RenyiFilter`` (the only one that profits from sampling).
  - Gaussian mechanisms: ``GDPFilter``. Mechanisms with zCDP parameters: ``ZCDPFilter``.
  - (epsilon, delta)-DP queries, many and small: ``ApproxDPFilter``; few and large: ``BasicFilter``.
  - Budgets for each example: ``IndividualFilter``.

* *On earlier outputs, and the total too* (when to stop is decided by looking at what was spent): an **odometer**. Its
  bound holds at all times at once. ``MixtureOdometer`` unless there is a reason, ``FilterOdometer`` if one target
  matters, ``StitchedOdometer`` if the amount may become huge. The queries must be pure DP, pDP or pure zCDP.

What is *not* valid: to add up the accountant's epsilon over parameters that were adapted, to stop when
``advanced_composition`` of what was run reaches a target that was not set beforehand, to read a filter's ``spent`` as a
guarantee, or to run two filters and stop when the second one refuses (``combine="any"`` pays for that with delta).

A loop that chooses its next epsilon from what it has seen and stops by the filter; it counts in ever finer steps until
the relative noise is small:

>>> import jax
>>> from dpjax.adaptive import ApproxDPFilter
>>> def noisy_count(key, epsilon):
...     return 1000.0 + jax.random.laplace(key, dtype="float32") / epsilon
>>> filt = ApproxDPFilter(epsilon=1.0, delta=1e-6, slack=1e-6)  # every query is pure
>>> state, epsilon, runs = filt.init(), 0.01, 0
>>> for key in jax.random.split(jax.random.key(0), 100):
...     state, granted = filt.request(state, epsilon=epsilon)
...     if not granted:
...         break
...     answer, runs = noisy_count(key, epsilon), runs + 1
...     epsilon = 1.25 * epsilon if 30.0 / epsilon > 0.1 * abs(answer) else epsilon
>>> print(f"{runs} queries; the next would have had epsilon {epsilon:.3f}, {filt.remaining(state):.3f} fits")
11 queries; the next would have had epsilon 0.116, 0.105 fits
>>> state, granted = filt.request(state, epsilon=filt.remaining(state))  # use the whole budget
>>> print(bool(granted), f"{filt.spent(state):.4f}", filt.guarantee)
True 1.0000 (1, 1e-06)-DP

All objects are pytrees with pure methods: they ride in ``lax.scan`` and ``lax.while_loop``, under ``vmap`` and ``jit``.

Source: Whitehouse, Ramdas, Rogers, Wu, "Fully adaptive composition in differential privacy" (arXiv 2203.05481), with
corrections that the docstrings name.
"""

from dpjax.adaptive import boundaries
from dpjax.adaptive._filter import FilterState
from dpjax.adaptive.filters import ApproxDPFilter, BasicFilter, GDPFilter, ZCDPFilter
from dpjax.adaptive.individual import IndividualFilter
from dpjax.adaptive.odometers import FilterOdometer, MixtureOdometer, OdometerState, StitchedOdometer
from dpjax.adaptive.renyi_filter import RenyiFilter
from dpjax.adaptive.rogers import RogersFilter, RogersOdometer

__all__ = [
    "ApproxDPFilter",
    "BasicFilter",
    "FilterOdometer",
    "FilterState",
    "GDPFilter",
    "IndividualFilter",
    "MixtureOdometer",
    "OdometerState",
    "RenyiFilter",
    "RogersFilter",
    "RogersOdometer",
    "StitchedOdometer",
    "ZCDPFilter",
    "boundaries",
]
