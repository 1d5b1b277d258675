"""What do the writes of a trained model look like, and what happens without one of them?"""

import torch
from jaxtyping import Float
from torch import Tensor

from resstream.analysis.ablation import Kind, ablate
from resstream.analysis.ranks import participation_ratio
from resstream.train.experiments.demo import demo, demo_tokens
from resstream.train.experiments.experiment import (
    Chart,
    Experiment,
    Judgement,
    Key,
    Readings,
    Size,
    judged,
    pick,
)
from resstream.train.experiments.registry import register

_LITTLE = 0.1
"""Nats per token that count as little, of about 1.2 that the embedded model has."""
_EMBEDDED = "the embedded model (8 blocks, trained on text of our own)"


def _measure_removal(size: Size) -> dict[Key, float]:
    tokens = demo_tokens(pick(size, tiny=1, quick=16, full=64))
    kinds: dict[Kind, list[str]] = {"zero": ["blocks.*.hook_*_out"], "mean": ["*.hook_attn_out"]}
    if size == "tiny":
        kinds.pop("mean")  # which needs more than one sequence
    found: dict[Key, float] = {}
    for kind, sites in kinds.items():
        for effect in ablate(demo(), tokens, kind=kind, sites=sites).effects:
            assert effect.layer is not None
            found[(f"{effect.write}, set to {kind}", effect.layer)] = effect.effect
    return found


def judge_removal(readings: Readings) -> Judgement:
    """Claimed of any attention layer."""
    name = "attn, set to zero"
    effects = readings.line(name)
    costly = [int(at) for at in readings.places(name) if readings.low(name, at) > _LITTLE]
    mlps = readings.line("mlp, set to zero")
    return judged(
        not costly,
        f"without one attention the loss rises by {min(effects):.2g} to {max(effects):.2g} nats a "
        f"token; by more than {_LITTLE:g} in {len(costly)} of {len(effects)} layers ({costly}). "
        f"The MLPs: {min(mlps):.2g} to {max(mlps):.2g}. Some layers are dispensable; which ones "
        "has to be measured, the first are not, and the mean in place of zero costs less where a "
        "write is mostly a constant",
    )


register(
    Experiment(
        name="remove-one-attention",
        title="Does removing one attention layer cost little?",
        claim="Removing one attention layer costs little: the stream carries on without it.",
        source="Tutorials; Lad et al. (2024), The Remarkable Robustness of LLMs",
        rows=(11,),
        measure=_measure_removal,
        judge=judge_removal,
        chart=Chart(value_title="effect on the loss, nats per token", at_title="layer"),
        method=f"Every write of {_EMBEDDED} set to zero, and to its mean, one at a time.",
    )
)


def _run(tokens: Tensor, *, without: str | None = None) -> tuple[dict[str, Tensor], Tensor]:
    """All writes and the ends of the stream, with one write set to zero or none."""
    model, kept = demo(), {}
    sites = [write.site for write in model.spec.writes]
    ends = ["blocks.0.hook_resid_pre", f"blocks.{model.spec.n_layers - 1}.hook_resid_post"]

    def keep(site: str, value: Tensor) -> Tensor | None:
        kept[site] = torch.zeros_like(value) if site == without else value.clone()
        return kept[site] if site == without else None

    with torch.no_grad():
        logits = model.run(
            tokens, {site: lambda value, site=site: keep(site, value) for site in (*sites, *ends)}
        )
    return kept, logits


def _measure_additive(size: Size) -> dict[Key, float]:
    tokens, spec = demo_tokens(pick(size, tiny=1, quick=3, full=32)), demo().spec
    clean, _ = _run(tokens)
    start, end = "blocks.0.hook_resid_pre", f"blocks.{spec.n_layers - 1}.hook_resid_post"
    total = clean[start].double() + sum(clean[write.site].double() for write in spec.writes)
    error = float((total - clean[end]).norm() / clean[end].norm())
    found: dict[Key, float] = {"error of the sum of all writes": error}
    for write in spec.writes[:: pick(size, tiny=8, quick=1, full=1)]:
        changed, _ = _run(tokens, without=write.site)
        detached = clean[end] - clean[write.site]
        moved = (changed[end] - detached).norm() / clean[write.site].norm()
        found[(f"{write.name}: answer of the later writes", write.layer)] = float(moved)
    return found


def judge_additive(readings: Readings) -> Judgement:
    """Detachable would mean that nothing else changes."""
    error = readings.high("error of the sum of all writes")
    answers = readings.line("attn: answer of the later writes")
    return judged(
        error < 1e-5 and max(answers[:-1]) < 0.1,
        f"additive: yes, x_W = x_0 + the sum of all writes to {error:.1g}. Detachable: no: after "
        f"one attention's write is taken out, the writes behind it change by {min(answers):.2g} to "
        f"{max(answers):.2g} times its own size (1 would be a whole write more or less)",
    )


register(
    Experiment(
        name="additive-and-detachable",
        title="Are writes additive, and can one be detached?",
        claim="Every layer's write is additive and detachable.",
        source="Tutorials; against it McGrath et al. (2023), The Hydra Effect",
        rows=(9, 12, 14),
        measure=_measure_additive,
        judge=judge_additive,
        chart=Chart(
            value_title="change of the later writes / size of the write that was taken out",
            at_title="layer",
        ),
        method=f"Every write of {_EMBEDDED} taken out in turn; the last stream is compared with "
        "the clean one less that write.",
    )
)


