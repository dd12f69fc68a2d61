//! The table of library operators, and nothing else. Names, order and kinds of parameters are those of
//! the public documentation of the `aclnn` interface; every other list of operators is derived from it.

/// Calls the macro `$callback` with every operator: its name without prefix, the first release of the
/// toolkit that has it, and its parameters without the trailing workspace size and executor.
#[macro_export]
macro_rules! for_each_operator {
    ($callback:ident) => {
        $callback! {
            // Norm / rope / cache
            // Attention
            MlaPrologV2WeightNz V8_5 (
                token_x: tensor, weight_dq: tensor, weight_uq_qr: tensor, weight_uk: tensor,
                weight_dkv_kr: tensor, rmsnorm_gamma_cq: tensor, rmsnorm_gamma_ckv: tensor,
                rope_sin: tensor, rope_cos: tensor, cache_index: tensor, kv_cache_ref: tensor,
                kr_cache_ref: tensor, dequant_scale_x: optional_tensor,
                dequant_scale_w_dq: optional_tensor, dequant_scale_w_uq_qr: optional_tensor,
                dequant_scale_w_dkv_kr: optional_tensor, quant_scale_ckv: optional_tensor,
                quant_scale_ckr: optional_tensor, smooth_scales_cq: optional_tensor,
                rmsnorm_epsilon_cq: f64, rmsnorm_epsilon_ckv: f64, cache_mode: optional_text,
                query_out: tensor, query_rope_out: tensor,
                dequant_scale_q_nope_out: optional_tensor
            );
            MlaPreprocess V8_5 (
                input: tensor, gamma0: tensor, beta0: optional_tensor, quant_scale0: tensor,
                quant_offset0: tensor, wdqkv: tensor, de_scale0: tensor, bias0: tensor,
                gamma1: tensor, beta1: optional_tensor, quant_scale1: tensor,
                quant_offset1: tensor, wuq: tensor, de_scale1: tensor, bias1: tensor,
                gamma2: tensor, cos: tensor, sin: tensor, wuk: tensor, kv_cache: tensor,
                kv_cache_rope: tensor, slot_mapping: tensor, ctkv_scale: optional_tensor,
                q_nope_scale: optional_tensor, wdq_dim: i64, q_rope_dim: i64, k_rope_dim: i64,
                epsilon: f64, q_rotary_coeff: i64, k_rotary_coeff: i64, transpose_wdq: bool,
                transpose_wuq: bool, transpose_wuk: bool, cache_mode: i64, quant_mode: i64,
                do_rms_norm: bool, wdkv_split_count: i64, q_out: tensor, kv_cache_out: tensor,
                q_rope_out: tensor, kr_cache_out: tensor
            );
            LightningIndexer V9 (
                query: tensor, key: tensor, weights: tensor,
                actual_seq_lengths_query: optional_tensor,
                actual_seq_lengths_key: optional_tensor, block_table: optional_tensor,
                layout_query: optional_text, layout_key: optional_text, sparse_count: i64,
                sparse_mode: i64, pre_tokens: i64, next_tokens: i64, return_values: bool,
                sparse_indices_out: tensor, sparse_values_out: optional_tensor
            );
            SparseFlashAttention V9 (
                query: tensor, key: tensor, value: tensor, sparse_indices: tensor,
                block_table: optional_tensor, actual_seq_lengths_query: optional_tensor,
                actual_seq_lengths_kv: optional_tensor, query_rope: optional_tensor,
                key_rope: optional_tensor, scale_value: f64, sparse_block_size: i64,
                layout_query: optional_text, layout_kv: optional_text, sparse_mode: i64,
                pre_tokens: i64, next_tokens: i64, attention_mode: i64, return_softmax_lse: bool,
                attention_out: tensor, softmax_max: optional_tensor, softmax_sum: optional_tensor
            );
            // Matmul / quant
            Mm V8_1 (
                input: tensor, mat2: tensor, out: tensor, cube_math_type: i8
            );
            MatmulWeightNz V8_5 (
                input: tensor, mat2: tensor, out: tensor, cube_math_type: i8
            );
            BatchMatMul V8_1 (
                input: tensor, mat2: tensor, out: tensor, cube_math_type: i8
            );
            QuantMatmulWeightNz V8_1 (
                x1: tensor, x2: tensor, x1_scale: optional_tensor, x2_scale: optional_tensor,
                y_scale: optional_tensor, x1_offset: optional_tensor, x2_offset: optional_tensor,
                y_offset: optional_tensor, bias: optional_tensor, transpose_x1: bool,
                transpose_x2: bool, group_size: i64, out: tensor
            );
            // MoE
            GroupedMatmulV4 V8_1 (
                x: tensors, weight: tensors, bias: optional_tensors, scale: optional_tensors,
                offset: optional_tensors, antiquant_scale: optional_tensors,
                antiquant_offset: optional_tensors, per_token_scale: optional_tensors,
                group_list: optional_tensor, activation_input: optional_tensors,
                activation_quant_scale: optional_tensors,
                activation_quant_offset: optional_tensors, split_item: i64, group_type: i64,
                group_list_type: i64, act_type: i64, out: tensors,
                activation_feature_out: optional_tensors, dyn_quant_scale_out: optional_tensors
            );
            GroupedMatmulWeightNz V8_5 (
                x: tensors, weight: tensors, bias: optional_tensors, scale: optional_tensors,
                offset: optional_tensors, antiquant_scale: optional_tensors,
                antiquant_offset: optional_tensors, per_token_scale: optional_tensors,
                group_list: optional_tensor, activation_input: optional_tensors,
                activation_quant_scale: optional_tensors,
                activation_quant_offset: optional_tensors, split_item: i64, group_type: i64,
                group_list_type: i64, act_type: i64, tuning_config: optional_ints,
                quant_group_size: i64, out: tensors, activation_feature_out: optional_tensors,
                dyn_quant_scale_out: optional_tensors
            );
            SwiGlu V8_1 (
                x: tensor, dim: i64, out: tensor
            );
            ClippedSwiglu V8_5 (
                x: tensor, group_index: optional_tensor, dim: i64, alpha: f64, limit: f64,
                bias: f64, interleaved: bool, out: tensor
            );
            MoeGatingTopK V8_5 (
                x: tensor, bias: optional_tensor, k: i64, k_group: i64, group_count: i64,
                group_select_mode: i64, renorm: i64, norm_type: i64, out_flag: bool,
                routed_scaling_factor: f64, eps: f64, y_out: tensor, expert_idx_out: tensor,
                out_out: optional_tensor
            );
            MoeGatingTopKSoftmaxV2 V8_1 (
                x: tensor, finished: optional_tensor, k: i64, renorm: i64,
                output_softmax_result_flag: bool, y_out: tensor, expert_idx_out: tensor,
                softmax_result_out: optional_tensor
            );
            MoeInitRoutingV3 V8_5 (
                x: tensor, expert_idx: tensor, scale: optional_tensor, offset: optional_tensor,
                active_num: i64, expert_capacity: i64, expert_num: i64, drop_pad_mode: i64,
                expert_tokens_num_type: i64, expert_tokens_num_flag: bool, quant_mode: i64,
                active_expert_range: optional_ints, row_idx_type: i64, expanded_x_out: tensor,
                expanded_row_idx_out: tensor, expert_tokens_count_or_cumsum_out: tensor,
                expanded_scale_out: optional_tensor
            );
            MoeFinalizeRoutingV2 V8_1 (
                expanded_x: tensor, expanded_row_idx: tensor, x1: optional_tensor,
                x2: optional_tensor, bias: optional_tensor, scales: optional_tensor,
                expert_idx: optional_tensor, drop_pad_mode: i64, out: tensor
            );
            // Glue ops (omath/onn; all [8.1+])
            Cast V8_1 (
                input: tensor, dtype: dtype, out: tensor
            );
            Add V8_1 (
                input: tensor, other: tensor, alpha: scalar, out: tensor
            );
            Mul V8_1 (
                input: tensor, other: tensor, out: tensor
            );
            Muls V8_1 (
                input: tensor, other: scalar, out: tensor
            );
        }
    };
}
