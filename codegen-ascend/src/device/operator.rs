//! A library operator of a plan bound to addresses: its parameters as objects of the runtime, and its
//! executor between the two phases.

use super::{
    library::OperatorFunctions,
    result::{AclError, check, made},
    session::Session,
};
use acl::{Signature, Value, sys};
use artifact::{Element, Operator, Param, TensorParam};
use std::{ffi::CString, sync::Arc};
use tensor::{DType, Layout};

/// Why an operator could not be bound.
#[derive(Debug)]
pub(crate) enum BindError {
    /// What the plan says of it makes no sense.
    Plan(String),
    /// A call failed.
    Call(AclError),
}

impl From<AclError> for BindError {
    fn from(e: AclError) -> Self {
        Self::Call(e)
    }
}

/// A parameter that the runtime holds.
#[derive(Debug)]
enum Object {
    Tensor(*mut sys::aclTensor),
    Tensors(*mut sys::aclTensorList),
    Ints(*mut sys::aclIntArray),
    Scalar(*mut sys::aclScalar),
}

/// The parameters of one call of an operator.
#[derive(Debug)]
struct Objects {
    session: Arc<Session>,
    objects: Vec<Object>,
    /// Texts that values point to.
    texts: Vec<CString>,
}

/// An executor that phase 1 made.
#[derive(Debug)]
struct Executor {
    raw: *mut sys::aclOpExecutor,
    /// Usable more than once, and then ours to destroy.
    repeatable: bool,
    session: Arc<Session>,
}

impl Drop for Executor {
    fn drop(&mut self) {
        let raw = self.raw;
        // One that is used once frees itself in phase 2. One that never got there stays: there is no
        // call that frees it.
        if self.repeatable {
            // SAFETY: `raw` came from phase 1, was made repeatable, and is destroyed once.
            self.session.destroy("aclDestroyAclOpExecutor", |api| unsafe {
                (api.aclDestroyAclOpExecutor)(raw)
            });
        }
    }
}

/// An operator ready to be launched.
#[derive(Debug)]
pub(crate) struct BoundOperator {
    signature: &'static Signature,
    functions: OperatorFunctions,
    values: Vec<Value>,
    /// Bytes that phase 2 needs besides the parameters.
    pub(crate) workspace_bytes: u64,
    // Executors go before what they refer to.
    executor: Option<Executor>,
    objects: Objects,
}

// SAFETY: handles and pointers of the runtime, which takes them on every thread with the context of
// its device; there is one owner.
unsafe impl Send for BoundOperator {}

impl BoundOperator {
    /// Binds `operator` to `addresses`, the device addresses of the arguments of its step, and runs
    /// its first phase.
    pub(crate) fn new(
        session: &Arc<Session>,
        signature: &'static Signature,
        functions: OperatorFunctions,
        operator: &Operator,
        addresses: &[u64],
    ) -> Result<Self, BindError> {
        session.enter()?;
        let mut objects =
            Objects { session: session.clone(), objects: Vec::new(), texts: Vec::new() };
        let (got, takes) = (operator.params.len(), signature.params.len());
        if got != takes {
            return Err(BindError::Plan(format!("it takes {takes} parameters, not {got}")));
        }
        let mut values = Vec::with_capacity(takes);
        for (param, declared) in operator.params.iter().zip(signature.params) {
            let value = objects.value(param, addresses)?;
            if !declared.kind.takes(&value) {
                let (name, kind) = (declared.name, declared.kind);
                return Err(BindError::Plan(format!(
                    "parameter `{name}` is {kind:?}, not {param:?}"
                )));
            }
            values.push(value);
        }
        let mut bound =
            Self { signature, functions, values, workspace_bytes: 0, executor: None, objects };
        bound.prepare()?;
        Ok(bound)
    }

    /// Phase 1.
    fn prepare(&mut self) -> Result<(), AclError> {
        let session = &self.objects.session;
        let mut raw = std::ptr::null_mut();
        let (prepare, values) = (self.functions.prepare, &self.values);
        let call = self.signature.prepare_symbol.trim_end_matches('\0');
        // SAFETY: the function is the one of this signature; the values are of its kinds and point to
        // objects that `self` holds; both results are written during the call.
        let status =
            unsafe { self.signature.prepare(prepare, values, &mut self.workspace_bytes, &mut raw) };
        check(&session.api, call, status)?;
        let raw = made(&session.api, call, raw)?;
        // An operator that copies by itself cannot be repeatable; it is prepared again then.
        // SAFETY: `raw` came from phase 1 just now.
        let status = unsafe { (session.api.aclSetAclOpExecutorRepeatable)(raw) };
        let repeatable = check(&session.api, "aclSetAclOpExecutorRepeatable", status).is_ok();
        self.executor = Some(Executor { raw, repeatable, session: session.clone() });
        Ok(())
    }

