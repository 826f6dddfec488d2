"""From one notion of privacy to another. Every value is on the safe side of the truth, rounding included.

Between parameters: ``zcdp_to_dp``, ``rdp_to_dp``, ``dp_to_zcdp``, ``dp_to_pdp`` and the budgets that invert them. Between
curves: a Renyi curve or zCDP to the profile and the trade-off function they leave possible, profiles to trade-off functions
and pairs and back. Each says whether it is lossless.
"""

from dpjax.conversions.curves import Pair as Pair
from dpjax.conversions.curves import dp_to_gdp as dp_to_gdp
from dpjax.conversions.curves import gdp_to_profile as gdp_to_profile
from dpjax.conversions.curves import pair_to_profile as pair_to_profile
from dpjax.conversions.curves import profile_to_pair as profile_to_pair
from dpjax.conversions.curves import profile_to_tradeoff as profile_to_tradeoff
from dpjax.conversions.curves import rdp_to_profile as rdp_to_profile
from dpjax.conversions.curves import rdp_to_tradeoff as rdp_to_tradeoff
from dpjax.conversions.curves import tradeoff_to_profile as tradeoff_to_profile
from dpjax.conversions.curves import zcdp_to_profile as zcdp_to_profile
from dpjax.conversions.scalars import dp_to_pdp as dp_to_pdp
from dpjax.conversions.scalars import dp_to_zcdp as dp_to_zcdp
from dpjax.conversions.scalars import one_sided_pdp_to_pdp as one_sided_pdp_to_pdp
from dpjax.conversions.scalars import rdp_budget as rdp_budget
from dpjax.conversions.scalars import rdp_to_dp as rdp_to_dp
from dpjax.conversions.scalars import zcdp_budget as zcdp_budget
from dpjax.conversions.scalars import zcdp_to_dp as zcdp_to_dp
