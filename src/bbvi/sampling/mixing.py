"""Section 5.3: whether chains have mixed, in one row for each latent."""

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas as pd


def mixing(draws: Any, *, limit: int = 200) -> "pd.DataFrame":
    """Tabulate acceptance, the largest rank-normalised R-hat and the smallest effective sample size of each latent.

    Of a latent with more than `limit` elements that many are looked at, evenly spread.

    Examples:
        >>> import bbvi, numpyro.distributions as dist
        >>> model = bbvi.Model(lambda z, y: dist.Normal(0, 1).log_prob(z["mu"]), mu=bbvi.real())
        >>> table = bbvi.mixing(bbvi.metropolis_within_gibbs(model))
        >>> bool(table.loc["mu", "largest R-hat"] < 1.01)
        True
    """
    import arviz  # slow to import, as is pandas
    import pandas as pd

    rows = {}
    for name, variable in draws.posterior.data_vars.items():
        values = variable.values.reshape(*variable.shape[:2], -1)
        values = values[:, :, ~np.isnan(values).any((0, 1))]
        num = values.shape[-1]
        chosen = np.unique(np.linspace(0, num - 1, min(limit, num)).astype(int))
        looked_at = [values[:, :, i].astype(float) for i in chosen]
        moved = [x for x in looked_at if np.ptp(x) > 0]
        rate = f"acceptance_{name}"
        rows[name] = {
            "acceptance": float(draws.sample_stats[rate].mean()) if rate in draws.sample_stats else np.nan,
            "largest R-hat": max((float(arviz.rhat(x)) for x in moved), default=np.nan),
            "smallest ESS": min((float(arviz.ess(x)) for x in moved), default=np.nan),
            "elements": num,
            "looked at": len(looked_at),
        }
    return pd.DataFrame.from_dict(rows, orient="index")