    /// Phase 2: puts it on `stream` with `workspace`, which has [`BoundOperator::workspace_bytes`].
    pub(crate) fn launch(
        &mut self,
        workspace: *mut core::ffi::c_void,
        stream: sys::aclrtStream,
    ) -> Result<(), AclError> {
        if self.executor.is_none() {
            let before = self.workspace_bytes;
            self.prepare()?;
            if self.workspace_bytes > before {
                let message = "it needs more workspace when it is prepared again".to_owned();
                let call = self.signature.prepare_symbol.trim_end_matches('\0');
                return Err(AclError { call, code: sys::ACLNN_ERR_INNER, message });
            }
        }
        let Some(executor) = self.executor.take() else {
            return Err(AclError::unsupported("aclSetAclOpExecutorRepeatable"));
        };
        // SAFETY: the executor came from phase 1 of this operator and was not used up; the workspace is
        // as long as phase 1 said; the stream exists and the caller made the device current.
        let status = unsafe {
            (self.functions.launch)(workspace, self.workspace_bytes, executor.raw, stream)
        };
        if executor.repeatable {
            self.executor = Some(executor);
        }
        let call = self.signature.launch_symbol.trim_end_matches('\0');
        check(&self.objects.session.api, call, status)
    }
}

impl Objects {
    /// `param` as the operator takes it.
    fn value(&mut self, param: &Param, addresses: &[u64]) -> Result<Value, BindError> {
        Ok(match param {
            Param::Absent => Value::Absent,
            Param::Tensor(t) => {
                let raw = self.tensor(t, addresses)?;
                self.objects.push(Object::Tensor(raw));
                Value::Tensor(raw)
            }
            Param::Tensors(list) => Value::Tensors(self.tensors(list, addresses)?),
            Param::Int(v) => Value::Int(*v),
            Param::Float(v) => Value::Float(*v),
            Param::Bool(v) => Value::Bool(*v),
            Param::Type(element) => Value::Type(data_type(*element)?),
            Param::Text(text) => {
                let text = CString::new(text.as_str())
                    .map_err(|_| BindError::Plan(format!("the text {text:?} has a zero byte")))?;
                // The text itself does not move when its owner does.
                let pointer = text.as_ptr();
                self.texts.push(text);
                Value::Text(pointer)
            }
            Param::Ints(values) => {
                let api = &self.session.api;
                // SAFETY: the values are read during the call.
                let raw = unsafe { (api.aclCreateIntArray)(values.as_ptr(), values.len() as u64) };
                let raw = made(api, "aclCreateIntArray", raw)?;
                self.objects.push(Object::Ints(raw));
                Value::Ints(raw)
            }
            Param::Scalar(element, value) => {
                let mut bytes = scalar_bytes(*element, *value)?;
                let api = &self.session.api;
                // SAFETY: the value is as wide as its type and is read during the call.
                let raw = unsafe {
                    (api.aclCreateScalar)(bytes.as_mut_ptr().cast(), data_type(*element)?)
                };
                let raw = made(api, "aclCreateScalar", raw)?;
                self.objects.push(Object::Scalar(raw));
                Value::Scalar(raw)
            }
        })
    }

    fn tensors(
        &mut self,
        list: &[TensorParam],
        addresses: &[u64],
    ) -> Result<*mut sys::aclTensorList, BindError> {
        // Members are ours until the list takes them over.
        let first = self.objects.len();
        for t in list {
            let raw = self.tensor(t, addresses)?;
            self.objects.push(Object::Tensor(raw));
        }
        let members: Vec<*const sys::aclTensor> = self.objects[first..]
            .iter()
            .filter_map(|o| if let Object::Tensor(t) = o { Some(t.cast_const()) } else { None })
            .collect();
        let api = &self.session.api;
        // SAFETY: the members exist; the array is read during the call.
        let raw = unsafe { (api.aclCreateTensorList)(members.as_ptr(), members.len() as u64) };
        let raw = made(api, "aclCreateTensorList", raw)?;
        self.objects.truncate(first);
        self.objects.push(Object::Tensors(raw));
        Ok(raw)
    }

