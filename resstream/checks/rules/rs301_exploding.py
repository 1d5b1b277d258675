"""RS301: a stream that grows without bound over the blocks."""

import math

import numpy as np

from resstream.checks.report import Evidence, Finding
from resstream.checks.rule import Rule
from resstream.recording.result import Recording
from resstream.shapes import STRATA

TOTAL = 1000.0
_FEWEST = 6

_SCRIPT = """
import resstream as rs
model = rs.load("demo")
for write in model.spec.writes:
    model.module.get_parameter(write.output_matrix).data.mul_(5.0**write.layer)
for finding in rs.check(model).findings:
    print(finding.code, finding.status, finding.statement)
""".strip()

RULE = Rule(
    code="RS301",
    name="exploding stream",
    stage="stream",
    severity="warning",
    what="The stream grows by a large factor in every block, over the whole depth.",
    why="Late writes drown early ones, and narrow number types run out of range.",
    detection=f"Log-linear fit of the median norm before each block (first two blocks left out); "
    f"suspect if the lower end of the 95 % interval of the slope, over all blocks, means a factor "
    f"above {TOTAL:g}. Needs {_FEWEST} blocks. It is not confirmed: no single change undoes it.",
    traps="Healthy Pre-LN streams grow: 1.045 a block in GPT2-XL, 1.085 in SmolLM2, and small "
    "models grow faster a block. One layer that jumps is RS201, not this: the fit must be good "
    "(R^2 above 0.8). Post-LN streams do not grow by construction.",
    fix="scale the branches down with depth (1/sqrt(2L) on output matrices, LayerScale) and train "
    "on, or use a norm behind the sublayer",
    source="Heimersheim and Turner (2023), Residual stream norms grow exponentially over the "
    "forward pass; Xiong et al. (2020).",
    example=f"cat > explode.py <<'END'\n{_SCRIPT}\nEND\npython explode.py",
)


def look(recording: Recording) -> list[Finding]:
    """A suspicion, if the growth is beyond what depth explains."""
    fit = growth_interval(recording)
    if fit is None:
        return []
    factor, low, high, r2, blocks = fit
    if r2 < 0.8 or low**blocks < TOTAL:
        return []
    return [
        RULE.of_model(
            f"the stream grows by {factor:.3g} a block, {factor**blocks:.3g} times in "
            f"{blocks} blocks",
            status="suspect",
            evidence=(
                Evidence(
                    name="growth of the median stream norm per block",
                    value=factor,
                    threshold=TOTAL ** (1 / blocks),
                    ci=(low, high),
                ),
                Evidence(name="R^2 of the fit", value=r2, threshold=0.8, ci=None),
            ),
        )
    ]


def growth_interval(recording: Recording) -> tuple[float, float, float, float, int] | None:
    """Growth per block with its 95 % interval over blocks (t), R^2, and how many blocks."""
    from scipy.stats import linregress, t

    median = recording.stream_norm.median[:, STRATA.index("body")]
    points = [
        (int(site.split(".")[1]), math.log(norm))
        for site, norm in zip(recording.stream_sites, median, strict=True)
        if site.endswith("resid_pre") and norm > 0 and math.isfinite(norm)
    ]
    points = [point for point in points if point[0] >= 2]
    if len(points) < _FEWEST:
        return None
    blocks, logs = np.array(points).T
    fit = linregress(blocks, logs)
    reach = float(t.ppf(0.975, len(points) - 2)) * float(fit.stderr)  # pyright: ignore
    slope = float(fit.slope)  # pyright: ignore
    span = int(blocks[-1] - blocks[0])
    r2 = float(fit.rvalue) ** 2  # pyright: ignore
    return math.exp(slope), math.exp(slope - reach), math.exp(slope + reach), r2, span
