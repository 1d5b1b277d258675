"""The verb `train`: one line for each refusal and for Ctrl-C, and a run that other verbs read."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
RUN = """
model: {{n_layers: 2, d_model: 16, n_heads: 2, n_ctx: 16, rule: {rule}}}
training: {{steps: {steps}, batch: 4, learning_rate: 3e-3, log_every: 1}}
"""


@pytest.fixture
def config(tmp_path: Path) -> Any:
    def write(steps: int = 4, rule: str = "plain") -> Path:
        (tmp_path / "run.yaml").write_text(RUN.format(steps=steps, rule=rule))
        return tmp_path / "run.yaml"

    return write


def test_a_run_is_read_by_the_other_verbs(call: Any, config: Any, tmp_path: Path) -> None:
    run, page = tmp_path / "run", tmp_path / "run.html"
    ended = call("train", config(), "--out", run, "--html", page, "--json")
    assert ended.exit_code == 0, ended.output
    said = json.loads(ended.stdout)
    assert said["schema"] == "resstream.train/1"
    assert said["n_steps"] == 4
    assert said["provenance"]["text"].endswith("The Verdict (Edith Wharton, 1908)")
    assert "How large is the gradient of each block?" in page.read_text()
    assert json.loads((run / "run.json").read_text())["verb"] == "train"
    assert (run / "report.html").exists()
    assert call("inspect", run).exit_code == 0
    assert call("check", run, "--sequences", 4).exit_code in (0, 1)
    reported = call("report", run, run / "monitor", "--json")
    assert reported.exit_code == 0, reported.output
    assert len(json.loads(reported.stdout)["runs"]) == 2


def test_what_is_shown(call: Any, config: Any, tmp_path: Path) -> None:
    (tmp_path / "own.txt").write_text("to be or not to be " * 50)
    ended = call("train", config(), "--out", tmp_path / "run", "--text", tmp_path / "own.txt")
    assert "windows of 16 tokens of own.txt" in ended.stdout
    assert "step 4: loss " in ended.stderr
    assert "step 4: validation loss " in ended.stderr


@pytest.mark.parametrize(
    ("rule", "options", "said"),
    [
        ("highroad", (), "rule"),
        ("plain", ("--dtype", "float64"), "training.dtype must be 'float32', 'bfloat16'"),
        ("plain", ("--resume",), "--resume needs a checkpoint in"),
        ("plain", ("--device", "nowhere"), "device 'nowhere' can't be used"),
    ],
)
def test_refusals_are_one_line(
    call: Any, config: Any, tmp_path: Path, rule: str, options: tuple[str, ...], said: str
) -> None:
    ended = call("train", config(rule=rule), "--out", tmp_path / "run", *options)
    assert ended.exit_code == 2
    errors = [line for line in ended.stderr.splitlines() if line.startswith("resstream: error:")]
    assert len(errors) == 1
    assert said in errors[0]
    assert "Traceback" not in ended.output
    assert not (tmp_path / "run" / "model.safetensors").exists()


def test_ctrl_c_is_one_line_and_loses_nothing(call: Any, config: Any, tmp_path: Path) -> None:
    run = tmp_path / "run"
    command = [sys.executable, "-m", "resstream_cli", "train", str(config(steps=5000))]
    started = subprocess.Popen(
        [*command, "--out", str(run)],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'cli'}"},
    )
    assert started.stderr is not None
    for line in started.stderr:
        if "step 3:" in line:
            break
    started.send_signal(signal.SIGINT)
    stdout, stderr = started.communicate(timeout=120)
    assert started.returncode == 130
    assert stdout == ""
    ends = [line for line in stderr.splitlines() if not line.startswith("step ")]
    assert len(ends) == 1
    assert ends[0].startswith("resstream: interrupted after step ")
    done = int(ends[0].split()[4].rstrip(";"))
    assert (run / "checkpoints" / f"checkpoint-{done}" / "model.safetensors").exists()
    resumed = call("train", config(steps=done + 2), "--out", run, "--resume", "--json")
    assert resumed.exit_code == 0, resumed.output
    assert json.loads(resumed.stdout)["resumed_from"] == done
