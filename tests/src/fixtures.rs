//! The recorded checkpoints and how close we must come to each.

/// A checkpoint with what transformers made of it.
pub struct Fixture {
    /// Directory.
    pub name: &'static str,
    /// Elements that attention keeps of a token, over all layers that see the whole context.
    pub token: u64,
    /// The same for layers with a sliding window.
    pub window: Option<u64>,
    /// Bytes that a sequence keeps whatever its length: elements of the cache's type, and f32.
    pub sequence: Option<(u64, u64)>,
    /// How close logits come in float32.
    pub logits: Logits,
    /// Whether what becomes of quantised activations is recorded too, where they are left to the
    /// compiler.
    pub activations: bool,
    /// Whether a row chooses experts: near ties make single positions differ.
    pub experts: bool,
    /// Over what bfloat16 is judged.
    pub bfloat16: Bfloat16,
}

/// Over what our bfloat16 is at most 1.25 times as far from float32 as the oracle's own.
#[derive(Clone, Copy, PartialEq)]
pub enum Bfloat16 {
    /// Each prompt by itself.
    EachPrompt,
    /// Both prompts together.
    BothPrompts,
    /// Both prompts without the positions, one in so many, that are furthest away.
    AllButOneIn(usize),
}

/// How close logits come to those recorded in float32.
#[derive(Clone, Copy, PartialEq)]
pub enum Logits {
    /// Within 2e-4 of the largest logit of the row.
    Float,
    /// Activations are rounded to few values. Within 1e-3 up to the first that lies between two of
    /// them and is rounded the other way, because a sum before it was made in another order; after
    /// it, at most half as far off as bfloat16. That happens in one of the two prompts at most.
    Rounded,
}

const PLAIN: Fixture = Fixture {
    name: "",
    token: 0,
    window: None,
    sequence: None,
    logits: Logits::Float,
    activations: false,
    experts: true,
    bfloat16: Bfloat16::EachPrompt,
};

/// Lists the fixtures, and makes of the list a macro that makes a test of each.
macro_rules! fixtures {
    ($d:tt $($name:ident { $($field:ident: $value:expr),* })*) => {
        /// Every recorded model.
        pub const FIXTURES: &[Fixture] =
            &[$(Fixture { name: stringify!($name), $($field: $value,)* ..PLAIN }),*];

        /// A test for every fixture, which calls `$run` with it.
        #[macro_export]
        macro_rules! each_fixture {
            ($d run:path) => {
                $(#[test] fn $name() { $d run($crate::fixtures::find(stringify!($name))) })*
            };
        }
    };
}

fixtures! {
    $
    // Layers, keys and values, cache heads, channels.
    qwen2 { experts: false, token: 3 * 2 * 2 * 16 }
    qwen3 { experts: false, token: 7 * 2 * 2 * 16 }
    qwen3_w8a8 { experts: false, token: 7 * 2 * 2 * 16, logits: Logits::Rounded }
    qwen3_w8a8_dynamic { experts: false, token: 7 * 2 * 2 * 16, logits: Logits::Rounded }
    qwen3_w4a8_dynamic { experts: false, token: 7 * 2 * 2 * 16, logits: Logits::Rounded }
    qwen3_moe { token: 4 * 2 * 2 * 16 }
    qwen3_moe_w8a8 { token: 4 * 2 * 2 * 16, logits: Logits::Rounded, bfloat16: Bfloat16::BothPrompts }
    qwen3_moe_w8a8_dynamic { token: 4 * 2 * 2 * 16, logits: Logits::Rounded }
    qwen3_moe_w4a8_dynamic { token: 4 * 2 * 2 * 16, logits: Logits::Rounded }
    qwen3_moe_w4a8_mixed { token: 4 * 2 * 2 * 16, logits: Logits::Rounded, bfloat16: Bfloat16::BothPrompts }
    // One layer in four attends; the others keep 3 rows for the convolution and a matrix per head.
    qwen3_next { token: 2 * 2 * 32, sequence: Some((4 * 3 * 128, 4 * 4 * 16 * 16)) }
    qwen3_next_w8a8 {
        token: 2 * 2 * 32, sequence: Some((4 * 3 * 128, 4 * 4 * 16 * 16)), logits: Logits::Rounded
    }
    // Layers, latent vector, rotated key.
    deepseek_v3 { token: 4 * (32 + 8), bfloat16: Bfloat16::BothPrompts }
    deepseek_v3_fp8 { token: 3 * (64 + 16), activations: true }
    deepseek_v3_w8a8 { token: 4 * (32 + 8), logits: Logits::Rounded }
    deepseek_v3_w8a8_dynamic { token: 4 * (32 + 8), logits: Logits::Rounded, bfloat16: Bfloat16::BothPrompts }
    deepseek_v3_w4a8_dynamic { token: 4 * (32 + 8), logits: Logits::Rounded, bfloat16: Bfloat16::BothPrompts }
    // The same and the indexer's key. Two of the 74 positions are ties: at 26 of the first prompt
    // scores of experts of layer 2 are 0.0009 apart and rounding moves them by 0.002, at 16 of the
    // second those of layer 3 0.0026. Either alone, lost, is more than the bound of its prompt.
    deepseek_v32 { token: 4 * (32 + 8 + 16), bfloat16: Bfloat16::AllButOneIn(20) }
    deepseek_v32_fp8 { token: 3 * (64 + 16 + 32), activations: true }
    deepseek_v32_w8a8 { token: 4 * (32 + 8 + 16), logits: Logits::Rounded }
    // Every other layer has a window.
    gpt_oss { token: 2 * 2 * 2 * 16, window: Some(2 * 2 * 2 * 16) }
}

/// The fixture called `name`.
///
/// # Panics
/// When there is none.
pub fn find(name: &str) -> &'static Fixture {
    FIXTURES.iter().find(|f| f.name == name).expect("the fixture is listed")
}
