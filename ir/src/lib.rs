//! The tensor IR: typed SSA over symbolic dimensions. Holds no data, no device and no batch size.

mod attr;
mod body;
mod dot;
mod entity;
mod expand;
mod func;
pub mod graph;
mod hash;
pub mod interp;
pub mod op;
mod op_error;
mod operands;
mod order;
mod outline;
mod row_wise;
mod rules;
pub mod text;
mod types;
mod verify;

pub use attr::{Dims, ParseAttrError, RopeScaling, RopeSpec, RouteScore, RouteSpec};
pub use body::Body;
pub use dot::dot;
pub use entity::{Arena, EntityId, NodeId, ValueId};
pub use func::{Func, Module, Node, Value, ValueDef};
pub use op::{AttrMap, Op, ParseOpError, TypeError};
pub use outline::{OutlineError, Outlined};
pub use rules::SCALE_BYTES;
pub use tensor::{DType, Layout};
pub use types::{Bindings, Dim, Storage, Symbol, TensorType};
pub use verify::{Broken, VerifyError};
