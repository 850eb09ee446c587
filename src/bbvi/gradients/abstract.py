"""The gradient of the ELBO: what an estimator is given and what it returns."""

from abc import abstractmethod
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
from jaxtyping import Array, Float, Int

from bbvi.blankets.analysis import Analysis
from bbvi.draws.batch import Batch
from bbvi.draws.draws import AbstractDraws
from bbvi.families.abstract import Lambda
from bbvi.numerics.address import Key


class Estimate(NamedTuple):
    """A noisy gradient with respect to the globals and the batch's rows (without N/B), with its ELBO and diagnostics.

    `fisher` is the mean squared score of each, `{"globals": ..., "rows": ...}`; `buffers` is memory for the next one.
    """

    globals: Lambda
    rows: Lambda
    fisher: dict[str, Lambda]
    elbo: Float[Array, ""]
    elbo_error: Float[Array, ""]
    floored: Int[Array, ""]
    buffers: Any = None


class AbstractGradient(eqx.Module):
    """An estimator of the gradient of the ELBO; subclasses define `estimate`."""

    #: whether it sums terms by what they read; if not, data that decide what is read need no other program
    reads_blankets: ClassVar[bool] = True

    def check(self, draws: AbstractDraws) -> None:
        """Refuse draws that this estimator cannot work with; by default none."""

    def by_latent(self, analysis: Analysis) -> dict[str, "AbstractGradient"]:
        """Map each latent to its estimator."""
        return {name: self for name in analysis.fitted(with_groups=True)}

    def named(self, analysis: Analysis) -> dict[str, str]:
        """Map each latent to its estimator's name."""
        return {name: repr(gradient) for name, gradient in self.by_latent(analysis).items()}

    def evaluations(self, analysis: Analysis) -> int:
        """Count the evaluations of log p that one draw costs."""
        return 1

    def num_folds(self, draws: AbstractDraws) -> int:
        """Tell into how many folds the samples are cut."""
        return 1

    def buffers(self, analysis: Analysis, params: Lambda, batch: Batch | None, draws: AbstractDraws) -> Any:
        """Make the memory that estimates hand on from one to the next."""
        return None

    @abstractmethod
    def estimate(
        self,
        analysis: Analysis,
        params: Lambda,
        data: Any,
        batch: Batch | None,
        *,
        draws: AbstractDraws,
        key: Key,
        buffers: Any = None,
    ) -> Estimate:
        """Estimate at the globals' lambda `params` and the batch's rows, with random numbers from `key`.

        `buffers` is memory that an earlier estimate of the same shapes has left.
        """
