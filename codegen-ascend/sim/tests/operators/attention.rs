//! Attention to chosen keys.

use crate::support::*;
use acl::Value::{self, Bool as Flag, Float, Int, Text};

/// A paged memory of rows, and where row `j` of sequence `s` lies in it.
struct Paged {
    memory: Tensor,
    table: Tensor,
}

const BLOCK: usize = 16;
const BLOCKS: usize = 9;

impl Paged {
    fn new(rng: &mut Rng, width: usize) -> Self {
        let memory =
            Tensor::new(BF16, &[BLOCKS, BLOCK, 1, width], &rng.reals(BLOCKS * BLOCK * width));
        // Two sequences whose blocks are mixed.
        let table = Tensor::new(I32, &[2, 3], &[4.0, 0.0, 7.0, 2.0, 8.0, 1.0]);
        Self { memory, table }
    }

    fn row(&self, sequence: usize, j: usize) -> Vec<f64> {
        let block = self.table.values()[sequence * 3 + j / BLOCK] as usize;
        let width = self.memory.dims[3];
        self.memory.values()[(block * BLOCK + j % BLOCK) * width..][..width].to_vec()
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn text(value: &'static std::ffi::CStr) -> Value {
    Text(value.as_ptr())
}

#[test]
fn the_best_keys_are_found_among_those_that_may_be_seen() {
    let mut rng = Rng::new(42);
    let (tokens, chosen) = (3, 24);
    let q = Tensor::new(BF16, &[tokens, 64, 128], &rng.reals(tokens * 64 * 128));
    let paged = Paged::new(&mut rng, 128);
    let weights = Tensor::new(BF16, &[tokens, 64], &rng.reals(tokens * 64));
    let ends = Tensor::new(I32, &[2], &[2.0, 3.0]);
    let lengths = Tensor::new(I32, &[2], &[37.0, 11.0]);
    let out = Tensor::out(I32, &[tokens, 1, chosen]);
    let mut args = [
        q.value(),
        paged.memory.value(),
        weights.value(),
        ends.value(),
        lengths.value(),
        paged.table.value(),
        text(c"TND"),
        text(c"PA_BSND"),
        Int(chosen as i64),
        Int(3),
        Int(i64::MAX),
        Int(i64::MAX),
        Flag(false),
        out.value(),
        NONE,
    ];
    run("LightningIndexer", &args);
    let (qs, w, got) = (q.values(), weights.values(), out.values());
    // Token 0 is the last but one of its sequence: it sees one key less.
    for (t, sequence, visible) in [(0, 0, 36), (1, 0, 37), (2, 1, 11)] {
        let score = |j: usize| -> f64 {
            let key = paged.row(sequence, j);
            let head = |h: usize| w[t * 64 + h] * dot(&qs[(t * 64 + h) * 128..], &key).max(0.0);
            (0..64).map(head).sum()
        };
        let mut order: Vec<usize> = (0..visible).collect();
        let scores: Vec<f64> = order.iter().map(|&j| score(j)).collect();
        order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
        order.truncate(chosen);
        let mut want: Vec<f64> = order.iter().map(|&j| j as f64).collect();
        want.resize(chosen, -1.0);
        assert_eq!(got[t * chosen..][..chosen], want);
    }
    args[8] = Int(2049);
    refused("LightningIndexer", &args, 161002, "sparse_count: 2049");
    args[6] = text(c"BNSD");
    refused("LightningIndexer", &args, 161002, "layout_query: BNSD");
}

#[test]
fn attention_goes_to_the_listed_keys_alone() {
    let mut rng = Rng::new(43);
    let (tokens, heads, listed) = (3, 2, 8);
    let q = Tensor::new(BF16, &[tokens, heads, 512], &rng.reals(tokens * heads * 512));
    let q_rope = Tensor::new(BF16, &[tokens, heads, 64], &rng.reals(tokens * heads * 64));
    let latent = Paged::new(&mut rng, 512);
    let rope = Paged::new(&mut rng, 64);
    let lists = [
        [36.0, 0.0, 5.0, 20.0, -1.0, -1.0, -1.0, -1.0],
        [36.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0],
        [10.0, -1.0, -1.0, -1.0, -1.0, -1.0, -1.0, -1.0],
    ];
    let chosen = Tensor::new(I32, &[tokens, 1, listed], &lists.concat());
    let ends = Tensor::new(I32, &[2], &[2.0, 3.0]);
    let lengths = Tensor::new(I32, &[2], &[37.0, 11.0]);
    let out = Tensor::out(BF16, &[tokens, heads, 512]);
    let mut args = [
        q.value(),
        latent.memory.value(),
        latent.memory.value(),
        chosen.value(),
        latent.table.value(),
        ends.value(),
        lengths.value(),
        q_rope.value(),
        rope.memory.value(),
        Float(0.05),
        Int(1),
        text(c"TND"),
        text(c"PA_BSND"),
        Int(3),
        Int(i64::MAX),
        Int(i64::MAX),
        Int(2),
        Flag(false),
        out.value(),
        NONE,
        NONE,
    ];
    run("SparseFlashAttention", &args);
    let (qs, rs, got) = (q.values(), q_rope.values(), out.values());
    for (t, sequence, visible) in [(0, 0, 36), (1, 0, 37), (2, 1, 11)] {
        let keys: Vec<usize> =
            lists[t].iter().filter(|&&j| j >= 0.0).map(|&j| j as usize).collect();
        let keys: Vec<usize> = keys.into_iter().filter(|&j| j < visible).collect();
        for h in 0..heads {
            let score = |&j: &usize| {
                let own = dot(&qs[(t * heads + h) * 512..], &latent.row(sequence, j));
                let rotated = dot(&rs[(t * heads + h) * 64..], &rope.row(sequence, j));
                ((own + rotated) * 0.05).exp()
            };
            let powers: Vec<f64> = keys.iter().map(score).collect();
            let sum: f64 = powers.iter().sum();
            let mut want = vec![0.0; 512];
            for (p, &j) in powers.iter().zip(&keys) {
                want.iter_mut().zip(latent.row(sequence, j)).for_each(|(w, v)| *w += p / sum * v);
            }
            near(&got[(t * heads + h) * 512..][..512], &want, tolerance(BF16));
        }
    }
    args[16] = Int(0);
    refused("SparseFlashAttention", &args, 161002, "attention_mode");
    args[16] = Int(2);
    args[10] = Int(3);
    refused("SparseFlashAttention", &args, 161002, "sparse_block_size: 3");
    args[7] = NONE;
    refused("SparseFlashAttention", &args, 161002, "query_rope: is needed");
}
