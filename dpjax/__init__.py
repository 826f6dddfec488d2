"""A certified, differentiable differential-privacy accountant in JAX.

>>> run = dpsgd(noise_multiplier=1.0, sampling_probability=0.01, steps=1000)
>>> run
SelfComposed(PoissonSampled(0.01, Gaussian(1)), 1000)

Importing the package changes none of JAX's settings and imports nothing heavy: a public name is loaded when it is
first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:  # what type checkers and editors see; at run time _HOME says where a name lives
    from dpjax import adaptive as adaptive
    from dpjax import bounded_range as bounded_range
    from dpjax import conversions as conversions
    from dpjax import interop as interop
    from dpjax import ledger as ledger
    from dpjax import participation as participation
    from dpjax import plotting as plotting
    from dpjax import pure_dp as pure_dp
    from dpjax import training as training
    from dpjax.accounting import delta as delta
    from dpjax.accounting import delta_bounds as delta_bounds
    from dpjax.accounting import epsilon as epsilon
    from dpjax.accounting import epsilon_bounds as epsilon_bounds
    from dpjax.accounting import log_delta as log_delta
    from dpjax.auditing import audit as audit
    from dpjax.bounds import Bounds as Bounds
    from dpjax.bounds import Method as Method
    from dpjax.bounds import Status as Status
    from dpjax.calibration import calibrate as calibrate
    from dpjax.loss_distribution import characteristic_function as characteristic_function
    from dpjax.loss_distribution import privacy_loss_cdf as privacy_loss_cdf
    from dpjax.mechanisms import ZCDP as ZCDP
    from dpjax.mechanisms import Adjacency as Adjacency
    from dpjax.mechanisms import ApproximateDP as ApproximateDP
    from dpjax.mechanisms import BoundedRange as BoundedRange
    from dpjax.mechanisms import Composed as Composed
    from dpjax.mechanisms import ComposedOver as ComposedOver
    from dpjax.mechanisms import DiscreteGaussian as DiscreteGaussian
    from dpjax.mechanisms import DiscreteLaplace as DiscreteLaplace
    from dpjax.mechanisms import DiscreteLoss as DiscreteLoss
    from dpjax.mechanisms import ExponentialMechanism as ExponentialMechanism
    from dpjax.mechanisms import FixedSizeSampled as FixedSizeSampled
    from dpjax.mechanisms import Gaussian as Gaussian
    from dpjax.mechanisms import Laplace as Laplace
    from dpjax.mechanisms import MassAtInfinity as MassAtInfinity
    from dpjax.mechanisms import MatrixFactorization as MatrixFactorization
    from dpjax.mechanisms import Mechanism as Mechanism
    from dpjax.mechanisms import MixtureOfGaussians as MixtureOfGaussians
    from dpjax.mechanisms import PermuteAndFlip as PermuteAndFlip
    from dpjax.mechanisms import PoissonSampled as PoissonSampled
    from dpjax.mechanisms import PrivacyProfile as PrivacyProfile
    from dpjax.mechanisms import PureDP as PureDP
    from dpjax.mechanisms import RandomAllocation as RandomAllocation
    from dpjax.mechanisms import RandomizedResponse as RandomizedResponse
    from dpjax.mechanisms import RenyiDP as RenyiDP
    from dpjax.mechanisms import ReportNoisyMax as ReportNoisyMax
    from dpjax.mechanisms import SelfComposed as SelfComposed
    from dpjax.mechanisms import ShuffledBatches as ShuffledBatches
    from dpjax.mechanisms import TreeAggregation as TreeAggregation
    from dpjax.mechanisms import TruncatedPoissonSampled as TruncatedPoissonSampled
    from dpjax.mechanisms import banded_factorization as banded_factorization
    from dpjax.mechanisms import dpsgd as dpsgd
    from dpjax.reporting import statement as statement
    from dpjax.representations import AttackRates as AttackRates
    from dpjax.representations import advantage as advantage
    from dpjax.representations import attack_rates as attack_rates
    from dpjax.representations import gdp_mu as gdp_mu
    from dpjax.representations import renyi as renyi
    from dpjax.representations import tradeoff as tradeoff
    from dpjax.representations import true_positive_rate as true_positive_rate
    from dpjax.suspicion import SuspiciousInputWarning as SuspiciousInputWarning
    from dpjax.sweeps import sweep as sweep
    from dpjax.table import Table as Table
    from dpjax.training_run import TrainingRun as TrainingRun
    from dpjax.training_run import dpsgd_from_training as dpsgd_from_training
    from dpjax.training_run import noise_for_training as noise_for_training

_HOME = {  # None: the name is that of a module
    "adaptive": None,
    "Adjacency": "mechanisms",
    "advantage": "representations",
    "ApproximateDP": "mechanisms",
    "attack_rates": "representations",
    "AttackRates": "representations",
    "audit": "auditing",
    "banded_factorization": "mechanisms",
    "bounded_range": None,
    "BoundedRange": "mechanisms",
    "Bounds": "bounds",
    "calibrate": "calibration",
    "characteristic_function": "loss_distribution",
    "Composed": "mechanisms",
    "ComposedOver": "mechanisms",
    "conversions": None,
    "delta": "accounting",
    "delta_bounds": "accounting",
    "DiscreteGaussian": "mechanisms",
    "DiscreteLaplace": "mechanisms",
    "DiscreteLoss": "mechanisms",
    "dpsgd": "mechanisms",
    "dpsgd_from_training": "training_run",
    "epsilon": "accounting",
    "epsilon_bounds": "accounting",
    "ExponentialMechanism": "mechanisms",
    "FixedSizeSampled": "mechanisms",
    "Gaussian": "mechanisms",
    "gdp_mu": "representations",
    "Laplace": "mechanisms",
    "interop": None,
    "ledger": None,
    "log_delta": "accounting",
    "MassAtInfinity": "mechanisms",
    "MatrixFactorization": "mechanisms",
    "Mechanism": "mechanisms",
    "Method": "bounds",
    "MixtureOfGaussians": "mechanisms",
    "noise_for_training": "training_run",
    "participation": None,
    "plotting": None,
    "PermuteAndFlip": "mechanisms",
    "PoissonSampled": "mechanisms",
    "privacy_loss_cdf": "loss_distribution",
    "PrivacyProfile": "mechanisms",
    "pure_dp": None,
    "PureDP": "mechanisms",
    "RandomAllocation": "mechanisms",
    "RandomizedResponse": "mechanisms",
    "renyi": "representations",
    "RenyiDP": "mechanisms",
    "ReportNoisyMax": "mechanisms",
    "SelfComposed": "mechanisms",
    "ShuffledBatches": "mechanisms",
    "statement": "reporting",
    "Status": "bounds",
    "SuspiciousInputWarning": "suspicion",
    "sweep": "sweeps",
    "Table": "table",
    "tradeoff": "representations",
    "training": None,
    "TrainingRun": "training_run",
    "TreeAggregation": "mechanisms",
    "true_positive_rate": "representations",
    "TruncatedPoissonSampled": "mechanisms",
    "ZCDP": "mechanisms",
}
__all__ = list(_HOME)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = _HOME[name]
    module = importlib.import_module(f"{__name__}.{home or name}")
    value = module if home is None else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
