//! What comes before latent attention, in the sizes of released models: the pass rearranges weights,
//! the operator reads them, and the results are those of the plain ops.

use crate::support::{Sim, options};
use artifact::{BufferRef, Space};
use compiler::{arrange, single};
use hal::{Device, MemoryRequest};
use half::bf16;
use ir::{
    Bindings, DType, Func, Layout, Op, Storage, Symbol, TensorType, ValueId,
    interp::{self, Tensor},
    text,
};
use passes::{Catalog, Options};
use precast_codegen_ascend::{
    chip::chip,
    device::{AscendDevice, AscendOptions},
    target::AscendTarget,
};
use std::{collections::HashMap, path::PathBuf};

/// One projection after another, the down projections joined: 1024 columns, 2 heads, 3 rows.
const TEXT: &str = include_str!("../../../tests/filetests/passes/fuse-mla-prolog.ir");

/// Numbers between -1 and 1 that depend on `name`, as bf16.
fn drawn(name: &str, dtype: DType, dims: &[u64], size: f64) -> Tensor {
    let mut state = name.bytes().fold(7u64, |h, b| h.wrapping_mul(31).wrapping_add(u64::from(b)));
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let unit = (state >> 33) as f64 / f64::from(1u32 << 30) - 1.0;
        bf16::from_f64(unit * size).to_f64()
    };
    let data = (0..dims.iter().product()).map(|_| next()).collect();
    Tensor::new(dtype, dims.iter().map(|&d| d as usize).collect(), data)
}

fn weight(func: &Func, name: &str) -> Tensor {
    let ty = &func.values[func.weight_of(name).unwrap()].ty;
    let dims = ty.const_dims().unwrap();
    // Sums over a row stay near 1; weights of norms are near 1 themselves.
    let size = if dims.len() > 1 { (4.0 / dims[dims.len() - 1] as f64).sqrt() } else { 1.0 };
    drawn(name, ty.dtype, &dims, size)
}

fn input(name: &str, ty: &TensorType) -> Tensor {
    let dims = ty.const_dims().unwrap();
    match name {
        // In another order than the rows, and in both blocks.
        "slots" => Tensor::new(DType::I32, vec![3], vec![17.0, 0.0, 5.0]),
        "positions" => Tensor::new(DType::I32, vec![3], vec![0.0, 1.0, 2.0]),
        "table" => Tensor::new(DType::I32, vec![3, 1], vec![0.0, 1.0, 0.0]),
        _ => drawn(name, ty.dtype, &dims, 1.0),
    }
}

fn named(func: &Func, name: &str) -> ValueId {
    let mut values = func.order.iter().flat_map(|&n| &func.nodes[n].outs);
    *values.find(|&&v| func.values[v].name == name).unwrap()
}

/// The values `results` of `func`.
fn interpreted(func: &Func, results: Vec<ValueId>) -> Vec<Tensor> {
    let mut func = func.clone();
    func.set_results(results);
    let inputs: Vec<Tensor> =
        func.params.iter().map(|&p| input(&func.values[p].name, &func.values[p].ty)).collect();
    interp::run(&func, &inputs, &|name| weight(&func, name), &Bindings::new()).unwrap()
}

fn encoded(tensor: &Tensor, ty: &TensorType) -> Vec<u8> {
    let data = tensor.data().iter();
    let dense: Vec<u8> = match ty.dtype {
        DType::BF16 => data.flat_map(|&x| bf16::from_f64(x).to_le_bytes()).collect(),
        DType::I64 => data.flat_map(|&x| (x as i64).to_le_bytes()).collect(),
        other => panic!("{other}"),
    };
    match (ty.layout, tensor.dims()) {
        (Layout::Nd, _) => dense,
        (layout, &[rows, cols]) => arrange(&dense, rows as u64, cols as u64, ty.dtype, layout),
        (layout, dims) => panic!("{dims:?} in {layout}"),
    }
}

