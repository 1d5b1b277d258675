"""Sweeps on the command line: planned, interrupted for real, and gone on with."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Call = Callable[..., Any]
ROOT = Path(__file__).parents[2]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """Four documents of token-like words for the embedded model's tokenizer."""
    path = tmp_path / "text.jsonl"
    rows = [json.dumps({"text": f"a small text number {i}, " * 12}) for i in range(4)]
    path.write_text("\n".join(rows))
    return path


@pytest.fixture
def long_pairs(tmp_path: Path) -> Path:
    """Enough pairs that a sweep takes a few seconds."""
    rows = [
        {
            "clean": [3 + (i + k) % 50 for k in range(48)],
            "corrupted": [7, *(3 + (i + k) % 50 for k in range(1, 48))],
            "answer": 8,
            "wrong": 9,
        }
        for i in range(20)
    ]
    path = tmp_path / "pairs.json"
    path.write_text(json.dumps(rows))
    return path


def test_ablate_takes_heads_and_tokens(
    call: Call, demo_copy: Path, text: Path, tmp_path: Path
) -> None:
    options = ["--text", text, "--context", 16, "--sequences", 4, "--layers", "1,2"]
    ended = call("ablate", demo_copy, *options, "--level", "head", "--per-token", "--json")
    assert ended.exit_code == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert {(item["layer"], item["head"]) for item in found["effects"]} == {
        (layer, head) for layer in (1, 2) for head in range(4)
    }
    assert len(found["by_token"]["effects"]) == 8
    assert len(found["by_token"]["base"][0]) == 15
    page = tmp_path / "heads.html"
    shown = call("ablate", demo_copy, *options, "--level", "head", "--html", page).stdout
    assert "head" in shown.split("kind")[0]
    assert "What is each head worth?" in page.read_text("utf-8")
    assert "peak resident memory" in ended.stderr


def test_ablate_plans_and_stays_in_memory(call: Call, demo_copy: Path, text: Path) -> None:
    options = ["--text", text, "--context", 16, "--sequences", 4]
    ended = call("ablate", demo_copy, *options, "--plan", "--json")
    assert ended.exit_code == 0, ended.stderr
    planned = json.loads(ended.stdout)
    assert planned["schema"] == "resstream.ablate_plan/1"
    assert planned["plan"]["variants"] == 16
    assert planned["plan"]["layer_tokens"] < 0.6 * planned["plan"]["naive_layer_tokens"]
    refused = call("ablate", demo_copy, *options, "--memory", "1MiB")
    assert refused.exit_code == 2
    assert "of memory, got 1 MiB" in refused.stderr
    refused = call("ablate", demo_copy, *options, "--resume")
    assert (refused.exit_code, "--resume needs --out" in refused.stderr) == (2, True)


def start(*arguments: object) -> subprocess.Popen[str]:
    """The real command in a process of its own."""
    path = os.pathsep.join(map(str, (ROOT, ROOT / "cli")))
    # A shell switches interrupts off for what it starts in the background, and children inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return subprocess.Popen(
        [sys.executable, "-m", "resstream_cli", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def interrupt_when_begun(process: subprocess.Popen[str], kept: Path) -> str:
    """Ctrl-C as soon as something is kept; what the command wrote on stderr."""
    while process.poll() is None and not list(kept.glob("*.npy")):
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    return stderr


@pytest.mark.parametrize("verb", ["patch", "ablate"])
def test_ctrl_c_ends_in_one_line_and_can_be_resumed(
    call: Call, verb: str, checkpoint: Path, demo_copy: Path, long_pairs: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    if verb == "patch":
        # Little memory, so that there are many chunks.
        options = [checkpoint, "--pairs", long_pairs, "--every-cell", "--memory", "180MiB"]
    else:
        sentence = "the light of the evening fell on the river and the river carried it on, "
        (tmp_path / "long.txt").write_text(sentence * 2000)
        options = [demo_copy, "--text", tmp_path / "long.txt", "--sequences", 24, "--kind", "mean"]
    process = start(verb, *options, "--out", out)
    stderr = interrupt_when_begun(process, out / "unfinished")
    assert process.returncode == 130, stderr
    last = [line for line in stderr.splitlines() if ":" in line][-1]
    assert last == "resstream: interrupted; what is done is kept; --resume goes on with it"
    assert "Traceback" not in stderr
    kept = list((out / "unfinished").glob("*.npy"))
    assert kept
    assert not (out / "result.json").exists()
    resumed = call(verb, *options, "--out", out, "--resume")
    assert resumed.exit_code == 0, resumed.stderr
    assert "kept from the run before" in resumed.stderr
    assert not (out / "unfinished").exists()
    whole = call(verb, *options, "--out", tmp_path / "whole")
    assert whole.exit_code == 0, whole.stderr
    found, wanted = (
        json.loads((place / "result.json").read_text()) for place in (out, tmp_path / "whole")
    )
    assert found["effects"] == wanted["effects"], "bitwise, since JSON keeps every digit"
    assert found.get("normalised") == wanted.get("normalised")
