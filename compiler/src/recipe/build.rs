//! From the constant expressions of a function to recipes.

use super::{Entry, Id, Packed, Part, Recipe, Recipes, computed::computed};
use crate::CompileError;
use ir::{DType, EntityId, Func, Node, Op, TensorType, ValueDef, ValueId};
use std::collections::HashMap;

/// A function whose constants are single weights, and what those are made of.
///
/// Sizes of batches do not change constants, so they are taken out once for all plans: a checkpoint
/// may have a hundred times more tensors than a plan has steps.
#[derive(Debug)]
pub(crate) struct Constants {
    /// The function. A weight that is read in a layout keeps its relayout.
    pub(crate) func: Func,
    packed: HashMap<ValueId, Packed>,
}

impl Constants {
    /// How the constant `value` of the function, or of a specialisation of it, is stored.
    pub(crate) fn packed(&self, value: ValueId) -> Option<&Packed> {
        self.packed.get(&value)
    }
}

/// Takes the constant expressions out of `func`.
///
/// # Errors
/// [`CompileError::ConstantFolding`] when one that is read at run time is no recipe.
pub(crate) fn constants(func: &Func, recipes: &mut Recipes) -> Result<Constants, CompileError> {
    let mut is_const = vec![false; func.values.len()];
    for &w in &func.weights {
        is_const[w.index()] = true;
    }
    let mut extraction = Extraction {
        builder: Builder { func, recipes, known: HashMap::new() },
        out: Func::new(&func.name),
        moved: HashMap::new(),
        packed: HashMap::new(),
    };
    for &p in &func.params {
        let value = &func.values[p];
        let param = extraction.out.param(&value.name, value.ty.clone());
        extraction.moved.insert(p, param);
    }
    for &n in &func.order {
        let node = &func.nodes[n];
        let all_const = node.args.iter().all(|&a| is_const[a.index()]);
        if all_const && node.op.writes().is_empty() {
            node.outs.iter().for_each(|&o| is_const[o.index()] = true);
        } else {
            extraction.node(node)?;
        }
    }
    let results = func.results.iter().map(|&r| extraction.value(r)).collect::<Result<_, _>>()?;
    let Extraction { mut out, packed, .. } = extraction;
    out.set_results(results);
    Ok(Constants { func: out, packed })
}

struct Extraction<'a> {
    builder: Builder<'a>,
    out: Func,
    moved: HashMap<ValueId, ValueId>,
    packed: HashMap<ValueId, Packed>,
}

impl Extraction<'_> {
    fn node(&mut self, node: &Node) -> Result<(), CompileError> {
        let args =
            node.args.iter().map(|&a| self.value(a)).collect::<Result<Vec<_>, CompileError>>()?;
        let made = self.append(node.op.clone(), &args);
        for (&old, new) in node.outs.iter().zip(made) {
            self.out.rename(new, &self.builder.func.values[old].name);
            self.moved.insert(old, new);
        }
        Ok(())
    }

    fn append(&mut self, op: Op, args: &[ValueId]) -> Vec<ValueId> {
        let node = self.out.append(op, args, "").expect("the same types gave the same op before");
        self.out.nodes[node].outs.clone()
    }

    /// `value` in the new function; a constant becomes a weight there.
    fn value(&mut self, value: ValueId) -> Result<ValueId, CompileError> {
        if let Some(&known) = self.moved.get(&value) {
            return Ok(known);
        }
        let func = self.builder.func;
        let packed = self.builder.packed(value)?;
        let stored = &func.values[value];
        let layout = stored.ty.layout;
        let weight = self.out.weight(&stored.name, stored.ty.with_layout(ir::Layout::Nd));
        let new = match layout {
            ir::Layout::Nd => weight,
            _ => self.append(Op::Relayout { layout }, &[weight])[0],
        };
        self.moved.insert(value, new);
        self.packed.insert(new, packed);
        Ok(new)
    }
}

struct Builder<'a> {
    func: &'a Func,
    recipes: &'a mut Recipes,
    known: HashMap<ValueId, Id>,
}

fn last(dims: &[u64]) -> u64 {
    dims.last().copied().unwrap_or(1)
}

fn rows_of(dims: &[u64]) -> u64 {
    dims[..dims.len().saturating_sub(1)].iter().product()
}