    fn tensor(&self, t: &TensorParam, addresses: &[u64]) -> Result<*mut sys::aclTensor, BindError> {
        let address = addresses.get(t.arg as usize);
        let address = *address.ok_or_else(|| {
            BindError::Plan(format!("a tensor is argument {} of {}", t.arg, addresses.len()))
        })?;
        if t.strides.len() != t.dims.len() {
            return Err(BindError::Plan(format!("{:?} has strides {:?}", t.dims, t.strides)));
        }
        let format = match t.layout {
            Layout::Nd => sys::ACL_FORMAT_ND,
            Layout::Nz => sys::ACL_FORMAT_FRACTAL_NZ,
            Layout::Panels | Layout::Compact => {
                return Err(BindError::Plan("its layout is one of the CPU".to_owned()));
            }
        };
        let api = &self.session.api;
        // SAFETY: the arrays have the lengths given and are read during the call; the address is of
        // device memory that the graph holds.
        let raw = unsafe {
            (api.aclCreateTensor)(
                t.dims.as_ptr(),
                t.dims.len() as u64,
                data_type(t.element)?,
                t.strides.as_ptr(),
                0,
                format,
                t.storage.as_ptr(),
                t.storage.len() as u64,
                address as usize as *mut core::ffi::c_void,
            )
        };
        Ok(made(api, "aclCreateTensor", raw)?)
    }
}

impl Drop for Objects {
    fn drop(&mut self) {
        for object in self.objects.drain(..) {
            // SAFETY, all four: the object came from the function that makes such, and is destroyed
            // once, as it leaves the list here.
            match object {
                Object::Tensor(raw) => {
                    // SAFETY: as above.
                    self.session
                        .destroy("aclDestroyTensor", |api| unsafe { (api.aclDestroyTensor)(raw) })
                }
                Object::Tensors(raw) => {
                    // SAFETY: as above.
                    self.session.destroy("aclDestroyTensorList", |api| unsafe {
                        (api.aclDestroyTensorList)(raw)
                    })
                }
                Object::Ints(raw) => {
                    // SAFETY: as above.
                    self.session.destroy("aclDestroyIntArray", |api| unsafe {
                        (api.aclDestroyIntArray)(raw)
                    })
                }
                Object::Scalar(raw) => {
                    // SAFETY: as above.
                    self.session
                        .destroy("aclDestroyScalar", |api| unsafe { (api.aclDestroyScalar)(raw) })
                }
            };
        }
    }
}

/// The runtime's number of an element type.
fn data_type(element: Element) -> Result<sys::aclDataType, BindError> {
    Ok(match element {
        Element::U64 => sys::ACL_UINT64,
        Element::Bool => sys::ACL_BOOL,
        Element::Of(dtype) => match dtype {
            DType::F32 => sys::ACL_FLOAT,
            DType::F16 => sys::ACL_FLOAT16,
            DType::BF16 => sys::ACL_BF16,
            DType::I8 => sys::ACL_INT8,
            DType::I4 => sys::ACL_INT4,
            DType::U8 => sys::ACL_UINT8,
            DType::I32 => sys::ACL_INT32,
            DType::I64 => sys::ACL_INT64,
            DType::F8E4M3 => sys::ACL_FLOAT8_E4M3FN,
            DType::MxFp4 => {
                return Err(BindError::Plan(format!("operators do not take {element}")));
            }
        },
    })
}

/// `value` as the bytes of one element.
fn scalar_bytes(element: Element, value: f64) -> Result<Vec<u8>, BindError> {
    Ok(match element {
        Element::Of(DType::F32) => (value as f32).to_ne_bytes().to_vec(),
        Element::Of(DType::I32) => (value as i32).to_ne_bytes().to_vec(),
        Element::Of(DType::I64) => (value as i64).to_ne_bytes().to_vec(),
        Element::U64 => (value as u64).to_ne_bytes().to_vec(),
        Element::Bool => vec![u8::from(value != 0.0)],
        other => {
            return Err(BindError::Plan(format!("a scalar is {other}, not f32 or a whole number")));
        }
    })
}
