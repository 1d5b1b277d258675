"""Numbers that make each claim hold, and numbers that refute it; no run is behind them."""

from collections.abc import Callable

Numbers = dict[str | tuple[str, float], float]


def line(name: str, places: tuple[float, ...], law: Callable[[float], float]) -> Numbers:
    return {(name, at): law(at) for at in places}


DEPTHS = (3.0, 6.0, 12.0, 24.0, 48.0)
BLOCKS = tuple(float(block) for block in range(1, 33))


def constant(value: float) -> Callable[[float], float]:
    return lambda at: value


def degradation(plain: float, residual: float) -> Numbers:
    return {
        ("plain", 20): 0.02, ("plain", 56): plain,
        ("residual (Pre-LN)", 20): 0.01, ("residual (Pre-LN)", 56): residual,
        ("residual, no norm, no scale", 20): 1.0, ("residual, no norm, no scale", 56): 9.0,
    }  # fmt: skip


def thousand(fixup: float) -> Numbers:
    kept = ("ReZero", "SkipInit", "LayerScale", "DeepNorm", "T-Fixup (transformer)",
            "DeepNorm (transformer)", "ReZero (transformer)")  # fmt: skip
    lost = ("plain, no skip", "skip, no norm, no scale")
    ends = {("Fixup", 1000.0): fixup}
    return {**{(name, 1000.0): 1.0 for name in kept}, **{(n, 1000.0): 1e30 for n in lost}, **ends}


def deep_training(fixup: float) -> Numbers:
    learned = {name: 0.1 for name in ("ReZero", "SkipInit", "LayerScale", "DeepNorm", "Pre-LN")}
    stuck = {"plain, no skip": 1.0, "skip, no norm, no scale": 9.0}
    return {"depth": 150.0, "Fixup": fixup, **learned, **stuck}


def gains(minus: float) -> Numbers:
    return {
        "least gain, J = -I": minus, "least gain, J = -0.5 I": 1.0,
        "least gain, J random N(0, 1/d)": 1.1, "least gain, J random with ||J|| = 0.5": 1.2,
    }  # fmt: skip


def medians(no_skip: float) -> Numbers:
    names = ("Post-LN", "Pre-LN", "GPT-2 scaling", "Depth-muP", "DeepNorm", "LayerScale 1e-5",
             "ReZero")  # fmt: skip
    kept = {f"{name}: median": 1.0 for name in names}
    lost = {"no skip: median": no_skip, "no skip, no norm: median": 1e30}
    return {**kept, **lost, "DeepNorm: smallest": 1e-8}


def collapse(last: float, write: float) -> Numbers:
    found: Numbers = {}
    for name in ("Pre-LN", "DeepNorm", "LayerNorm scaling", "LayerScale 1e-5"):
        found |= line(f"{name}: relative write", BLOCKS, lambda at: at**-0.5)
    found |= line("Pre-LN: write", BLOCKS, lambda at: write if at == BLOCKS[-1] else 1.0)
    found |= line("Pre-LN: difference between tokens", BLOCKS, constant(last))
    return found | line("Pre-LN: entropy", BLOCKS, constant(0.9))


def deepnorm(copied: float) -> Numbers:
    found: Numbers = {"error of LN(alpha x + F) = LN(x + F / alpha)": 1e-16}
    names = {"Post-LN": 0.7, "up by L^a (as often copied)": copied, "DeepNorm": 0.01}
    for name, size in names.items():
        found[(f"{name}: write / skip", 96.0)] = size
        found[(f"{name}: first / last gradient", 96.0)] = 1.0
    return found


def erasure(last: float, cosine: float) -> Numbers:
    found: Numbers = {
        ("token named from the stream", 0.0): 0.9,
        ("token named from the stream", 7.0): last,
    }
    for name in ("attn", "mlp"):
        found[(f"{name}: cosine of write and stream", 0.0)] = cosine
    return found


def ranks(attn: float) -> Numbers:
    found: Numbers = {("attn: rank", 0.0): attn}
    found |= {("mlp: rank", 0.0): 0.5}
    return found | {(f"{name}: participation ratio", 0.0): 0.05 for name in ("attn", "mlp")}


def removal(deep: float) -> Numbers:
    return {("attn, set to zero", 0.0): 0.02, ("attn, set to zero", 1.0): deep,
            ("mlp, set to zero", 0.0): 0.3}  # fmt: skip


def pollution(there: float, scaled: float) -> Numbers:
    return {
        "loss, clean": 1.2, ("loss, polluted", 4.0): 3.0,
        ("restored by the clean write there", 4.0): there,
        ("restored by another clean write", 4.0): 0.1,
        ("found by ablation (1: that layer)", 4.0): 1.0,
        ("loss, that write scaled down", 4.0): scaled,
    }  # fmt: skip