impl Builder<'_> {
    fn not_foldable(&self, value: ValueId, why: &str) -> CompileError {
        let value = self.func.values[value].name.clone();
        CompileError::ConstantFolding { value, why: why.to_owned() }
    }

    fn dims(&self, value: ValueId) -> Result<Vec<u64>, CompileError> {
        let ty = &self.func.values[value].ty;
        ty.const_dims().ok_or_else(|| self.not_foldable(value, "has a symbol"))
    }

    /// How constant `value` is stored.
    fn packed(&mut self, value: ValueId) -> Result<Packed, CompileError> {
        let dims = self.dims(value)?;
        let mut root = value;
        while let Some((_, node)) = self.func.def_node(root) {
            match &node.op {
                Op::Relayout { .. } => root = node.args[0],
                _ => break,
            }
        }
        let layout = self.func.values[value].ty.layout;
        Ok(Packed { recipe: self.recipe(root)?, layout, dims })
    }

    fn recipe(&mut self, value: ValueId) -> Result<Id, CompileError> {
        if let Some(&known) = self.known.get(&value) {
            return Ok(known);
        }
        let TensorType { dtype, .. } = self.func.values[value].ty;
        let dims = self.dims(value)?;
        let (rows, cols) = (rows_of(&dims), last(&dims));
        if dtype.bits() < 8 && !cols.is_multiple_of(2) {
            return Err(self.not_foldable(value, "has rows of an odd number of 4-bit elements"));
        }
        let func = self.func;
        let id = match &func.values[value].def {
            ValueDef::Weight(name) => {
                let recipe = Recipe::Tensor { name: name.as_str().into() };
                self.recipes.add(Entry { recipe, rows, cols, dtype })
            }
            ValueDef::Param => return Err(self.not_foldable(value, "is a parameter")),
            ValueDef::Result { node, index } => {
                let node = &func.nodes[*node];
                let shape = Shape { dims: &dims, dtype };
                match self.result(node, *index, &shape)? {
                    Made::Same(id) => id,
                    Made::New(recipe) => self.recipes.add(Entry { recipe, rows, cols, dtype }),
                    Made::No(why) => return Err(self.not_foldable(value, &why)),
                }
            }
        };
        self.known.insert(value, id);
        Ok(id)
    }

    /// Result `index` of `node`, which has this shape.
    fn result(
        &mut self,
        node: &Node,
        index: usize,
        shape: &Shape<'_>,
    ) -> Result<Made, CompileError> {
        let args =
            node.args.iter().map(|&a| self.recipe(a)).collect::<Result<Vec<_>, CompileError>>()?;
        let x = args[0];
        let from = self.dims(node.args[0])?;
        Ok(Made::New(match &node.op {
            Op::Cast { .. } if self.recipes.get(x).dtype == shape.dtype => {
                return Ok(Made::Same(x));
            }
            Op::Cast { .. } => Recipe::Cast { x },
            Op::Reshape { .. } => return Ok(Made::Same(self.recipes.refold(x, last(shape.dims)))),
            Op::Slice { axis, start, len } => {
                let axis = *axis as usize;
                if axis + 1 == from.len() {
                    Recipe::ColumnRange { x, start: *start }
                } else {
                    let inner = rows_of(&from[axis + 1..]);
                    let period = from[axis] * inner;
                    Recipe::RowBlocks { x, period, start: start * inner, len: len * inner }
                }
            }
            Op::Concat { axis } if *axis as usize + 1 == from.len() => {
                Recipe::Columns { parts: args }
            }
            Op::Concat { axis } => {
                let outer: u64 = from[..*axis as usize].iter().product();
                self.recipes.stacked(&args, outer)
            }
            Op::Stack {} => self.recipes.stacked(&args, 1),
            Op::Interleave { block } => Recipe::Interleave { block: *block, a: x, b: args[1] },
            Op::Transpose {} => Recipe::Transpose { x, rows: from[from.len() - 2] },
            Op::RepeatRows { times, .. } => Recipe::Repeat { x, times: *times },
            Op::AddScalar { value } => Recipe::AddScalar { x, bits: value.to_bits() },
            Op::Dequantize { group, .. } => {
                Recipe::Dequantize { codes: x, scale: args[1], group: *group }
            }
            Op::QuantizeWeight { group, .. } if index == 0 => Recipe::Codes { x, group: *group },
            Op::QuantizeWeight { bits, group } => Recipe::Scales { x, bits: *bits, group: *group },
            Op::RowSums { times } => Recipe::RowSums { x, bits: times.to_bits() },
            Op::FloatBits {} => Recipe::FloatBits { x },
            Op::Relayout { .. } => return Ok(Made::No("a layout inside an expression".to_owned())),
            _ => return Ok(computed(self.func, node, index, args)),
        }))
    }
}

struct Shape<'a> {
    dims: &'a [u64],
    dtype: DType,
}

/// What an op on constants becomes.
pub(super) enum Made {
    Same(Id),
    New(Recipe),
    No(String),
}

impl Recipes {
    /// `parts` one below the other, `outer` times with the next rows of each.
    fn stacked(&self, parts: &[Id], outer: u64) -> Recipe {
        let mut start = 0;
        let part = |&id: &Id| {
            let rows = self.get(id).rows / outer.max(1);
            let part = Part { id, rows, start };
            start += rows;
            part
        };
        Recipe::Rows { parts: parts.iter().map(part).collect() }
    }

    /// The elements of `x` in rows of `cols`. Reshapes wander down to the tensors, where they cost
    /// nothing.
    pub(super) fn refold(&mut self, x: Id, cols: u64) -> Id {
        let Entry { recipe, rows, cols: old, dtype } = self.get(x).clone();
        if old == cols {
            return x;
        }
        let rows = rows * old / cols.max(1);
        // Rows of 4-bit elements are whole bytes, so those are converted first.
        let whole_bytes = |x: Id| self.get(x).dtype.bits() >= 8 || cols.is_multiple_of(2);
        let recipe = match recipe {
            Recipe::Tensor { .. } => recipe,
            Recipe::Cast { x } if whole_bytes(x) => Recipe::Cast { x: self.refold(x, cols) },
            Recipe::AddScalar { x, bits } => Recipe::AddScalar { x: self.refold(x, cols), bits },
            Recipe::Refold { x } => return self.refold(x, cols),
            _ => Recipe::Refold { x },
        };
        self.add(Entry { recipe, rows, cols, dtype })
    }
}
