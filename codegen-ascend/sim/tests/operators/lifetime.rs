//! How long objects live, and what is said about those that do not.

use crate::support::*;
use acl::{Value, Value::Int, sys};
use ascend_sim::objects::{arrays, executor, tensor};
use std::ptr::null_mut;

fn operands() -> (Tensor, Tensor, Tensor) {
    let mut rng = Rng::new(7);
    let x = Tensor::new(F32, &[2, 4], &rng.reals(8));
    let w = Tensor::new(F32, &[4, 3], &rng.reals(12));
    (x, w, Tensor::out(F32, &[2, 3]))
}

fn workspace(bytes: u64) -> Tensor {
    Tensor::out(I8, &[bytes as usize])
}

#[test]
fn an_executor_serves_once() {
    let (x, w, y) = operands();
    let (bytes, exec) = prepare("Mm", &[x.value(), w.value(), y.value(), Int(0)]).unwrap();
    let space = workspace(bytes);
    launch("Mm", space.address(), bytes, exec).unwrap();
    let (code, message) = launch("Mm", space.address(), bytes, exec).unwrap_err();
    assert_eq!(code, 561102);
    assert!(message.contains("was destroyed before"), "{message}");
    // SAFETY: handles are numbers; this one is dead.
    let status = unsafe { executor::aclDestroyAclOpExecutor(exec) };
    assert_eq!(status, 561102);
}

#[test]
fn a_repeatable_executor_serves_until_it_is_destroyed_and_takes_other_addresses() {
    let (x, w, y) = operands();
    let (bytes, exec) = prepare("Mm", &[x.value(), w.value(), y.value(), Int(0)]).unwrap();
    let space = workspace(bytes);
    // SAFETY: handles are numbers.
    assert_eq!(unsafe { executor::aclSetAclOpExecutorRepeatable(exec) }, 0);
    for _ in 0..3 {
        launch("Mm", space.address(), bytes, exec).unwrap();
    }
    let want = product(&x.values(), &w.values(), (2, 4, 3));
    near(&y.values(), &want, 1e-6);
    // What was created from it may go: the executor has a copy.
    let other = Tensor::out(F32, &[2, 3]);
    y.write(&[0.0; 6]);
    // SAFETY: handles are numbers, and the memory is as large.
    unsafe {
        assert_eq!(executor::aclSetOutputTensorAddr(exec, 0, y.handle, other.address()), 0);
        launch("Mm", space.address(), bytes, exec).unwrap();
        near(&other.values(), &want, 1e-6);
        assert_eq!(y.values(), [0.0; 6]);
        assert_eq!(executor::aclSetTensorAddr(exec, 2, y.handle, y.address()), 0);
        launch("Mm", space.address(), bytes, exec).unwrap();
        near(&y.values(), &want, 1e-6);
        assert_eq!(executor::aclSetInputTensorAddr(exec, 2, y.handle, y.address()), 161002);
        assert!(recent().contains("no tensor 2 to move"));
        assert_eq!(executor::aclDestroyAclOpExecutor(exec), 0);
        assert_eq!(executor::aclDestroyAclOpExecutor(exec), 561102);
        assert_eq!(executor::aclSetAclOpExecutorRepeatable(exec), 561102);
    }
    assert_eq!(launch("Mm", space.address(), bytes, exec).unwrap_err().0, 561102);
}

#[test]
fn the_workspace_is_as_large_as_asked_for_and_is_written_over() {
    let (x, w, y) = operands();
    let (bytes, exec) = prepare("Mm", &[x.value(), w.value(), y.value(), Int(0)]).unwrap();
    assert!(bytes > 0);
    let space = workspace(bytes);
    assert_eq!(launch("Mm", null_mut(), 0, exec).unwrap_err().0, 161002);
    assert_eq!(launch("Mm", space.address(), bytes - 1, exec).unwrap_err().0, 161002);
    assert_eq!(launch("Mm", null_mut(), bytes, exec).unwrap_err().0, 161001);
    let apart = space.address().wrapping_byte_add(32);
    let (_, message) = launch("Mm", apart, bytes, exec).unwrap_err();
    assert!(message.contains("not aligned to 64"), "{message}");
    assert_eq!(launch("Add", space.address(), bytes, exec).unwrap_err().0, 561102);
    launch("Mm", space.address(), bytes, exec).unwrap();
    assert_eq!(space.values(), vec![f64::from(0xa5u8 as i8); bytes as usize]);
}

