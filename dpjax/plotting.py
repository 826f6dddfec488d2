"""Pictures, one call each. Needs matplotlib (``pip install 'dpjax[plot]'``); draws without its global state or a display.

Every function draws on ``ax``, or on a new figure, and returns the ``Axes``: ``ax.figure.savefig("picture.png")`` writes it. Curves
differ in their dashes as well as in colour, so that they can be told apart in print; each is labelled where it ends. An axis is
logarithmic if its values are in equal ratios, or go far without being equally spaced.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jax.typing import ArrayLike

from dpjax._digits import rounded
from dpjax.mechanisms import Adjacency, Mechanism

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from dpjax.table import Table

_DASHES = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (5, 1, 1, 1)), (0, (8, 2)), (0, (3, 1, 1, 1, 1, 1)))


def _axes(ax: Axes | None) -> Axes:
    if ax is not None:
        return ax
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("pictures need matplotlib: pip install 'dpjax[plot]'") from error
    return Figure(figsize=(7, 4.2), dpi=150, layout="constrained").add_subplot()


def _finish(ax: Axes, x_label: str, y_label: str, title: str) -> Axes:
    ax.set_xlabel(x_label)
    ax.set_ylabel(y_label)
    ax.set_title(title, loc="left", fontsize="medium")
    ax.grid(True, alpha=0.25)
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def _curves(ax: Axes, x: Any, curves: Mapping[str, Any], *, ends_meet: bool = False) -> list:
    """Draws curves with their labels at their ends, or in a legend where the ends meet; returns their colours."""
    from matplotlib import colormaps

    colours = list(colormaps["viridis"](np.linspace(0.0, 0.8, len(curves))))
    for i, ((label, y), colour) in enumerate(zip(curves.items(), colours, strict=True)):
        x_i, y = np.broadcast_arrays(np.asarray(x, float), np.asarray(y, float))
        ax.plot(x_i, y, color=colour, linestyle=_DASHES[i % len(_DASHES)], label=label or None)
        shown = np.flatnonzero(np.isfinite(y))
        if shown.size and label and not ends_meet:
            end = (x_i[shown[-1]], y[shown[-1]])
            ax.annotate(label, end, xytext=(5, 0), textcoords="offset points", va="center", color=colour)
    if ends_meet and any(curves):
        ax.legend(frameon=False)
    return colours


def _log_ticks(axis: Any) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


def _is_log(values: Any) -> bool:
    """Whether an axis is to be logarithmic: its values were chosen in equal ratios, or go far without being equally spaced."""
    values = np.unique(np.asarray(values, float))
    if values.size < 2 or not (values[0] > 0 and values[-1] >= 3 * values[0] and np.isfinite(values[-1])):
        return False
    ratios, gaps = values[1:] / values[:-1], np.diff(values)
    if values.size > 2 and np.ptp(gaps) < 1e-3 * gaps.mean():
        return False
    return bool((values.size > 2 and np.ptp(ratios) < 1e-3 * (ratios.mean() - 1)) or values[-1] > 20 * values[0])


def _scale(axis: Any, values: Any) -> None:
    if _is_log(values):
        getattr(axis.axes, f"set_{axis.axis_name}scale")("log")
        _log_ticks(axis)


def _edges(values: np.ndarray) -> np.ndarray:
    """The ends of cells around ``values``, half-way on the axis that shows them."""
    if values.size == 1:
        return np.array([values[0] - 0.5, values[0] + 0.5])
    x = np.log(values) if _is_log(values) else values
    middle = (x[1:] + x[:-1]) / 2
    ends = np.concatenate([[x[0] - (middle[0] - x[0])], middle, [x[-1] + (x[-1] - middle[-1])]])
    return np.exp(ends) if _is_log(values) else ends


def _named(mechanisms: Mechanism | Mapping[str, Mechanism]) -> dict[str, Mechanism]:
    return {"": mechanisms} if isinstance(mechanisms, Mechanism) else dict(mechanisms)


def epsilon_sweep(
    x: ArrayLike,
    curves: Mapping[str, ArrayLike],
    *,
    x_label: str,
    y_label: str = "epsilon",
    title: str = "",
    mark: tuple[float, float] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Epsilon against one parameter, one curve for each value of another.

    Args:
      x: the parameter on the horizontal axis, shape (n,).
      curves: label -> epsilons, each of shape (n,). Infinite ones are left out.
      x_label: what the horizontal axis shows. It is logarithmic if ``x`` is in equal ratios.
      y_label: what the vertical axis shows; say at which delta, as in ``"epsilon at delta = 1e-05"``.
      title: a line above the picture.
      mark: a point (x, epsilon) to point at.
      ax: where to draw; a new figure if None.

    Raises:
      ModuleNotFoundError: matplotlib is not installed.

    Example:
      >>> ax = epsilon_sweep([1.0, 2.0], {"10 epochs": [3.0, 1.0]}, x_label="noise multiplier")
      >>> ax.get_xlabel()
      'noise multiplier'
    """
    ax = _axes(ax)
    _curves(ax, x, curves)
    if mark is not None:
        ax.plot(*mark, "o", color="black", markersize=5)
        line = {"arrowstyle": "-", "color": "gray", "shrinkB": 4}
        text = f"{x_label} {mark[0]:g}: epsilon {rounded(float(mark[1]), up=True, digits=4)}"
        ax.annotate(text, mark, xytext=(0.4, 0.9), textcoords="axes fraction", arrowprops=line)
    ax.set_yscale("log")
    _log_ticks(ax.yaxis)
    _scale(ax.xaxis, x)
    return _finish(ax, x_label, y_label, title)


