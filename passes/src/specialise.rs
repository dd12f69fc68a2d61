//! One size: symbols become numbers.

use crate::phase;
use ir::{Bindings, Body, Dims, EntityId, Func, NodeId, Op, ValueId, VerifyError};

/// A function that `bindings` does not specialise.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("specialising @{func}: {}", list(errors))]
pub struct SpecialiseError {
    /// Function.
    pub func: String,
    /// Symbols that have no value, and rules that the numbers break.
    pub errors: Vec<VerifyError>,
}

fn list(errors: &[VerifyError]) -> String {
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// `func` with every symbol replaced by its number, in types and in attributes.
///
/// # Errors
/// [`SpecialiseError`] when a symbol has no value in `bindings` or the result does not verify.
pub fn specialise(func: &Func, bindings: &Bindings) -> Result<Func, SpecialiseError> {
    let out = bind(func, bindings, &mut Vec::new())?;
    let failed = |errors| SpecialiseError { func: func.name.clone(), errors };
    out.verify().map_err(failed)?;
    let left = phase::symbols(&out);
    if left.is_empty() { Ok(out) } else { Err(failed(left)) }
}

/// `func` with numbers; `known` are bodies of composites before and after, for layers share them.
fn bind(
    func: &Func,
    bindings: &Bindings,
    known: &mut Vec<(Body, Body)>,
) -> Result<Func, SpecialiseError> {
    let mut out = func.clone();
    for i in 0..out.values.len() {
        let value = &mut out.values[ValueId::from_index(i)];
        value.ty = value.ty.bind(bindings);
    }
    for i in 0..out.nodes.len() {
        match &mut out.nodes[NodeId::from_index(i)].op {
            Op::Reshape { dims: Dims(dims) } => {
                *dims = dims.iter().map(|d| d.bind(bindings)).collect();
            }
            Op::Fused { body } => *body = bind_body(body, bindings, known)?,
            _ => {}
        }
    }
    Ok(out)
}

fn bind_body(
    body: &Body,
    bindings: &Bindings,
    known: &mut Vec<(Body, Body)>,
) -> Result<Body, SpecialiseError> {
    if let Some((_, special)) = known.iter().find(|(symbolic, _)| symbolic == body) {
        return Ok(special.clone());
    }
    let func = bind(body.func(), bindings, known)?;
    let name = func.name.clone();
    let special = Body::new(func).map_err(|errors| SpecialiseError { func: name, errors })?;
    known.push((body.clone(), special.clone()));
    Ok(special)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ir::{Symbol, text};

    const TEXT: &str = "func @f(%x: f32[T,6], %n: i32[S]) {
  %r = reshape %x {dims = [T,2,3]} : f32[T,2,3]
  return %r, %n
}
";

    fn bind(pairs: &[(&str, u64)]) -> Result<Func, SpecialiseError> {
        let module = text::parse("test.ir", TEXT).unwrap();
        specialise(&module.funcs[0], &pairs.iter().map(|&(s, n)| (Symbol::new(s), n)).collect())
    }

    #[test]
    fn types_and_attributes_get_numbers() {
        let func = bind(&[("T", 4), ("S", 2)]).unwrap();
        let expected = TEXT.replace("T,", "4,").replace("[S]", "[2]");
        assert_eq!(text::print(&func), expected);
    }

    #[test]
    fn a_missing_symbol_is_named_with_its_place() {
        let error = bind(&[("T", 4)]).unwrap_err();
        assert_eq!(error.to_string(), "specialising @f: @f, at %n: symbol S has no value; bind it");
    }
}
