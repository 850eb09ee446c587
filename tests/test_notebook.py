"""In a notebook a fit shows its progress, its picture, and the verdict above its table."""

import pytest

nbformat = pytest.importorskip("nbformat", reason="notebooks need the extra docs: pip install 'bbvi[docs]'")
nbclient = pytest.importorskip("nbclient", reason="notebooks need the extra docs: pip install 'bbvi[docs]'")
pytest.importorskip("ipykernel", reason="notebooks need the extra docs: pip install 'bbvi[docs]'")

CELLS = [
    "import bbvi, jax.numpy as jnp, numpyro.distributions as dist\n"
    "def log_joint(z, y):\n"
    "    return dist.Normal(0, 1).log_prob(z['mu']) + dist.Normal(z['mu'], 1).log_prob(y).sum()",
    "posterior = bbvi.fit(bbvi.Model(log_joint, mu=bbvi.real()), jnp.array([0.3, 1.2]))",
    "posterior",
    "posterior.plot()",
    "posterior.summary().sort_values('mean')",
    "bbvi.explain(posterior.model, jnp.array([0.3, 1.2]), posterior)",
]


def test_a_notebook_shows_progress_plot_and_summary(tmp_path):
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [[output.get("data", {}) for output in cell.outputs] for cell in notebook.cells]
    assert "ELBO" in shown[1][0]["text/html"] and "steps/s" in shown[1][0]["text/html"]
    assert shown[2][0]["text/html"].startswith("<p>converged")
    assert "image/png" in shown[3][0]
    assert "mu" in shown[4][0]["text/html"]
    assert "<table>" in shown[5][0]["text/html"]
