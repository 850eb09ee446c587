"""Section 5.2: the hyperparameters of the models, the paper's and those that our data demand."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Settings:
    """Hyperparameters; the defaults are the paper's, but for `num_factors` and `floor`, which it does not give.

    The second argument of Normal is a standard deviation (`sigma_w`, `sigma_o`, `sigma_l`), that of GammaE a variance
    (`sigma_x`, `sigma_v`, `observation_variance`). The paper writes sigma_o for two things: the scale of the offsets
    in the Gamma-Normal models, here `sigma_o`, and that of the observations in the Gamma models, here
    `observation_variance`.

    Attributes:
        num_factors: K.
        level: the prior mean of the Gamma-Normal models' offsets, 0 in the paper.
        floor: the least mean that a factor's next value is given; see `simulated`.
        alpha_0: x_p0, from which Gamma-Normal-TS starts.

    Examples:
        >>> Settings.paper().sigma_l, Settings.simulated().sigma_l
        (0.01, 0.3)
    """

    num_factors: int = 5
    floor: float = 1e-3
    # Gamma-Normal and Gamma-Normal-TS
    level: float = 0.0
    sigma_w: float = 1.0
    sigma_o: float = 1.0
    sigma_x: float = 1.0
    sigma_l: float = 0.01
    alpha_0: float = 1.0
    # Gamma and Gamma-TS; alpha_x and beta_x also for Gamma-Normal
    alpha_w: float = 1.0
    beta_w: float = 1.0
    alpha_o: float = 1.0
    beta_o: float = 1.0
    alpha_x: float = 1.0
    beta_x: float = 1.0
    sigma_v: float = 1.0
    observation_variance: float = 0.01
    # Log-T-TS, which is not the paper's
    walk: float = 0.3
    degrees: float = 4.0
    sigma_noise: float = 1.0

    @classmethod
    def paper(cls, num_factors: int = 5) -> "Settings":
        """Return the paper's values; a floor of 0.001, which the paper does not have, keeps single precision finite."""
        return cls(num_factors=num_factors)

    @classmethod
    def simulated(cls, num_factors: int = 5) -> "Settings":
        """Return the settings from which the simulated cohort is drawn.

        `sigma_x` is small and the floor its square root: a factor's gamma then never has a shape below 1, and the chain
        is not absorbed at zero. `level` keeps the labs positive. Under the Gamma models' priors W x is K in the mean, so
        their offsets have the mean `level - K` (at least 1), and the variance K + 1 of a lab at a first visit.
        """
        level, spread = 15.0, num_factors + 1.0
        below = max(level - num_factors, 1.0)
        return cls(
            num_factors, floor=0.2, level=level, sigma_x=0.04, sigma_l=0.3, sigma_v=0.04,
            alpha_o=below**2 / spread, beta_o=below / spread, observation_variance=0.3**2,
        )  # fmt: skip

    @classmethod
    def scaled(cls, num_factors: int = 3) -> "Settings":
        """Return settings for labs divided by their medians: the level is 1, which is also the mean of Gamma(1, 1).

        A small `sigma_l` with a large `sigma_x` lets one outlier of one lab pull a factor, and with it all other labs, far away:
        docs/study.md has the numbers.
        """
        return cls(
            num_factors, floor=0.3, level=1.0, sigma_x=0.1, sigma_l=0.5, sigma_v=0.1, observation_variance=0.5**2
        )
