"""Rows 23 to 38: residual rules, initialisations, and numerics."""

from benchmarks.mission.foundations import NUMBERS, RULES
from benchmarks.mission.row import Row

CONSTANTS, PLACEMENTS = "nn/test_constants.py::", "nn/test_placements.py::"

SCALING = (
    Row(
        number=23,
        title="ReZero",
        formula="`x' = x + alpha F(x)`, alpha = 0, no norm, one alpha a block",
        made_by=("nn.additive_rules:ReZero", "nn.additive_rules:ReZeroNorm"),
        tests=(
            f"{RULES}test_at_the_start_of_rezero_only_alpha_learns",
            f"{RULES}test_rezero_with_post_norm_is_refused_because_it_is_no_identity",
            "nn/test_numerics.py::test_a_thousand_layers_of_rezero",
        ),
    ),
    Row(
        number=24,
        title="SkipInit",
        formula="`x' = x + alpha F(x)`, alpha = 0 or 1 / sqrt(writes), no norm",
        made_by=("nn.additive_rules:SkipInit",),
        tests=(f"{RULES}test_learned_scales_start_as_published", NUMBERS),
    ),
    Row(
        number=25,
        title="Fixup",
        formula="last layer of a branch 0, others times `L^(-1/(2m-2))`, scalar biases and gain",
        made_by=("nn.additive_rules:Fixup", "nn.initialisation:FixupInit",
                 "nn.constants:fixup_gain", "nn.rates:parameter_groups"),
        tests=(
            f"{CONSTANTS}test_fixup_falls_with_the_number_of_branches",
            f"{RULES}test_rates_of_fixup_and_of_the_depth_rules",
        ),
    ),
    Row(
        number=26,
        title="T-Fixup",
        formula="embeddings, decoder `(9N)^(-1/4)`, encoder `0.67 N^(-1/4)`; no norm, no warm-up",
        made_by=("nn.additive_rules:TFixup", "nn.initialisation:TFixupInit",
                 "nn.constants:tfixup_gain"),
        tests=(f"{CONSTANTS}test_tfixup", f"{CONSTANTS}test_tfixup_is_drawn_by_depth_alone"),
    ),
    Row(
        number=27,
        title="LayerScale",
        formula="`x' = x + diag(lambda) F(norm(x))`; 0.1 to depth 18, 1e-5 at 24, 1e-6 deeper",
        made_by=("nn.additive_rules:LayerScale", "nn.constants:layer_scale_start"),
        tests=(
            f"{CONSTANTS}test_layer_scale_of_cait",
            "nn/test_transformer.py::test_layer_scale_of_ones_is_plain",
        ),
    ),
    Row(
        number=28,
        title="LayerScale in bfloat16",
        formula="value and update are kept; the write is lost in the addition",
        made_by=("nn.additive_rules:LayerScale", "analysis.precision:precision_drift"),
        tests=(
            "nn/test_numerics.py::test_a_small_write_is_lost_in_a_bfloat16_stream_and_kept_in_float32",
            NUMBERS,
        ),
    ),
    Row(
        number=29,
        title="DeepNorm",
        formula="`x' = norm(alpha x + F(x))`, `alpha = (2M)^(1/4)`, `beta = (8M)^(-1/4)`",
        made_by=("nn.skip_rules:DeepNorm", "nn.initialisation:DeepNormInit",
                 "nn.constants:deepnorm_constants"),
        tests=(
            f"{CONSTANTS}test_deepnorm",
            f"{RULES}test_deepnorm_has_two_forms_of_one_function",
            f"{RULES}test_deepnorm_puts_alpha_on_the_stream_and_not_on_the_branch",
            "nn/test_numerics.py::test_a_thousand_layers_of_deepnorm",
        ),
    ),
    Row(
        number=30,
        title="Sandwich-LN, AdaLN-Zero",
        formula="`x + norm(F(norm(x)))`; `x + g F(norm(x)(1 + s) + b)`, (s, b, g) of a condition",
        made_by=("nn.additive_rules:AdaLNZero", "nn.placements:norms_branch"),
        tests=(f"{RULES}test_rules_that_start_as_the_identity", NUMBERS),
    ),
    Row(
        number=31,
        title="Peri-LN",
        formula="sandwich with a final norm, and one on the embedding if wanted",
        made_by=("nn.config:TransformerConfig",),
        tests=(f"{PLACEMENTS}test_embedding_norm", NUMBERS),
    ),
    Row(
        number=32,
        title="Admin, NormFormer, Sub-LN, Depth-muP, CompleteP; several streams",
        formula="omega of the variances so far; `sqrt(ln 2N)`; `a / sqrt(L)`; `1 / L`",
        made_by=("nn.skip_rules:Admin", "nn.admin:profile_admin_", "nn.norms:HeadScale",
                 "nn.additive_rules:SubLN", "nn.additive_rules:DepthMuP",
                 "nn.additive_rules:CompleteP"),
        tests=(
            f"{RULES}test_admin_omegas_are_the_variances_so_far",
            f"{CONSTANTS}test_sub_ln",
            f"{PLACEMENTS}test_sub_ln_norms_before_both_output_matrices",
            "stream/test_several_streams.py::test_hyper_connections_are_refused_by_name",
            "stream/test_several_streams.py::test_attention_over_depth_is_refused_by_name",
        ),
    ),
    Row(
        number=33,
        title="Scale of the branches at the start",
        formula="not zero but small: GPT-2 has `1 / sqrt(2L)` on the output matrices",
        made_by=("nn.initialisation:DepthScaledNormal", "nn.initialisation:ZeroOutput"),
        tests=(
            f"{CONSTANTS}test_gpt2_divides_output_matrices_by_the_root_of_the_number_of_writes",
            f"{CONSTANTS}test_zero_output_starts_as_the_identity",
        ),
    ),
    Row(
        number=34,
        title="Two initialisations of one matrix",
        formula="the second overwrites the first",
        made_by=("nn.initialisation:Xavier", "nn.initialisation:Normal"),
        tests=(f"{CONSTANTS}test_every_initialisation_draws_every_role", NUMBERS),
    ),
    Row(
        number=35,
        title="Stream in float32",
        formula="error of a bfloat16 stream: square root of the writes; of a write: 1.7e-3 R",
        made_by=("nn.config:StreamDtype", "analysis.precision:precision_drift"),
        tests=(
            "nn/test_numerics.py::test_half_models_keep_stream_and_scales_in_float32",
            "nn/test_numerics.py::test_the_switch_keeps_the_stream_in_the_compute_dtype",
        ),
    ),
    Row(
        number=36,
        title="Unscale before clipping",
        formula="clipping scaled gradients makes the step smaller by the scale",
        why="accelerate does it in training; nothing of this package's own",
        tests=("train/test_ecosystem.py::test_accelerate", NUMBERS),
    ),
    Row(
        number=37,
        title="One dtype on both ends",
        formula="`bfloat16 + float32` is promoted to float32 without a word",
        made_by=("nn.write:scaled_write", "nn.write:residual_write"),
        tests=("nn/test_numerics.py::test_float64_goes_all_the_way", NUMBERS),
    ),
    Row(
        number=38,
        title="Fused residual kernel",
        formula="write, addition and next norm in 4 passes in place of 9",
        made_by=("kernels.dispatch:residual_write", "nn.fusion:fuse"),
        tests=("kernels/test_forward.py::test_rows_and_ranks",
               "nn/test_fusion.py::test_values_and_gradients_are_the_same"),
    ),
)  # fmt: skip
