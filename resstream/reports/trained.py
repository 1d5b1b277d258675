"""What does a training run show?  Its page, and that of a monitor alone."""

import numpy as np

from resstream.reports.page import Banner, Page, Section, Table, sentence
from resstream.train.recording import TrainingRecording
from resstream.train.result import TrainingResult

_HEAT_MAPS = (
    (
        "relative_norm",
        "How large is each write against the stream, while it learns?",
        "Rows change smoothly with depth in a healthy run; a row that goes dark has stopped to "
        "write, one that flares up writes over the others.",
        "Norm of what is added to the stream over the norm of the stream it is added to; no unit.",
    ),
    (
        "stream_norm",
        "How does the stream grow?",
        "From the embedding (bottom) to the last block (top); a band that brightens with the steps "
        "is a stream that grows as the model trains.",
        "Euclidean norm of the stream of one token, in the units of the stream.",
    ),
    (
        "gradient_norm",
        "How large is the gradient of each block?",
        "Even columns mean that all depths learn at one pace; a gradient that fades towards the "
        "first or the last block is what residual rules and norms are there to prevent.",
        "Norm of the gradient of all weights of a block, before clipping, without the loss scale.",
    ),
    (
        "cosine",
        "Do writes point along the stream, or against it?",
        "White is across it; a block that turns red takes away what others have written.",
        "Cosine between the write and the stream it is added to; no unit.",
    ),
    (
        "scale",
        "How do gates and scales open?",
        "Where the rule starts from zero, blocks come in one after the other.",
        "Mean over channels (and tokens, for gates that read the stream) of what multiplies the "
        "branch; of a norm behind the branch, its gain.",
    ),
)
_SAMPLED = (
    " Median over sampled tokens of a step; first tokens and massive activations are left out."
)


def training_page(result: TrainingResult) -> Page:
    """The page of `resstream train`."""
    recording = result.recording
    last = result.final_validation_loss
    named = "validation loss" if last is not None else "training loss"
    facts: list[tuple[str, object]] = [
        ("residual rule", result.rule),
        ("layers", result.n_layers),
        ("width", result.d_model),
        ("parameters", result.n_parameters),
        ("text", result.provenance.text),
        ("steps", result.n_steps),
        ("tokens read", result.n_tokens),
    ]
    if result.resumed_from is not None:
        facts.append(("resumed after step", result.resumed_from))
    loss = result.final_loss if last is None else last
    banner = Banner("plain", f"{named} {loss:.4g} nats per token", _said(recording))
    if recording is not None and recording.first_bad is not None:
        banner = _alarm(recording)
    return Page(
        kind="train",
        title=result.directory,
        banner=banner,
        facts=tuple(facts),
        sections=(
            _loss_section(result),
            *(() if recording is None else monitor_sections(recording)),
        ),
        provenance=result.provenance,
    )


def monitor_page(recording: TrainingRecording) -> Page:
    """The page of a monitor that watched a run of its user's own."""
    banner = Banner("plain", f"{recording.n_steps} steps", _said(recording))
    return Page(
        kind="monitor",
        title=recording.provenance.model,
        banner=banner if recording.first_bad is None else _alarm(recording),
        facts=(("steps", recording.n_steps), ("writes", len(recording.sites))),
        sections=monitor_sections(recording),
        provenance=recording.provenance,
    )


def monitor_sections(recording: TrainingRecording) -> tuple[Section, ...]:
    """Total gradient, then one heat map a metric; none of scales where nothing is scaled."""
    if not recording.n_steps:
        return ()
    wanted = [row for row in _HEAT_MAPS if not np.isnan(recording.values(row[0])).all()]
    return (_gradient_section(recording), *(_heat_map(recording, *row) for row in wanted))


def _heat_map(
    recording: TrainingRecording, metric: str, title: str, what_to_see: str, definition: str
) -> Section:
    values = recording.values(metric)
    middle = len(values) // 2
    chosen = values[[0, middle, -1]].T.tolist()
    steps = recording.steps[[0, middle, -1]].tolist()
    sampled = "" if metric in ("gradient_norm", "scale") else _SAMPLED
    return Section(
        title=title,
        what_to_see=what_to_see,
        figure=recording.plot(metric),
        table=Table(
            columns=("layer", "part", *(f"step {step}" for step in steps)),
            rows=tuple(
                (layer, name, *row)
                for (name, layer), row in zip(recording.rows(metric), chosen, strict=True)
            ),
        ),
        definition=definition + sampled,
    )


def _loss_section(result: TrainingResult) -> Section:
    rows = tuple(tuple(row) for row in result.to_dataframe().to_numpy().tolist())
    return Section(
        title="Does it learn?",
        what_to_see="Both losses fall together until the text is learned by heart.",
        figure=result.plot(),
        table=Table(columns=("step", "text", "loss, nats per token"), rows=rows),
        definition=(
            "Cross-entropy in nats per predicted token. The line of training is that of single "
            "steps; in the table it is the mean since the entry before."
        ),
    )


def _gradient_section(recording: TrainingRecording) -> Section:
    from resstream.figures.profile import Series
    from resstream.figures.steps import step_lines

    total = recording.total_gradient_norm
    at = recording.steps.astype(np.float64)
    figure = step_lines(
        [Series("all weights", total, at=at)], value_title="norm of the gradient", log=True
    )
    return Section(
        title="How large is the gradient?",
        what_to_see="Single peaks are batches out of the ordinary; a steady rise is trouble ahead.",
        figure=figure,
        definition="Norm of the gradient of all weights, before clipping, without the loss scale.",
    )


def _said(recording: TrainingRecording | None) -> str:
    if recording is None or not recording.n_steps:
        return "The run had no monitor."
    first, last = (
        float(np.nanmedian(recording.relative_norm[at])) if recording.n_steps else 0.0
        for at in (0, -1)
    )
    return sentence(
        f"all values were finite in {recording.n_steps} steps; the middle write went from "
        f"{first:.2g} to {last:.2g} of the stream"
    )


def _alarm(recording: TrainingRecording) -> Banner:
    bad = recording.first_bad
    assert bad is not None
    said = f"first at step {bad.step}: {bad.place}; {recording.bad_steps} steps in all"
    return Banner("bad", "Not finite", sentence(said))