def _centred(write: Tensor) -> Float[Tensor, "token d_model"]:
    rows = write.flatten(0, 1).double()
    return rows - rows.mean(0)


def _measure_rank(size: Size) -> dict[Key, float]:
    tokens, spec = demo_tokens(pick(size, tiny=4, quick=16, full=64)), demo().spec
    clean, _ = _run(tokens)
    found: dict[Key, float] = {}
    for write in spec.writes:
        singular = torch.linalg.svdvals(_centred(clean[write.site])) / spec.d_model**0.5
        rank = int((singular > 1e-6 * singular[0]).sum())
        found[(f"{write.name}: rank", write.layer)] = rank / spec.d_model
        ratio = participation_ratio(singular.square()) / spec.d_model
        found[(f"{write.name}: participation ratio", write.layer)] = ratio
    return found


def judge_rank(readings: Readings) -> Judgement:
    """Low rank would be a rank below the width."""
    ranks = [*readings.line("attn: rank"), *readings.line("mlp: rank")]
    ratios = [
        *readings.line("attn: participation ratio"),
        *readings.line("mlp: participation ratio"),
    ]
    return judged(
        max(ranks) < 0.9,
        f"algebraically no: every write has {min(ranks):.0%} or more of the full rank "
        f"(one head alone has at most d_head). Effectively yes: the participation ratio is only "
        f"{min(ratios):.1%} to {max(ratios):.1%} of the width",
    )


register(
    Experiment(
        name="low-rank-writes",
        title="Is a write a low-rank change of the stream?",
        claim="Every layer is a low-rank perturbation of the stream.",
        source="Tutorials; Elhage et al. (2021), A Mathematical Framework, for one head",
        rows=(10,),
        measure=_measure_rank,
        judge=judge_rank,
        chart=Chart(value_title="share of the width", at_title="layer", log_value=True),
        method=f"Singular values of the centred writes of {_EMBEDDED} over 1,024 tokens.",
    )
)


def _probe(train: Tensor, test: Tensor, ids: tuple[Tensor, Tensor], d_vocab: int) -> float:
    """Accuracy of a ridge probe that names the token, on tokens it has not seen."""
    mean = train.mean(0)
    one_hot = torch.nn.functional.one_hot(ids[0], d_vocab).double()
    gram = (train - mean).T @ (train - mean)
    ridge = 1e-3 * torch.trace(gram) / len(gram) * torch.eye(len(gram), dtype=gram.dtype)
    weights = torch.linalg.solve(gram + ridge, (train - mean).T @ one_hot)
    return float(((test - mean) @ weights).argmax(1).eq(ids[1]).double().mean())


def _measure_erasure(size: Size) -> dict[Key, float]:
    tokens, model = demo_tokens(pick(size, tiny=6, quick=60, full=60)), demo()
    half, sites = len(tokens) // 2, [f"blocks.{n}.hook_resid_post" for n in range(8)]
    streams: dict[str, Tensor] = {}
    with torch.no_grad():
        model.run(tokens, {s: lambda v, s=s: streams.update({s: v.double()}) for s in sites})
    ids = (tokens[:half].flatten(), tokens[half:].flatten())
    found: dict[Key, float] = {}
    for layer, site in enumerate(sites):
        train, test = streams[site][:half].flatten(0, 1), streams[site][half:].flatten(0, 1)
        accuracy = _probe(train, test, ids, model.spec.d_vocab or 1)
        found[("token named from the stream", layer)] = accuracy
    clean, _ = _run(tokens[:4])
    stream = clean["blocks.0.hook_resid_pre"].clone()
    for write in model.spec.writes:
        cosine = torch.cosine_similarity(clean[write.site], stream, dim=-1).median()
        found[(f"{write.name}: cosine of write and stream", write.layer)] = float(cosine)
        stream += clean[write.site]
    return found


def judge_erasure(readings: Readings) -> Judgement:
    """Nothing lost: the token at a position is named as well at the end as at the start."""
    named = readings.line("token named from the stream")
    cosines = [
        *readings.line("attn: cosine of write and stream"),
        *readings.line("mlp: cosine of write and stream"),
    ]
    return judged(
        named[-1] > named[0] - 0.05 and min(cosines) > 0,
        f"a linear probe names the token at {named[0]:.1%} of positions after the first block and "
        f"at {named[-1]:.1%} after the last; {sum(value < 0 for value in cosines)} of "
        f"{len(cosines)} writes point against the stream (median cosine down to "
        f"{min(cosines):.2f}). Writes add, and what they add can take away",
    )


register(
    Experiment(
        name="nothing-is-lost",
        title="Is no information ever lost from the stream?",
        claim="The stream only gains: information that was written is never lost.",
        source="Tutorials; against it Janiak et al. (2023), An Adversarial Example for DLA",
        rows=(13,),
        measure=_measure_erasure,
        judge=judge_erasure,
        chart=Chart(value_title="accuracy of the probe; cosine", at_title="block"),
        method=f"Ridge probe for the token at a position on {_EMBEDDED}, by block, on held-out "
        "sequences; cosine of every write with the stream it is added to.",
    )
)
