"""Section 3.1 made visible: the matrix, the table and the picture."""

import io

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import bbvi
from tests.exact import matches


def patients():
    """Two patients of three and five visits; four labs, two factors."""
    rng = np.random.default_rng(0)
    data = bbvi.ragged(visit={"labs": [rng.gamma(4, 0.25, (n, 4)) for n in (3, 5)]})

    def log_local(beta, z, row):
        before = jnp.concatenate([jnp.ones((1, 2)), z["x"][:-1]])
        drift = jnp.where(row["mask"]["visit"][:, None], bbvi.GammaE(before, 0.25).log_prob(z["x"]), 0)
        return dist.Normal(0, 1).log_prob(z["o"]).sum() + drift.sum()

    def log_likelihood(beta, z, row):
        term = dist.Normal(z["x"] @ beta["W"].T + z["o"], 0.3).log_prob(row["labs"])
        return jnp.where(row["mask"]["visit"][:, None], term, 0).sum()

    model = bbvi.HierarchicalModel(
        log_prior=lambda beta: dist.Normal(0, 1).log_prob(beta["W"]).sum(),
        log_local=log_local,
        log_likelihood=log_likelihood,
        globals={"W": bbvi.real(4, 2)},
        locals={"x": bbvi.positive("visit", 2), "o": bbvi.real(4)},
    )
    return model, data


@pytest.mark.parametrize(("group", "visits"), [(0, 3), (1, 5)])
def test_a_lab_reads_its_weights_its_offset_and_its_visit_at_the_groups_own_length(group, visits):
    found = bbvi.explain(*patients(), group=group)
    assert found.latents == [
        *(f"W[{lab},{k}]" for lab in range(4) for k in range(2)),
        *(f"x[{v},{k}]" for v in range(visits) for k in range(2)),
        *(f"o[{lab}]" for lab in range(4)),
    ]
    assert found.matrix.shape == (len(found.terms), len(found.latents))
    rows = {
        name: set(np.array(found.latents)[row]) for name, row in zip(found.terms, found.matrix.toarray(), strict=True)
    }
    for v in range(visits):
        for lab in range(4):
            read = {f"W[{lab},0]", f"W[{lab},1]", f"x[{v},0]", f"x[{v},1]", f"o[{lab}]"}
            assert rows[f"log_likelihood[{v},{lab}]"] == read
    chain = [read for name, read in rows.items() if name.startswith("log_local") and any(e[0] == "x" for e in read)]
    assert sorted(map(sorted, chain)) == sorted(
        [f"x[{t},{k}]" for t in (v - 1, v) if t >= 0] for v in range(visits) for k in range(2)
    )


def test_each_row_of_the_matrix_is_one_that_moves():
    """The matrix of look-ups by the data, against moving each latent of that group."""
    model, data = matches()
    for group in range(3):
        found = bbvi.explain(model, data, group=group)
        row = jax.tree.map(lambda leaf, g=group: leaf[g], data)
        home, away, side = (np.asarray(row[name]) for name in ("home", "away", "side"))
        dense = dict(zip(found.terms, found.matrix.toarray(), strict=True))
        for i in range(2):
            read = {f"team[{home[i]}]", f"team[{away[i]}]", "scale", f"form[{side[i]}]"}
            assert set(np.array(found.latents)[dense[f"log_likelihood[{i}]"]]) == read


def test_a_vector_of_a_simplex_is_read_whole_and_columns_are_in_order_of_declaration():
    def log_joint(z, _):
        return dist.Dirichlet(jnp.ones(3)).log_prob(z["w"]).sum() + dist.Normal(0, 1).log_prob(z["a"]).sum()

    found = bbvi.explain(bbvi.Model(log_joint, w=bbvi.simplex(3, 2), a=bbvi.real(2)))
    assert found.latents == [*(f"w[{i},{k}]" for i in range(2) for k in range(3)), "a[0]", "a[1]"]
    rows = {tuple(row.astype(int)) for row in found.matrix.toarray()}
    assert (1, 1, 1, 0, 0, 0, 0, 0) in rows and (0, 0, 0, 0, 0, 0, 0, 1) in rows


def test_the_papers_model_fits_one_screen():
    lines = repr(bbvi.explain(*patients())).splitlines()
    assert len(lines) <= 22 and max(map(len, lines)) <= 100
    text = "\n".join(lines)
    assert "2 W, 2 x, 1 o" in text and "1-2 x" in text and "test_explain.py:" in text


def test_lost_precision_is_named_with_its_line_and_reason():
    found = bbvi.explain(bbvi.Model(lambda z, _: -(jnp.sort(z["x"]) ** 2).sum(), x=bbvi.real(3)))
    assert found.matrix.nnz == 9
    assert [lost.why for lost in found.lost] == ["sorting reads every element"]
    assert found.lost[0].line.startswith("test_explain.py:")
    assert "sorting reads every element" in repr(found)


def test_an_index_lost_in_a_loop_says_what_to_do():
    def log_likelihood(beta, z, row):
        def step(total, item):
            return total - (beta["V"][item] - 1.0) ** 2, None

        return jax.lax.scan(step, 0.0, row["item"])[0]

    model = bbvi.HierarchicalModel(
        log_prior=lambda beta: -(beta["V"] ** 2).sum(), log_likelihood=log_likelihood, globals={"V": bbvi.real(4)}
    )
    found = bbvi.explain(model, {"item": jnp.array([[0, 1], [2, 2]])})
    assert "look up outside of loops" in repr(found)


def test_shares_of_variance_are_those_under_q():
    """Two independent parts, of variances 1 and 4 under the starting q."""
    start = {"loc": 0.0, "scale": 1.0}
    model = bbvi.Model(lambda z, _: z["a"] + 2 * z["b"], a=bbvi.real(init=start), b=bbvi.real(init=start))
    posterior = bbvi.fit(model, stop=bbvi.Budget(steps=0))
    for found in (bbvi.explain(model), bbvi.explain(model, posterior=posterior)):
        assert sorted(found.shares.values()) == pytest.approx([0.2, 0.8], abs=0.03)


def test_the_picture_has_a_panel_for_each_pair_and_can_be_saved():
    found = bbvi.explain(*patients())
    figure = found.plot()
    arrays = [term for term in found.shapes if found.readings[term]]
    assert len(figure.axes) == len(arrays) * (3 + 1)
    buffer = io.BytesIO()
    figure.savefig(buffer)
    assert len(buffer.getvalue()) > 5000


def test_a_group_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match=r"group must be in 0 \.\. 1, got 7"):
        bbvi.explain(*patients(), group=7)
