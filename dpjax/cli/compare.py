"""The command ``compare``."""

import math
from importlib.util import find_spec
from typing import Annotated, Any

import typer

from dpjax import suspicion
from dpjax.cli import _process
from dpjax.cli._app import app
from dpjax.cli._options import (
    QUERY,
    AccumulationSteps,
    AsJson,
    BatchSize,
    DatasetSize,
    Epochs,
    MicroBatchSize,
    NoCache,
    Noise,
    Probability,
    Setting,
    Steps,
    number,
    setting,
)
from dpjax.cli._print import note, print_json, print_table, rounded

EXAMPLES = r"""
  dpjax compare --noise-multiplier 1.0 --sampling-probability 0.01 \
      --steps 1000 --delta 1e-5
"""

_ORDERS = (1.25, 1.5, 1.75, *(2 + i / 4 for i in range(32)), *range(10, 65, 2), 80, 96, 128, 192, 256, 512)
_PATIENCE = 1000


@app.command(epilog="Example:\n" + EXAMPLES)
def compare(
    *,
    noise_multiplier: Noise,
    sampling_probability: Probability = None,
    steps: Steps = None,
    dataset_size: DatasetSize = None,
    batch_size: BatchSize = None,
    micro_batch_size: MicroBatchSize = None,
    accumulation_steps: AccumulationSteps = None,
    epochs: Epochs = None,
    delta: Annotated[
        float,
        typer.Option(show_default=False, parser=number, metavar="NUMBER", help="The delta.", rich_help_panel=QUERY),
    ],
    as_json: AsJson = False,
    no_cache: NoCache = False,
) -> None:
    """The epsilon of a DP-SGD run beside what other ways of accounting say, add-or-remove-one."""
    run = setting(
        noise_multiplier, sampling_probability, steps, dataset_size=dataset_size, batch_size=batch_size, epochs=epochs,
        micro_batch_size=micro_batch_size, accumulation_steps=accumulation_steps,
    )  # fmt: skip
    suspicion.question_delta(delta, dataset_size)
    _process.configure_jax(no_cache)
    import dpjax

    step = dpjax.PoissonSampled(run.sampling_probability, dpjax.Gaussian(run.noise_multiplier))
    bounds = dpjax.epsilon_bounds(step * run.steps, delta)
    suspicion.question_zero(delta, bounds.upper)
    found: dict[str, Any] = {
        "dpjax, certified": float(bounds.upper),
        "at least, certified": float(bounds.lower),
        "Renyi accountant": _renyi(run, delta),
        "advanced composition": _advanced(step, run.steps, delta),
    }
    if found["dpjax, certified"] < _PATIENCE:
        found |= _dp_accounting(run, delta)
    elif find_spec("dp_accounting"):
        note(f"dp_accounting is left out: above an epsilon of {_PATIENCE} its grids and series take minutes.")
    if as_json:
        inputs = {**run._asdict(), "delta": delta}
        print_json({"epsilon": found, "inputs": {k: v for k, v in inputs.items() if k not in ("derived", "given")}})
        return
    exact = found["dpjax, certified"]
    rows = {}
    for name, epsilon in found.items():
        up = not name.startswith("at least")
        more = f"   {epsilon / exact:#.4g} times" if up and 0 < exact < math.inf and epsilon != exact else ""
        rows[name] = rounded(epsilon, up=up) + more
    print_table(rows, bold_first=True)


def _renyi(run: Setting, delta: float) -> float:
    """The best conversion of the composed Renyi divergence over usual orders."""
    if not 0 < delta < 1:
        return math.inf
    import jax
    import jax.numpy as jnp

    # dpjax.renyi is for any mechanism, and compiles for most of a minute
    from dpjax.adaptive._renyi import poisson_gaussian_renyi
    from dpjax.conversions import rdp_to_dp

    with jax.enable_x64(True):
        orders, noise, rate = (jnp.asarray(x, float) for x in (_ORDERS, run.noise_multiplier, run.sampling_probability))
        divergence = run.steps * jax.jit(poisson_gaussian_renyi)(orders, noise, rate) if run.steps else 0.0 * orders
        return max(float(jnp.min(rdp_to_dp(orders, divergence, delta))), 0.0)


def _advanced(step: Any, steps: int, delta: float) -> float:
    """Dwork, Rothblum and Vadhan: half of delta for the steps, half for their sum."""
    import dpjax

    if delta == 0 or steps == 0:
        return float(dpjax.epsilon(step, delta)) * steps
    each = float(dpjax.epsilon(step, delta / (2 * steps)))
    if each > 700:
        return math.inf
    advanced = each * math.sqrt(2 * steps * math.log(2 / delta)) + steps * each * math.expm1(each)
    return min(advanced, steps * each)


def _dp_accounting(run: Any, delta: float) -> dict[str, float]:
    """Google's accountants, if they are installed."""
    try:
        from absl import logging
        from dp_accounting import dp_event
        from dp_accounting.pld import PLDAccountant
        from dp_accounting.rdp import RdpAccountant
    except ModuleNotFoundError:
        return {}
    if not (run.noise_multiplier > 0 and 0 < run.sampling_probability <= 1 and run.steps > 0 and 0 < delta < 1):
        return {}
    event = dp_event.SelfComposedDpEvent(
        dp_event.PoissonSampledDpEvent(run.sampling_probability, dp_event.GaussianDpEvent(run.noise_multiplier)),
        run.steps,
    )
    found, verbosity = {}, logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)  # it remarks on every order of a Renyi divergence that it leaves out
    try:
        for name, accountant in (("PLD", PLDAccountant()), ("RDP", RdpAccountant())):
            found[f"dp_accounting, {name}"] = float(accountant.compose(event).get_epsilon(delta))
    finally:
        logging.set_verbosity(verbosity)
    return found