def symptoms(second: float) -> Numbers:
    found: Numbers = {"loss, clean": 1.2}
    for layer, low in ((3.0, 2.0), (4.0, second)):
        for step, factor in enumerate(("8", "24", "72")):
            found[(f"loss, MLP times {factor}", layer)] = low + step
        found[("largest channel / median", layer)] = 20.0
    return found


def warm_up(post: float) -> Numbers:
    found: Numbers = {(f"{name}, {warm}", 0.01): 1.0
             for name in ("Pre-LN", "Post-LN") for warm in ("no warm-up", "warm-up")}  # fmt: skip
    return found | {("Post-LN, no warm-up", 0.01): post}


def activations(after: float) -> Numbers:
    names = ("nothing on the skip path (pre)", "activation before the addition",
             "activation inside the branch")  # fmt: skip
    found: Numbers = {(f"{name}: loss", 54.0): 0.1 for name in names}
    found[("activation after the addition: loss", 54.0)] = after
    return found | {"activation before the addition: negative share of the writes": 0.0}


def powers(measured: float) -> Numbers:
    names = ("beta = 0.9", "beta = 0.5", "beta = 1", "beta = 1.1", "highway, bias 0",
             "highway, bias -1", "highway, bias -3", "gate, bias 0")  # fmt: skip
    found: Numbers = {(name, 6.0): 0.5 for name in names}
    found |= {(f"{name}: expected", 6.0): 0.5 for name in names}
    return found | {("beta = 0.9", 6.0): measured}


def slopes(completep: float) -> Numbers:
    found: Numbers = {}
    for name in ("LayerNorm scaling", "sandwich", "DeepNorm", "Sub-LN", "Depth-muP", "NormFormer",
                 "GPT-2 scaling"):  # fmt: skip
        found |= line(name, DEPTHS, lambda at: at**-0.5)
    return found | line("CompleteP", DEPTHS, lambda at: at**completep)


def fixup(power: float) -> Numbers:
    found: Numbers = {}
    for name in ("L^(-1/(2m-2)), m = 2", "L^(-1/(2m-2)), m = 3"):
        found |= line(name, DEPTHS, lambda at: at**power)
    return found | line("no factor, m = 2", DEPTHS, lambda at: at)


def t_fixup(power: float) -> Numbers:
    found = {**line("T-Fixup", DEPTHS, lambda at: 0.1 * at**power)}
    found |= line("Xavier, no norm", DEPTHS, constant(1e9))
    return found | line("Post-LN", DEPTHS, constant(3.0))


def drift(power: float) -> Numbers:
    found = {**line("bfloat16 stream", DEPTHS, lambda at: 1e-3 * at**power)}
    found |= line("float32 stream", DEPTHS, constant(1e-8))
    kl = "KL of the embedded model, nats, "
    return {**found, f"{kl}float32 stream": 1e-5, f"{kl}bfloat16 stream": 2e-5}


def rank_collapse(left: float) -> Numbers:
    layers = (1.0, 2.0, 3.0, 4.0)
    found = {**line("attention alone", layers, lambda at: max(10.0 ** -(3.0**at / 3), 1e-12))}
    found |= line("attention, skip", layers, constant(left))
    return found | line("Pre-LN blocks", layers, constant(0.5))


def gradients(power: float) -> Numbers:
    first = line("first block", DEPTHS, constant(1.0))
    return {**first, **line("last block", DEPTHS, lambda at: 0.01 * at**power)}


def layer_scale(value: float) -> Numbers:
    return {
        "value: relative error of 1e-4": value, "value: 1e-8 becomes zero": 0.0,
        "write: share of channels unchanged": 0.97, "write: cosine of what was added": 0.2,
        "update: share lost at 1e-4, step 1e-6": 0.0, "update: share lost at 1, step 1e-3": 1.0,
    }  # fmt: skip


def flops(counted: float) -> Numbers:
    return {
        "additions, one residual": 393_216.0, "additions, 12 layers of two": 9_437_184.0,
        "FLOPs of one attention, counted by torch": counted,
        "FLOPs of one attention, 8 n d^2 + 4 n^2 d": 3.2e9,
    }  # fmt: skip


def memory(kept: float) -> Numbers:
    rules = {
        f"parameters of the rule: {name}": 0.0 for name in ("identity", "ReZero", "LayerScale")
    }
    return {"streams kept by x + w": kept, "streams kept by LayerNorm(x)": 1.0,
            "streams kept by lambda * w": 1.0, **rules}  # fmt: skip


