"""A fix in whole layers: the slices file, applied by hand, is the model that was simulated."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from resstream.checks.repairs import Weights, exchanged_blocks, scaled_output
from resstream.checks.slices import Slice, slices_of, write_slices
from resstream.errors import ConfigError
from resstream.stream.loading import load
from resstream.stream.model import StreamModel
from resstream.stream.substitution import substituted

TOKENS = torch.randint(0, 256, (2, 12), generator=torch.Generator().manual_seed(0))
Saved = Callable[..., StreamModel]


@pytest.fixture
def saved(tiny_llama: Any, tmp_path: Path) -> Saved:
    """Makes checkpoints on disk: ``saved(name, seed)``; ends and all blocks differ by seed."""

    def make(name: str, seed: int = 0, **changes: Any) -> StreamModel:
        place = tmp_path / name
        tiny_llama(seed, **changes).save_pretrained(place)
        return load(str(place))

    return make


def without_layer(model: StreamModel, layer: int) -> Weights:
    writes = model.spec.blocks[layer].writes
    return {k: v for w in writes for k, v in scaled_output(model, w, 0.0).items()}


def merged(file: Path) -> torch.Tensor:
    """Logits of what mergekit's passthrough would make of a slices file."""
    from transformers import AutoModelForCausalLM

    recipe = yaml.safe_load(file.read_text())
    assert recipe["merge_method"] == "passthrough"
    assert recipe["dtype"] == "float32"
    layers: list[Any] = []
    ends: list[Any] = []
    for part in recipe["slices"]:
        (source,) = part["sources"]
        module: Any = AutoModelForCausalLM.from_pretrained(source["model"]).eval()
        layers += list(module.model.layers)[slice(*source["layer_range"])]
        ends.append(module)
    whole, last = ends[0], ends[-1]
    for index, layer in enumerate(layers):
        layer.self_attn.layer_idx = index
    whole.model.layers = torch.nn.ModuleList(layers)
    whole.config.num_hidden_layers = len(layers)
    whole.model.norm, whole.lm_head = last.model.norm, last.lm_head
    with torch.no_grad():
        return whole(TOKENS).logits


def simulated(model: StreamModel, weights: Weights) -> torch.Tensor:
    with substituted(model.module, weights), torch.no_grad():
        return model.forward(TOKENS)


def test_a_layer_that_is_left_out(saved: Saved, tmp_path: Path) -> None:
    model = saved("one")
    weights = without_layer(model, 2)
    name = model.name
    assert slices_of(model, weights) == (Slice(name, 0, 2), Slice(name, 3, 6))
    file = write_slices(model, weights, tmp_path / "fix.yaml")
    torch.testing.assert_close(merged(file), simulated(model, weights))
    assert not torch.allclose(merged(file), simulated(model, {}), atol=1e-3)


@pytest.mark.parametrize("layer", [0, 5])
def test_the_first_and_the_last_layer(saved: Saved, tmp_path: Path, layer: int) -> None:
    model = saved("one")
    weights = without_layer(model, layer)
    file = write_slices(model, weights, tmp_path / "fix.yaml")
    torch.testing.assert_close(merged(file), simulated(model, weights))


def test_layers_in_another_order(saved: Saved, tmp_path: Path) -> None:
    model = saved("one")
    weights = exchanged_blocks(model, 2, 3)
    assert [each.first for each in slices_of(model, weights)] == [0, 3, 2, 4]
    file = write_slices(model, weights, tmp_path / "fix.yml")
    torch.testing.assert_close(merged(file), simulated(model, weights))


def test_a_layer_from_the_reference(saved: Saved, tmp_path: Path) -> None:
    model, good = saved("bad"), saved("good", 1)
    block = model.spec.blocks[3].module
    weights = {
        name: value.data.clone()
        for name, value in good.module.named_parameters()
        if name.startswith(f"{block}.")
    }
    found = slices_of(model, weights, good)
    assert found[1] == Slice(good.name, 3, 4)
    file = write_slices(model, weights, tmp_path / "fix.yaml", good)
    torch.testing.assert_close(merged(file), simulated(model, weights))
    with pytest.raises(ConfigError, match="changes a part of layer 3"):
        slices_of(model, weights)


def test_ends_come_with_the_first_and_last_slice(saved: Saved) -> None:
    model, good = saved("bad"), saved("good", 1)
    for layer in (0, 5):
        block = model.spec.blocks[layer].module
        theirs = dict(good.module.named_parameters())
        weights = {n: v.data for n, v in theirs.items() if n.startswith(f"{block}.")}
        with pytest.raises(ConfigError, match="would come its"):
            slices_of(model, weights, good)


def test_what_is_no_whole_layer_is_refused(saved: Saved, tmp_path: Path) -> None:
    model = saved("one")
    (attn, _) = model.spec.blocks[2].writes
    with pytest.raises(ConfigError, match="part of layer 2"):
        write_slices(model, scaled_output(model, attn, 0.0), tmp_path / "fix.yaml")
    name = "model.embed_tokens.weight"
    with pytest.raises(ConfigError, match="is in no layer"):
        slices_of(model, {name: model.module.get_parameter(name).data * 2})
    with pytest.raises(ConfigError, match="no fix to export"):
        write_slices(model, {}, tmp_path / "fix.yaml")
    everything = {k: v for i in range(6) for k, v in without_layer(model, i).items()}
    with pytest.raises(ConfigError, match="leaves no layer"):
        slices_of(model, everything)
    assert not (tmp_path / "fix.yaml").exists()


def test_a_bias_that_is_left_is_a_write(saved: Saved) -> None:
    model = saved("biased", mlp_bias=True)
    with torch.no_grad():
        model.module.get_parameter("model.layers.2.mlp.down_proj.bias").fill_(0.5)
    with pytest.raises(ConfigError, match="part of layer 2"):
        slices_of(model, without_layer(model, 2))


def test_models_that_mergekit_cannot_read_are_refused(tmp_path: Path) -> None:
    demo = load("demo")
    with pytest.raises(ConfigError, match="demo is neither"):
        write_slices(demo, exchanged_blocks(demo, 2, 3), tmp_path / "fix.yaml")