#[test]
fn one_operator_prepares_latent_attention() {
    let _sim = Sim::new();
    let target = AscendTarget::new(chip("ascend910_93").unwrap());
    let (before, _) = TEXT.split_once("; ==== after").unwrap();
    let before = text::parse("latent.ir", before).unwrap();
    let mut after = before.clone();
    let stages = Catalog::builtin().pipeline_of(&["fuse-mla-prolog"]).unwrap();
    let info = compiler::Target::info(&target);
    passes::run(&mut after, &stages, &mut Options::default(), &info).unwrap();
    let sizes = [("T", 3), ("NB", 2), ("W", 1)].map(|(s, n)| (Symbol::new(s), n)).into();
    let [before, after] =
        [&before, &after].map(|m| passes::specialise(&m.funcs[0], &sizes).unwrap());
    let fused = |op: &Op| matches!(op, Op::Fused { body } if body.kind() == "mla_prolog");
    let node = after.order.iter().map(|&n| &after.nodes[n]).find(|n| fused(&n.op)).unwrap();

    let mut case = Func::new("case");
    let ty = |v: ValueId| after.values[v].ty.clone();
    let params: Vec<ValueId> =
        node.args.iter().enumerate().map(|(i, &a)| case.param(&format!("p{i}"), ty(a))).collect();
    let added = case.append(node.op.clone(), &params, "r").unwrap();
    case.set_results(case.nodes[added].outs.clone());
    let single = single(&case, &target).unwrap();
    assert_eq!(single.plan.kernels, ["aclnnMlaPrologV2WeightNz"]);

    // A plan that is run once before would leave zeros in the memories.
    let mut device = AscendDevice::open(AscendOptions { warm_up: false, ..options() }).unwrap();
    let weights = crate::support::weights(8);
    let (arena_bytes, state_bytes) = (single.plan.arena_bytes, single.state_bytes);
    device.load(MemoryRequest { root: PathBuf::new(), weights, arena_bytes, state_bytes }).unwrap();
    let graph = hal::capture(&mut device, &single.plan).unwrap();
    let states: Vec<BufferRef> = single
        .states
        .iter()
        .map(|s| BufferRef { space: Space::State, offset: s.offset, bytes: s.bytes })
        .collect();
    let (mut ports, mut memories) = (single.plan.inputs.iter(), states.iter());
    // Parameters are known already, and what is made of them is interpreted.
    let computed: Vec<ValueId> =
        node.args.iter().copied().filter(|&a| after.def_node(a).is_some()).collect();
    let made: HashMap<ValueId, Tensor> =
        computed.iter().copied().zip(interpreted(&after, computed.clone())).collect();
    for &arg in &node.args {
        let ty = ty(arg);
        let tensor = made.get(&arg).cloned();
        let tensor = tensor.unwrap_or_else(|| input(&after.values[arg].name, &ty));
        let at = match ty.storage {
            Storage::State => *memories.next().unwrap(),
            _ => ports.next().unwrap().at,
        };
        device.write(at, &encoded(&tensor, &ty));
    }
    device.replay(&graph).unwrap();

    let names = ["l0.q_latent", "l0.q_rotary", "l0.latent", "l0.rope_key"];
    let expected = interpreted(&before, names.map(|n| named(&before, n)).to_vec());
    let outputs = single.plan.outputs.iter().map(|p| p.at).chain(states);
    for ((name, expected), at) in names.into_iter().zip(expected).zip(outputs) {
        let mut bytes = vec![0; expected.data().len() * 2];
        device.read(BufferRef { bytes: bytes.len() as u64, ..at }, &mut bytes).unwrap();
        let found = bytes.as_chunks::<2>().0.iter().map(|&b| bf16::from_le_bytes(b).to_f64());
        let largest = expected.data().iter().fold(0.0f64, |m, x| m.max(x.abs()));
        assert!(largest > 0.5, "{name}: {largest} says little");
        let apart = found.zip(expected.data()).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(apart <= largest / 64.0, "{name} is off by {apart} of {largest}");
    }
}
