# %% [markdown]
# # Simulators
#
# `bbvi.opaque` wraps a function that JAX cannot trace: NumPy, a loop with `if`, a program that is called. bbvi calls it, needs no derivatives, and learns what
# its terms read by moving the latents.

# %%
import numpy as np
from scipy import stats
from scipy.integrate import solve_ivp

import bbvi

times = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
level = np.array([7.4, 5.3, 3.9, 2.9, 2.1])


@bbvi.opaque
def log_joint(z, data):
    times, level = data
    path = solve_ivp(lambda t, u: -z["rate"] * u, (0, 5), [10.0], t_eval=times).y[0]
    return {"rate": stats.lognorm(1, scale=0.4).logpdf(z["rate"]), "level": stats.norm(path, 0.2).logpdf(level)}


posterior = bbvi.fit(
    bbvi.Model(log_joint, rate=bbvi.positive()), (times, level), draws=bbvi.MonteCarlo(20), stop=bbvi.Budget(steps=60)
)
print(posterior.summary())

# %% [markdown]
# - One call at a time is slow: `opaque(fn, vectorized=True)` gets all draws at once, `executor=ProcessPoolExecutor(4)` uses processes,
#   `executor=bbvi.on_ray()` or `bbvi.on_dask()` a cluster.
# - A simulator that draws random numbers: `opaque(fn, stochastic=True)` passes it a seed.
# - If you know what each term reads, say so, and nothing has to be learnt: [Models](../models.md#any-python-function).
# - A call that fails ends the fit with an error; `error.posterior` is what was reached, and a checkpoint goes on from there.
