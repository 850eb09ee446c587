"""Algorithm 1, "until": rules that say when to stop."""

from abc import abstractmethod
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from bbvi.gradients.abstract import Estimate

#: {"globals": lambda of the globals, "rows": rows of lambda of the batch}, without what is held
Moved = dict[str, Any]


class Info(NamedTuple):
    """What a stopping rule may look at besides lambda: this step's estimate and batch."""

    estimate: Estimate
    groups: Array | None
    num_groups: int


class AbstractStop(eqx.Module):
    """A stopping rule, run inside the compiled loop after every step."""

    #: whether firing means that the fit has converged
    means_converged: ClassVar[bool] = True

    @abstractmethod
    def init(self, params: Any) -> Any:
        """State before the first step; `params` has all rows of the locals."""

    @abstractmethod
    def update(self, state: Any, before: Moved, after: Moved, info: Info) -> tuple[Any, Bool[Array, ""]]:
        """New state, and whether to stop now. It sees the globals and the batch's rows, never all groups."""


class AbstractAveragingStop(AbstractStop):
    """A stopping rule that also proposes an average of late iterates."""

    @abstractmethod
    def average(self, state: Any, params: Any) -> Any:
        """The average, in the structure of `params`, all rows included."""


class ParameterChange(AbstractStop):
    """Stop when no parameter that this step could move moved by `tolerance` or more (Algorithm 1).

    Examples:
        >>> import bbvi
        >>> bbvi.ParameterChange(0.01)
        ParameterChange(tolerance=0.01)
    """

    tolerance: float = 0.01

    def __check_init__(self):
        if not (isinstance(self.tolerance, (int, float)) and self.tolerance > 0):
            raise ValueError(f"ParameterChange: tolerance must be a positive number, got {self.tolerance!r}")

    def init(self, params):
        return None

    def update(self, state, before, after, info):
        moved = jax.tree.map(lambda a, b: jnp.max(jnp.abs(a - b)), before, after)
        return state, jnp.max(jnp.stack(jax.tree.leaves(moved))) < self.tolerance


class Budget(AbstractStop):
    """Stop after a number of steps or seconds; says nothing about convergence.

    Examples:
        >>> import bbvi
        >>> bbvi.Budget(steps=500).means_converged
        False
    """

    means_converged: ClassVar[bool] = False
    steps: int | None = None
    seconds: float | None = None

    def __check_init__(self):
        if self.steps is None and self.seconds is None:
            raise ValueError("Budget needs steps= or seconds=")
        if self.steps is not None and (not isinstance(self.steps, (int, np.integer)) or self.steps < 0):
            raise ValueError(f"Budget: steps must be an integer of 0 or more, got {self.steps!r}")
        if self.seconds is not None and not self.seconds >= 0:
            raise ValueError(f"Budget: seconds must be 0 or more, got {self.seconds}")

    def init(self, params):
        return None

    def update(self, state, before, after, info):
        # steps and seconds are counted outside the compiled loop, which is the same for all budgets
        return state, jnp.bool_(False)
