"""Every bad input is refused early, by an error that names the culprit and the remedy."""

import functools
import json
import warnings

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import optax
import pytest

import bbvi

NOTHING = bbvi.Budget(steps=0)
ONE_STEP = bbvi.Budget(steps=1)


def flat(function=lambda z, y: dist.Normal(0, 1).log_prob(z["mu"]), **latents):
    return bbvi.Model(function, **(latents or {"mu": bbvi.real()}))


def hierarchical(**changes):
    parts = {
        "log_prior": lambda beta: dist.Normal(0, 1).log_prob(beta["m"]),
        "log_local": lambda beta, z, row: dist.Normal(beta["m"], 1).log_prob(z["t"]),
        "log_likelihood": lambda beta, z, row: dist.Normal(z["t"], 1).log_prob(row),
        "globals": {"m": bbvi.real()},
        "locals": {"t": bbvi.real()},
    }
    return bbvi.HierarchicalModel(**(parts | changes))


def visits(**changes):
    def masked(row, term):
        return jnp.where(row["mask"]["visit"], term, 0)

    parts = {
        "log_local": lambda beta, z, row: masked(row, dist.Normal(beta["m"], 1).log_prob(z["t"])),
        "log_likelihood": lambda beta, z, row: masked(row, dist.Normal(z["t"], 1).log_prob(row["y"])),
        "locals": {"t": bbvi.real("visit")},
    }
    return hierarchical(**(parts | changes))


def cohort():
    """Of five groups only number 3 has padding."""
    return bbvi.ragged(visit={"y": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0], [8.0, 9.0]]})


class Source:
    """Groups that are fetched by index."""

    def __init__(self, array):
        self.array = array

    def __len__(self):
        return len(self.array)

    def __getitem__(self, indices):
        return self.array[indices]


# ---- the function ---------------------------------------------------------------------------------------------


def test_a_misspelt_latent_is_named_with_those_that_exist():
    with pytest.raises(ValueError, match=r"log_joint asked for 'nu', which is neither a latent \(mu: shape \(\)\)"):
        bbvi.fit(flat(lambda z, y: z["nu"]))


def test_a_wrong_shape_lists_the_shapes_of_all_latents():
    model = bbvi.Model(lambda z, y: (z["a"] + z["b"]).sum(), a=bbvi.real(3), b=bbvi.simplex(4, 2))
    with pytest.raises(
        ValueError, match=r"(?s)\(3,\).*came from log_joint. Latents: a: shape \(3,\), b: shape \(2, 4\)"
    ):
        bbvi.fit(model)


def test_a_latent_taken_as_an_attribute_lists_the_latents():
    with pytest.raises(AttributeError, match=r"(?s)no attribute 'mu'.*Latents: mu: shape \(\)"):
        bbvi.fit(flat(lambda z, y: z.mu))


def test_an_if_on_a_latent_points_to_where():
    with pytest.raises(TypeError, match=r"jnp.where\(...\) in place of `if`"):
        bbvi.fit(flat(lambda z, y: z["mu"] if z["mu"] > 0 else 0.0))


@pytest.mark.parametrize(
    ("returned", "error", "message"),
    [
        (None, ValueError, "log_joint returned None.*forget `return`"),
        ("text", TypeError, "log_joint must be a number or an array, got str"),
        (1, TypeError, "must be a log density, a real number; got int32.*0.0 in place of 0"),
        (True, TypeError, "got bool of shape"),
        (1j, TypeError, "got complex64 of shape"),
        ({"a": 0.0, "b": np.arange(3)}, TypeError, r"log_joint\['b'\] must be a log density.*int32 of shape \(3,\)"),
    ],
)
def test_a_log_joint_that_is_no_log_density_is_refused(returned, error, message):
    with pytest.raises(error, match=message):
        bbvi.fit(flat(lambda z, y: returned))


def test_the_part_of_a_hierarchical_model_is_named():
    with pytest.raises(ValueError, match="log_likelihood returned None"):
        bbvi.fit(hierarchical(log_likelihood=lambda beta, z, row: None), np.arange(3.0))
    with pytest.raises(ValueError, match=r"log_local asked for 'u'.*m: shape \(\), t: shape \(\)"):
        bbvi.fit(hierarchical(log_local=lambda beta, z, row: z["u"]), np.arange(3.0))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            jnp.nan,
            r"log_joint\['likelihood'\]\[1\] is nan at a draw from the starting q \(mu = -?\d.*uses a constant that is NaN",
        ),
        (
            jnp.inf,
            r"log_joint\['likelihood'\]\[1\] is inf at a draw from the starting q \(mu = -?\d.*check the function",
        ),
        (-jnp.inf, r"\['likelihood'\]\[1\] is -inf.*q puts mass where p has none: declare a narrower support, or give"),
    ],
)
def test_a_term_that_is_not_finite_at_the_start_is_named_with_its_z(value, message):
    def log_joint(z, y):
        likelihood = dist.Normal(z["mu"], 1).log_prob(y)
        return {"prior": dist.Normal(0, 1).log_prob(z["mu"]), "likelihood": jnp.where(y > 1, value, likelihood)}

    with pytest.raises(ValueError, match=message):
        bbvi.fit(flat(log_joint), np.array([0.0, 2.0]))