def epsilon_by_steps(
    mechanisms: Mechanism | Mapping[str, Mechanism],
    steps: ArrayLike,
    delta: float,
    *,
    adjacency: Adjacency = Adjacency.ADD_OR_REMOVE_ONE,
    title: str = "",
    ax: Axes | None = None,
) -> Axes:
    """The certified epsilon after every number of steps.

    Args:
      mechanisms: one step, or label -> one step.
      steps: numbers of steps, shape (n,).
      delta: in [0, 1].
      adjacency: which datasets are neighbours.
      title: a line above the picture.
      ax: where to draw; a new figure if None.

    Example:
      >>> import dpjax
      >>> ax = epsilon_by_steps({"noise 2": dpjax.Gaussian(2.0), "noise 4": dpjax.Gaussian(4.0)}, [1, 10, 100], 1e-5)
      >>> [len(line.get_xdata()) for line in ax.lines]
      [3, 3]
    """
    from dpjax import accounting

    ax, steps = _axes(ax), np.asarray(steps)
    named = _named(mechanisms)
    _curves(ax, steps, {label: accounting.epsilon(m * steps, delta, adjacency=adjacency) for label, m in named.items()})
    _scale(ax.xaxis, steps)
    ax.set_ylim(0, None)
    return _finish(ax, "steps", f"epsilon at delta = {delta:g}", title)


def privacy_profile(
    mechanisms: Mechanism | Mapping[str, Mechanism],
    epsilons: ArrayLike,
    *,
    adjacency: Adjacency = Adjacency.ADD_OR_REMOVE_ONE,
    title: str = "",
    ax: Axes | None = None,
) -> Axes:
    """Delta against epsilon, with the certified interval as a band where it can be seen.

    Args:
      mechanisms: a mechanism, or label -> mechanism.
      epsilons: shape (n,), ascending.
      adjacency: which datasets are neighbours.
      title: a line above the picture.
      ax: where to draw; a new figure if None.

    Example:
      >>> import dpjax
      >>> ax = privacy_profile({"Gaussian": dpjax.Gaussian(1.0), "Laplace": dpjax.Laplace(1.0)}, [0.1, 0.5, 0.9])
      >>> ax.get_yscale()
      'log'
    """
    from dpjax import accounting

    ax, epsilons = _axes(ax), np.asarray(epsilons, float)
    found = {
        label: accounting.delta_bounds(m, epsilons, adjacency=adjacency) for label, m in _named(mechanisms).items()
    }
    positive = lambda y: np.where(np.asarray(y) > 0, y, np.nan)
    colours = _curves(ax, epsilons, {label: positive(bounds.upper) for label, bounds in found.items()})
    for bounds, colour in zip(found.values(), colours, strict=True):
        ax.fill_between(epsilons, positive(bounds.lower), positive(bounds.upper), color=colour, alpha=0.2, lw=0)
    ax.set_yscale("log")
    return _finish(ax, "epsilon", "delta", title)


