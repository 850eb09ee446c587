"""A rule for a primitive is public: a made-up one gets exact blankets, and without a rule reads everything."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir
from jax.sharding import PartitionSpec

import bbvi
from bbvi.blankets.read_sets import ReadSets, union

DATA = np.array([0.5, -1.0, 2.0, 0.0], np.float32)


def made_up(name, function):
    """A primitive for JAX: its values, its shape, its map over samples, and its code for the compiler."""
    primitive = Primitive(name)
    primitive.def_impl(function)
    primitive.def_abstract_eval(lambda x: jax.core.ShapedArray(x.shape, x.dtype))
    mlir.register_lowering(primitive, mlir.lower_fun(function, multiple_results=False))

    def batched(arguments, axes):
        first = jnp.moveaxis(arguments[0], axes[0], 0)
        return jax.vmap(function)(first), 0

    batching.primitive_batchers[primitive] = batched
    return primitive


def cubed(x):
    return x**3 / 10


def smoothed(x):
    """Each element with the one before it, around a ring."""
    return x + 0.5 * jnp.roll(x, 1)


def cubed_reads(interpreter, eqn, ins):
    return ins


def smoothed_reads(interpreter, eqn, ins):
    (part,) = ins
    return [union([part, ReadSets(np.roll(part.ids, 1), part.sets)])]


CASES = {"element by element": (cubed, cubed_reads), "neighbours": (smoothed, smoothed_reads)}


def model_of(function):
    def log_joint(z, y):
        return -((function(z["x"]) - y) ** 2).sum() - (z["x"] ** 2).sum()

    return bbvi.Model(log_joint, x=bbvi.real(4))


def matrix(model):
    found = bbvi.explain(model, DATA)
    return found.matrix.toarray(), [lost.why for lost in found.lost]


@pytest.mark.parametrize("name", CASES)
def test_a_primitive_without_a_rule_reads_everything_and_with_its_rule_what_it_reads(name):
    function, rule = CASES[name]
    exact, lost = matrix(model_of(function))
    assert not lost
    primitive = made_up(f"made up: {name}", function)
    model = model_of(primitive.bind)
    without, why = matrix(model)
    assert without[:4].all() and why == [f"no rule for 'made up: {name}'"]
    assert bbvi.rule(primitive)(rule) is rule
    found, lost = matrix(model)
    assert np.array_equal(found, exact) and not lost


@pytest.mark.parametrize("name", CASES)
def test_a_fit_through_the_primitive_is_that_of_the_function_it_stands_for(name):
    function, rule = CASES[name]
    primitive = made_up(f"fitted: {name}", function)
    bbvi.rule(primitive)(rule)
    how = {"stop": bbvi.Budget(steps=20), "gradient": bbvi.Score(), "seed": 3}
    one, other = (bbvi.fit(model_of(f), DATA, **how).params["x"]["loc"] for f in (function, primitive.bind))
    np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_a_rule_is_for_primitives_and_its_result_has_the_shape_of_theirs():
    with pytest.raises(TypeError, match=r"a rule is for primitives of JAX such as jax.lax.add_p, got 'add'"):
        bbvi.rule("add")
    primitive = made_up("too small", cubed)

    @bbvi.rule(primitive)
    def wrong(interpreter, eqn, ins):
        return [ReadSets(ins[0].ids[:2], ins[0].sets)]

    with pytest.raises(
        ValueError, match=r"the rule for 'too small' returned reads of shape \(2,\) for a result of \(4,\)"
    ):
        bbvi.explain(model_of(primitive.bind), DATA)


def test_a_rule_that_reads_too_little_is_found_out_before_the_first_step():
    primitive = made_up("reads too little", smoothed)
    bbvi.rule(primitive)(cubed_reads)
    with pytest.raises(RuntimeError, match=r"changed with .* of latent 'x', which its trace does not show"):
        bbvi.fit(model_of(primitive.bind), DATA)


def over_devices(function, out):
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("d",))
    return jax.shard_map(function, mesh=mesh, in_specs=(PartitionSpec("d"),) * 2, out_specs=out)


SHARDED = {
    "element by element": lambda x, y: over_devices(lambda a, b: -0.5 * (a - b) ** 2, PartitionSpec("d"))(x, y).sum(),
    "a sum over devices": lambda x, y: over_devices(
        lambda a, b: jax.lax.psum(-0.5 * jnp.sum((a - b) ** 2), "d"), PartitionSpec()
    )(x, y),
    "compiled": lambda x, y: jax.jit(over_devices(lambda a, b: -0.5 * (a - b) ** 2, PartitionSpec("d")))(x, y).sum(),
    "in a loop": lambda x, y: jax.lax.fori_loop(
        0, 2, lambda i, t: t + over_devices(lambda a, b: -0.25 * (a - b) ** 2, PartitionSpec("d"))(x, y).sum(), 0.0
    ),
}


@pytest.mark.parametrize("name", SHARDED)
def test_a_function_over_devices_reads_all_that_goes_in(name):
    model = bbvi.Model(lambda z, y: SHARDED[name](z["x"], y) - 0.5 * jnp.sum(z["x"] ** 2), x=bbvi.real(3))
    plain = bbvi.Model(lambda z, y: -0.5 * jnp.sum((z["x"] - y) ** 2) - 0.5 * jnp.sum(z["x"] ** 2), x=bbvi.real(3))
    y = np.array([1.0, -2.0, 0.5], np.float32)
    found = bbvi.explain(model, y)
    assert found.matrix.toarray().all(axis=1).any()
    assert len(found.lost) > 0
    start = bbvi.fit(plain, y, stop=bbvi.Budget(steps=0))
    same = bbvi.fit(model, y, stop=bbvi.Budget(steps=0)).replace(start.params)
    np.testing.assert_allclose(float(same.elbo(100)), float(start.elbo(100)), rtol=1e-4)
    bbvi.fit(model, y, gradient=bbvi.Score(), stop=bbvi.Budget(steps=2))