def test_a_group_whose_term_is_not_finite_at_the_start_is_named():
    model = hierarchical(log_likelihood=lambda beta, z, row: jnp.where(row > 2, jnp.nan, z["t"] * row))
    with pytest.raises(ValueError, match=r"log_likelihood is nan in group 3 at a draw .*\(m = -?\d.*, t = -?\d"):
        bbvi.fit(model, np.arange(4.0))


def test_a_latent_that_the_log_joint_never_reads_is_named():
    with pytest.raises(ValueError, match="never reads the latent 'nu'.*use it in the function or remove"):
        bbvi.fit(flat(mu=bbvi.real(), nu=bbvi.real()))
    with pytest.raises(ValueError, match="never reads the latent 'u'"):
        bbvi.fit(hierarchical(locals={"t": bbvi.real(), "u": bbvi.real()}), np.arange(3.0))


# ---- the data -------------------------------------------------------------------------------------------------

MISSING = r"values, observed = bbvi.missing\(array\) and mask those terms"


def test_nan_in_data_is_located_and_points_to_missing():
    nan = np.array([1.0, np.nan])
    with pytest.raises(ValueError, match=rf"data\['y'\] holds NaN, first at index \(1,\).*{MISSING}"):
        bbvi.fit(flat(), {"y": nan})
    with pytest.raises(ValueError, match=rf"data holds NaN, first at index \(1,\).*{MISSING}"):
        bbvi.fit(hierarchical(), nan)
    with pytest.raises(ValueError, match=rf"cohort\['y'\] holds NaN, first at index \(1, 0\).*{MISSING}"):
        bbvi.ragged(visit={"y": [[1.0, 2.0], [np.nan]]})


def test_nan_from_a_data_source_names_the_group():
    with pytest.raises(ValueError, match=rf"row holds NaN, first in group 2.*{MISSING}"):
        bbvi.fit(hierarchical(), Source(np.array([1.0, 2.0, np.nan])), stop=ONE_STEP)


def test_a_source_that_returns_the_wrong_number_of_rows_is_told_what_to_return():
    class Wrong(Source):
        def __getitem__(self, indices):
            return self.array

    with pytest.raises(ValueError, match=r"asked for 1 groups but row has shape \(3,\).*leading axis len\(indices\)"):
        bbvi.fit(hierarchical(), Wrong(np.arange(3.0)), stop=ONE_STEP)


def test_leading_axes_that_disagree_are_listed():
    with pytest.raises(ValueError, match=r"disagree on the number of groups.*data\['a'\]: 3, data\['b'\]: 4"):
        bbvi.fit(hierarchical(), {"a": np.zeros(3), "b": np.zeros(4)})


@pytest.mark.parametrize(
    ("model", "data", "message"),
    [
        (flat(), [], "data is empty: pass data=None if the log joint needs none"),
        (flat(), np.zeros((0, 3)), r"empty array of shape \(0, 3\): nothing to fit"),
        (hierarchical(), np.zeros((0, 3)), "data has no groups"),
        (hierarchical(), [], "data has no groups"),
        (hierarchical(), {}, "data is empty: it has no arrays"),
        (hierarchical(), Source(np.zeros(0)), "data has no groups"),
        (
            hierarchical(),
            {"y": np.float32(3.0)},
            r"data\['y'\] is a single number; each array needs one entry per group",
        ),
    ],
)
def test_empty_data_is_refused(model, data, message):
    with pytest.raises(ValueError, match=message):
        bbvi.fit(model, data)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"visit": {"y": []}}, r"visit\.y is empty: no groups"),
        ({"group": {"age": [1.0]}}, r'at least one named axis, for example visit=\{"labs"'),
        ({"visit": {}}, r'visit= takes a dict of fields, for example visit=\{"labs"'),
        ({"visit": [[1.0]]}, "visit= takes a dict of fields"),
        ({"visit": {"y": [1.0, 2.0]}}, r"visit\.y has a single number for group 0; give one array per group, or"),
        ({"visit": {"y": [[1.0]]}, "group": {"age": 3.0}}, "group field 'age' is a single number"),
        (
            {"visit": {"y": [[1.0]]}, "group": {"age": [3.0, 4.0]}},
            r"disagree on the number of groups .*visit\.y: 1.*age.*: 2",
        ),
        (
            {"visit": {"y": [[1.0]], "x": [[1.0], [2.0]]}},
            r"disagree on the number of groups .*visit\.y: 1, visit\.x: 2",
        ),
        ({"visit": {"y": [[1.0]], "x": [[1.0, 2.0]]}}, r"group 0: visit\.y has length 1, visit\.x has 2"),
        ({"visit": {"y": [[[1.0]], [[1.0, 2.0]]]}}, r"visit\.y: groups disagree on the shape after the first axis"),
        ({"visit": {"y": [["a"]]}}, "data must be numbers, got <U1"),
        ({"visit": {"mask": [[1.0]]}}, "the field name 'mask' is taken"),
        ({"visit": {"y": [[1.0]]}, "group": {"y": [1.0]}}, "the field name 'y' is taken"),
    ],
)
def test_a_cohort_that_does_not_fit_together_is_refused(arguments, message):
    with pytest.raises((ValueError, TypeError), match=message):
        bbvi.ragged(**arguments)