def traffic(fused: float) -> Numbers:
    return {"passes: lambda w, add, norm, cast": 9.0, "passes: add, norm": 5.0,
            "passes: fused, lambda and cast inside": fused,
            "passes: if no intermediate were written": 3.0}  # fmt: skip


def start(of: str, inside: str, gate: str, change: float) -> Numbers:
    return {of: change, inside: 0.0, gate: 0.5, "change of the stream, gate 0 but Post-LN": 0.7}


REZERO = ("change of the stream, ReZero", "largest gradient inside a branch",
          "largest gradient of a gate")  # fmt: skip
ADALN = ("change of the stream, AdaLN-Zero", "largest gradient inside attention and MLP",
         "largest gradient of what makes the gates")  # fmt: skip
CLIP = ("gradient norm, unscaled and then clipped", "gradient norm, clipped and then unscaled")
TWICE = ("deviation after xavier, gain sqrt(2)", "deviation after normal_(0.02) on top")
ENTROPY = (
    "entropy, scores / sqrt(d)",
    "entropy, scores / d",
    "entropy, scores and previous scores",
)
IN_PLACE = ("refused: x.add_(F(LN(x)))", "streams saved, clone and add_",
            "streams saved, plain addition")  # fmt: skip
HOOKS = ("calls of hook_attn_out, plain", "calls of hook_attn_out, checkpointed",
         "calls of hook_mlp_out, checkpointed")  # fmt: skip
SKIPS = ("identity", "adapter in place of it", "nothing")
NO_SKIP = ("no skip, Pre-LN", "no skip, Post-LN", "residual, Pre-LN", "residual, Post-LN")
PATHS = ("blocks", "mean length of a path, blocks")
IDENTITY = ("largest error of J_block = I + J_F",
            "energy of the gradient, s^2 = 0.25 (1 + s^2 expected)")  # fmt: skip
STEPS = tuple(f"{n}: x + {s} shift" for n in ("plain", "SkipInit") for s in ("0", "0.3"))


def named(names: tuple[str, ...], *values: float) -> Numbers:
    return dict(zip(names, values, strict=True))


def addition(bits: float, refused: float) -> Numbers:
    shapes = ("[batch, pos, 1]", "[pos, width]")
    found: Numbers = {"bits of bfloat16 + float32": bits}
    found |= {f"torch refuses a write of {shape}": refused for shape in shapes}
    return found | {f"resstream refuses {shape}": 1.0 for shape in shapes}


def variance(law: Callable[[float], float]) -> Numbers:
    found = {**line("Pre-LN", BLOCKS, law), **line("LayerNorm scaling", BLOCKS, constant(2.0))}
    return found | {("lemma iterated / (k^2 / 4)", 1000.0): 1.0}


def forward(post: float) -> Numbers:
    found = {**line("Pre-LN", BLOCKS, lambda at: at), **line("Post-LN", BLOCKS, constant(post))}
    return found | line("sandwich", BLOCKS, lambda at: 2 * at)


def kernel(residual: float) -> Numbers:
    found: Numbers = {}
    for name, change in (("plain", 0.6), ("residual", residual), ("residual / sqrt(L)", 0.1)):
        found |= line(f"{name}: change of the kernel", (32.0, 128.0), constant(change))
        found |= line(f"{name}: condition of the kernel", (32.0, 128.0), constant(50.0))
    return found


def write_error(power: float) -> Numbers:
    return line("error of the write", (4.0, 16.0, 64.0, 256.0, 4096.0), lambda r: 1.7e-3 * r**power)


