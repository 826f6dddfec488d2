"""Other ways to write down the privacy of a mechanism: Renyi divergences, trade-off curves, attacks, Gaussian DP."""

from dpjax.representations._renyi import renyi as renyi
