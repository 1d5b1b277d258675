"""How does a reading run through the depth?  Pages of ranks, attention, gradients and precision."""

from resstream.analysis.attention import AttentionResult
from resstream.analysis.gradients import GradientResult
from resstream.analysis.precision import PrecisionResult
from resstream.analysis.ranks import RankResult
from resstream.reports.page import Banner, Page, Section, Table, sentence

Profile = RankResult | AttentionResult | GradientResult | PrecisionResult

_DEFINITIONS = {
    "resstream.ranks/1": (
        "Effective rank: exp of the entropy of the singular values. Participation ratio: (sum)^2 "
        "over sum of squares of the covariance's eigenvalues. Both after the mean is taken off, "
        "and bounded by the number of tokens."
    ),
    "resstream.attention/1": (
        "Entropy over that of attending evenly to all that is visible; share that the first token "
        "gets; means over queries from 1 on. A sink is ordinary, not a fault."
    ),
    "resstream.gradients/1": (
        "Norm of the gradient of the summed cross-entropy to one token's stream, and of the mean "
        "cross-entropy to all weights of a block."
    ),
    "resstream.precision/1": (
        "Drift: |narrow - wide| / |wide|. Error of a write: |(new - old stream) - write| / |write| "
        "in the narrow run. Lost: share of channels where a write changes nothing."
    ),
}


def profile_page(result: Profile) -> Page:
    """The page of `resstream profile`."""
    frame = result.to_dataframe()
    rows = tuple(tuple(row) for row in frame.astype(object).to_numpy().tolist())
    headline, said = _said(result)
    return Page(
        kind="profile",
        title=result.model,
        banner=Banner("plain", headline, sentence(said)),
        facts=(("text", result.text),),
        sections=(
            Section(
                title="How does it run through the depth?",
                what_to_see="Look for a depth that is out of line with its neighbours.",
                figure=result.plot(),
                table=Table(columns=tuple(frame.columns), rows=rows),
                definition=_DEFINITIONS[result.schema],
            ),
        ),
        provenance=result.provenance,
    )


def _said(result: Profile) -> tuple[str, str]:
    match result:
        case RankResult():
            count = len(result.massive)
            first = result.massive[0] if count else None
            where = "no channel is out of all proportion"
            if first is not None:
                where = (
                    f"the largest is channel {first.channel} at {first.point}: {first.value:.4g}"
                )
            return f"{count} massive channels", where
        case AttentionResult():
            share = float(result.sink_rate.mean())
            return f"sink rate {share:.2f}", f"{int(result.is_dormant.sum())} heads are dormant"
        case GradientResult():
            ratio = float(result.weights[0] / result.weights[-1]) if result.weights[-1] else 0.0
            return f"loss {result.loss_nats:.4g} nats", f"first block over last: {ratio:.3g}"
        case PrecisionResult():
            middle = result.quantile_ranks.index(0.5)
            drift = float(result.drift[-1, 0, middle])
            return (
                f"drift {drift:.2g}",
                f"KL to the {result.wide} output: {result.kl_nats:.3g} nats",
            )
