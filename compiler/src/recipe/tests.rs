//! Recipes against the interpreter, and any range of rows against the whole.

use super::*;
use ir::{Dim, Dims, Func, Op, TensorType, ValueDef, ValueId, interp};
use proptest::prelude::*;
use std::cell::RefCell;
use tensor::{TensorInfo, WeightError, WeightSource};

/// Bytes by name.
#[derive(Default)]
struct Memory(HashMap<String, Vec<u8>>);

impl WeightSource for Memory {
    fn info(&self, _: &str) -> Option<&TensorInfo> {
        None
    }
    fn read(&self, name: &str, start: u64, out: &mut [u8]) -> Result<(), WeightError> {
        let bytes = &self.0[name];
        out.copy_from_slice(&bytes[start as usize..start as usize + out.len()]);
        Ok(())
    }
}

/// Numbers that decide what comes next; zeros at the end.
struct Choices<'a>(RefCell<std::slice::Iter<'a, u8>>);

impl Choices<'_> {
    fn below(&self, n: u64) -> u64 {
        let mut bytes = self.0.borrow_mut();
        let mut next = || u64::from(bytes.next().copied().unwrap_or(0));
        (next() << 8 | next()) % n.max(1)
    }

    fn of<T: Clone>(&self, items: &[T]) -> T {
        items[self.below(items.len() as u64) as usize].clone()
    }
}

const FLOATS: [DType; 3] = [DType::F32, DType::BF16, DType::F16];

/// A function over random weights, whose results are all its values.
struct Program<'a> {
    func: Func,
    source: Memory,
    choices: Choices<'a>,
    seed: u64,
}

