use super::*;
use proptest::prelude::*;
use std::collections::HashMap;

const BLOCK: usize = 4;

/// A sequence as the scheduler treats it, without a device.
struct Runs {
    held: HeldBlocks,
    tokens: Vec<u32>,
    fed: usize,
}

#[derive(Clone, Debug)]
enum Op {
    /// A sequence that has this many tokens in common with all others, then some of its kind.
    Start { common: usize, kind: u32, len: usize },
    /// Feeds so many tokens, one at a time or at once, after a look at what others fed.
    Feed { which: usize, count: usize },
    /// It ends, leaves or is preempted.
    End { which: usize },
    /// Frees idle blocks, running sequences or not.
    Flush,
}

fn op() -> impl Strategy<Value = Op> {
    let start = (0usize..30, 0u32..3, 1usize..40).prop_map(|(common, kind, len)| Op::Start {
        common,
        kind,
        len,
    });
    let feed = (any::<usize>(), 1usize..20).prop_map(|(which, count)| Op::Feed { which, count });
    let end = any::<usize>().prop_map(|which| Op::End { which });
    prop_oneof![4 => start, 8 => feed, 2 => end, 1 => Just(Op::Flush)]
}

/// The blocks, who runs, and what the device's memory would hold: for each place the tokens up to it.
struct World {
    kv: KvBlocks,
    total: u32,
    runs: Vec<Runs>,
    memory: Vec<Vec<u32>>,
}

impl World {
    fn new(total: u32) -> Self {
        let memory = vec![Vec::new(); total as usize * BLOCK];
        Self { kv: KvBlocks::new(total, BLOCK, true), total, runs: Vec::new(), memory }
    }

    fn act(&mut self, op: &Op) {
        let pick = |which: &usize, of: &[Runs]| (!of.is_empty()).then(|| which % of.len());
        match op {
            Op::Start { common, kind, len } => {
                let tokens: Vec<u32> = (0..*len)
                    .map(|i| if i < *common { i as u32 } else { 1000 * (kind + 1) })
                    .collect();
                let (needed, end) = (len.div_ceil(BLOCK), len - 1);
                if self.kv.has_room(&tokens[..end], needed) {
                    let mut held = HeldBlocks::default();
                    let fed = self.kv.reuse(&mut held, &tokens[..end]);
                    assert!(self.kv.grow(&mut held, needed), "there was room");
                    self.runs.push(Runs { held, tokens, fed });
                }
            }
            Op::Feed { which, count } => {
                let Some(at) = pick(which, &self.runs) else { return };
                let run = &mut self.runs[at];
                let end = run.tokens.len() - 1;
                run.fed = run.fed.max(self.kv.reuse(&mut run.held, &run.tokens[..end]));
                let to = (run.fed + count).min(run.tokens.len());
                for place in run.fed..to {
                    let slot = run.held.blocks[place / BLOCK] as usize * BLOCK + place % BLOCK;
                    self.memory[slot] = run.tokens[..=place].to_vec();
                }
                run.fed = to;
                self.kv.share(&mut run.held, &run.tokens[..to]);
            }
            Op::End { which } => {
                let Some(at) = pick(which, &self.runs) else { return };
                let mut run = self.runs.swap_remove(at);
                self.kv.give_back(&mut run.held);
            }
            Op::Flush => {
                self.kv.flush();
            }
        }
    }

    /// Every block is free, or held, or cached and idle, and memory holds what each sequence fed.
    fn check(&self) {
        let cache = self.kv.prefix.as_ref().unwrap();
        let (mut own, mut shared) = (HashMap::new(), HashMap::new());
        for run in &self.runs {
            let (in_cache, rest) = run.held.blocks.split_at(run.held.shared);
            assert!(in_cache.len() * BLOCK <= run.fed && run.fed < (in_cache.len() + 1) * BLOCK);
            for (&block, tokens) in in_cache.iter().zip(run.tokens.chunks(BLOCK)) {
                *shared.entry(block).or_insert(0) += 1;
                assert!(cache.holds(block, tokens));
            }
            for &block in rest {
                assert!(own.insert(block, ()).is_none(), "block {block} has two owners");
            }
            for place in 0..run.fed {
                let slot = run.held.blocks[place / BLOCK] as usize * BLOCK + place % BLOCK;
                assert_eq!(self.memory[slot], run.tokens[..=place]);
            }
        }
        let mut kinds = vec![0; self.total as usize];
        let mut idle = 0;
        for (block, _, holders) in cache.cached() {
            assert_eq!(shared.get(&block).copied().unwrap_or(0), holders, "holders of {block}");
            kinds[block as usize] += 1;
            idle += usize::from(holders == 0);
        }
        own.keys().for_each(|&block| kinds[block as usize] += 1);
        let free = (0..self.total).filter(|&block| !self.kv.pool.is_taken(block));
        free.for_each(|block| kinds[block as usize] += 1);
        assert!(kinds.iter().all(|&kind| kind == 1), "each block is one thing: {kinds:?}");
        assert_eq!(self.kv.available(), self.kv.pool.free() + idle);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..Default::default() })]

    #[test]
    fn every_block_is_free_or_held_or_idle(
        total in 8u32..40,
        ops in prop::collection::vec(op(), 1..120),
    ) {
        let mut world = World::new(total);
        for op in &ops {
            world.act(op);
            world.check();
        }
        while !world.runs.is_empty() {
            world.act(&Op::End { which: 0 });
        }
        world.act(&Op::Flush);
        world.check();
        prop_assert_eq!(world.kv.pool.free(), total as usize);
    }
}

