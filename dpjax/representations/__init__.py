"""Other ways to write down the privacy of a mechanism: Renyi divergences, trade-off curves, attacks, Gaussian DP."""

from dpjax.representations._attack import AttackRates as AttackRates
from dpjax.representations._attack import advantage as advantage
from dpjax.representations._attack import attack_rates as attack_rates
from dpjax.representations._gdp import gdp_mu as gdp_mu
from dpjax.representations._renyi import renyi as renyi
from dpjax.representations._tradeoff import tradeoff as tradeoff
from dpjax.representations._tradeoff import true_positive_rate as true_positive_rate