impl<'a> Program<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        let choices = Choices(RefCell::new(bytes.iter()));
        Self { func: Func::new("f"), source: Memory::default(), choices, seed: 1 }
    }

    fn weight(&mut self, dtype: DType, dims: &[u64]) -> ValueId {
        let name = format!("w{}", self.func.weights.len());
        let mut next = || {
            self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (self.seed >> 33) as u32
        };
        let elements: u64 = dims.iter().product();
        let mut raw = Vec::new();
        while (raw.len() as u64) < dtype.bytes_for(elements) {
            let small = (next() % 256) as i32 - 128;
            match dtype {
                d if FLOATS.contains(&d) => {
                    values::store(d, &[small as f32 / 16.0], &mut raw).unwrap();
                }
                DType::I32 => raw.extend(small.to_le_bytes()),
                DType::I64 => raw.extend(i64::from(small).to_le_bytes()),
                // Exponents near that of 1, and no code that is no number.
                DType::U8 => raw.push(120 + (next() % 14) as u8),
                DType::F8E4M3 => raw.push((next() % 256) as u8 & 0xf7),
                _ => raw.push((next() % 256) as u8),
            }
        }
        self.source.0.insert(name.clone(), raw);
        self.func.weight(&name, TensorType::new(dtype, dims.iter().copied().map(Dim::Const)))
    }

    fn values(&self) -> Vec<ValueId> {
        let outs = self.func.order.iter().flat_map(|&n| &self.func.nodes[n].outs);
        self.func.weights.iter().chain(outs).copied().collect()
    }

    fn dims(&self, x: ValueId) -> Vec<u64> {
        self.func.values[x].ty.const_dims().unwrap()
    }

    /// Adds a random op, unless what it makes is no constant that is stored.
    fn step(&mut self) {
        let x = self.choices.of(&self.values());
        let (dims, dtype) = (self.dims(x), self.func.values[x].ty.dtype);
        let (elements, cols) = (dims.iter().product::<u64>(), *dims.last().unwrap());
        let number = FLOATS.contains(&dtype);
        let any = |n: u64| self.choices.below(n);
        let divisor = |n: u64| {
            let all: Vec<u64> = (1..=n).filter(|d| n.is_multiple_of(*d)).collect();
            self.choices.of(&all)
        };
        let mut args = vec![x];
        let op = match any(17) {
            0 => {
                Op::Cast { to: self.choices.of(&[DType::F32, DType::BF16, DType::I8, DType::I32]) }
            }
            1 | 2 => {
                let rows = elements / cols;
                let (a, b) = (divisor(rows), divisor(elements));
                let dims = match any(4) {
                    0 => vec![elements],
                    1 => vec![a, rows / a, cols],
                    2 => vec![rows, cols],
                    _ => vec![b, elements / b],
                };
                Op::Reshape { dims: Dims(dims.into_iter().map(Dim::Const).collect()) }
            }
            3 | 4 => {
                let axis = any(dims.len() as u64);
                let start = any(dims[axis as usize]);
                Op::Slice { axis, start, len: 1 + any(dims[axis as usize] - start) }
            }
            5 => {
                let ty = &self.func.values[x].ty;
                let like = |v: &ValueId| self.func.values[*v].ty == *ty;
                let alike: Vec<ValueId> = self.values().into_iter().filter(like).collect();
                args.extend((0..any(3)).map(|_| self.choices.of(&alike)));
                if any(2) == 0 { Op::Stack {} } else { Op::Concat { axis: any(dims.len() as u64) } }
            }
            6 if dims.len() >= 2 => {
                args.push(x);
                Op::Interleave { block: divisor(dims[dims.len() - 2]) }
            }
            7 => Op::Transpose {},
            8 if dims.len() == 2 => {
                let times = 1 + any(4);
                Op::RepeatRows { times, rows: dims[0] * times - any(times) }
            }
            9 if number => Op::AddScalar { value: any(64) as f32 / 7.0 - 4.0 },
            10 if number => {
                let bits = self.choices.of(&[8, 4]);
                Op::QuantizeWeight { bits, group: divisor(cols) }
            }
            11 | 12 if !number && dims.len() >= 2 => {
                let group = 1 + any(cols);
                let out = self.choices.of(&FLOATS);
                let mut of_scale = dims.clone();
                *of_scale.last_mut().unwrap() = cols.div_ceil(group);
                let exponents = dtype == DType::MxFp4;
                let scale = if exponents { DType::U8 } else { DType::F32 };
                args.push(self.weight(scale, &of_scale));
                Op::Dequantize { group, out }
            }
            13 if number => self.choices.of(&[Op::Silu {}, Op::Sigmoid {}]),
            14 => {
                let ty = &self.func.values[x].ty;
                let like = |v: &ValueId| self.func.values[*v].ty == *ty;
                let alike: Vec<ValueId> = self.values().into_iter().filter(like).collect();
                args.push(self.choices.of(&alike));
                self.choices.of(&[Op::Add {}, Op::Mul {}])
            }
            15 => self.choices.of(&[
                Op::Argmax {},
                Op::QuantizeRows {},
                Op::QuantizeFp8 { group: divisor(cols), power_of_two: cols > 4 },
            ]),
            16 => {
                args.push(self.choices.of(&self.values()));
                self.choices.of(&[
                    Op::Matmul { out: DType::BF16 },
                    Op::ScaleRows {},
                    Op::AddBias {},
                ])
            }
            _ => return,
        };
        let Ok(types) = self.func.infer(&op, &args) else { return };
        let stored = types.iter().all(|ty| {
            let dims = ty.const_dims().unwrap();
            let whole = ty.dtype.bits() >= 8 || dims.last().unwrap().is_multiple_of(2);
            whole && dims.iter().product::<u64>() <= 2048
        });
        if stored {
            self.func.append(op, &args, "").unwrap();
        }
    }
}

