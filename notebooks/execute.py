"""Executes every notebook of this folder from top to bottom; the first cell that fails stops it.

Run with: python3 dev.py docs
"""

import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient

for path in sorted(Path(__file__).parent.glob("*.ipynb")):
    began = time.perf_counter()
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": path.parent}}
    ).execute()
    print(f"{path.name}: {len(notebook.cells)} cells executed in {time.perf_counter() - began:.1f} s", flush=True)
