"""Executes every notebook of this folder from top to bottom; the first cell that fails stops it.

Run with: python3 dev.py docs. The cells are plain Python, so no Jupyter kernel is needed to run them.
"""

import ast
import json
import os
import time
from pathlib import Path

FOLDER = Path(__file__).parent


def execute(notebook: Path) -> int:
    """Runs a notebook's code cells in one namespace, and shows each last expression; returns the number of cells."""
    namespace = {"__name__": "__main__"}
    cells = [cell for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == "code"]
    for number, cell in enumerate(cells, 1):
        tree = ast.parse("".join(cell["source"]))
        shown = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        where = f"{notebook.name}, code cell {number}"
        exec(compile(tree, where, "exec"), namespace)
        if shown is not None:
            repr(eval(compile(ast.Expression(shown.value), where, "eval"), namespace))
    return len(cells)


if __name__ == "__main__":
    os.chdir(FOLDER)
    for path in sorted(FOLDER.glob("*.ipynb")):
        began = time.perf_counter()
        count = execute(path)
        print(f"{path.name}: {count} code cells executed in {time.perf_counter() - began:.1f} s", flush=True)
