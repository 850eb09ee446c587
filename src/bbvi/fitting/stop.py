"""Algorithm 1, "until": rules that say when to stop."""

from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from bbvi.draws.batch import Batch
from bbvi.gradients.abstract import Estimate
from bbvi.posterior.outcome import Outcome

#: {"globals": lambda of the globals, "rows": rows of lambda of the batch}, without what is held
Moved = dict[str, Any]


class Info(NamedTuple):
    """What `AbstractStop.update` sees besides lambda: this step's estimate and its batch, None without groups.

    Where no rows move, `flat` has lambda after the step and its gradient, each as one vector.
    """

    estimate: Estimate
    batch: Batch | None
    flat: tuple[Array, Array] | None = None


class Elapsed(NamedTuple):
    """What `AbstractStop.on_host` sees: the steps of the run so far, and the seconds since this call began."""

    step: int
    seconds: float


class AbstractStop(eqx.Module):
    """A stopping rule: override `update` to decide from numbers of each step, `on_host` to decide outside the device.

    `init` and `update` are compiled into the loop and run after every step. `on_host` is plain Python, asked before the
    first step and then once for each compiled chunk of steps, about three times a second: there a rule may read a clock
    or a file. The other methods have defaults that suit most rules. Fields should be hashable, so that a compiled loop
    can be used again.

    Examples:
        >>> import bbvi, numpyro.distributions as dist
        >>> class ElboAbove(AbstractStop):
        ...     level: float
        ...     def update(self, state, before, after, info):
        ...         return state, info.estimate.elbo > self.level
        >>> model = bbvi.Model(lambda z, y: dist.Normal(0, 1).log_prob(z["mu"]), mu=bbvi.real())
        >>> bbvi.fit(model, stop=ElboAbove(-0.01)).stopped
        'ElboAbove(level=-0.01)'
    """

    #: how a fit ended that this rule stopped; only `Outcome.CONVERGED`, once it is verified, makes `posterior.converged` true
    outcome: ClassVar[Outcome] = Outcome.CONVERGED
    #: whether a fit goes on, from a better lambda, where a verification refutes that it has converged; else it ends there
    goes_on: ClassVar[bool] = False
    #: whether `update` decides the same on all devices that share a batch, though each sees its own rows: by what no group owns, or
    #: with what `info.batch.peers` has added up
    on_mesh: ClassVar[bool] = False

    def init(self, params: Any) -> Any:
        """Make the state before the first step, a tree of arrays; `params` has all rows of the locals."""
        return None

    def update(self, state: Any, before: Moved, after: Moved, info: Info) -> tuple[Any, Bool[Array, ""]]:
        """Return the new state and whether to stop now, given lambda before and after a step.

        Compiled, so it must be JAX code. It sees the globals and the batch's rows, never all groups.
        """
        return state, jnp.bool_(False)

    def on_host(self, elapsed: Elapsed) -> bool:
        """Return whether to stop now, from what the host knows."""
        return False

    def last_step(self) -> int | None:
        """Return the step beyond which no chunk may go and at which the progress bar ends, if there is one."""
        return None

    def identity(self) -> Any:
        """Return what must be equal for a run to go on from a checkpoint and for a compiled loop to be used again.

        A rule leaves out here what `update` does not read and what may be another number when a run goes on.
        """
        return self

    def average(self, state: Any, params: Any) -> Any:
        """Propose an average of late iterates to return when this rule fires, shaped as `params`; None for none."""
        return None

    def goes_on_verified(self, state: Any) -> Any:
        """Return a state to go on with, asking for more, although a claim was not refuted; None to let it stand."""
        return None

    def doubt(self, state: Any) -> str:
        """Say what keeps this rule from firing, for people, where a budget ends the fit; nothing by default."""
        return ""

    def noise(self, state: Any) -> dict[str, float]:
        """Return the variance of each latent's gradient over the last steps, in units of F, as far as it is known."""
        return {}


class ParameterChange(AbstractStop):
    """Stop when no parameter that this step could move moved by `tolerance` or more (Algorithm 1).

    Examples:
        >>> import bbvi
        >>> bbvi.ParameterChange(0.01)
        ParameterChange(tolerance=0.01)
    """

    on_mesh: ClassVar[bool] = True
    tolerance: float = 0.01

    def __check_init__(self):
        if not (isinstance(self.tolerance, (int, float)) and self.tolerance > 0):
            raise ValueError(f"ParameterChange: tolerance must be a positive number, got {self.tolerance!r}")

    def update(self, state, before, after, info):
        moved = jax.tree.map(lambda a, b: jnp.max(jnp.abs(a - b)), before, after)
        stands = jnp.max(jnp.stack(jax.tree.leaves(moved))) < self.tolerance
        return state, stands if info.batch is None else info.batch.peers.all(stands)


class Budget(AbstractStop):
    """Stop after a number of steps or seconds; says nothing about convergence.

    Examples:
        >>> import bbvi
        >>> bbvi.Budget(steps=500).outcome
        <Outcome.BUDGET: 'budget'>
    """

    outcome: ClassVar[Outcome] = Outcome.BUDGET
    on_mesh: ClassVar[bool] = True
    steps: int | None = None
    seconds: float | None = None

    def __check_init__(self):
        if self.steps is None and self.seconds is None:
            raise ValueError("Budget needs steps= or seconds=")
        if self.steps is not None and (not isinstance(self.steps, (int, np.integer)) or self.steps < 0):
            raise ValueError(f"Budget: steps must be an integer of 0 or more, got {self.steps!r}")
        if self.seconds is not None and not self.seconds >= 0:
            raise ValueError(f"Budget: seconds must be 0 or more, got {self.seconds}")

    def on_host(self, elapsed):
        pairs = (elapsed.step, self.steps), (elapsed.seconds, self.seconds)
        return any(most is not None and so_far >= most for so_far, most in pairs)

    def last_step(self):
        return self.steps

    def identity(self):
        # the compiled loop is the same for all budgets, and a run may go on with a larger one
        return Budget
