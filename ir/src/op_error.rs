//! What is wrong with an operation or its text.

/// A typing rule that operands break.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum TypeError {
    /// Wrong number of operands.
    #[error("`{op}` takes {expected} operands, found {got}")]
    Arity {
        /// Mnemonic.
        op: &'static str,
        /// How many it takes.
        expected: usize,
        /// How many there are.
        got: usize,
    },
    /// A rule about a type.
    #[error("{rule}, found {found}")]
    Rule {
        /// What must hold.
        rule: &'static str,
        /// The type that breaks it.
        found: String,
    },
}

/// Text that is no operation.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ParseOpError {
    /// No such mnemonic.
    #[error("unknown operation `{0}`")]
    UnknownOp(String),
    /// An attribute is missing.
    #[error("`{op}` needs the attribute `{attr}`")]
    MissingAttr {
        /// Mnemonic.
        op: &'static str,
        /// Attribute.
        attr: &'static str,
    },
    /// An attribute has no value of its kind.
    #[error("attribute `{attr}`: `{text}` is not {}", kind_of_attr(kind))]
    BadAttr {
        /// Attribute.
        attr: &'static str,
        /// Its type in the declaration of the op.
        kind: &'static str,
        /// What was written.
        text: String,
    },
}

/// What an attribute of type `kind` looks like.
fn kind_of_attr(kind: &str) -> &'static str {
    match kind {
        "DType" => "an element type such as `f32`, `bf16` or `i8`",
        "Dims" => "a list of dimensions such as `[T,64]`",
        "Body" => "the label of a body defined above, such as `@rows`",
        "Layout" => "a layout; use `nd`, `nz` or `panels`",
        "RouteSpec" => "a specification such as `route(softmax,k=8,renormalize=true)`",
        "RopeSpec" => "a specification such as `rope(theta=10000,dim=64)`",
        "bool" => "`true` or `false`",
        "f32" => "a number",
        _ => "a whole number",
    }
}
