"""The notebooks run from a clean kernel, keep no outputs, and say how to use one's own model."""

from pathlib import Path
from typing import Any

import nbformat
import pytest

PLACE = Path(__file__).parents[1] / "examples" / "notebooks"
NOTEBOOKS = sorted(path.name for path in PLACE.glob("*.ipynb"))
LONGEST_S = 300
"""Of one cell; a loaded machine needs a few seconds."""


def read(name: str) -> Any:
    return nbformat.read(PLACE / name, as_version=4)


def test_there_are_four() -> None:
    assert [name[0] for name in NOTEBOOKS] == ["a", "b", "c", "d"]


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_runs_from_a_clean_kernel(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nbclient import NotebookClient

    # Neither the history nor the ports of other kernels come in the way.
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    notebook = read(name)
    client = NotebookClient(
        notebook, timeout=LONGEST_S, resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()
    outputs = [item for cell in notebook.cells for item in cell.get("outputs", [])]
    drawn = [item for item in outputs if "application/vnd.plotly.v1+json" in item.get("data", {})]
    assert drawn, "a notebook without a figure shows nothing"
    said = "".join(item.get("text", "") for item in outputs if item.get("name") == "stderr")
    assert "Traceback" not in said


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_is_kept_clean_and_says_how_to_go_on(name: str) -> None:
    notebook = read(name)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None
    text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    assert "our own" in text
    assert "rs.load(" in text
