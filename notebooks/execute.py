"""Executes every notebook of this folder from top to bottom, for the site; the first cell that fails stops it.

Run by ``python3 dev.py docs``. Executed copies go to docs/notebooks, where the site takes them from. ``--store`` keeps the
outputs in the notebooks themselves, too, for those who read them elsewhere; names of notebooks execute only those.
"""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from traitlets.config import Config

FOLDER = Path(__file__).resolve().parent
SITE = FOLDER.parent / "docs" / "notebooks"


def execute(path: Path):
    """The notebook at ``path`` with fresh outputs, without what differs between two runs of the same code."""
    notebook = nbformat.read(path, as_version=4)
    options = {"timeout": 600, "startup_timeout": 300, "kernel_name": "python3"}
    with tempfile.TemporaryDirectory() as folder:
        if os.name != "nt":  # sockets in a folder of our own instead of open ports
            options["config"] = Config({"KernelManager": {"transport": "ipc", "ip": os.path.join(folder, "kernel")}})
        NotebookClient(notebook, resources={"metadata": {"path": str(FOLDER)}}, **options).execute()
    notebook.metadata.pop("widgets", None)
    notebook.metadata.language_info = {"name": "python"}
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            # what a library says to a terminal, such as where it found no accelerator
            cell.outputs = [x for x in cell.outputs if x.get("name") != "stderr"]
    return notebook


def main() -> None:
    """Executes the notebooks named, or all."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", type=Path)
    parser.add_argument("--store", action="store_true", help="keep the outputs in the notebooks")
    arguments = parser.parse_args()
    SITE.mkdir(exist_ok=True)
    for path in arguments.names or sorted(FOLDER.glob("*.ipynb")):
        began = time.perf_counter()
        try:
            notebook = execute(path)
        except CellExecutionError as error:
            print(f"{path.name}: {error}", flush=True)
            os._exit(1)  # the client's exit hook would add a traceback of its own
        for target in [SITE / path.name, *([path] if arguments.store else [])]:
            nbformat.write(notebook, target)
        size = (SITE / path.name).stat().st_size / 1024
        print(f"{path.name}: executed in {time.perf_counter() - began:.1f} s, {size:.0f} kB", flush=True)


if __name__ == "__main__":
    sys.exit(main())
