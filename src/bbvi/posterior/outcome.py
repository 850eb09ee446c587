"""How a fit ended, as a value that programs can compare and a sentence that people can read."""

import enum


class Outcome(enum.Enum):
    """How a fit ended; `sentence` says it to people, `posterior.stopped` says it with the details of the run.

    Examples:
        >>> import bbvi, numpyro.distributions as dist
        >>> model = bbvi.Model(lambda z, y: dist.Normal(0, 1).log_prob(z["mu"]), mu=bbvi.real())
        >>> posterior = bbvi.fit(model, stop=bbvi.Budget(steps=5))
        >>> posterior.outcome is bbvi.Outcome.BUDGET
        True
        >>> posterior.outcome.sentence
        'The budget of steps or seconds was used up before a rule found convergence.'
    """

    #: the outcome for people
    sentence: str

    CONVERGED = "converged", "A stopping rule found that the fit has converged."
    BUDGET = "budget", "The budget of steps or seconds was used up before a rule found convergence."
    STOPPED = "stopped", "A stopping rule that says nothing about convergence ended the fit."
    INTERRUPTED = "interrupted", "Ctrl-C ended the fit; lambda is that of the last step made."
    NON_FINITE = "non-finite", "A gradient or the ELBO was not finite; lambda is that of the last good step."
    OPAQUE_FAILED = "opaque failed", "An opaque function failed; lambda is that of the last good step."
    RUNNING = "still running", "The fit goes on; this is the posterior so far."

    def __new__(cls, value: str, sentence: str = "") -> "Outcome":
        self = object.__new__(cls)
        self._value_, self.sentence = value, sentence
        return self

    @property
    def advice(self) -> str:
        """What to do next, whatever k-hat is."""
        if self is Outcome.CONVERGED:
            return "posterior.khat() tells how near q is to the posterior"
        return "look at posterior.plot(), and go on with bbvi.fit(..., start=posterior) or a larger budget"
