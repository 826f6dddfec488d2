"""The records that a user writes down: mechanisms, how they are sampled and how they are composed.

A record only says what happened. What it means for privacy is worked out elsewhere: ``pairs`` turns a mechanism and
an adjacency into a dominating pair, ``composition`` adds pairs up, ``accounting`` answers questions.

Contract: the meaning of a record never changes between versions; a new meaning gets a new name.
"""

from dpjax.mechanisms._base import COMPOSITIONS as COMPOSITIONS
from dpjax.mechanisms._base import Adjacency as Adjacency
from dpjax.mechanisms._base import Composed as Composed
from dpjax.mechanisms._base import ComposedOver as ComposedOver
from dpjax.mechanisms._base import Mechanism as Mechanism
from dpjax.mechanisms._base import SelfComposed as SelfComposed
from dpjax.mechanisms._base import attained as attained
from dpjax.mechanisms._base import require_adjacency as require_adjacency
from dpjax.mechanisms.claims import PARAMETRIC as PARAMETRIC
from dpjax.mechanisms.claims import ZCDP as ZCDP
from dpjax.mechanisms.claims import ApproximateDP as ApproximateDP
from dpjax.mechanisms.claims import BoundedRange as BoundedRange
from dpjax.mechanisms.claims import ExponentialMechanism as ExponentialMechanism
from dpjax.mechanisms.claims import PrivacyProfile as PrivacyProfile
from dpjax.mechanisms.claims import PureDP as PureDP
from dpjax.mechanisms.claims import RenyiDP as RenyiDP
from dpjax.mechanisms.claims import known_by_parameters as known_by_parameters
from dpjax.mechanisms.factorization import GAUSSIANS as GAUSSIANS
from dpjax.mechanisms.factorization import MatrixFactorization as MatrixFactorization
from dpjax.mechanisms.factorization import TreeAggregation as TreeAggregation
from dpjax.mechanisms.factorization import banded_factorization as banded_factorization
from dpjax.mechanisms.factorization import reduced as reduced
from dpjax.mechanisms.finite import DiscreteLoss as DiscreteLoss
from dpjax.mechanisms.finite import MassAtInfinity as MassAtInfinity
from dpjax.mechanisms.finite import RandomizedResponse as RandomizedResponse
from dpjax.mechanisms.noise import DiscreteGaussian as DiscreteGaussian
from dpjax.mechanisms.noise import DiscreteLaplace as DiscreteLaplace
from dpjax.mechanisms.noise import Gaussian as Gaussian
from dpjax.mechanisms.noise import Laplace as Laplace
from dpjax.mechanisms.noise import MixtureOfGaussians as MixtureOfGaussians
from dpjax.mechanisms.sampling import FixedSizeSampled as FixedSizeSampled
from dpjax.mechanisms.sampling import PoissonSampled as PoissonSampled
from dpjax.mechanisms.sampling import RandomAllocation as RandomAllocation
from dpjax.mechanisms.sampling import ShuffledBatches as ShuffledBatches
from dpjax.mechanisms.sampling import TruncatedPoissonSampled as TruncatedPoissonSampled
from dpjax.mechanisms.sampling import dpsgd as dpsgd
from dpjax.mechanisms.sampling import zeroed as zeroed
from dpjax.mechanisms.selection import PermuteAndFlip as PermuteAndFlip
from dpjax.mechanisms.selection import ReportNoisyMax as ReportNoisyMax