def test_data_of_another_kind_are_refused():
    with pytest.raises(TypeError, match="data must be numbers, got <U1 in ndarray"):
        bbvi.fit(flat(), np.array(["a"]))
    for data in (None, 3.0):
        with pytest.raises(TypeError, match=r"arrays with one entry per group, bbvi.ragged\(...\), or an object"):
            bbvi.fit(hierarchical(), data)


def test_padding_counted_as_latents_is_found_in_the_one_group_that_has_some():
    model = visits(log_local=lambda beta, z, row: dist.Normal(beta["m"], 1).log_prob(z["t"]).sum())
    with pytest.raises(
        ValueError, match=r'log_local changes with the padded latents of group 3.*row\["mask"\]\[\'visit\'\]'
    ):
        bbvi.fit(model, cohort(), stop=NOTHING)


def test_padding_counted_as_data_is_found():
    model = visits(log_likelihood=lambda beta, z, row: dist.Normal(beta["m"], 1).log_prob(row["y"]).sum())
    with pytest.raises(ValueError, match="log_likelihood changes with the padded data of group 3.*Mask the term"):
        bbvi.fit(model, cohort(), stop=NOTHING)


def test_masked_padding_passes():
    assert bbvi.fit(visits(), cohort(), stop=NOTHING).num_groups == 5


# ---- the model ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: bbvi.Model(lambda z, y: 0.0),
            r"at least one latent, for example Model\(log_joint, mu=bbvi.real\(\)\)",
        ),
        (
            lambda: flat(mu=bbvi.real(), learning_rate=3),
            "unknown keyword or wrong declaration learning_rate=3; a latent is",
        ),
        (lambda: bbvi.Model(3, mu=bbvi.real()), "log_joint must be a function, got int"),
        (lambda: hierarchical(log_prior=None), "log_prior must be a function, got NoneType"),
        (lambda: hierarchical(nope=1), "unexpected keyword argument 'nope'"),
        (lambda: hierarchical(log_local=None), "locals and log_local come together: give both or neither"),
        (lambda: hierarchical(locals=None), "locals and log_local come together"),
        (lambda: hierarchical(locals={"m": bbvi.real()}), r"\['m'\] stand in globals and in locals; rename one"),
        (lambda: hierarchical(globals={}, locals=None, log_local=None), "HierarchicalModel needs latents, for example"),
        (lambda: hierarchical(globals={"m": 3}), "globals: unknown keyword or wrong declaration m=3"),
        (lambda: hierarchical(globals={1: bbvi.real()}), "name is a string without a slash, got 1"),
        (lambda: hierarchical(locals=["t"]), "locals must be a dict such as"),
        (lambda: flat(mu=bbvi.real("visit")), "latent 'mu' has the ragged axis 'visit'; only locals of a Hierarchical"),
        (
            lambda: hierarchical(globals={"m": bbvi.real("visit")}),
            "latent 'm' has the ragged axis 'visit'; only locals",
        ),
        (lambda: bbvi.ordered("visit"), r"needs the vector's length as its last axis, for example bbvi.ordered\(4\)"),
        (lambda: bbvi.ordered(), "needs the vector's length"),
        (lambda: bbvi.real(0), "an axis must have length 1 or more, got 0"),
        (lambda: bbvi.real(2.0), "an axis is an int or the name of a ragged axis, got 2.0"),
        (lambda: bbvi.simplex(1), "the number of categories, 2 or more, got 1"),
        (lambda: bbvi.categorical("visit"), "the number of categories, 2 or more, got 'visit'"),
        (lambda: bbvi.interval(2, 1), "low must be below high, got 2 and 1"),
    ],
)
def test_a_model_that_makes_no_sense_is_refused_when_it_is_built(build, message):
    with pytest.raises((ValueError, TypeError), match=message):
        build()


def test_a_ragged_axis_that_the_data_lack_is_named_with_those_they_have():
    with pytest.raises(ValueError, match=r"latent 't' has the ragged axis 'visit'.*they have: none.*ragged\(visit="):
        bbvi.fit(visits(), np.arange(3.0))
    with pytest.raises(ValueError, match=r"ragged axis 'week', which the data do not have \(they have: visit\)"):
        bbvi.fit(visits(locals={"t": bbvi.real("week")}), cohort())


