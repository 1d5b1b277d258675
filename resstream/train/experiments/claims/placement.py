"""How do gradients and the stream grow with depth, with the norm after or before the sublayer?"""

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
from resstream.train.experiments.stacks import (
    log_slope,
    next_token_loss,
    random_tokens,
    rms,
    sites_of,
    transformer,
)

_LAST, _FIRST = "last block", "first block"


def _gradients(placement: str, n_layers: int) -> tuple[float, float]:
    """Norm of the gradient of the MLP's output matrix in the first and in the last block."""
    model = transformer(placement=placement, n_layers=n_layers)
    next_token_loss(model, random_tokens(4, 33)).backward()
    found: list[float] = []
    for layer in (0, n_layers - 1):
        gradient = model.get_parameter(f"blocks.{layer}.mlp.down_proj.weight").grad
        assert gradient is not None
        found.append(float(gradient.norm()))
    return found[0], found[1]


def _measure_gradients(placement: str, size: Size) -> dict[Key, float]:
    depths = pick(size, tiny=(2, 4), quick=(3, 6, 12, 24, 48), full=(3, 6, 12, 24, 48, 96))
    found: dict[Key, float] = {}
    for depth in depths:
        first, last = _gradients(placement, depth)
        found |= {(_FIRST, depth): first, (_LAST, depth): last}
    return found


def _power(readings: Readings, quantity: str) -> float:
    return log_slope(readings.places(quantity), readings.line(quantity))


def _ends(readings: Readings) -> float:
    """First over last block at the greatest depth."""
    deepest = readings.places(_LAST)[-1]
    return readings.value(_FIRST, deepest) / readings.value(_LAST, deepest)


def judge_post(readings: Readings) -> Judgement:
    """Exponential growth would be many times more over these depths than any power near 0."""
    power, deepest = _power(readings, _LAST), readings.places(_LAST)[-1]
    grown = readings.value(_LAST, deepest) / readings.line(_LAST)[0]
    return judged(
        grown > 10,
        f"at the last block the gradient goes as depth^{power:.2f}: it is {grown:.2g} times itself "
        f"at {deepest:.0f} blocks. Over the layers of that model it is no steeper: the first "
        f"block has {_ends(readings):.2g} times as much as the last",
    )


def judge_pre(readings: Readings) -> Judgement:
    """The last block's gradient falls as 1/sqrt(depth); a constant would have power 0."""
    power, deepest = _power(readings, _LAST), readings.places(_LAST)[-1]
    return judged(
        abs(power) < 0.15,
        f"at the last block the gradient falls as depth^{power:.2f} (theorem: -0.5), and the first "
        f"block has {_ends(readings):.2g} times as much as the last at {deepest:.0f} blocks: the "
        "bound is no constant, neither over depth nor over layers",
    )


_GRADIENT_CHART = Chart(
    value_title="gradient norm of the MLP's output matrix",
    at_title="blocks",
    log_value=True,
    log_at=True,
)
_GRADIENT_METHOD = (
    "Causal transformers of width 64 at Xavier initialisation, LayerNorm, random tokens, loss over "
    "the next token; gradient of the MLP's output matrix in the first and in the last block."
)
register(
    Experiment(
        name="post-ln-gradient",
        title="Does the gradient explode with depth in Post-LN?",
        claim="In Post-LN the gradient norm grows exponentially with depth.",
        source="Tutorials; Xiong et al. (2020), theorem 1, says O(d sqrt(ln d)) whatever the depth",
        rows=(15,),
        measure=lambda size: _measure_gradients("post", size),
        judge=judge_post,
        chart=_GRADIENT_CHART,
        method=_GRADIENT_METHOD,
        seeds=5,
    )
)
register(
    Experiment(
        name="pre-ln-gradient",
        title="Is the gradient norm constant in Pre-LN?",
        claim="In Pre-LN the gradient norm is bounded by a constant at every depth and layer.",
        source="Tutorials; Xiong et al. (2020), theorem 1, says O(d sqrt(ln d / L))",
        rows=(16,),
        measure=lambda size: _measure_gradients("pre", size),
        judge=judge_pre,
        chart=_GRADIENT_CHART,
        method=_GRADIENT_METHOD,
        seeds=5,
    )
)


def _measure_forward(size: Size) -> dict[Key, float]:
    n_layers = pick(size, tiny=3, quick=32, full=64)
    found: dict[Key, float] = {}
    for name, placement in (("Pre-LN", "pre"), ("Post-LN", "post"), ("sandwich", "sandwich")):
        model = transformer(placement=placement, n_layers=n_layers)
        streams = sites_of(model, random_tokens(2, 32), "hook_resid_post").values()
        found |= {(name, layer + 1): rms(stream) ** 2 for layer, stream in enumerate(streams)}
    return found


def judge_forward(readings: Readings) -> Judgement:
    """Claimed: Post-LN high, Pre-LN low."""
    last = readings.places("Pre-LN")[-1]
    pre, post = readings.value("Pre-LN", last), readings.value("Post-LN", last)
    power = _power(readings, "Pre-LN")
    return judged(
        readings.low("Post-LN", last) > readings.high("Pre-LN", last),
        f"the other way round: after {last:.0f} blocks the stream of Pre-LN has a variance of "
        f"{pre:.3g} (it grows as block^{power:.2f}, nearly linearly), that of Post-LN {post:.3g}, "
        "because every sublayer ends in a norm. A norm on the branch as well (sandwich) makes the "
        f"growth {readings.value('sandwich', last):.3g}, about one unit a write",
    )


register(
    Experiment(
        name="forward-explosion",
        title="Where does the stream explode, in Post-LN or in Pre-LN?",
        claim="Risk of exploding expressions: Post-LN high, Pre-LN low.",
        source="Tutorials; Xiong et al. (2020), lemma 2, bounds the stream of Pre-LN linearly",
        rows=(20, 22, 30, 31),
        measure=_measure_forward,
        judge=judge_forward,
        chart=Chart(
            value_title="variance of the stream (mean square)", at_title="block", log_value=True
        ),
        method="Transformers of width 64 at Xavier initialisation, stream after every block.",
    )
)
