//! A captured plan of a fake model.

use super::FakeModel;
use artifact::{BufferRef, Scalar};

/// A captured plan of a fake model.
#[derive(Clone, Debug)]
pub struct FakeGraph {
    pub(super) call: Call,
    /// Inputs, which a replay spoils.
    pub(super) inputs: Vec<BufferRef>,
}

#[derive(Clone, Debug)]
pub(super) enum Call {
    Feed(Feed),
    Head(Head),
}

/// Logits and the most probable tokens.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outputs {
    pub(super) logits: BufferRef,
    pub(super) argmax: BufferRef,
    /// Logits and ids of several.
    pub(super) top: Option<(BufferRef, BufferRef)>,
}

impl Outputs {
    fn of(model: &FakeModel, left: &mut dyn Iterator<Item = BufferRef>) -> Option<Self> {
        let (logits, argmax) = (left.next()?, left.next()?);
        let top = match model.found() {
            0 => None,
            _ => Some((left.next()?, left.next()?)),
        };
        Some(Self { logits, argmax, top })
    }
}

/// Decode or prefill.
#[derive(Clone, Debug)]
pub(super) struct Feed {
    pub(super) rows: usize,
    pub(super) table_width: usize,
    pub(super) token_ids: BufferRef,
    pub(super) positions: BufferRef,
    pub(super) kv: Paged,
    pub(super) window: Option<Paged>,
    /// Slots of the rows, and the memory.
    pub(super) recurrent: Option<(BufferRef, BufferRef)>,
    pub(super) to: FeedTo,
}

/// A memory in blocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Paged {
    pub(super) slots: BufferRef,
    pub(super) table: BufferRef,
    pub(super) state: BufferRef,
}

/// Where hidden states go: decode makes logits of them.
#[derive(Clone, Copy, Debug)]
pub(super) enum FeedTo {
    Outputs(Outputs),
    Hidden(BufferRef),
}

#[derive(Clone, Debug)]
pub(super) struct Head {
    pub(super) count: usize,
    pub(super) rows: BufferRef,
    pub(super) past: Option<Past>,
    pub(super) hidden: BufferRef,
    pub(super) outputs: Outputs,
}

/// What a head looks back at.
#[derive(Clone, Copy, Debug)]
pub(super) struct Past {
    pub(super) positions: BufferRef,
    pub(super) table: BufferRef,
    pub(super) table_width: usize,
    pub(super) state: BufferRef,
}

impl Feed {
    pub(super) fn is_decode(&self) -> bool {
        matches!(self.to, FeedTo::Outputs(_))
    }
}

impl FakeGraph {
    /// The call of a plan of `model`; `None` for a kernel that no fake model has.
    pub(super) fn new(
        model: &FakeModel,
        kernel: &str,
        args: &[BufferRef],
        scalars: &[Scalar],
    ) -> Option<Result<Self, &'static str>> {
        let build = match kernel {
            "fake_decode" => Self::feed::<true>,
            "fake_prefill" => Self::feed::<false>,
            "fake_head" => Self::head,
            _ => return None,
        };
        let &[Scalar::Int(rows), Scalar::Int(width)] = scalars else {
            return Some(Err("expected rows and table width"));
        };
        let mut left = args.iter().copied();
        let graph = build(model, args, &mut left, (rows as usize, width as usize));
        let whole = graph.filter(|_| left.next().is_none());
        Some(whole.ok_or("wrong number of arguments"))
    }

    fn feed<const DECODE: bool>(
        model: &FakeModel,
        args: &[BufferRef],
        left: &mut dyn Iterator<Item = BufferRef>,
        (rows, table_width): (usize, usize),
    ) -> Option<Self> {
        let (token_ids, positions) = (left.next()?, left.next()?);
        let kv = (left.next()?, left.next()?);
        let window = match model.sliding_window {
            Some(_) => Some((left.next()?, left.next()?)),
            None => None,
        };
        let sequences = match model.sequence_slots {
            Some(_) => Some(left.next()?),
            None => None,
        };
        let inputs = 4 + 2 * usize::from(window.is_some()) + usize::from(sequences.is_some());
        let paged = |(slots, table), state| Paged { slots, table, state };
        let kv = paged(kv, left.next()?);
        let window = match window {
            Some(inputs) => Some(paged(inputs, left.next()?)),
            None => None,
        };
        let recurrent = match sequences {
            Some(sequences) => Some((sequences, left.next()?)),
            None => None,
        };
        let to = if DECODE {
            FeedTo::Outputs(Outputs::of(model, left)?)
        } else {
            FeedTo::Hidden(left.next()?)
        };
        let call =
            Call::Feed(Feed { rows, table_width, token_ids, positions, kv, window, recurrent, to });
        Some(Self { call, inputs: args[..inputs].to_vec() })
    }

    fn head(
        model: &FakeModel,
        args: &[BufferRef],
        left: &mut dyn Iterator<Item = BufferRef>,
        (count, table_width): (usize, usize),
    ) -> Option<Self> {
        let rows = left.next()?;
        let past = if model.head_attends() {
            let (positions, table, state) = (left.next()?, left.next()?, left.next()?);
            Some(Past { positions, table, table_width, state })
        } else {
            None
        };
        let inputs = if past.is_some() { 3 } else { 1 };
        let hidden = left.next()?;
        let outputs = Outputs::of(model, left)?;
        let call = Call::Head(Head { count, rows, past, hidden, outputs });
        Some(Self { call, inputs: args[..inputs].to_vec() })
    }
}
