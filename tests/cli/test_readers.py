"""The verbs that read a stream: what they print, save and refuse."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import resstream as rs

if TYPE_CHECKING:
    from tests.cli.conftest import Call


def test_lens_of_a_prompt(call: "Call", demo_copy: Path, tmp_path: Path) -> None:
    page, out = tmp_path / "page.html", tmp_path / "run"
    prompt = ["--prompt", "Once upon a time <script>alert(1)</script>"]
    ended = call("lens", demo_copy, *prompt, "--top-k", 3, "--json", "--html", page, "--out", out)
    assert ended.exit_code == 0, ended.stderr
    printed = json.loads(ended.stdout)
    assert printed["schema"] == "resstream.logit_lens/1"
    assert len(printed["top_probs"][0][0][0]) == 3
    assert all(value == 0 for value in printed["kl_nats"][-1][0])
    assert "<script>alert(1)" not in page.read_text("utf-8")
    assert type(rs.load_result(out)).__name__ == "LogitLensResult"


def test_lens_of_a_text(call: "Call", checkpoint: Path) -> None:
    ended = call("lens", checkpoint, "--sequences", 3, "--context", 16, "--sample", 12)
    assert ended.exit_code == 0, ended.stderr
    assert "L2 mlp" in ended.stdout
    assert "means over 12 tokens" in ended.stdout


def test_attribute_says_how_complete_it_is(call: "Call", data_path) -> None:
    model = data_path("stories260K")
    ended = call("attribute", model, "--prompt", "Once upon a time", "--level", "head")
    assert ended.exit_code == 0, ended.stderr
    assert "the parts sum to" in ended.stdout
    assert "head" in ended.stdout


def test_similarity(call: "Call", checkpoint: Path, tmp_path: Path) -> None:
    options = ["--sequences", 4, "--context", 16, "--tokens", 24, "--html", tmp_path / "page.html"]
    ended = call("similarity", checkpoint, *options)
    assert ended.exit_code == 0, ended.stderr
    assert "influence" in ended.stdout
    assert "Which depths point the same way?" in (tmp_path / "page.html").read_text("utf-8")


@pytest.mark.parametrize("reading", ["ranks", "attention", "gradients", "precision"])
def test_profile(call: "Call", checkpoint: Path, tmp_path: Path, reading: str) -> None:
    options = ["--sequences", 4, "--context", 16, "--html", tmp_path / "page.html", "--json"]
    ended = call("profile", checkpoint, "--reading", reading, *options)
    assert ended.exit_code == 0, ended.stderr
    assert json.loads(ended.stdout)["schema"] == f"resstream.{reading}/1"
    assert (tmp_path / "page.html").stat().st_size > 1_000_000  # Plotly is inside


@pytest.mark.parametrize(
    ("reading", "headings"),
    [
        ("ranks", "depth tokens effective rank participation ratio anisotropy largest channel"),
        ("attention", "layer head entropy first token sink rate write norm dormant"),
        ("gradients", "depth stream, 5 % stream, median stream, 95 % weights"),
        ("precision", "depth tokens drift write error lost share stream / write"),
    ],
)
def test_profile_on_the_screen(
    call: "Call", checkpoint: Path, monkeypatch: pytest.MonkeyPatch, reading: str, headings: str
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    options = ["--sequences", 4, "--context", 16]
    ended = call("profile", checkpoint, "--reading", reading, *options)
    assert ended.exit_code == 0, ended.stderr
    lines = [" ".join(line.split()) for line in ended.stdout.splitlines()]
    assert headings in lines
    assert "nan" not in ended.stdout


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--prompt", "a", "--text", "b.txt"], "--prompt and --text exclude each other"),
        (["--target", " a"], "--target needs --prompt"),
        (["--prompt", "Once upon", "--train", "lens"], "--train excludes --prompt and --tuned"),
        (["--prompt", "Once upon", "--tuned", "nowhere"], "no lens in nowhere"),
        (["--prompt", "Once upon", "--target", "xylophone zoo"], "a target must be one token"),
    ],
)
def test_lens_refuses(call: "Call", demo_copy: Path, options: list[str], says: str) -> None:
    ended = call("lens", demo_copy, *options)
    assert ended.exit_code == 2
    assert says in ended.stderr


def test_train_and_read_through(call: "Call", demo_copy: Path, tmp_path: Path) -> None:
    lens, page, out = tmp_path / "lens", tmp_path / "page.html", tmp_path / "run"
    small = ["--sequences", 60, "--context", 32]
    train = ["--train", lens, "--train-tokens", 4000, "--batch-tokens", 128, "--sample", 100]
    ended = call("lens", demo_copy, *small, *train, "--json", "--html", page, "--out", out)
    assert ended.exit_code == 0, ended.stderr
    printed = json.loads(ended.stdout)
    assert printed["schema"] == "resstream.tuned_lens/1"
    assert printed["n_trained"] >= 4000
    assert type(rs.load_result(out)).__name__ == "TunedLensResult"
    assert "better at 8 of 8 depths" in page.read_text("utf-8")
    plain, tuned = (
        json.loads(call("lens", demo_copy, *small, *options, "--json").stdout)
        for options in ((), ("--tuned", lens))
    )
    # The plain lens reads the embedding, two writes a block, and so on.
    assert plain["depths"][4] == "L1 mlp"
    assert tuned["depths"][2] == "L1"
    assert tuned["mean"][1][2][0] < 0.9 * plain["mean"][1][4][0]