def tradeoff(
    mechanisms: Mechanism | Mapping[str, Mechanism],
    false_positive_rates: ArrayLike | None = None,
    *,
    adjacency: Adjacency = Adjacency.ADD_OR_REMOVE_ONE,
    title: str = "",
    ax: Axes | None = None,
) -> Axes:
    """Trade-off curves: no membership test is below, whatever its threshold.

    Args:
      mechanisms: a mechanism, or label -> mechanism.
      false_positive_rates: in [0, 1], shape (n,), ascending; 101 by default.
      adjacency: which datasets are neighbours.
      title: a line above the picture.
      ax: where to draw; a new figure if None.

    Example:
      >>> import dpjax
      >>> ax = tradeoff(dpjax.Gaussian(1.0), [0.0, 0.5, 1.0])
      >>> ax.get_xlabel(), ax.get_ylabel()
      ('false-positive rate', 'false-negative rate')
    """
    from dpjax import representations

    ax = _axes(ax)
    rates = np.linspace(0, 1, 101) if false_positive_rates is None else np.asarray(false_positive_rates, float)
    curves = {}
    for label, mechanism in _named(mechanisms).items():
        curves[label] = representations.tradeoff(mechanism, rates, adjacency=adjacency)
    ax.plot([0, 1], [1, 0], color="0.7", lw=1)
    ax.annotate("guessing", (0.75, 0.25), xytext=(4, 4), textcoords="offset points", color="0.5")
    _curves(ax, rates, curves, ends_meet=True)
    ax.set(xlim=(0, 1), ylim=(0, 1))
    return _finish(ax, "false-positive rate", "false-negative rate", title)


def _answer(table: Table, value: str, axes: tuple[str, ...]) -> str:
    """What a column of a table shows, and for which question, if the table has one for all rows."""
    for name in ("delta", "epsilon", "log_delta", "false_positive_rate"):
        if name in table and name != value and name not in axes and np.unique(table[name]).size == 1:
            return f"{value.replace('_', ' ')} at {name.replace('_', ' ')} = {table[name][0]:g}"
    return value.replace("_", " ")


def heat_map(
    table: Table,
    x: str,
    y: str,
    value: str = "epsilon",
    *,
    levels: Sequence[float] = (0.1, 0.3, 1, 3, 10, 30),
    title: str = "",
    ax: Axes | None = None,
) -> Axes:
    """A column of a sweep over two of its parameters, with lines where it reaches some levels.

    Args:
      table: of a product grid; parameters other than ``x`` and ``y`` must have one value.
      x, y: names of columns.
      value: the column to show. Its colours are labelled with the question, such as delta, if that is a column of the table.
      levels: where lines are drawn.
      title: a line above the picture.
      ax: where to draw; a new figure if None.

    Raises:
      ValueError: the table is not a grid of ``x`` and ``y``.

    Example:
      >>> import dpjax
      >>> grid = {"noise_multiplier": [1.0, 2.0, 4.0], "delta": [1e-6, 1e-5]}
      >>> ax = heat_map(dpjax.sweep(dpjax.Gaussian, grid), "noise_multiplier", "delta")
      >>> ax.get_xlabel()
      'noise multiplier'
    """
    from matplotlib.colors import LogNorm

    columns, rows = np.unique(table[x]), np.unique(table[y])
    if columns.size * rows.size != table.rows:
        raise ValueError(
            f"table has {table.rows} rows, but {columns.size} values of {x} and {rows.size} of {y}: sweep over these two."
        )
    z = np.full((rows.size, columns.size), np.nan)
    z[np.searchsorted(rows, table[y]), np.searchsorted(columns, table[x])] = table[value]
    ax = _axes(ax)
    shown = np.ma.masked_invalid(np.where(z > 0, z, np.nan))
    mesh = ax.pcolormesh(_edges(columns), _edges(rows), shown, norm=LogNorm(), cmap="viridis_r", shading="flat")
    bar = ax.figure.colorbar(mesh, ax=ax, label=_answer(table, value, (x, y)))  # type: ignore[union-attr]
    _log_ticks(bar.ax.yaxis)
    if min(z.shape) > 1:
        inside = [level for level in levels if np.nanmin(z) < level < np.nanmax(z[np.isfinite(z)])]
        if inside:
            lines = ax.contour(columns, rows, shown, levels=inside, colors="white", linewidths=1)
            ax.clabel(lines, fmt=lambda level: f"{level:g}")
    _scale(ax.xaxis, columns)
    _scale(ax.yaxis, rows)
    _finish(ax, x.replace("_", " "), y.replace("_", " "), title)
    ax.grid(False)
    return ax


