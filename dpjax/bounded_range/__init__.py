"""Composition of bounded-range mechanisms, such as the exponential mechanism (Dong, Durfee & Rogers, arXiv 1909.13830).

A mechanism is eps-bounded-range (eps-BR) if for neighbouring datasets the ratio of the probabilities of an outcome
varies by at most e^eps between outcomes. It is then eps-DP, but composes almost like eps/2-DP. For each pair of
neighbours its worst case is a pair RR_{eps,t} with some t in [0, eps] that nobody knows: composition takes a supremum.

If all mechanisms and datasets are fixed beforehand every t is, too. In use they are not: the next score function, and
so the next t, depends on earlier outcomes. The default here is therefore the adaptive optimum, bracketed on both sides.
"""

from dpjax._two_point.arguments import Bounds as Bounds
from dpjax.bounded_range.bounds import dr19_bound as dr19_bound
from dpjax.bounded_range.bounds import kl_bound as kl_bound
from dpjax.bounded_range.bounds import mgf_bound as mgf_bound
from dpjax.bounded_range.queries import AdaptivityCost as AdaptivityCost
from dpjax.bounded_range.queries import adaptivity_cost as adaptivity_cost
from dpjax.bounded_range.queries import delta as delta
from dpjax.bounded_range.queries import delta_bounds as delta_bounds
from dpjax.bounded_range.queries import epsilon as epsilon
from dpjax.bounded_range.queries import epsilon_bounds as epsilon_bounds
from dpjax.bounded_range.queries import fixed_delta as fixed_delta
from dpjax.bounded_range.queries import fixed_delta_bounds as fixed_delta_bounds
from dpjax.bounded_range.queries import log_delta as log_delta
from dpjax.bounded_range.queries import log_delta_bounds as log_delta_bounds
from dpjax.bounded_range.queries import smaller_delta as smaller_delta
from dpjax.bounded_range.queries import smaller_epsilon as smaller_epsilon
from dpjax.bounded_range.scores import ExponentialParameters as ExponentialParameters
from dpjax.bounded_range.scores import WorstPair as WorstPair
from dpjax.bounded_range.scores import exponential_mechanism as exponential_mechanism
from dpjax.bounded_range.scores import quality_range as quality_range
from dpjax.bounded_range.scores import quality_range_bound as quality_range_bound
from dpjax.bounded_range.scores import worst_pair as worst_pair
