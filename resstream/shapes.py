"""The names of axes that shape annotations use throughout the project.

==========  =====================================================================
axis        meaning
==========  =====================================================================
batch       sequences that run together
pos         token positions of one sequence, counted from 0
d_model     width of the residual stream
d_vocab     size of the output vocabulary
d_mlp       hidden width of an MLP
d_head      width of one attention head
n_heads     attention heads of one layer
layer       blocks, counted from 0
write       writes into the stream in order of execution (two per transformer block)
depth       points of the stream: 0 is the embedding, one more than there are writes
stratum     classes of tokens: ``body`` and ``sink`` (first token, massive activations)
k           the k best of something
==========  =====================================================================

Annotations are jaxtyping's: ``Float[Tensor, "batch pos d_model"]``.  They cost nothing in use and
are checked in the tests.
"""

STRATA: tuple[str, str] = ("body", "sink")
"""Token classes kept apart in every statistic; summaries are over ``body`` unless they say so."""