def calibration_frontier(
    makes: Callable[[Any], Mechanism] | Mapping[str, Callable[[Any], Mechanism]],
    epsilons: ArrayLike,
    delta: float,
    *,
    parameter: str = "noise multiplier",
    adjacency: Adjacency = Adjacency.ADD_OR_REMOVE_ONE,
    title: str = "",
    ax: Axes | None = None,
) -> Axes:
    """What a parameter must be for each target epsilon.

    Args:
      makes: from the parameter to the mechanism, as for ``dpjax.calibrate``, or label -> such a function.
      epsilons: targets, > 0, shape (n,).
      delta: of the targets.
      parameter: its name, with units, for the vertical axis.
      adjacency: which datasets are neighbours.
      title: a line above the picture.
      ax: where to draw; a new figure if None.

    Example:
      >>> import dpjax
      >>> ax = calibration_frontier(dpjax.Gaussian, [0.5, 1.0, 2.0], 1e-5)
      >>> ax.get_ylabel()
      'noise multiplier'
    """
    from dpjax.calibration import calibrate

    ax, epsilons = _axes(ax), np.asarray(epsilons, float)
    named = {"": makes} if callable(makes) else makes
    curves = {
        label: calibrate(make, epsilon=epsilons, delta=delta, adjacency=adjacency) for label, make in named.items()
    }
    _curves(ax, epsilons, curves)
    ax.set_xscale("log")
    ax.set_yscale("log")
    _log_ticks(ax.xaxis)
    _log_ticks(ax.yaxis)
    return _finish(ax, f"target epsilon at delta = {delta:g}", parameter, title)


def odometers(named: Mapping[str, Any], intrinsic_time: ArrayLike, *, title: str = "", ax: Axes | None = None) -> Axes:
    """The bounds of odometers against intrinsic time, the sum of squared epsilons.

    Args:
      named: label -> odometer of ``dpjax.adaptive``.
      intrinsic_time: v, >= 0, shape (n,).
      title: a line above the picture.
      ax: where to draw; a new figure if None.

    Example:
      >>> from dpjax.adaptive import FilterOdometer, MixtureOdometer
      >>> pair = {"mixture": MixtureOdometer(1e-6, gamma=0.1), "filter": FilterOdometer(1e-6, epsilon=2.0)}
      >>> odometers(pair, [0.01, 0.1, 1.0]).get_ylabel()
      'epsilon, valid at all times at once'
    """
    ax, v = _axes(ax), np.asarray(intrinsic_time, float)
    _curves(ax, v, {label: np.asarray(odometer.at(v), float) for label, odometer in named.items()})
    _scale(ax.xaxis, v)
    ax.set_ylim(0, None)
    return _finish(ax, "intrinsic time (sum of epsilon squared)", "epsilon, valid at all times at once", title)


def bounded_range(size: float, counts: ArrayLike, delta: float, *, title: str = "", ax: Axes | None = None) -> Axes:
    """Epsilon of composed exponential mechanisms: the adaptive optimum's bracket beside the published bounds.

    Args:
      size: the range of each, >= 0.
      counts: numbers of mechanisms, shape (n,).
      delta: in (0, 1).
      title: a line above the picture.
      ax: where to draw; a new figure if None.

    Example:
      >>> ax = bounded_range(0.1, [1, 3, 10], 1e-6)
      >>> len(ax.lines)
      4
    """
    from dpjax import bounded_range as ranges
    from dpjax import pure_dp

    ax, counts = _axes(ax), np.asarray(counts)
    one = np.full((1,), float(size))
    adaptive = ranges.epsilon_bounds(delta, one, count=counts)
    curves = {
        "as pure DP": pure_dp.optimal_epsilon(delta, one, count=counts),
        "MGF bound": ranges.mgf_bound(delta, one, count=counts),
        "adaptive": adaptive.upper,
        "fixed beforehand": ranges.epsilon(delta, one, count=counts, adaptive=False),
    }
    colours = _curves(ax, counts, curves, ends_meet=True)
    ax.fill_between(counts, adaptive.lower, adaptive.upper, color=colours[2], alpha=0.3, lw=0)
    _scale(ax.xaxis, counts)
    ax.set_ylim(0, None)
    return _finish(ax, f"number of mechanisms of range {size:g}", f"epsilon at delta = {delta:g}", title)
