"""The Hessian of a loss with respect to the outputs, as a factor: S S^T = d²loss/do² for each sample.

Each loss knows the sum of its terms over a batch (`total`), what the criterion divides that sum by (`weight`, one
number per batch, added over batches), and the columns of S. So the curvature of the criterion over a whole data set is
a sum over batches of any size, divided at the end. A loss of one's own is a subclass of `Loss`, or of `Separate` where
it is a sum over the entries of the outputs: an instance of it goes wherever a criterion goes.
"""

from .centred import Centred
from .columns import Columns
from .factor import Factor
from .find import as_loss
from .loss import Criterion, Loss
from .next_token import NextToken
from .separate import Separate

__all__ = ["Centred", "Columns", "Criterion", "Factor", "Loss", "NextToken", "Separate", "as_loss"]