#[test]
fn handles_that_are_dead_or_none_are_told_apart() {
    let (x, w, y) = operands();
    let dead = {
        let gone = Tensor::out(F32, &[2, 4]);
        gone.handle
    };
    let args = |t: *mut sys::aclTensor| [Value::Tensor(t), w.value(), y.value(), Int(0)];
    refused("Mm", &args(dead), 161002, "input: the tensor");
    refused("Mm", &args(dead), 161002, "was destroyed before");
    refused("Mm", &args(null_mut()), 161001, "input is null");
    let stranger = std::ptr::without_provenance_mut(17);
    refused("Mm", &args(stranger), 161002, "is not a tensor");
    // SAFETY: handles are numbers.
    assert_eq!(unsafe { tensor::aclDestroyTensor(dead) }, 161002);
    let _ = x;
}

#[test]
fn a_list_owns_its_tensors() {
    let t = Tensor::out(F32, &[4]);
    let Value::Tensors(list) = list(&t) else { unreachable!() };
    let mut size = 0;
    // SAFETY: handles are numbers.
    unsafe {
        assert_eq!(arrays::aclGetTensorListSize(list, &mut size), 0);
        assert_eq!(size, 1);
        assert_eq!(arrays::aclDestroyTensorList(list), 0);
        assert_eq!(tensor::aclDestroyTensor(t.handle), 161002);
        assert_eq!(arrays::aclDestroyTensorList(list), 161002);
    }
}

#[test]
fn getters_tell_what_a_tensor_was_made_of() {
    let t = Tensor::strided(BF16, &[2, 3], &[8, 1], &[]);
    let address = t.address();
    let (mut element, mut format, mut found, mut offset) = (0, 0, null_mut(), -1);
    let (mut dims, mut count) = (null_mut(), 0);
    // SAFETY: the results may be written, and the shape is two numbers.
    unsafe {
        assert_eq!(tensor::aclGetDataType(t.handle, &mut element), 0);
        assert_eq!(tensor::aclGetFormat(t.handle, &mut format), 0);
        assert_eq!(tensor::aclGetRawTensorAddr(t.handle, &mut found), 0);
        assert_eq!(tensor::aclGetViewOffset(t.handle, &mut offset), 0);
        assert_eq!(tensor::aclGetViewStrides(t.handle, &mut dims, &mut count), 0);
        assert_eq!(std::slice::from_raw_parts(dims, count as usize), [8, 1]);
    }
    assert_eq!((element, format, found, offset), (27, 2, address, 0));
}

#[test]
fn descriptions_that_cannot_be_are_refused() {
    let (dims, stride, storage) = ([2i64, 8], [8i64, 1], [15i64]);
    let create = |element, dims: &[i64], format| {
        // SAFETY: the arrays live through the call.
        unsafe {
            tensor::aclCreateTensor(
                dims.as_ptr(),
                dims.len() as u64,
                element,
                stride.as_ptr(),
                0,
                format,
                storage.as_ptr(),
                1,
                null_mut(),
            )
        }
    };
    assert!(create(99, &dims, 2).is_null());
    assert!(recent().contains("no data type 99"));
    assert!(create(0, &[-1, 2], 2).is_null());
    // A view that is longer than its storage, and fractals that have none, are found when used.
    let y = Tensor::out(F32, &[2, 8]);
    let long = Value::Tensor(create(0, &dims, 2));
    refused(
        "Muls",
        &[long, scalar(1.0), y.value()],
        161002,
        "ends at byte 64, the storage [15] at 60",
    );
    let fractals = Value::Tensor(create(0, &dims, 29));
    refused("Muls", &[fractals, scalar(1.0), y.value()], 161002, "is [1, 1, 16, 8], not [15]");
}
