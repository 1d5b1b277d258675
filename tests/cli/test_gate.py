"""The GitHub Actions example does what it says: its step is run as it stands there."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / ".github" / "workflows" / "checkpoint-gate.yml"
STEPS: list[dict[str, Any]] = yaml.safe_load(EXAMPLE.read_text("utf-8"))["jobs"]["check"]["steps"]


def step(part: str, folder: Path, model: Path) -> int:
    """Run the step whose script holds `part`, as GitHub does, in `folder`."""
    (script,) = (each["run"] for each in STEPS if part in each.get("run", ""))
    command = folder / "resstream"
    command.write_text(f'#!/bin/bash\nexec {sys.executable} -m resstream_cli "$@"\n')
    command.chmod(0o755)
    settings = {
        "MODEL": str(model),
        "BASELINE": "accepted.json",
        "GITHUB_STEP_SUMMARY": str(folder / "summary.md"),
        "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "cli")]),
        "OMP_NUM_THREADS": "1",
    }
    ended = subprocess.run(
        ["bash", "-e", "-c", script],
        cwd=folder, env=os.environ | settings, capture_output=True, text=True,
    )  # fmt: skip
    return ended.returncode


@pytest.fixture
def broken(call: Any, checkpoint: Path, tmp_path: Path) -> Path:
    fault = ("--fault", "zero", "--layer", 1, "--write", "attn")
    assert call("inject", checkpoint, *fault, "--out", tmp_path / "broken").exit_code == 0
    return tmp_path / "broken"


def test_a_broken_checkpoint_stops_the_job_until_it_is_accepted(
    call: Any, broken: Path, tmp_path: Path
) -> None:
    assert step("resstream check", tmp_path, broken) == 1
    assert json.loads((tmp_path / "findings.json").read_text())["verdict"] == "findings"
    assert "RS101" in (tmp_path / "report.html").read_text("utf-8")
    baseline = tmp_path / "accepted.json"
    assert call("check", broken, "--write-baseline", baseline).exit_code == 0
    assert step("resstream check", tmp_path, broken) == 0
    accepted = json.loads((tmp_path / "findings.json").read_text())["accepted"]
    assert [finding["code"] for finding in accepted] == ["RS101"]


def test_a_run_that_could_not_be_made_stops_it_too(tmp_path: Path) -> None:
    assert step("resstream check", tmp_path, tmp_path / "nothing") == 2


def test_what_was_found_is_kept() -> None:
    (upload,) = (each for each in STEPS if "upload-artifact" in each.get("uses", ""))
    assert upload["if"] == "always()"
    assert {"report.html", "findings.json"} == set(upload["with"]["path"].split())