@pytest.mark.parametrize(
    ("latent", "q", "message"),
    [
        (bbvi.real, dist.Gamma, r"bbvi.real: the family Gamma lives on Positive.*lives on Real\(\).*default, Normal"),
        (
            bbvi.positive,
            dist.Normal,
            "bbvi.positive: the family Normal lives on Real.*lives on Positive.*default, Gamma",
        ),
        (bbvi.unit_interval, dist.Normal, "bbvi.unit_interval: the family Normal.*default, Beta"),
        (bbvi.positive, dist.Poisson, "bbvi.positive: the family Poisson lives on IntegerNonnegative"),
        (bbvi.binary, dist.Poisson, "bbvi.binary: the family Poisson.*default, Bernoulli"),
        (bbvi.count, dist.Bernoulli, "bbvi.count: the family Bernoulli.*default, Poisson"),
        (bbvi.count, dist.Categorical, "bbvi.count: the family Categorical.*default, Poisson"),
        (bbvi.count, functools.partial(dist.Binomial, total_count=2.5), "total_count must be an integer of 1 or more"),
        (functools.partial(bbvi.simplex, 3), dist.Normal, r"bbvi.simplex: the family Normal.*on Simplex\(\)"),
        (functools.partial(bbvi.categorical, 3), dist.Poisson, "bbvi.categorical: the family Poisson"),
        (functools.partial(bbvi.interval, 0, 2), dist.Beta, "bbvi.interval: the family Beta.*upper_bound=2.0"),
        (functools.partial(bbvi.ordered, 2), dist.Normal, r"bbvi.ordered: the family Normal.*on OrderedVector\(\)"),
    ],
)
def test_a_family_of_another_support_is_refused_naming_both(latent, q, message):
    with pytest.raises(ValueError, match=message):
        latent(q=q)


@pytest.mark.parametrize(
    ("q", "message"),
    [
        ("Normal", "q='Normal' is not a distribution; pass a numpyro distribution class"),
        (3, "q=3 is not a distribution"),
        (lambda loc, scale: None, "is not a distribution; pass a numpyro distribution class"),
        (dist.Normal(0, 1), r"q=Normal\(...\) is an instance; pass the class, q=dist.Normal: bbvi fits its parameters"),
        (dist.Delta, "q=Delta has no density and no score"),
        (
            dist.Uniform,
            "support of Uniform moves with its parameters.*score does not have mean zero.*functools.partial",
        ),
        (dist.Pareto, "support of Pareto moves with its parameters"),
        (dist.MultivariateNormal, "MultivariateNormal is not a family of independent scalars.*one scalar distribution"),
        (dist.Binomial, r"argument 'total_count' is an integer and cannot be fitted: fix it, q=functools.partial\("),
        (functools.partial(dist.Normal, 0), "must fix its arguments by keyword"),
        (
            functools.partial(dist.Normal, scale=np.ones(3)),
            "fixes scale for all elements alike, at a number; got array",
        ),
        (
            functools.partial(dist.StudentT, dof=3),
            r"StudentT has no argument \['dof'\]; it has \['df', 'loc', 'scale'\]",
        ),
    ],
)
def test_a_q_that_cannot_be_fitted_is_refused_with_the_reason(q, message):
    with pytest.raises(TypeError, match=message):
        bbvi.real(q=q)


def start(**latents):
    model = bbvi.Model(lambda z, y: sum(jnp.sum(value.astype(float)) for value in z.values()), **latents)
    return bbvi.fit(model, stop=NOTHING)


@pytest.mark.parametrize(
    ("latent", "message"),
    [
        (bbvi.positive(init=-1.0), r"init of 's' is outside its support Positive.*: -1.0; choose a value inside"),
        (bbvi.positive(init={"mean": -1.0}), "init of 's': mean = -1.0 is not strictly inside Positive"),
        (bbvi.unit_interval(init=1.2), "init of 's' is outside its support UnitInterval"),
        (bbvi.interval(0, 2, init=3.0), "init of 's' is outside its support Interval"),
        (bbvi.interval(0, 2, init=2.0), "init of 's': value = 2.0 is not strictly inside Interval"),
        (bbvi.simplex(3, init=[0.5, 0.5, 0.5]), "init of 's' is outside its support Simplex"),
        (bbvi.ordered(2, init=[1.0, 0.0]), "init of 's' is outside its support OrderedVector"),
        (bbvi.binary(init=2), "init of 's' is outside its support Boolean"),
        (bbvi.count(init=-1), "init of 's' is outside its support IntegerNonnegative"),
        (bbvi.one_hot(3, init=[1, 1, 0]), "init of 's' is outside its support OneHot"),
        (
            bbvi.count(q=functools.partial(dist.Binomial, total_count=4), init=5),
            "init of 's' is outside its support IntegerInterval",
        ),
        (bbvi.categorical(3, init=3), "init of 's' is outside its support IntegerInterval"),
        (bbvi.real(init=np.nan), "init of 's' is outside its support Real"),
        (bbvi.real(3, init=[1.0, 2.0]), r"init of 's': parameter 'loc' has shape \(2,\), expected \(3,\)"),
        (bbvi.simplex(3, init=[0.5, 0.5]), r"init of 's': parameter 'mean' has shape \(2,\), expected \(3,\)"),
        (bbvi.positive(q=dist.HalfCauchy, init=1.0), "HalfCauchy has no rule to centre.*dict of its parameters"),
        (bbvi.real(init="zero"), "init of 's' must be a value or a dict of parameters, got 'zero'"),
    ],
)
def test_a_start_outside_the_support_or_of_another_shape_is_refused(latent, message):
    with pytest.raises((ValueError, TypeError), match=message):
        start(s=latent)


