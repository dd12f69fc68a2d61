//! Environment variables of the published launch recipes, and other commands of theirs.

use super::table::{
    Variable,
    Verdict::{self, IgnoredBySglang, NotNeeded, NotSupportedYet, TakenOver},
};

const fn var(name: &'static str, verdict: Verdict, note: &'static str) -> Variable {
    Variable { name, verdict, note }
}

const COLLECTIVES: &str = "there are no collectives on one device";
const EXPERTS: &str = "experts all lie on the one device; there is no exchange between devices";
const SPECULATIVE: &str = "each step decodes one token a request";
const DISAGGREGATED: &str = "one server does both phases; there is no transfer of KV memory";
const NO_PYTORCH: &str = "there is no PyTorch in the server";
const KEEP: &str = "set it for precast too";
const NO_HUB: &str = "nothing is downloaded";
const UNREAD: &str = "no version of SGLang or of its router reads it";

/// The variables, by what they are about.
pub(super) const VARIABLES: &[Variable] = &[
    // The host.
    var("SGLANG_SET_CPU_AFFINITY", NotNeeded, "serve --pin-threads"),
    var("PATH", TakenOver, KEEP),
    var("LD_LIBRARY_PATH", TakenOver, KEEP),
    var("PYTHONPATH", NotNeeded, "there is no Python in the server"),
    var("ASCEND_HOME_PATH", TakenOver, KEEP),
    var("ASCEND_TOOLKIT_HOME", TakenOver, KEEP),
    var("ASCEND_RT_VISIBLE_DEVICES", TakenOver, "the runtime reads it; or serve --device-id"),
    var("CUDA_VISIBLE_DEVICES", NotSupportedYet, "there is no CUDA target"),
    var("OMP_NUM_THREADS", NotNeeded, "serve --threads"),
    var("TRANSFORMERS_OFFLINE", NotNeeded, NO_HUB),
    var("HF_HUB_OFFLINE", NotNeeded, NO_HUB),
    var("HF_HOME", NotNeeded, NO_HUB),
    var("HF_ENDPOINT", NotNeeded, NO_HUB),
    var("HF_TOKEN", NotNeeded, NO_HUB),
    var("SGLANG_USE_MODELSCOPE", NotNeeded, NO_HUB),
    var("http_proxy", NotNeeded, NO_HUB),
    var("https_proxy", NotNeeded, NO_HUB),
    // PyTorch on an NPU.
    var("PYTORCH_NPU_ALLOC_CONF", NotNeeded, "memory is planned at compile time"),
    var("PYTORCH_CUDA_ALLOC_CONF", NotNeeded, "memory is planned at compile time"),
    var(
        "STREAMS_PER_DEVICE",
        NotNeeded,
        "the size of PyTorch's pool of streams; 32 is its default anyway",
    ),
    var("TASK_QUEUE_ENABLE", NotNeeded, NO_PYTORCH),
    var("ASCEND_LAUNCH_BLOCKING", NotNeeded, "leave it unset: recorded plans cannot run with it"),
    var("CPU_AFFINITY_CONF", NotNeeded, NO_PYTORCH),
    // Kernels and streams.
    var(
        "SGLANG_NPU_USE_MLAPO",
        NotNeeded,
        "passes fuse what precedes latent attention where the toolkit can",
    ),
    var(
        "SGLANG_USE_FIA_NZ",
        IgnoredBySglang,
        "0.5.6 does not read it (from 0.5.9 on it is the layout of KV memory); layouts are decided at compile time",
    ),
    var(
        "SGLANG_NPU_USE_MULTI_STREAM",
        NotNeeded,
        "branches of a step get streams of their own; compile --fork-bytes",
    ),
    var("ENABLE_MOE_NZ", IgnoredBySglang, UNREAD),
    var("DISABLE_EAGLE3_QUANT", IgnoredBySglang, UNREAD),
    var("SGLANG_DP_ROUND_ROBIN", IgnoredBySglang, UNREAD),
    var("ASCEND_USE_FIA", NotNeeded, "the target decides which attention operator runs"),
    var("SGLANG_NPU_PROFILING", NotNeeded, "profile with the vendor's tools"),
    var("SGLANG_NPU_PROFILING_STAGE", NotNeeded, "profile with the vendor's tools"),
    // Scheduling.
    var(
        "SGLANG_SCHEDULER_DECREASE_PREFILL_IDLE",
        NotNeeded,
        "it evens out data-parallel ranks; 0.5.7 and later read it",
    ),
    var("SGLANG_SCHEDULER_SKIP_ALL_GATHER", NotNeeded, COLLECTIVES),
    var("SGLANG_ENABLE_SPEC_V2", NotSupportedYet, SPECULATIVE),
    var("SGLANG_ENABLE_OVERLAP_PLAN_STREAM", NotSupportedYet, SPECULATIVE),
    // Collectives and experts.
    var("HCCL_BUFFSIZE", NotNeeded, COLLECTIVES),
    var("HCCL_OP_EXPANSION_MODE", NotNeeded, COLLECTIVES),
    var("HCCL_ALGO", NotNeeded, COLLECTIVES),
    var("HCCL_SOCKET_IFNAME", NotNeeded, COLLECTIVES),
    var("GLOO_SOCKET_IFNAME", NotNeeded, COLLECTIVES),
    var("HCCL_CONNECT_TIMEOUT", NotNeeded, COLLECTIVES),
    var("HCCL_EXEC_TIMEOUT", NotNeeded, COLLECTIVES),
    var("HCCL_IF_IP", NotNeeded, COLLECTIVES),
    var("NCCL_SOCKET_IFNAME", NotNeeded, COLLECTIVES),
    var("TP_SOCKET_IFNAME", NotNeeded, COLLECTIVES),
    var("SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK", NotSupportedYet, EXPERTS),
    var("DEEP_NORMAL_MODE_USE_INT8_QUANT", NotSupportedYet, EXPERTS),
    var("DEEPEP_NORMAL_LONG_SEQ_ROUND", NotSupportedYet, EXPERTS),
    var("DEEPEP_NORMAL_LONG_SEQ_PER_ROUND_TOKENS", NotSupportedYet, EXPERTS),
    var("DEEPEP_NORMAL_COMBINE_ENABLE_LONG_SEQ", NotSupportedYet, EXPERTS),
    // Prefill and decode on different nodes.
    var("ASCEND_MF_STORE_URL", NotSupportedYet, DISAGGREGATED),
    var("SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT", NotSupportedYet, DISAGGREGATED),
    var("SGLANG_DISAGGREGATION_WAITING_TIMEOUT", NotSupportedYet, DISAGGREGATED),
];

/// Other commands of the recipes: what they contain, and what to do about them.
pub(super) const COMMANDS: &[Variable] = &[
    var(
        "set_env",
        TakenOver,
        "run it before precast too: it is where the runtime's libraries are found",
    ),
    var(
        "setenv",
        TakenOver,
        "run it before precast too: it is where the runtime's libraries are found",
    ),
    var("scaling_governor", TakenOver, "as useful here: steps wait for the host less"),
    var("sysctl", TakenOver, "as useful here: steps wait for the host less"),
];
