"""Run percent scripts block by block; render their text, code, output and figures as Markdown, each beside its script.

Usage: python docs/execute.py docs/quickstart.py docs/gallery/*.py

`# %%` starts a block of code, `# %% [markdown]` one of text in comments. Blocks share their variables. A
block that raises ends the run with its traceback, and no page is written.
"""

import ast
import contextlib
import io
import sys
import time
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.figure import Figure


def split(source):
    """Cut the script into blocks `(number of the marker's line, is text, lines)`."""
    blocks = []
    for number, line in enumerate(source.splitlines(), start=1):
        if line.startswith("# %%"):
            blocks.append((number, "[markdown]" in line, []))
        elif blocks:
            blocks[-1][2].append(line)
        elif line.strip():
            raise ValueError(f"line {number} stands before the first '# %%' marker: {line!r}")
    return blocks


def run(code, number, path, namespace):
    """Execute one block; return what it printed and the figures it left open."""
    tree = ast.parse("\n" * number + code, str(path))  # the padding keeps line numbers in tracebacks right
    last = tree.body.pop().value if tree.body and isinstance(tree.body[-1], ast.Expr) else ast.Constant(None)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, str(path), "exec"), namespace)
        value = eval(compile(ast.fix_missing_locations(ast.Expression(last)), str(path), "eval"), namespace)
    figures = [plt.figure(open_figure) for open_figure in plt.get_fignums()]
    if isinstance(value, Figure) and value not in figures:
        figures.append(value)
    if value is not None and not figures:
        printed.write(repr(value))
    return printed.getvalue().rstrip(), figures


def render(path, images):
    """The Markdown of the script at `path`; its figures go to the folder `images`."""
    namespace, parts, num_figures = {"__name__": "__main__"}, [], 0
    for number, is_text, lines in split(path.read_text(encoding="utf-8")):
        block = "\n".join(lines).strip("\n")
        if is_text:
            parts.append("\n".join(line.removeprefix("#").removeprefix(" ") for line in block.splitlines()))
            continue
        printed, figures = run("\n".join(lines), number, path, namespace)
        parts.append(f"```python\n{block}\n```")
        if printed:
            parts.append(f"```text\n{printed}\n```")
        for figure in figures:
            num_figures += 1
            image = images / f"{path.stem}-{num_figures}.png"
            figure.savefig(image, dpi=120, bbox_inches="tight")
            parts.append(f"![Figure {num_figures}]({images.name}/{image.name})")
        plt.close("all")
    return "\n\n".join(parts) + "\n"


def make_page(script):
    """Write the page of a script, and say how long that took."""
    began = time.process_time()
    page, images = script.with_suffix(".md"), script.parent / "generated"
    images.mkdir(exist_ok=True)
    for stale in [page, *images.glob(f"{script.stem}-*.png")]:
        stale.unlink(missing_ok=True)
    page.write_text(render(script, images), encoding="utf-8")
    print(f"{script}: {time.process_time() - began:.0f} s of the processor", flush=True)


if __name__ == "__main__":
    plt.switch_backend("Agg")
    for argument in sys.argv[1:]:
        make_page(Path(argument))