def test_a_start_with_unknown_parameters_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"bbvi.real: init has no parameter \['mean'\]; Normal has \['loc', 'scale'\]"):
        bbvi.real(init={"mean": 0.0})


# ---- the settings of a fit --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("batch_size", "message"),
    [
        (0, "batch_size must be an integer of 1 or more, got 0"),
        (-1, "batch_size must be an integer of 1 or more, got -1"),
        (2.5, "batch_size must be an integer of 1 or more, got 2.5"),
        ("all", "batch_size must be an integer of 1 or more, got 'all'"),
        (True, "batch_size must be an integer of 1 or more, got True"),
        (6, "batch_size=6 is larger than the number of groups, 5"),
    ],
)
def test_a_batch_size_that_cannot_be_is_refused(batch_size, message):
    with pytest.raises(ValueError, match=message):
        bbvi.fit(hierarchical(), np.arange(5.0), batch_size=batch_size)


def test_batch_size_on_a_flat_model_names_HierarchicalModel():
    with pytest.raises(ValueError, match=r"batch_size needs groups.*bbvi.HierarchicalModel with a likelihood per row"):
        bbvi.fit(flat(), batch_size=3)


@pytest.mark.parametrize("control_variate", [bbvi.PlugIn(), bbvi.LeaveOneOut(), bbvi.CrossFit()])
def test_one_draw_is_too_few_for_a_control_variate(control_variate):
    name = type(control_variate).__name__
    with pytest.raises(
        ValueError, match=rf"{name} needs 2 draws or more.*got 1; use draws=bbvi.MonteCarlo\(2\) or more"
    ):
        bbvi.fit(flat(), gradient=bbvi.Score(control_variate=control_variate), draws=bbvi.MonteCarlo(1))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: bbvi.MonteCarlo(0), "number of draws must be an integer of 1 or more, got 0"),
        (lambda: bbvi.MonteCarlo(1.5), "number of draws must be an integer of 1 or more, got 1.5"),
        (lambda: bbvi.MonteCarlo(None), "number of draws must be an integer of 1 or more, got None"),
        (lambda: bbvi.MonteCarlo(10, chunk=0), "chunk must be an integer of 1 or more, got 0"),
        (
            lambda: bbvi.Score(control_variate="plug-in"),
            r"control_variate takes, for example, bbvi.LeaveOneOut\(\) or None",
        ),
        (lambda: bbvi.Score(control_variate=bbvi.PlugIn), "control_variate takes, for example"),
        (lambda: bbvi.Budget(), "Budget needs steps= or seconds="),
        (lambda: bbvi.Budget(steps=-1), "steps must be an integer of 0 or more, got -1"),
        (lambda: bbvi.Budget(steps=1.5), "steps must be an integer of 0 or more, got 1.5"),
        (lambda: bbvi.Budget(seconds=-1), "seconds must be 0 or more, got -1"),
        (lambda: bbvi.ParameterChange(0), "tolerance must be a positive number, got 0"),
        (lambda: bbvi.Converged(0), "tolerance must be positive, got 0"),
        (lambda: bbvi.adagrad(-1.0), "adagrad: eta must be positive, got -1.0"),
        (lambda: bbvi.robbins_monro(0.1, power=0.4), "power must be above 1/2 and at most 1"),
    ],
)
def test_a_setting_out_of_range_is_refused_when_it_is_built(build, message):
    with pytest.raises((ValueError, TypeError), match=message):
        build()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"learning_rate": 0.1}, "unexpected keyword argument 'learning_rate'"),
        ({"gradient": "score"}, r"gradient= takes an estimator such as bbvi.Score\(\), got 'score'"),
        ({"draws": 100}, r"draws= takes, for example, bbvi.MonteCarlo\(100\), got 100"),
        ({"optimizer": "adam"}, r"optimizer must be an optax transformation such as bbvi.adagrad\(1.0\).*got str"),
        ({"optimizer": optax.adam}, "optimizer must be an optax transformation.*got function"),
        ({"optimizer": 0.1}, "optimizer must be an optax transformation.*got float"),
        ({"stop": 1000}, r"stop= takes stopping rules such as .*bbvi.Budget\(steps=1000\), got 1000"),
        ({"stop": bbvi.Converged}, "stop= takes stopping rules"),
        ({"stop": [bbvi.Budget(steps=1), None]}, "stop= takes stopping rules.*got None"),
        ({"stop": []}, r"stop=\[\] would never stop; give at least one rule"),
        ({"seed": 1.5}, "seed must be an int or a JAX key, got 1.5"),
        ({"seed": None}, "seed must be an int or a JAX key, got None"),
        ({"seed": 2**64}, "seed must fit in 64 bits"),
        ({"hold": "posterior"}, "needs locals"),
        ({"start": {"mu": 0.0}}, "start= takes a Posterior, got dict"),
    ],
)
def test_a_setting_of_the_wrong_kind_is_refused(settings, message):
    with pytest.raises((ValueError, TypeError), match=message):
        bbvi.fit(flat(), **settings)


