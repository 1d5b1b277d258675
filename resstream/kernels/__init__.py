"""The fused residual write: add a scaled branch to the stream, norm it for its reader, measure it.

`resstream.kernels.dispatch.residual_write` is the face.  `reference` is the definition, in plain
torch; `triton_forward` and `triton_backward` are the same arithmetic in one pass over memory.

How a block carries the pair ``(stream, normed)``
-------------------------------------------------
What fuses is not ``norm -> sublayer -> add`` but ``add -> norm of the next reader``: the write of
one sublayer and the norm in front of the next one touch the same row.  So a stack of blocks hands
on two tensors, and each write is told the parameters of the norm that will read it:

>>> normed = norm_of_first_reader(stream)
>>> for write, reader in zip(writes, readers):          # readers: the next norm, the final one last
...     branch = write.sublayer(normed)
...     stream, normed, stats = residual_write(
...         stream, branch, gain=write.gain, layer_scale=write.gamma,
...         weight=reader.weight, norm="rms", eps=reader.eps, stats=recording)
>>> logits = unembed(normed)

A hook that only reads `stream` or `normed` changes nothing.  A hook that replaces `stream` makes
`normed` stale: the block norms the edited stream itself (``reference.normalize``) and goes on.

Rules and the arguments that express them: plain (none), ReZero and SkipInit (`gain`, a one-element
parameter), LayerScale (`layer_scale`), DeepNorm (`skip_scale` is its alpha, ``norm="layer"``, and
`normed` is the stream that is carried on), weighted (`skip_scale` and `gain`), LayerNorm scaling
(the constant goes into the reader's `weight` and `bias`), AdaLN (`gain` and `weight` of shape
``[batch, 1, d_model]``: runs the reference, and the plan says so).
"""
