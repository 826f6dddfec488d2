"""Laws of the privacy loss: what a mechanism's dominating pair means to the lattice engine, to sampling, to profiles."""

from dpjax.laws._build import check_adjacency as check_adjacency
from dpjax.laws._build import loss_law as loss_law
from dpjax.laws._law import Law as Law
from dpjax.laws._law import Reversed as Reversed
from dpjax.laws._law import Tails as Tails
from dpjax.laws._law import reverse as reverse
