"""Run the notebooks and keep their output: ``python notebooks/execute.py [NAME.ipynb ...]``."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

DIRECTORY = Path(__file__).parent
#: What a run says about itself and not about its subject.
_VOLATILE_CELL_METADATA = ("execution",)


def execute(path: Path) -> nbformat.NotebookNode:
    """A notebook as it is after a run in a kernel of its own; a cell that fails raises."""
    notebook = nbformat.read(path, as_version=4)
    programs = str(Path(sys.executable).parent)
    environment = {
        **os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "PYSPARK_PYTHON": sys.executable,
        "TZ": "UTC", "COLUMNS": "80",
    }
    client = NotebookClient(
        notebook, timeout=600, kernel_name="python3", coalesce_streams=True,
        resources={"metadata": {"path": str(path.parent)}},
    )
    client.execute(env=environment)
    for cell in notebook.cells:
        for name in _VOLATILE_CELL_METADATA:
            cell.metadata.pop(name, None)
        if cell.cell_type == "code":
            cell.outputs = [one for one in cell.outputs if one.get("name") != "stderr"]
    return notebook


def texts(notebook: nbformat.NotebookNode) -> list[str]:
    """The text that each code cell shows; pictures are left out, they differ by their fonts."""
    return [
        "".join(
            output["text"] if output.output_type == "stream" else output.data.get("text/plain", "")
            for output in cell.outputs
            if output.output_type == "stream" or "image/png" not in output.data
        )
        for cell in notebook.cells if cell.cell_type == "code"
    ]


def main() -> None:
    """Run all notebooks, or those that are named, and write them with their new output."""
    paths = [Path(name) for name in sys.argv[1:]] or sorted(DIRECTORY.glob("*.ipynb"))
    for path in paths:
        nbformat.write(execute(path), path)
        sys.stdout.write(f"{path.name}: {path.stat().st_size // 1024} KiB\n")


if __name__ == "__main__":
    main()
