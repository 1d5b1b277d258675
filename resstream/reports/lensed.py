"""What does the stream say, and which depths are alike?  Pages of lenses and of similarity."""

import numpy as np

from resstream.analysis.lens_profile import LensProfileResult
from resstream.analysis.logit_lens import LogitLensResult
from resstream.analysis.similarity import SimilarityResult, most_alike
from resstream.analysis.tuned_lens import TunedLensResult
from resstream.reports.page import Banner, Page, Section, Table, sentence

_MOST_PROMPTS = 8
_LENS = (
    "The stream at a depth, put through the model's own final norm and head. KL(model's output || "
    "lens) and entropy in nats. Early streams are not written in the basis that the head reads: a "
    "wild answer there is ordinary."
)


def lens_page(read: LogitLensResult) -> Page:
    """The page of a lens on prompts."""
    count = min(len(read.tokens), _MOST_PROMPTS)
    return Page(
        kind="lens",
        title=read.model,
        banner=Banner("plain", *_said(read)),
        facts=(("prompts", len(read.tokens)), ("depths", len(read.depths))),
        sections=tuple(_prompt_section(read, prompt) for prompt in range(count)),
        provenance=read.provenance,
    )


def _said(read: LogitLensResult) -> tuple[str, str]:
    """The first prompt's answer, and since when it stands."""
    last = int((read.tokens[0] >= 0).sum()) - 1
    best = read.top_tokens[:, 0, last, 0]
    (answer,) = read.texts_of(best[-1:])
    since = next(depth for depth in range(len(best)) if (best[depth:] == best[-1]).all())
    prob = read.top_probs[-1, 0, last, 0]
    where = f"it is the first choice from {read.depths[since]} on, and ends at {prob:.1%}"
    return f"says {answer!r}", sentence(where)


def _prompt_section(read: LogitLensResult, prompt: int) -> Section:
    length = int((read.tokens[prompt] >= 0).sum())
    rows = []
    for depth, point in enumerate(read.depths):
        at = (depth, prompt, length - 1)
        best = read.texts_of(read.top_tokens[at])
        shown = " · ".join(
            f"{text!r} {prob:.3f}" for text, prob in zip(best, read.top_probs[at], strict=True)
        )
        targets = tuple(float(prob) for prob in read.target_probs[at])
        rows.append((point, shown, float(read.kl_nats[at]), float(read.entropy_nats[at]), *targets))
    named = tuple(f"probability of {text!r}" for text in read.texts_of(read.targets))
    text = "".join(read.texts_of(read.tokens[prompt, :length]))
    return Section(
        title=f"What does it say at each depth? {text}",
        what_to_see=(
            "Each cell is the likeliest next token after the token below it; the embedding is at "
            "the bottom, the model's own answer at the top. Hover for the others."
        ),
        figure=read.plot(prompt),
        table=Table(
            columns=("read after", "likeliest at the end", "KL", "entropy", *named),
            rows=tuple(rows),
        ),
        definition=_LENS,
    )


def lens_profile_page(profile: LensProfileResult) -> Page:
    """The page of a lens over a text."""
    half = next(
        (d for d, agreed in enumerate(profile.agreement[:, 0]) if agreed >= 0.5),
        len(profile.depths) - 1,
    )
    columns = ("read after", "KL", "cross-entropy", "entropy", "agreement")
    names = ("kl_nats", "loss_nats", "entropy_nats")
    numbers = [profile.reading(name).tolist() for name in names]
    rows = zip(profile.depths, *numbers, profile.agreement[:, 0].tolist(), strict=True)
    where = f"half of the tokens have their final first choice after {profile.depths[half]}"
    return Page(
        kind="lens",
        title=profile.model,
        banner=Banner("plain", f"decided after {profile.depths[half]}", sentence(where)),
        facts=(("text", profile.text), ("tokens read", int(profile.n_tokens[0]))),
        sections=(
            Section(
                title="When does the model make up its mind?",
                what_to_see=(
                    "The KL to the model's own output falls to 0 at the end. The band holds 90 % "
                    "of the tokens; first and massive tokens are left out."
                ),
                figure=profile.plot(),
                table=Table(columns=columns, rows=tuple(rows)),
                definition=_LENS,
            ),
        ),
        provenance=profile.provenance,
    )