@pytest.mark.parametrize("unknown", ["progress", "steps", "stops"])
def test_iterate_names_an_option_it_does_not_take_and_lists_those_it_does(unknown):
    with pytest.raises(TypeError, match=rf"iterate\(\) got '{unknown}'; it takes batch_size, .*stop"):
        bbvi.iterate(flat(), **{unknown: None})


def test_a_negative_seed_is_a_seed_of_its_own():
    locations = {seed: float(bbvi.fit(flat(), seed=seed, stop=NOTHING).params["mu"]["loc"]) for seed in (-1, 0, 1)}
    assert len(set(locations.values())) == 3


def test_something_that_is_no_model_is_refused():
    with pytest.raises(TypeError, match=r"expected a bbvi.Model or a bbvi.HierarchicalModel, got function"):
        bbvi.fit(lambda z, y: 0.0)


COUPLED = {
    "global norm": optax.chain(optax.clip_by_global_norm(1.0), optax.adam(0.1)),
    "large global norm": optax.chain(optax.clip_by_global_norm(1000.0), optax.adam(0.1)),
    "lamb": optax.lamb(0.1),
    "trust ratio": optax.chain(optax.scale_by_trust_ratio(), optax.sgd(0.1)),
}


@pytest.mark.parametrize("name", COUPLED)
def test_an_optimizer_that_couples_rows_is_refused_for_locals_only(name):
    reason = r"depends on the other rows.*use an elementwise one, such as bbvi.adagrad\(1.0\) or optax.adam"
    with pytest.raises(ValueError, match=reason):
        bbvi.fit(hierarchical(), np.arange(3.0), optimizer=COUPLED[name], stop=NOTHING)
    assert bbvi.fit(flat(), optimizer=COUPLED[name], stop=NOTHING).params


@pytest.mark.parametrize("optimizer", [bbvi.adagrad(1.0), bbvi.robbins_monro(0.1), optax.adam(0.1), optax.sgd(10.0)])
def test_an_elementwise_optimizer_is_accepted_for_locals(optimizer):
    assert bbvi.fit(hierarchical(), np.arange(3.0), optimizer=optimizer, stop=NOTHING).params


# ---- other posteriors and files -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def flat_start():
    return bbvi.fit(flat(), stop=NOTHING)


@pytest.fixture(scope="module")
def group_start():
    return bbvi.fit(hierarchical(), np.arange(3.0), stop=NOTHING)


def test_hold_needs_locals(flat_start):
    with pytest.raises(ValueError, match="hold= keeps the globals and fits locals: the model needs locals"):
        bbvi.fit(flat(), hold=flat_start)
    no_locals = hierarchical(locals=None, log_local=None, log_likelihood=lambda beta, z, row: beta["m"] * row)
    with pytest.raises(ValueError, match="the model needs locals"):
        bbvi.fit(no_locals, np.arange(3.0), hold=flat_start)


def test_start_of_another_model_names_the_difference(flat_start, group_start):
    with pytest.raises(ValueError, match=r"start= belongs to another model: latent 'mu' is real\(\).* and absent here"):
        bbvi.fit(flat(lambda z, y: z["nu"], nu=bbvi.real()), start=flat_start)
    with pytest.raises(ValueError, match=r"latent 'mu' is real\(\) .* there and real\(2,\)"):
        bbvi.fit(flat(lambda z, y: z["mu"].sum(), mu=bbvi.real(2)), start=flat_start)
    with pytest.raises(ValueError, match="q=Normal.* there and positive.*q=LogNormal"):
        bbvi.fit(flat(mu=bbvi.positive(q=dist.LogNormal)), start=flat_start)
    with pytest.raises(ValueError, match="start= belongs to a HierarchicalModel, but the model given is a Model"):
        bbvi.fit(flat(), start=group_start)


@pytest.mark.parametrize("p", [-0.1, 1.1, float("nan"), [0.1, 0.9]])
def test_a_quantile_out_of_range_is_refused(flat_start, p):
    with pytest.raises(ValueError, match="quantile: p must be a number between 0 and 1, got"):
        flat_start.quantile(p)