VERDICTS: dict[str, tuple[Numbers, Numbers]] = {
    "a-thousand-layers": (thousand(1.0), thousand(1e9)),
    "activation-after-addition": (activations(0.01), activations(0.4)),
    "adaln-zero-start": (start(*ADALN, 0.0), start(*ADALN, 0.1)),
    "adapter-for-residual": (named(SKIPS, 0.1, 0.1, 0.9), named(SKIPS, 0.1, 0.7, 0.9)),
    "additive-and-detachable": (
        {"error of the sum of all writes": 1e-8, ("attn: answer of the later writes", 0.0): 0.01,
         ("attn: answer of the later writes", 1.0): 0.0},
        {"error of the sum of all writes": 1e-8, ("attn: answer of the later writes", 0.0): 2.0,
         ("attn: answer of the later writes", 1.0): 0.0},
    ),
    "attention-collapse": (collapse(0.5, 0.01), collapse(0.5, 1.0)),
    "bf16-stream-drift": (drift(0.5), drift(1.0)),
    "bf16-write-error": (write_error(1.0), write_error(0.5)),
    "correction-against-map": (named(STEPS, 90, 90, 9, 9), named(STEPS, 90, 90, 80, 9)),
    "curse-of-depth": (variance(lambda at: 2**at), variance(lambda at: at)),
    "deepnorm-constants": (deepnorm(0.1), deepnorm(2.0)),
    "degradation": (degradation(0.9, 0.01), degradation(0.03, 0.01)),
    "degradation-convolutional": (
        {("plain", 20): 0.5, ("plain", 56): 2.0, ("residual", 20): 0.1, ("residual", 56): 0.1},
        {("plain", 20): 0.5, ("plain", 56): 0.5, ("residual", 20): 0.1, ("residual", 56): 0.1},
    ),
    "dtype-and-shape-at-the-addition": (addition(16.0, 1.0), addition(32.0, 0.0)),
    "fixup-exponent": (fixup(0.0), fixup(0.5)),
    "flops-of-the-addition": (flops(3.2e9), flops(4e8)),
    "forward-explosion": (forward(99.0), forward(1.0)),
    "fused-kernel-traffic": (traffic(3.0), traffic(4.0)),
    "gradient-at-least-one": (gains(1.0), gains(0.0)),
    "gradient-identity": (named(IDENTITY, 1e-16, 1.25), named(IDENTITY, 1e-3, 1.25)),
    "gradient-norm-snippet": (
        {"fails: loop over p.grad.norm()": 0.0}, {"fails: loop over p.grad.norm()": 1.0},
    ),
    "hooks-under-checkpointing": (named(HOOKS, 1, 1, 1), named(HOOKS, 1, 2, 1)),
    "in-place-addition": (named(IN_PLACE, 0, 1, 2), named(IN_PLACE, 1, 2, 2)),
    "initialised-twice": (named(TWICE, 0.05, 0.05), named(TWICE, 0.05, 0.02)),
    "jacobian-by-rule": (medians(1e-9), medians(0.5)),
    "layer-scale-bf16": (layer_scale(1.0), layer_scale(1e-3)),
    "low-rank-writes": (ranks(0.5), ranks(1.0)),
    "memory-of-the-addition": (memory(1.0), memory(0.0)),
    "norm-placement-of-families": (
        {"bert: post": 1.0, "llama: pre": 1.0}, {"bert: post": 1.0, "gemma2: sandwich": 1.0},
    ),
    "nothing-is-lost": (erasure(0.9, 0.1), erasure(0.6, 0.1)),
    "path-lengths": (named(PATHS, 54.0, 9.0), named(PATHS, 54.0, 26.0)),
    "pollution": (pollution(1.0, 1.2), pollution(1.0, 2.0)),
    "post-ln-gradient": (gradients(2.0), gradients(0.1)),
    "powers-of-the-skip": (powers(0.5), powers(0.7)),
    "pre-ln-gradient": (gradients(0.0), gradients(-0.5)),
    "rank-collapse": (rank_collapse(0.2), rank_collapse(1e-3)),
    "rank-collapse-causal": (
        line("attention alone, causal", (1.0, 24.0), lambda at: 0.5 if at == 1 else 1e-13),
        line("attention alone, causal", (1.0, 24.0), lambda at: 2.0**-at),
    ),
    "remove-one-attention": (removal(0.05), removal(0.4)),
    "residual-attention-form": (named(ENTROPY, 0.9, 0.9, 0.8), named(ENTROPY, 0.9, 0.99, 0.8)),
    "rezero-start": (start(*REZERO, 0.0), start(*REZERO, 0.1)),
    "scaling-rules": (slopes(-1.0), slopes(-0.5)),
    "symptoms": (symptoms(9.0), symptoms(3.0)),
    "t-fixup-update": (t_fixup(0.0), t_fixup(1.0)),
    "tangent-kernel": (kernel(0.2), kernel(0.7)),
    "training-very-deep": (deep_training(0.1), deep_training(1.0)),
    "transformer-without-skip": (
        named(NO_SKIP, 2.7, 2.7, 1.0, 1.5), named(NO_SKIP, 1.1, 2.7, 1.0, 1.5),
    ),
    "unscale-before-clipping": (named(CLIP, 1.0, 1e-4), named(CLIP, 1.0, 1.0)),
    "warm-up": (warm_up(1.0), warm_up(2.0)),
}  # fmt: skip
"""Experiment -> numbers with which it holds, numbers with which it does not."""

NEVER_TESTABLE = {"rezero-speed"}