fn started(kv: &mut KvBlocks, tokens: &[u32]) -> (HeldBlocks, usize) {
    let mut held = HeldBlocks::default();
    let found = kv.reuse(&mut held, tokens);
    assert!(kv.grow(&mut held, tokens.len().div_ceil(BLOCK)));
    (held, found)
}

#[test]
fn what_is_taken_at_once_is_in_the_order_in_which_it_lies() {
    let mut kv = KvBlocks::new(4, BLOCK, true);
    let tokens: Vec<u32> = (0..3 * BLOCK as u32).collect();
    let (mut a, _) = started(&mut kv, &tokens);
    kv.share(&mut a, &tokens);
    kv.give_back(&mut a);
    let others: Vec<u32> = (100..100 + 4 * BLOCK as u32).collect();
    let (b, found) = started(&mut kv, &others);
    assert_eq!((b.blocks, found, kv.evicted()), (vec![0, 1, 2, 3], 0, 3));
}

#[test]
fn two_who_fed_the_same_keep_one_block() {
    let mut kv = KvBlocks::new(10, BLOCK, true);
    let tokens: Vec<u32> = (0..11).collect();
    let ((mut a, _), (mut b, _)) = (started(&mut kv, &tokens), started(&mut kv, &tokens));
    assert_eq!((&a.blocks[..], &b.blocks[..]), (&[0, 1, 2][..], &[3, 4, 5][..]));
    kv.share(&mut a, &tokens[..9]);
    kv.share(&mut b, &tokens[..7]);
    assert_eq!((&a.blocks[..], &b.blocks[..]), (&[0, 1, 2][..], &[0, 4, 5][..]));
    // The second need not feed the rest of its second block.
    assert_eq!(kv.reuse(&mut b, &tokens[..10]), 8);
    assert_eq!(b.blocks, [0, 1, 5]);
    assert_eq!(kv.available(), 6);
    kv.give_back(&mut a);
    assert_eq!((kv.available(), kv.cached()), (7, 0));
    kv.give_back(&mut b);
    assert_eq!((kv.available(), kv.cached()), (10, 2));
    assert_eq!((kv.flush(), kv.available(), kv.cached()), (2, 10, 0));
}

#[test]
fn room_counts_idle_blocks_and_what_others_hold() {
    let mut kv = KvBlocks::new(6, BLOCK, true);
    let tokens: Vec<u32> = (0..16).collect();
    let (mut a, _) = started(&mut kv, &tokens);
    kv.share(&mut a, &tokens);
    // Two are free; the four of `a` help only who begins alike.
    assert!(kv.has_room(&tokens, 6) && !kv.has_room(&tokens, 7));
    assert!(kv.has_room(&tokens[..11], 4) && !kv.has_room(&tokens[..11], 5));
    assert!(kv.has_room(&[7; 16], 2) && !kv.has_room(&[7; 16], 3));
    kv.give_back(&mut a);
    assert!(kv.has_room(&tokens, 6) && !kv.has_room(&tokens, 7), "idle ones are not had twice");
    assert!(kv.has_room(&[7; 16], 6));
    let (_, found) = started(&mut kv, &[7; 16]);
    assert_eq!((found, kv.evicted(), kv.available()), (0, 2, 2));
    let mut held = HeldBlocks::default();
    assert_eq!(kv.reuse(&mut held, &tokens), 8, "the deepest were let go first");
}

#[test]
fn without_the_cache_nothing_is_kept() {
    let mut kv = KvBlocks::new(4, BLOCK, false);
    let tokens = [1; 16];
    let (mut a, _) = started(&mut kv, &tokens);
    kv.share(&mut a, &tokens);
    assert!(!kv.has_room(&tokens, 1));
    kv.give_back(&mut a);
    assert_eq!((kv.available(), kv.cached(), kv.flush()), (4, 0, 0));
    assert_eq!(started(&mut kv, &tokens).1, 0);
}
