//! Products with what is done to their results.

use super::{guard, kernel, producer, product::Product};
use crate::{
    TargetInfo,
    rewrite::{Context, Decline, Replacement, Rewrite},
};
use ir::{DType, Func, Node, NodeId, Op, ValueId};

/// A product and the element-wise ops on its result become a composite of kind `linear`, in this
/// order, each at most once: a bias (`add_bias`, `expert_bias`), the activation of pairs of columns
/// (`silu_mul_pairs`, `swiglu_clamped_pairs`) in the target's blocks, a residual (`add`), a rounding
/// (`cast`); or `argmax`, `top_k` or both of the product or of its sum with a bias.
///
/// The product must be f32, and nothing else may read what is on the way; only the values that
/// `argmax` and `top_k` compare may have other readers.
pub(crate) struct FuseEpilogues;

impl Rewrite for FuseEpilogues {
    fn name(&self) -> &'static str {
        "fuse-epilogues"
    }

    fn source(&self) -> &'static str {
        include_str!("epilogues.rs")
    }

    fn enters(&self, kind: &str) -> bool {
        matches!(kind, "mla_preprocess" | "moe")
    }

    fn apply(
        &self,
        func: &mut Func,
        root: NodeId,
        context: &Context<'_>,
    ) -> Result<Replacement, Decline> {
        let (product, kind) = origin(func, root, context.target)?;
        kernel(context.target, "linear")?;
        guard(kind.out == DType::F32, "not-f32", "the product is rounded first")?;
        let mut nodes = vec![product];
        let mut step = Step::Product;
        while let Some((node, next)) =
            follower(func, *nodes.last().unwrap_or(&product), step, context.target)
        {
            nodes.push(node);
            step = next;
        }
        let whole = nodes.contains(&root);
        guard(whole, "other-reader", "a value on the way has another reader")?;
        if nodes.last() != Some(&root) {
            return Err(Decline::NoMatch);
        }
        Replacement::composite(func, &nodes, "linear", context.target)
    }
}

/// What a node does with a product, in the order that these may follow one another.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Product,
    Bias,
    Pairs,
    Residual,
    Cast,
    Argmax,
    TopK,
}

impl Step {
    fn of(node: &Node, target: &TargetInfo) -> Option<Self> {
        match node.op {
            Op::AddBias {} | Op::ExpertBias {} => Some(Self::Bias),
            Op::SiluMulPairs { block, .. } | Op::SwigluClampedPairs { block, .. } => {
                (Some(block) == target.gate_up_block).then_some(Self::Pairs)
            }
            Op::Add {} => Some(Self::Residual),
            Op::Cast { to } => to.is_float().then_some(Self::Cast),
            Op::Argmax {} => Some(Self::Argmax),
            Op::TopK { .. } => Some(Self::TopK),
            _ => None,
        }
    }

    /// Whether it may come after `self`, on a value of type f32 or not.
    fn leads_to(self, next: Self) -> bool {
        match next {
            Self::Argmax | Self::TopK => self <= Self::Bias,
            _ => self < next,
        }
    }
}

/// The product that `root` does something with, through other such ops.
fn origin(func: &Func, root: NodeId, target: &TargetInfo) -> Result<(NodeId, Product), Decline> {
    let mut node = root;
    let mut step = Step::of(&func.nodes[node], target).ok_or(Decline::NoMatch)?;
    loop {
        let before = func.nodes[node].args.iter().take(if step == Step::Residual { 2 } else { 1 });
        let earlier = |&value: &ValueId| {
            let (id, made) = producer(func, value).ok()?;
            if let Some(product) = Product::of(&made.op) {
                return Some((id, Step::Product, Some(product)));
            }
            let before = Step::of(made, target).filter(|before| before.leads_to(step))?;
            Some((id, before, None))
        };
        // Of two sums that meet, a product comes first.
        let mut found: Vec<_> = before.filter_map(earlier).collect();
        found.sort_by_key(|(_, step, _)| *step);
        match found.first() {
            Some(&(id, _, Some(product))) => return Ok((id, product)),
            Some(&(id, before, None)) => (node, step) = (id, before),
            None => return Err(Decline::NoMatch),
        }
    }
}

/// The only reader of what `node` makes, if it may follow; of readers that compare, the next.
fn follower(func: &Func, node: NodeId, step: Step, target: &TargetInfo) -> Option<(NodeId, Step)> {
    // Those that compare read the same value, one after the other.
    let value = match step {
        Step::Argmax | Step::TopK => func.nodes[node].args[0],
        _ => func.nodes[node].outs[0],
    };
    if step <= Step::Bias || step >= Step::Argmax {
        let compares = |n: &NodeId| Some((*n, Step::of(&func.nodes[*n], target)?));
        let later = func.users(value).filter_map(|n| compares(&n));
        let later = later.filter(|&(_, next)| next >= Step::Argmax && next > step);
        let next = later.min_by_key(|&(_, next)| next);
        if next.is_some() || step >= Step::Argmax {
            return next;
        }
    }
    let reader = func.users(value).next().filter(|_| func.uses(value) == 1)?;
    let next = Step::of(&func.nodes[reader], target).filter(|&next| step.leads_to(next))?;
    let args = &func.nodes[reader].args;
    let ty = &func.values[value].ty;
    let fits = match next {
        Step::Residual => ty.rank() == 2 && ty.dtype == DType::F32,
        Step::Cast | Step::Bias => args[0] == value && ty.dtype == DType::F32,
        _ => args[0] == value,
    };
    fits.then_some((reader, next))
}
