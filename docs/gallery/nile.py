# %% [markdown]
# # A level that drifts
#
# The flow of the Nile at Aswan in each year from 1871 to 1970, in 10^8 m³ (Cobb 1978). The level is a random walk; how far it goes in a year, and how far
# measurements are off, are unknown. bbvi reads the chain of a hundred levels off the function and gives it a joint factor of q.

# %%
import matplotlib.pyplot as plt
import numpy as np
import numpyro.distributions as dist

import bbvi

flow = np.array(
    """1120 1160 963 1210 1160 1160 813 1230 1370 1140 995 935 1110 994 1020 960 1180 799 958 1140 1100 1210 1150 1250 1260 1220 1030 1100
    774 840 874 694 940 833 701 916 692 1020 1050 969 831 726 456 824 702 1120 1100 832 764 821 768 845 864 862 698 845 744 796 1040 759
    781 865 845 944 984 897 822 1010 771 676 649 846 812 742 801 1040 860 874 848 890 744 749 838 1050 918 986 797 923 975 815 1020 906
    901 1170 912 746 919 718 714 740""".split(),
    float,
)
y = (flow - 900) / 100


def log_joint(z, y):
    return (
        dist.HalfNormal(1).log_prob(z["drift"])
        + dist.HalfNormal(2).log_prob(z["noise"])
        + dist.Normal(0, 5).log_prob(z["level"][0])
        + dist.Normal(z["level"][:-1], z["drift"]).log_prob(z["level"][1:]).sum()
        + dist.Normal(z["level"], z["noise"]).log_prob(y).sum()
    )


model = bbvi.Model(log_joint, drift=bbvi.positive(), noise=bbvi.positive(), level=bbvi.real(len(y)))
posterior = bbvi.fit(model, data=y)
print(posterior.converged, posterior.khat())
posterior.summary().head(2)

# %%
print(posterior.structure)

# %%
year = 1871 + np.arange(100)
level = 900 + 100 * posterior.sample(2000)["level"]

figure, axes = plt.subplots(figsize=(7, 3.5))
axes.plot(year, flow, ".-", color="0.6", lw=0.7)
axes.fill_between(year, *np.quantile(level, [0.05, 0.95], axis=0), alpha=0.3, lw=0)
axes.plot(year, level.mean(0))
axes.set(xlabel="year", ylabel="flow, 10⁸ m³")

# %% [markdown]
# The dam at Aswan was begun in 1898. The probability that the mean level of the decade after was lower than of the decade before:

# %%
print(float((level[:, 29:39].mean(1) < level[:, 17:27].mean(1)).mean()))