def tuned_lens_page(trained: TunedLensResult) -> Page:
    """The page of a tuned lens: what it gains over the logit lens on text it has not seen."""
    tuned, plain = trained.tuned_kl_nats[:-1], trained.logit_kl_nats[:-1]
    better = int((tuned < plain).sum())
    said = (
        f"on held-out text its KL is {np.median(tuned):.3g} nats, that of the logit lens "
        f"{np.median(plain):.3g}, median over the depths before the last"
    )
    columns = ("read after", "logit lens", "tuned lens")
    numbers = (trained.logit_kl_nats.tolist(), trained.tuned_kl_nats.tolist())
    return Page(
        kind="lens",
        title=trained.model,
        banner=Banner("plain", f"better at {better} of {len(tuned)} depths", sentence(said)),
        facts=(
            ("text", trained.text),
            ("tokens trained on", trained.n_trained),
            ("tokens judged on", trained.n_held_out),
            *(("mind", warning) for warning in trained.warnings),
        ),
        sections=(
            Section(
                title="How much of the answer is there already, in the stream's own words?",
                what_to_see=(
                    "The lower the line, the nearer the reading is to the model's own output; what "
                    "the tuned lens gains was there, but written in another basis."
                ),
                figure=trained.plot(),
                table=Table(
                    columns=columns, rows=tuple(zip(trained.depths, *numbers, strict=True))
                ),
                definition=(
                    "KL(model's output || lens) in nats per token, on sequences that were not "
                    "trained on; first and massive tokens are left out. The translators are "
                    "affine, one a depth (Belrose et al. 2023)."
                ),
            ),
        ),
        provenance=trained.provenance,
    )


def similarity_page(result: SimilarityResult) -> Page:
    """The page of a similarity."""
    cka = result.cka.diagonal(1).tolist()
    influence, angles = result.block_influence.tolist(), result.angular_distance[0].tolist()
    rows = tuple(zip(result.depths[1:], influence, angles, cka, strict=True))
    return Page(
        kind="similarity",
        title=result.model,
        banner=_stillest(result),
        facts=(("text", result.text), ("tokens", result.n_tokens), ("last tokens", result.n_last)),
        sections=(
            Section(
                title="Which depths point the same way?",
                what_to_see="Blue squares along the diagonal are runs of blocks that turn little.",
                figure=result.plot(),
                definition="Mean cosine of a token's stream at two depths.",
            ),
            Section(
                title="Which depths have the same geometry?",
                what_to_see="Blue: the same tokens are near each other at both depths.",
                figure=result.plot_cka(),
                definition="Linear CKA, estimated without bias (Song et al. 2012).",
            ),
            Section(
                title="How far does each block move the stream?",
                what_to_see="Low: the block turns the stream little. It may matter all the same.",
                figure=result.plot_influence(),
                table=Table(columns=("block", "influence", "angle", "CKA"), rows=rows),
                definition=(
                    "Block influence: 1 - mean cosine of input and output. Angle: arccos of the "
                    "cosine over pi, mean over last tokens."
                ),
            ),
        ),
        provenance=result.provenance,
    )


def _stillest(result: SimilarityResult) -> Banner:
    found = most_alike(result)
    if not len(found):
        return Banner("open", "No angle is finite", "The stream is not finite at any two depths.")
    angle = float(result.angular_distance[0, found[0]])
    said = f"its input and output are {angle:.3f} of pi apart; ablate it to know its use"
    return Banner("plain", f"L{found[0]} moves the stream least", sentence(said))