fn f64s(dtype: DType, raw: &[u8]) -> Vec<f64> {
    computed::exact(dtype, raw).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Every value of random constant programs is what the interpreter computes, and any range of
    /// its rows is cut from the whole.
    #[test]
    fn recipes_are_what_the_interpreter_computes(
        dims in prop::collection::vec(1..6u64, 1..3),
        cols in 1..7u64,
        which in 0..8usize,
        bytes in prop::collection::vec(any::<u8>(), 0..160),
        cut in (0..10_000u64, 0..10_000u64),
    ) {
        let mut program = Program::new(&bytes);
        let types = [
            DType::F32, DType::BF16, DType::F16, DType::I8, DType::I4, DType::F8E4M3,
            DType::MxFp4, DType::I64,
        ];
        let dims: Vec<u64> = dims.into_iter().chain([2 * cols]).collect();
        program.weight(types[which], &dims);
        program.weight(DType::BF16, &dims);
        for _ in 0..10 {
            program.step();
        }
        let values = program.values();
        let Program { mut func, source, .. } = program;
        func.set_results(values);
        func.verify().unwrap();

        let weights = |name: &str| {
            let weight = func.weight_of(name).unwrap();
            let ty = &func.values[weight].ty;
            let dims = ty.const_dims().unwrap().into_iter().map(|d| d as usize).collect();
            interp::Tensor::new(ty.dtype, dims, f64s(ty.dtype, &source.0[name]))
        };
        let expected = interp::run(&func, &[], &weights, &Default::default()).unwrap();

        let mut recipes = Recipes::default();
        let constants = constants(&func, &mut recipes).unwrap();
        prop_assert!(constants.func.order.is_empty());
        let mut reader = Reader::new(&recipes, &source);
        for (&result, expected) in constants.func.results.iter().zip(&expected) {
            let packed = constants.packed(result).unwrap();
            let dims: Vec<u64> = expected.dims().iter().map(|&d| d as u64).collect();
            prop_assert_eq!(&packed.dims, &dims);
            let Entry { rows, cols, dtype, .. } = *recipes.get(packed.recipe);
            prop_assert_eq!((rows * cols, dtype), (dims.iter().product(), expected.dtype()));
            let mut whole = Vec::new();
            reader.read(packed.recipe, 0, rows, &mut whole).unwrap();
            let found = f64s(dtype, &whole);
            let same = |(a, b): (&f64, &f64)| a == b || a.is_nan() && b.is_nan();
            let all = found.len() == expected.data().len()
                && found.iter().zip(expected.data()).all(same);
            prop_assert!(all, "{} {found:?} {expected:?}", recipes.text(packed.recipe));
            let start = cut.0 % rows;
            let count = cut.1 % (rows - start + 1);
            let mut part = Vec::new();
            reader.read(packed.recipe, start, count, &mut part).unwrap();
            let row_bytes = dtype.bytes_for(cols);
            let (begin, end) = (start * row_bytes, (start + count) * row_bytes);
            prop_assert_eq!(
                part, &whole[begin as usize..end as usize], "{}", recipes.text(packed.recipe)
            );
        }
    }
}

/// `text` with its constants taken out.
fn parsed(text: &str) -> Result<(Constants, Recipes), crate::CompileError> {
    let func = ir::text::parse("test.ir", text).unwrap().funcs.remove(0);
    let mut recipes = Recipes::default();
    Ok((constants(&func, &mut recipes)?, recipes))
}

#[test]
fn run_time_ops_read_single_weights() {
    let (constants, recipes) = parsed(
        "func @f(%x: f32[T,4]) {
  weight %a : bf16[2,4]
  weight %b : bf16[2,4]
  %a32 = cast %a {to = f32} : f32[2,4]
  %b32 = cast %b {to = f32} : f32[2,4]
  %w = concat %a32, %b32 {axis = 0} : f32[4,4]
  %packed = relayout %w {layout = panels} : f32[4,4] panels
  %y = matmul %x, %packed {out = f32} : f32[T,4]
  %z = matmul %y, %packed {out = f32} : f32[T,4]
  return %z
}
",
    )
    .unwrap();
    let text = ir::text::print(&constants.func);
    constants.func.verify().unwrap();
    assert_eq!(constants.func.order.len(), 3, "{text}");
    assert!(text.contains("%y = matmul %x, ") && text.contains("return %z"), "{text}");
    let weight = constants.func.nodes[constants.func.order[2]].args[1];
    let packed = constants.packed(weight).unwrap();
    assert_eq!(recipes.text(packed.recipe), "rows(f32(a), f32(b))");
    assert_eq!((packed.layout, &packed.dims[..]), (Layout::Panels, &[4, 4][..]));
}

#[test]
fn equal_expressions_are_one_recipe() {
    let (constants, recipes) = parsed(
        "func @f(%x: f32[4]) {
  weight %a : f32[2,2,2]
  %one = reshape %a {dims = [4,2]} : f32[4,2]
  %two = reshape %a {dims = [2,4]} : f32[2,4]
  %back = reshape %two {dims = [4,2]} : f32[4,2]
  return %x, %one, %back
}
",
    )
    .unwrap();
    let id = |i: usize| constants.packed(constants.func.results[i]).unwrap().recipe;
    assert_eq!(id(1), id(2));
    assert_eq!(recipes.text(id(1)), "a");
}

