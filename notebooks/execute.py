"""Executes every notebook of this folder from top to bottom; the first cell that fails stops it.

Run with: python3 dev.py docs
"""

import os
import time
from pathlib import Path

import nbformat
from jupyter_client import AsyncKernelManager
from nbclient import NotebookClient

TRANSPORT = "tcp" if os.name == "nt" else "ipc"  # ipc: no open port

for path in sorted(Path(__file__).parent.glob("*.ipynb")):
    began = time.perf_counter()
    notebook = nbformat.read(path, as_version=4)
    kernel = AsyncKernelManager(kernel_name="python3", transport=TRANSPORT)
    NotebookClient(notebook, km=kernel, timeout=300, resources={"metadata": {"path": path.parent}}).execute()
    print(f"{path.name}: {len(notebook.cells)} cells executed in {time.perf_counter() - began:.1f} s", flush=True)
