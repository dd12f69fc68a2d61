//! The table of library operators, and nothing else. Names, order and kinds of parameters are those of
//! the public documentation of the `aclnn` interface; every other list of operators is derived from it.

/// Calls the macro `$callback` with every operator: its name without prefix, the first release of the
/// toolkit that has it, and its parameters without the trailing workspace size and executor.
#[macro_export]
macro_rules! for_each_operator {
    ($callback:ident) => {
        $callback! {
            // Norm / rope / cache
            RmsNorm V8_1 (
                x: tensor, gamma: tensor, epsilon: f64, y_out: tensor, rstd_out: tensor
            );
            AddRmsNorm V8_1 (
                x1: tensor, x2: tensor, gamma: tensor, epsilon: f64, y_out: tensor,
                rstd_out: tensor, x_out: tensor
            );
            AddRmsNormQuant V8_1 (
                x1: tensor, x2: tensor, gamma: tensor, scales1: tensor, scales2: optional_tensor,
                zero_points1: optional_tensor, zero_points2: optional_tensor, axis: i64,
                epsilon: f64, div_mode: bool, y1_out: tensor, y2_out: optional_tensor, x_out: tensor
            );
            AddRmsNormDynamicQuant V8_1 (
                x1: tensor, x2: tensor, gamma: tensor, smooth_scale1: optional_tensor,
                smooth_scale2: optional_tensor, epsilon: f64, y1_out: tensor,
                y2_out: optional_tensor,
                x_out: tensor, scale1_out: tensor, scale2_out: optional_tensor
            );
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
            RecurrentGatedDeltaRule V8_5 (
                query: tensor, key: tensor, value: tensor, beta: tensor, state_ref: tensor,
                actual_seq_lengths: tensor, ssm_state_indices: tensor, g: optional_tensor,
                gk: optional_tensor, num_accepted_tokens: optional_tensor, scale_value: f32,
                out: tensor
            );
            // Matmul / quant
            Matmul V8_1 (
                input: tensor, mat2: tensor, out: tensor, cube_math_type: i8
            );
            Mm V8_1 (
                input: tensor, mat2: tensor, out: tensor, cube_math_type: i8
            );
            MatmulWeightNz V8_5 (
                input: tensor, mat2: tensor, out: tensor, cube_math_type: i8
            );
            BatchMatMul V8_1 (
                input: tensor, mat2: tensor, out: tensor, cube_math_type: i8
            );
            BatchMatMulWeightNz V8_5 (
                input: tensor, mat2: tensor, out: tensor, cube_math_type: i8
            );
            TransposeBatchMatMul V8_5 (
                x1: tensor, x2: tensor, bias: optional_tensor, scale: optional_tensor,
                perm_x1: ints, perm_x2: ints, perm_y: ints, cube_math_type: i8,
                batch_split_factor: i32, out: tensor
            );
            QuantMatmulV4 V8_1 (
                x1: tensor, x2: tensor, scale: tensor, offset: optional_tensor,
                pertoken_scale: optional_tensor, bias: optional_tensor, transpose_x1: bool,
                transpose_x2: bool, out: tensor
            );
            QuantMatmulV5 V8_5 (
                x1: tensor, x2: tensor, x1_scale: optional_tensor, x2_scale: optional_tensor,
                y_scale: optional_tensor, x1_offset: optional_tensor, x2_offset: optional_tensor,
                y_offset: optional_tensor, bias: optional_tensor, transpose_x1: bool,
                transpose_x2: bool, group_size: i64, out: tensor
            );
            QuantMatmulWeightNz V8_1 (
                x1: tensor, x2: tensor, x1_scale: optional_tensor, x2_scale: optional_tensor,
                y_scale: optional_tensor, x1_offset: optional_tensor, x2_offset: optional_tensor,
                y_offset: optional_tensor, bias: optional_tensor, transpose_x1: bool,
                transpose_x2: bool, group_size: i64, out: tensor
            );
            WeightQuantBatchMatmulV2 V8_1 (
                x: tensor, weight: tensor, antiquant_scale: tensor,
                antiquant_offset: optional_tensor, quant_scale: optional_tensor,
                quant_offset: optional_tensor, bias: optional_tensor, antiquant_group_size: i32,
                y: tensor
            );
            WeightQuantBatchMatmulV3 V8_1 (
                x: tensor, weight: tensor, antiquant_scale: tensor,
                antiquant_offset: optional_tensor, quant_scale: optional_tensor,
                quant_offset: optional_tensor, bias: optional_tensor, antiquant_group_size: i32,
                inner_precise: i32, y: tensor
            );
            DynamicQuant V8_1 (
                x: tensor, smooth_scales: optional_tensor, y_out: tensor, scale_out: tensor
            );
            AscendQuantV3 V8_1 (
                x: tensor, scale: tensor, offset: optional_tensor, sqrt_mode: bool,
                round_mode: text,
                dst_type: i32, axis: i32, y: tensor
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
            GroupedMatmulV5 V8_5 (
                x: tensors, weight: tensors, bias: optional_tensors, scale: optional_tensors,
                offset: optional_tensors, antiquant_scale: optional_tensors,
                antiquant_offset: optional_tensors, per_token_scale: optional_tensors,
                group_list: optional_tensor, activation_input: optional_tensors,
                activation_quant_scale: optional_tensors,
                activation_quant_offset: optional_tensors, split_item: i64, group_type: i64,
                group_list_type: i64, act_type: i64, tuning_config: optional_ints, out: tensors,
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
            GroupedMatmulSwigluQuantWeightNZ V8_5 (
                x: tensor, weight: tensor, bias: optional_tensor, offset: optional_tensor,
                weight_scale: tensor, x_scale: tensor, group_list: tensor, output: tensor,
                output_scale: tensor, output_offset: optional_tensor
            );
            GroupedMatmulFinalizeRoutingV3 V8_5 (
                x1: tensor, x2: tensor, scale: optional_tensor, bias: optional_tensor,
                offset: optional_tensor, antiquant_scale: optional_tensor,
                antiquant_offset: optional_tensor, pertoken_scale: optional_tensor,
                group_list: optional_tensor, shared_input: optional_tensor,
                logit: optional_tensor, row_index: optional_tensor, dtype: i64,
                shared_input_weight: f32, shared_input_offset: i64, transpose_x1: bool,
                transpose_x2: bool, group_list_type: i64, tuning_config: optional_ints,
                out: tensor
            );
            SwiGlu V8_1 (
                x: tensor, dim: i64, out: tensor
            );
            SwiGluQuantV2 V8_5 (
                x: tensor, smooth_scales: optional_tensor, offsets: optional_tensor,
                group_index: optional_tensor, activate_left: bool, quant_mode: optional_text,
                group_list_type: i64, dst_type: i64, y_out: tensor, scale_out: tensor
            );
            DequantSwigluQuant V8_1 (
                x: tensor, weight_scale: optional_tensor, activation_scale: optional_tensor,
                bias: optional_tensor, quant_scale: optional_tensor,
                quant_offset: optional_tensor, group_index: optional_tensor, activate_left: bool,
                quant_mode: optional_text, y_out: tensor, scale_out: tensor
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
            MoeInitRoutingV2 V8_1 (
                x: tensor, expert_idx: tensor, active_num: i64, expert_capacity: i64,
                expert_num: i64, drop_pad_mode: i64, expert_tokens_count_or_cumsum_flag: i64,
                expert_tokens_before_capacity_flag: bool, expanded_x_out: tensor,
                expanded_row_idx_out: tensor, expert_tokens_count_or_cumsum_out: optional_tensor,
                expert_tokens_before_capacity_out: optional_tensor
            );
            MoeInitRoutingQuantV2 V8_1 (
                x: tensor, expert_idx: tensor, scale: optional_tensor, offset: optional_tensor,
                active_num: i64, expert_capacity: i64, expert_num: i64, drop_pad_mode: i64,
                expert_tokens_count_or_cumsum_flag: i64, expert_tokens_before_capacity_flag: bool,
                quant_mode: i64, expanded_x_out: tensor, expanded_row_idx_out: tensor,
                expert_tokens_count_or_cumsum_out: optional_tensor,
                expert_tokens_before_capacity_out: optional_tensor,
                dynamic_quant_scale_out: optional_tensor
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
            MoeTokenUnpermute V8_1 (
                permuted_tokens: tensor, sorted_indices: tensor, probs: optional_tensor,
                padded_mode: bool, restore_shape: optional_ints, out: tensor
            );
            MatmulAllReduce V8_1 (
                x1: tensor, x2: tensor, bias: optional_tensor, group: text, reduce_op: text,
                comm_turn: i64, stream_mode: i64, output: tensor
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
            Embedding V8_1 (
                weight: tensor, indices: tensor, out: tensor
            );
            IndexSelect V8_1 (
                input: tensor, dim: i64, index: tensor, out: tensor
            );
            GatherV2 V8_1 (
                input: tensor, dim: i64, index: tensor, out: tensor
            );
            Softmax V8_1 (
                input: tensor, dim: i64, out: tensor
            );
            Topk V8_1 (
                input: tensor, k: i64, dim: i64, largest: bool, sorted: bool, values_out: tensor,
                indices_out: tensor
            );
            ArgMax V8_1 (
                input: tensor, dim: i64, keepdim: bool, out: tensor
            );
            Sigmoid V8_1 (
                input: tensor, out: tensor
            );
            Silu V8_1 (
                input: tensor, out: tensor
            );
            Cat V8_1 (
                tensors: tensors, dim: i64, out: tensor
            );
            Permute V8_1 (
                input: tensor, dims: ints, out: tensor
            );
            InplaceCopy V8_1 (
                input_ref: tensor, src: tensor
            );
            ApplyTopKTopP V8_5 (
                logits: tensor, p: optional_tensor, k: optional_tensor, out: tensor
            );
            ReduceSum V8_1 (
                input: tensor, dims: ints, keep_dims: bool, dtype: dtype, out: tensor
            );
        }
    };
}