#[test]
fn what_is_no_recipe_is_named() {
    let odd = "func @f(%x: f32[4]) {\n  weight %codes : i4[2,3]\n  return %x, %codes\n}\n";
    let error = parsed(odd).unwrap_err().to_string();
    assert!(error.contains("%codes cannot be packed: has rows of an odd number"), "{error}");
    let op = |op: &str, n: u64| {
        let ty = format!("f32[{n}]");
        let text = format!(
            "func @f(%x: {ty}) {{\n  weight %a : {ty}\n  %s = {op} : {ty}\n  \
             %y = add %x, %s : {ty}\n  return %y\n}}\n"
        );
        parsed(&text).map(|(constants, recipes)| {
            let add = &constants.func.nodes[constants.func.order[0]];
            recipes.text(constants.packed(add.args[1]).unwrap().recipe)
        })
    };
    let sum = op("all_reduce %a {group = tp}", 4).unwrap_err().to_string();
    assert!(sum.contains("%s cannot be packed: `all_reduce` is not evaluated"), "{sum}");
    assert_eq!(op("silu %a", 65_536).unwrap(), "silu(a)");
    let large = op("silu %a", 65_537).unwrap_err().to_string();
    assert!(large.contains("`silu` of more than 65536 elements is not evaluated"), "{large}");
}

/// Rows of three 4-bit codes would not be whole bytes.
#[test]
fn odd_rows_are_cut_after_codes_are_converted() {
    let (constants, recipes) = parsed(
        "func @f(%x: f32[4]) {
  weight %a : bf16[3,8]
  %codes, %scales = quantize_weight %a {bits = 4, group = 2} : i4[3,8], f32[3,4]
  %wide = cast %codes {to = i8} : i8[3,8]
  %odd = reshape %wide {dims = [8,3]} : i8[8,3]
  %even = reshape %wide {dims = [6,4]} : i8[6,4]
  return %x, %odd, %even
}
",
    )
    .unwrap();
    let text = |i: usize| recipes.text(constants.packed(constants.func.results[i]).unwrap().recipe);
    assert_eq!(text(1), "refold3(i8(i4_codes2(a)))");
    assert_eq!(text(2), "i8(refold4(i4_codes2(a)))");
}

/// The stack of many experts is read without visiting the others.
#[test]
fn a_row_of_a_stack_reads_one_part() {
    struct Counting(std::cell::Cell<u32>);
    impl WeightSource for Counting {
        fn info(&self, _: &str) -> Option<&TensorInfo> {
            None
        }
        fn read(&self, name: &str, start: u64, out: &mut [u8]) -> Result<(), WeightError> {
            assert_eq!((name, start, out.len()), ("e.200", 8, 8));
            self.0.set(self.0.get() + 1);
            Ok(())
        }
    }
    let mut func = Func::new("f");
    let ty = TensorType::new(DType::BF16, [Dim::Const(3), Dim::Const(4)]);
    let parts: Vec<ValueId> =
        (0..256).map(|e| func.weight(&format!("e.{e}"), ty.clone())).collect();
    let node = func.append(Op::Stack {}, &parts, "stack").unwrap();
    let out = func.nodes[node].outs[0];
    func.set_results(vec![out]);
    let mut recipes = Recipes::default();
    let constants = constants(&func, &mut recipes).unwrap();
    let weights = &constants.func.weights;
    assert!(matches!(&constants.func.values[weights[0]].def, ValueDef::Weight(n) if n == "stack"));
    let recipe = constants.packed(constants.func.results[0]).unwrap().recipe;
    assert_eq!(recipes.text(recipe), "rows(e.{0..255})");
    let source = Counting(std::cell::Cell::new(0));
    let mut out = Vec::new();
    Reader::new(&recipes, &source).read(recipe, 601, 1, &mut out).unwrap();
    assert_eq!(source.0.get(), 1);
}

#[test]
fn codes_of_four_bits_in_a_wider_type_are_told_apart() {
    let text = "func @f(%x: f32[4]) {
  weight %four : i4[2,4]
  weight %eight : i8[2,4]
  %wide = cast %four {to = i8} : i8[2,4]
  %same = cast %eight {to = i32} : i32[2,4]
  return %x, %four, %wide, %same
}
";
    let (constants, recipes) = parsed(text).unwrap();
    let widens = |i: usize| {
        let value = constants.func.results[i];
        recipes.widens(constants.packed(value).unwrap().recipe)
    };
    assert_eq!([widens(1), widens(2), widens(3)], [false, true, false]);
}