def test_groups_that_do_not_exist_are_refused(flat_start, group_start):
    for groups in (3, -1, [0, 5]):
        with pytest.raises(IndexError, match="there are 3 groups, numbered from 0"):
            group_start.mean(groups=groups)
    for groups in (1.5, [True, False, True]):
        with pytest.raises(TypeError, match="groups= takes a group's number or a list of them"):
            group_start.sample(2, groups=groups)
    with pytest.raises(ValueError, match="groups= restricts local latents, and this model has none"):
        flat_start.mean(groups=[0])


def test_a_mean_of_category_codes_is_refused_and_points_to_probs():
    posterior = start(k=bbvi.categorical(3), mu=bbvi.real())
    for table in (posterior.mean(), posterior.sd(), posterior.quantile(0.5)):
        assert set(table) == {"mu"}
        with pytest.raises(TypeError, match=r"'k' is categorical.*use posterior.probs\(\)\['k'\]"):
            table["k"]
    with pytest.raises(TypeError, match=r"'mu' is real: it has no finite list of values; use mean\(\) or quantile\(\)"):
        posterior.probs()["mu"]
    with pytest.raises(KeyError, match=r"no latent 'nu'; there are \['k', 'mu'\]"):
        posterior.mean()["nu"]


def test_values_that_do_not_fit_a_posterior_are_refused(flat_start, group_start):
    with pytest.raises(ValueError, match=r"needs a value for every latent; \['mu'\] are missing"):
        flat_start.log_prob({})
    with pytest.raises(ValueError, match=r"log_prob: 't' has shape \(2,\), expected \(3,\)"):
        group_start.log_prob({"m": 0.0, "t": np.zeros(2)})
    with pytest.raises(ValueError, match=r"replace: expected parameters of shapes .*'loc': \(\).* got .*'loc': \(3,\)"):
        flat_start.replace({"mu": {"loc": np.zeros(3), "scale": np.zeros(3)}})
    with pytest.raises(ValueError, match="fitted to 3 groups, the data have 4"):
        group_start.elbo(data=np.arange(4.0))


