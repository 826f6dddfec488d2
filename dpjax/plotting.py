"""Pictures. Needs matplotlib (``pip install 'dpjax[plot]'``); draws without touching its global state or a display."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from jax.typing import ArrayLike

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def epsilon_sweep(
    x: ArrayLike,
    curves: Mapping[str, ArrayLike],
    *,
    x_label: str,
    title: str = "",
    mark: tuple[float, float] | None = None,
) -> Figure:
    """Draws epsilon against one parameter, one curve for each value of another.

    Args:
      x: the parameter on the horizontal axis, shape (n,).
      curves: label -> epsilons, each of shape (n,). Infinite ones are left out.
      x_label: what the horizontal axis shows.
      title: a line above the picture.
      mark: a point (x, epsilon) to point at.

    Returns:
      A matplotlib figure; ``figure.savefig(path)`` writes it.

    Raises:
      ModuleNotFoundError: matplotlib is not installed.

    Example:
      >>> figure = epsilon_sweep([1.0, 2.0], {"10 epochs": [3.0, 1.0]}, x_label="noise multiplier")
      >>> figure.axes[0].get_xlabel()
      'noise multiplier'
    """
    try:
        from matplotlib import colormaps
        from matplotlib.figure import Figure
        from matplotlib.ticker import LogLocator, NullFormatter
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("pictures need matplotlib: pip install 'dpjax[plot]'") from error

    figure = Figure(figsize=(7, 4.2), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    colours = colormaps["viridis"](np.linspace(0.0, 0.85, len(curves)))
    for (label, epsilons), colour in zip(curves.items(), colours, strict=True):
        axes.plot(x, epsilons, color=colour)
        shown = np.flatnonzero(np.isfinite(epsilons))
        if shown.size:  # the label stands at the end of its curve
            end = (np.asarray(x)[shown[-1]], np.asarray(epsilons)[shown[-1]])
            axes.annotate(label, end, xytext=(5, 0), textcoords="offset points", va="center", color=colour)
    if mark is not None:
        axes.plot(*mark, "o", color="black", markersize=5)
        line = {"arrowstyle": "-", "color": "gray", "shrinkB": 4}
        text = f"{x_label} {mark[0]:g}: epsilon {mark[1]:.3g}"
        axes.annotate(text, mark, xytext=(0.4, 0.9), textcoords="axes fraction", arrowprops=line)
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel(x_label)
    axes.set_ylabel("epsilon")
    axes.set_title(title, loc="left", fontsize="medium")
    axes.grid(True, alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    return figure
