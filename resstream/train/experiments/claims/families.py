"""Where do published architectures put their norms?  Asked of their code, by discovery."""

from typing import Any

from resstream.stream.model import StreamModel
from resstream.train.experiments.experiment import (
    Chart,
    Experiment,
    Judgement,
    Key,
    Readings,
    Size,
    judged,
)
from resstream.train.experiments.registry import register

_SHAPE: dict[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 97,
    "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_GROUPED = {**_SHAPE, "num_key_value_heads": 2, "intermediate_size": 48}
_FAMILIES: dict[str, dict[str, Any]] = {
    "bert": {**_SHAPE, "intermediate_size": 48},
    "gpt2": {
        "n_embd": 32, "n_layer": 2, "n_head": 2, "vocab_size": 97, "n_positions": 64,
        "bos_token_id": 1, "eos_token_id": 2,
    },
    "llama": _GROUPED,
    "mistral": _GROUPED,
    "qwen3": {**_GROUPED, "head_dim": 16},
    "gemma2": {**_GROUPED, "head_dim": 16},
    "olmo2": _GROUPED,
}  # fmt: skip
_OLD = ("bert",)
_PLACES = ("pre", "post", "sandwich", "after", "none", "unknown")


def _placements(family: str) -> list[str]:
    from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

    config = AutoConfig.for_model(family, **_FAMILIES[family])
    maker = AutoModel if family in _OLD else AutoModelForCausalLM
    model = StreamModel(maker.from_config(config).eval(), name=family)
    return [block.placement for block in model.spec.blocks]


def _measure(size: Size) -> dict[Key, float]:
    families = ("llama", "gemma2") if size == "tiny" else tuple(_FAMILIES)
    found: dict[Key, float] = {}
    for family in families:
        placements = _placements(family)
        for place in _PLACES:
            if place in placements:
                found[f"{family}: {place}"] = placements.count(place) / len(placements)
    return found


def judge_families(readings: Readings) -> Judgement:
    """All but BERT would have to be Pre-LN."""
    found = dict(item.quantity.split(": ") for item in readings.measured)
    others = [name for name, place in found.items() if place != "pre" and name not in _OLD]
    return judged(
        not others,
        "where discovery finds the norm: "
        + ", ".join(f"{name} {place}" for name, place in found.items())
        + (f". Modern and not Pre-LN: {', '.join(others)}" if others else ""),
    )


register(
    Experiment(
        name="norm-placement-of-families",
        title="Are all modern language models Pre-LN?",
        claim="BERT is Post-LN; GPT-2, LLaMA and all modern language models are Pre-LN.",
        source="Tutorials; the families' code in transformers",
        rows=(21,),
        measure=_measure,
        judge=judge_families,
        chart=Chart(value_title="share of the blocks with this placement"),
        method="Random small models of each family; every block is taken apart and proved.",
        seeds=0,
    )
)
