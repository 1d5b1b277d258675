"""Rows 1 to 22: foundations, the stream, and where the norm stands."""

from benchmarks.mission.row import Row

NETS, RULES = "nn/test_nets.py::", "nn/test_rules.py::"
CLAIMS = "train/experiments/test_claims.py::"
NUMBERS = f"{CLAIMS}test_numbers_decide"

FOUNDATIONS = (
    Row(
        number=1,
        title="Degradation of plain nets",
        formula="training loss of 56 layers above that of 20; not so with a residual",
        made_by=("nn.skip_rules:NoSkip", "nn.mlp_net:ResidualMlp", "nn.conv_net:ResidualConvNet"),
        tests=(f"{NETS}test_plain_net_by_hand", NUMBERS),
    ),
    Row(
        number=2,
        title="Residual connection and projection",
        formula="`y = F(x) + x`; `y = F(x) + W x` where widths differ",
        made_by=("nn.additive_rules:Plain", "nn.shortcut:Shortcut", "nn.write:residual_write"),
        tests=(f"{NETS}test_widths_change_through_a_projection_or_through_zeros", NUMBERS),
    ),
    Row(
        number=3,
        title="Gradient identity",
        formula="`dL/dx = (I + J)^T dL/dy`; `sigma_min(I + J) >= 1 - ||J||`, and no more",
        made_by=("nn.additive_rules:Plain",),
        tests=(f"{RULES}test_stream_and_gradients_are_those_of_the_formula", NUMBERS),
    ),
    Row(
        number=4,
        title="Products of Jacobians",
        formula="singular values of `d x_L / d x_0`, by rule",
        made_by=("nn.transformer:ResidualTransformer", "analysis.gradients:gradients"),
        tests=("analysis/test_gradients.py::test_equals_plain_backpropagation", NUMBERS),
    ),
    Row(
        number=5,
        title="Ensemble view",
        formula="`C(n, k) E ||gradient along k branches||` has its peak far left of n / 2",
        made_by=("nn.mlp_net:ResidualMlp",),
        tests=(NUMBERS,),
    ),
    Row(
        number=6,
        title="Neural tangent kernel",
        formula="`K = J J^T`; its change in training is an effect of width",
        made_by=("train.experiments.claims.linearity:tangent_kernel",),
        tests=(f"{CLAIMS}test_it_runs_and_is_drawn",),
    ),
    Row(
        number=7,
        title="Learning the correction",
        formula="`F(x) = H(x) - x` is easier to learn where H is near the identity",
        made_by=("nn.mlp_net:ResidualMlp",),
        tests=(NUMBERS,),
    ),
    Row(
        number=8,
        title="Transformer without skips",
        formula="`x' = F(norm(x))`: hard at the usual initialisation",
        made_by=("nn.skip_rules:NoSkip",),
        tests=(f"{RULES}test_no_placement_is_rezero_at_one", NUMBERS),
    ),
    Row(
        number=9,
        title="The stream",
        formula="`x += attn(norm(x)); x += mlp(norm(x))`, then the final norm",
        made_by=("nn.block:Block", "stream.model:StreamModel"),
        tests=("nn/test_transformer.py::test_stream_is_embedding_plus_writes", NUMBERS),
    ),
    Row(
        number=10,
        title="Low-rank perturbation",
        formula="rank of a head at most d_head; of a write full, its participation ratio small",
        made_by=("analysis.ranks:ranks", "analysis.ranks:participation_ratio"),
        tests=("analysis/test_ranks.py::test_equal_directions_are_counted", NUMBERS),
    ),
    Row(
        number=11,
        title="Removing one attention layer",
        formula="effect = loss without the write - loss",
        made_by=("analysis.ablation:ablate",),
        tests=("analysis/test_ablation.py::test_it_equals_plain_hooks", NUMBERS),
    ),
    Row(
        number=12,
        title="Additive and detachable",
        formula="`x_W = x_0 + sum w_i` exactly; later writes answer to a missing one",
        made_by=("recording.recorder:record",),
        tests=("nn/test_transformer.py::test_stream_is_embedding_plus_writes", NUMBERS),
    ),
    Row(
        number=13,
        title="No information is lost",
        formula="`e = max(0, -<w, x>) / |x|^2`; a probe for the token by depth",
        made_by=("recording.ledger:write_metrics",),
        tests=(
            "recording/test_ledger.py::test_a_write_that_takes_back_the_stream_erases_it",
            NUMBERS,
        ),
    ),
    Row(
        number=14,
        title="Lens and patching rest on additivity",
        formula="lens `W_U norm_f(x_i)`; patching is an intervention and needs no additivity",
        made_by=("analysis.logit_lens:logit_lens", "analysis.patching:patch"),
        tests=(
            "analysis/test_logit_lens.py::test_last_depth_is_the_models_output_to_the_bit",
            "analysis/test_patching.py::test_clean_into_clean_changes_nothing",
        ),
    ),
    Row(
        number=15,
        title="Post-LN",
        formula="`x' = norm(x + F(x))`; last gradient O(d sqrt(ln d)) at any depth",
        made_by=("nn.block:Block", "nn.placements:norms_stream"),
        tests=("nn/test_placements.py::test_post_norms_the_stream_after_each_write", NUMBERS),
    ),
    Row(
        number=16,
        title="Pre-LN",
        formula="`x' = x + F(norm(x))`; last gradient O(d sqrt(ln d / L))",
        made_by=("nn.additive_rules:Plain",),
        tests=("nn/test_transformer.py::test_stream_is_embedding_plus_writes", NUMBERS),
    ),
    Row(
        number=17,
        title="Warm-up",
        formula="Post-LN without warm-up loses the largest learning rate, at 6 layers already",
        made_by=("train.config:Training",),
        tests=(NUMBERS,),
    ),
    Row(
        number=18,
        title="Attention collapse in Pre-LN",
        formula="relative write, rank, entropy: three things; `|w| / |x|` falls, `|w|` does not",
        made_by=("analysis.attention:attention", "analysis.ranks:ranks"),
        tests=("analysis/test_attention.py::test_even_attention_has_entropy_one", NUMBERS),
    ),
    Row(
        number=19,
        title="Curse of depth, LayerNorm scaling",
        formula="`x' = x + F(norm(x) / sqrt(l))`, l from 1",
        made_by=("nn.additive_rules:LayerNormScaling", "recording.growth:fit_growth"),
        tests=(f"{RULES}test_stream_and_gradients_are_those_of_the_formula", NUMBERS),
    ),
    Row(
        number=20,
        title="Explosion and bfloat16 by placement",
        formula="the stream grows in Pre-LN; what bfloat16 loses follows `rms(x) / rms(w)`",
        made_by=("recording.growth:fit_growth", "analysis.precision:precision_drift"),
        tests=("analysis/test_precision.py::test_a_small_write_into_a_large_stream_is_lost",
               NUMBERS),
    ),
    Row(
        number=21,
        title="Which models are Pre-LN",
        formula="found by discovery: BERT post, Gemma 2 sandwich, OLMo 2 after the branch",
        made_by=("stream.discovery:discover",),
        tests=("stream/test_families.py::test_the_stream_is_found_and_proved", NUMBERS),
    ),
    Row(
        number=22,
        title="Norm before and behind the branch",
        formula="`x' = x + norm(F(norm(x)))`: see rows 30 and 31",
        made_by=("nn.placements:norms_branch",),
        tests=(
            "nn/test_placements.py::test_sandwich_with_inner_norms_that_do_nothing_is_pre",
            NUMBERS,
        ),
    ),
)  # fmt: skip