def test_a_file_that_is_no_posterior_is_refused_with_the_reason(tmp_path, flat_start):
    path = tmp_path / "posterior.npz"
    with pytest.raises(FileNotFoundError, match=r"posterior.npz does not exist"):
        bbvi.load(path, flat())
    path.write_bytes(b"not an archive")
    with pytest.raises(
        ValueError, match=r"posterior.npz is not a readable bbvi posterior: it is corrupt, truncated or"
    ):
        bbvi.load(path, flat())
    flat_start.save(path)
    whole = path.read_bytes()
    for size in (0, 10, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(ValueError, match="is not a readable bbvi posterior"):
            bbvi.load(path, flat())
    np.savez(path, a=np.zeros(3))
    with pytest.raises(ValueError, match="is not a readable bbvi posterior"):
        bbvi.load(path, flat())


def test_a_file_of_another_format_names_both_versions(tmp_path, flat_start):
    path = tmp_path / "posterior.npz"
    flat_start.save(path)
    with np.load(path) as archive:
        arrays = dict(archive)
    header = json.loads(arrays.pop("header").tobytes()) | {"format": 99}
    np.savez(path, header=np.frombuffer(json.dumps(header).encode(), np.uint8), **arrays)
    with pytest.raises(
        ValueError, match=r"written in format 99 and this version of bbvi reads format \d+; read it with"
    ):
        bbvi.load(path, flat())


@pytest.mark.parametrize(
    ("saved", "other", "message"),
    [
        (bbvi.real(), bbvi.real(2), r"latent 's' is real\(\) .* there and real\(2,\)"),
        (bbvi.real(), bbvi.positive(), r"is real\(\) with q=Normal.* there and positive\(\) with q=Gamma"),
        (bbvi.interval(0, 1), bbvi.interval(0, 2), r"upper_bound=1.0\) there and .*upper_bound=2.0\) here"),
        (bbvi.categorical(3), bbvi.categorical(4), r"upper_bound=2\) there and .*upper_bound=3\) here"),
        (bbvi.simplex(3), bbvi.simplex(4), r"of vectors \(3,\) .* there and .* of vectors \(4,\)"),
        (
            bbvi.real(q=functools.partial(dist.StudentT, df=4.0)),
            bbvi.real(q=functools.partial(dist.StudentT, df=5.0)),
            r"StudentT\(df=4.0\) .*there and .*StudentT\(df=5.0\)",
        ),
    ],
)
def test_a_file_of_another_model_names_the_difference(tmp_path, saved, other, message):
    def model(latent):
        return bbvi.Model(lambda z, y: jnp.sum(z["s"].astype(float)), s=latent)

    path = tmp_path / "posterior.npz"
    bbvi.fit(model(saved), stop=NOTHING).save(path)
    assert bbvi.load(path, model(saved)).params
    with pytest.raises(ValueError, match=message):
        bbvi.load(path, model(other))


def test_a_checkpoint_is_no_posterior_and_a_posterior_no_checkpoint(tmp_path, flat_start):
    path = tmp_path / "state.npz"
    bbvi.fit(flat(), stop=NOTHING, checkpoint=path)
    with pytest.raises(ValueError, match="holds a bbvi checkpoint, not a posterior"):
        bbvi.load(path, flat())
    flat_start.save(path)
    with pytest.raises(ValueError, match="holds a bbvi posterior, not a checkpoint"):
        bbvi.fit(flat(), stop=NOTHING, checkpoint=path)


# ---- a fit that breaks on its way -----------------------------------------------------------------------------------


def breaking():
    """mu climbs to 30, and no value is finite beyond 10."""

    def log_joint(z, y):
        climbs = dist.Normal(30, 1).log_prob(z["mu"])
        return dist.Normal(0, 1).log_prob(z["nu"]), jnp.where(z["mu"] > 10, jnp.nan, climbs)

    return bbvi.Model(log_joint, nu=bbvi.real(), mu=bbvi.real(init={"loc": 0.0, "scale": 0.1}))


@pytest.fixture(scope="module")
def broken(tmp_path_factory):
    path = tmp_path_factory.mktemp("broken") / "state.npz"
    with pytest.warns(RuntimeWarning, match="of the last 300 steps were setbacks") as caught:
        posterior = bbvi.fit(
            breaking(), draws=bbvi.MonteCarlo(20), stop=bbvi.Budget(steps=300), checkpoint=path, checkpoint_seconds=0,
            gradient=bbvi.Score(), optimizer=bbvi.adagrad(1.0),
        )  # fmt: skip
    return posterior, path, caught


def test_a_gradient_that_breaks_midway_is_taken_back_to_the_last_good_state(broken):
    posterior, _, caught = broken
    assert posterior.outcome is bbvi.Outcome.BUDGET
    assert all(np.isfinite(leaf).all() for leaf in posterior.params["mu"].values())
    assert 2 < float(posterior.params["mu"]["loc"]) < 10.5, "it climbed, and stands where it was last finite"
    assert __file__ in {str(entry.filename) for entry in caught}, "the warning points to the caller"


def test_the_history_has_setbacks_without_an_elbo_and_can_be_plotted(broken):
    posterior, _, _ = broken
    elbo, setbacks = posterior.history["elbo"].to_numpy(), posterior.history["setbacks"].to_numpy()
    assert len(elbo) == 300 and setbacks.sum() > 10
    np.testing.assert_array_equal(np.isfinite(elbo), setbacks == 0)
    curve = posterior.plot().axes[0].lines[0].get_ydata()
    assert len(curve) == (setbacks == 0).sum()
    assert np.isfinite(curve).all()


def test_the_checkpoint_of_a_fit_with_setbacks_holds_a_good_state(broken):
    posterior, path, _ = broken
    with np.load(path) as archive:
        arrays = dict(archive)
    floats = {name: a for name, a in arrays.items() if a.dtype.kind == "f" and not name.startswith("history")}
    assert all(np.isfinite(a).all() for a in floats.values())
    with pytest.warns(RuntimeWarning, match="setbacks"):
        resumed = bbvi.fit(
            breaking(), draws=bbvi.MonteCarlo(20), stop=bbvi.Budget(steps=300), checkpoint=path, checkpoint_seconds=0,
            gradient=bbvi.Score(), optimizer=bbvi.adagrad(1.0),
        )  # fmt: skip
    np.testing.assert_array_equal(resumed.params["mu"]["loc"], posterior.params["mu"]["loc"])


@pytest.mark.parametrize(
    "log_joint",
    [
        lambda z, _: -z["x"] if z["x"] > 0 else z["x"],
        lambda z, _: -(float(z["x"]) ** 2),
        lambda z, _: -(np.asarray(z["x"]) ** 2),
        lambda z, _: -np.where(z["x"] > 0, z["x"], 0.0),
        lambda z, _: -sum(range(int(z["x"]))) * 1.0,
    ],
)
def test_a_function_that_asks_for_a_latents_value_is_told_what_to_do(log_joint):
    with pytest.raises(TypeError, match=r"(?s)jnp.where\(...\) in place of `if`.*bbvi.opaque\(fn\)"):
        bbvi.fit(bbvi.Model(log_joint, x=bbvi.real()))


def test_a_fit_that_ends_on_its_budget_warns_if_it_looked_for_convergence():
    model = bbvi.Model(lambda z, _: -0.5 * z["x"] ** 2, x=bbvi.real())
    with pytest.warns(RuntimeWarning, match=r"not converged after 3 steps \(Budget\(steps=3\)\); .*start=posterior"):
        bbvi.fit(model, stop=[bbvi.Converged(), bbvi.Budget(steps=3)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bbvi.fit(model, stop=bbvi.Budget(steps=3))
