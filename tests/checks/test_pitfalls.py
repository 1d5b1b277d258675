"""Rules of the configuration: each says its own pitfall, and none is said of a sound model."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor, nn

from resstream.checks.checking import check
from resstream.checks.configuration import warmup_steps
from resstream.checks.rules import rs501_narrow_stream, rs502_post_norm
from resstream.errors import ConfigError
from resstream.nn.config import TransformerConfig
from resstream.nn.transformer import ResidualTransformer
from resstream.stream.loading import load

IDS = torch.randint(0, 50, (8, 64), generator=torch.Generator().manual_seed(0))


def codes(module: nn.Module) -> list[str]:
    return [f.code for f in check(load(module), IDS, select="RS5").findings]


def native(**changes: Any) -> ResidualTransformer:
    torch.manual_seed(0)
    sizes: dict[str, Any] = dict(n_layers=3, d_model=16, n_heads=2, d_vocab=50, n_ctx=64)
    return ResidualTransformer(TransformerConfig(**(sizes | changes)))


class Block(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.mlp = kind, nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "broadcast":
            return x + self.mlp(x.mean(1, keepdim=True))
        return torch.relu(x + self.mlp(x)) if self.kind == "activation" else x + self.mlp(x)


@pytest.mark.parametrize(
    ("kind", "expected"), [("activation", ["RS504"]), ("broadcast", ["RS505"]), ("sum", [])]
)
def test_what_the_probe_of_discovery_saw(kind: str, expected: list[str]) -> None:
    blocks = nn.Sequential(*(Block(kind) for _ in range(4)))
    module = nn.Sequential(nn.Embedding(50, 16), blocks, nn.Linear(16, 50))
    report = check(load(module), IDS, select="RS5")
    assert [finding.code for finding in report.findings] == expected
    assert report.verdict == "healthy"  # remarks
    assert all("4 of 4 blocks: in L0" in finding.statement for finding in report.findings)


@pytest.mark.parametrize("placement", ["pre", "sandwich", "post"])
def test_only_post_norm_needs_a_warm_up(placement: str) -> None:
    expected = ["RS502"] if placement == "post" else []
    assert codes(native(placement=placement)) == expected


def test_deepnorm_needs_none() -> None:
    assert codes(native(rule={"kind": "deepnorm"})) == []


@pytest.mark.parametrize(("steps", "expected"), [(0, "has none"), (100, None), (None, "needs a")])
def test_a_run_that_had_a_warm_up_is_left_alone(
    tmp_path: Path, steps: int | None, expected: str | None
) -> None:
    if steps is not None:
        text = yaml.safe_dump({"training": {"warmup_steps": steps}})
        (tmp_path / "training.yaml").write_text(text)
    known = warmup_steps(SimpleNamespace(name_or_path=str(tmp_path)))
    assert known == steps
    said = rs502_post_norm.look(load(native(placement="post")).spec, known)
    assert (said is None) if expected is None else (said is not None and expected in said)


@pytest.mark.parametrize("text", ["", "[", "training: 3", "training: {warmup_steps: many}"])
def test_a_strange_training_file_says_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "training.yaml").write_text(text)
    assert warmup_steps(SimpleNamespace(name_or_path=str(tmp_path))) is None
    assert warmup_steps(None) is None


@pytest.mark.parametrize("init", ["normal", "depth_scaled_normal", "zero_output"])
def test_branches_that_are_not_small_at_initialisation(init: str) -> None:
    deep = native(n_layers=12, init={"kind": init})
    assert codes(deep) == (["RS503"] if init == "normal" else [])


def test_a_shallow_or_trained_model_is_left_alone() -> None:
    assert codes(native(n_layers=4, init={"kind": "normal"})) == []
    trained = native(n_layers=12, init={"kind": "normal"})
    with torch.no_grad():
        for name, value in trained.named_parameters():
            if name.endswith("blocks.3.mlp.down.weight") or ("3" in name and value.ndim == 2):
                value.add_(torch.outer(torch.ones(len(value)), torch.ones(value.shape[1])))
    assert codes(trained) == []


@pytest.mark.parametrize(
    ("config", "bits", "found"),
    [
        (SimpleNamespace(residual_in_fp32=False), 32, True),
        (SimpleNamespace(residual_in_fp32=True), 16, False),
        (SimpleNamespace(stream_dtype="compute"), 16, True),
        (SimpleNamespace(stream_dtype="compute"), 32, False),
        (SimpleNamespace(transformer={"stream_dtype": "compute"}), 16, True),
        (SimpleNamespace(transformer={"stream_dtype": "float32"}), 16, False),
        (None, 16, False),
    ],
)
def test_a_narrow_stream_is_read_in_the_configuration(config: Any, bits: int, found: bool) -> None:
    assert (rs501_narrow_stream.look(config, bits) is not None) == found


def test_pitfall_rules_can_be_ignored() -> None:
    module = native(placement="post")
    assert check(load(module), IDS, select="RS5", ignore="RS502").findings == ()
    with pytest.raises(ConfigError, match="unknown rule 'RS509'"):
        check(load(module), IDS, ignore="RS509")
