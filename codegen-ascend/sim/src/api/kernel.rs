//! Kernel binaries, arguments and launches.

use super::{put, text};
use crate::{
    error::{Result, code, fail},
    exports,
    kernel::{self, Source, arguments},
    memory, world,
    world::{Key, handle},
};
use acl::sys::*;
use std::{
    ffi::{c_char, c_void},
    slice,
};

exports! {
    /// Loads a library made with the kernel shim. Options make no difference.
    V8_1 fn aclrtBinaryLoadFromFile(
        path: *const c_char,
        _options: *mut aclrtBinaryLoadOptions,
        binary: *mut aclrtBinHandle,
    ) {
        world::lock().current()?;
        if binary.is_null() {
            return fail(code::INVALID_PARAM, "a pointer for a result is null");
        }
        // SAFETY: the caller's text and pointer.
        unsafe { put(binary, handle(kernel::load_file(text(path)?)?)) }
    }

    /// Loads such a library from memory.
    V8_5 fn aclrtBinaryLoadFromData(
        data: *const c_void,
        length: usize,
        _options: *const aclrtBinaryLoadOptions,
        binary: *mut aclrtBinHandle,
    ) {
        world::lock().current()?;
        if binary.is_null() {
            return fail(code::INVALID_PARAM, "a pointer for a result is null");
        }
        // SAFETY: the caller's bytes and pointer.
        unsafe { put(binary, handle(kernel::load_data(bytes(data, length)?)?)) }
    }

    /// Unloads it.
    V8_1 fn aclrtBinaryUnLoad(binary: aclrtBinHandle) {
        kernel::unload(binary as Key)
    }

    /// A kernel by name.
    V8_1 fn aclrtBinaryGetFunction(
        binary: aclrtBinHandle,
        name: *const c_char,
        function: *mut aclrtFuncHandle,
    ) {
        // SAFETY: the caller's text and pointer.
        unsafe { put(function, handle(kernel::function(binary as Key, text(name)?)?)) }
    }

    /// A kernel by the number that its name ends in.
    V8_1 fn aclrtBinaryGetFunctionByEntry(
        binary: aclrtBinHandle,
        entry: u64,
        function: *mut aclrtFuncHandle,
    ) {
        // SAFETY: the caller's pointer.
        unsafe { put(function, handle(kernel::function_by_entry(binary as Key, entry)?)) }
    }

    /// Refuses: which cores a kernel runs on is told to the shim by the kernel itself, at its start.
    V8_5 fn aclrtGetFunctionAttribute(
        function: aclrtFuncHandle,
        _attribute: aclrtFuncAttribute,
        _value: *mut i64,
    ) {
        kernel::known_function(function as Key)?;
        fail(code::FEATURE_UNSUPPORTED, "the software device does not know the type of a kernel before it runs")
    }

    /// The address at which cores meet. A launch drops it again where it is the first argument.
    V8_5 fn aclrtGetHardwareSyncAddr(address: *mut *mut c_void) {
        world::lock().current()?;
        // SAFETY: the caller's pointer.
        unsafe { put(address, arguments::sync_address()) }
    }

    /// Starts the arguments of a launch. They live as long as the binary.
    V8_1 fn aclrtKernelArgsInit(function: aclrtFuncHandle, args: *mut aclrtArgsHandle) {
        // SAFETY: the caller's pointer.
        unsafe { put(args, handle(kernel::start_arguments(function as Key)?)) }
    }

    /// Adds a value.
    V8_1 fn aclrtKernelArgsAppend(
        args: aclrtArgsHandle,
        param: *mut c_void,
        size: usize,
        number: *mut aclrtParamHandle,
    ) {
        // SAFETY: the caller's bytes.
        let value = unsafe { bytes(param, size) }?;
        let made = kernel::with_arguments(args as Key, |args| args.append(value))?;
        // SAFETY: the caller's pointer.
        unsafe { put(number, made as aclrtParamHandle) }
    }

    /// Adds a pointer to data that comes along.
    V8_1 fn aclrtKernelArgsAppendPlaceHolder(args: aclrtArgsHandle, number: *mut aclrtParamHandle) {
        let made = kernel::with_arguments(args as Key, |args| args.append_holder())?;
        // SAFETY: the caller's pointer.
        unsafe { put(number, made as aclrtParamHandle) }
    }

    /// Where to write that data.
    V8_1 fn aclrtKernelArgsGetPlaceHolderBuffer(
        args: aclrtArgsHandle,
        number: aclrtParamHandle,
        size: usize,
        buffer: *mut *mut c_void,
    ) {
        let room = kernel::with_arguments(args as Key, |args| args.holder(number as usize, size))?;
        // SAFETY: the caller's pointer.
        unsafe { put(buffer, room) }
    }

    /// Replaces a value by another of its size.
    V8_1 fn aclrtKernelArgsParaUpdate(
        args: aclrtArgsHandle,
        number: aclrtParamHandle,
        param: *mut c_void,
        size: usize,
    ) {
        // SAFETY: the caller's bytes.
        let value = unsafe { bytes(param, size) }?;
        kernel::with_arguments(args as Key, |args| args.update(number as usize, value))
    }

    /// Ends the arguments.
    V8_1 fn aclrtKernelArgsFinalize(args: aclrtArgsHandle) {
        kernel::with_arguments(args as Key, |args| {
            args.finalise();
            Ok(())
        })
    }

    /// Launches with arguments put together before.
    V8_1 fn aclrtLaunchKernelWithConfig(
        function: aclrtFuncHandle,
        blocks: u32,
        stream: aclrtStream,
        options: *mut aclrtLaunchKernelCfg,
        args: aclrtArgsHandle,
        reserve: *mut c_void,
    ) {
        if !reserve.is_null() {
            return fail(code::PARAM, "the reserved argument is not null");
        }
        let function = kernel::known_function(function as Key)?;
        let values = kernel::with_arguments(args as Key, |args| args.resolve())?;
        // SAFETY: the caller's options.
        unsafe { kernel::launch(function, blocks, stream, options, Source::Values(values)) }
    }

    /// Launches with arguments in host memory, which is copied.
    V8_5 fn aclrtLaunchKernelWithHostArgs(
        function: aclrtFuncHandle,
        blocks: u32,
        stream: aclrtStream,
        options: *mut aclrtLaunchKernelCfg,
        host_args: *mut c_void,
        size: usize,
        holders: *mut aclrtPlaceHolderInfo,
        holder_count: usize,
    ) {
        let function = kernel::known_function(function as Key)?;
        if holder_count > 0 && holders.is_null() {
            return fail(code::INVALID_PARAM, "the place holders are null");
        }
        // SAFETY: the caller's arrays; an absent one is empty.
        let (args, holders) = unsafe {
            let holders = if holder_count == 0 { &[] } else { slice::from_raw_parts(holders, holder_count) };
            (bytes(host_args, size)?, holders)
        };
        let pairs: Vec<_> = holders.iter().map(|holder| (holder.addrOffset, holder.dataOffset)).collect();
        let values = arguments::from_host(args, &pairs)?;
        // SAFETY: the caller's options.
        unsafe { kernel::launch(function, blocks, stream, options, Source::Values(values)) }
    }

    /// Launches with arguments in device memory, which are read when the kernel starts.
    V8_1 fn aclrtLaunchKernel(
        function: aclrtFuncHandle,
        blocks: u32,
        args: *const c_void,
        size: usize,
        stream: aclrtStream,
    ) {
        // SAFETY: no options.
        unsafe { launch_device(function, blocks, args, size, std::ptr::null(), stream) }
    }

    /// The same with options.
    V8_5 fn aclrtLaunchKernelV2(
        function: aclrtFuncHandle,
        blocks: u32,
        args: *const c_void,
        size: usize,
        options: *mut aclrtLaunchKernelCfg,
        stream: aclrtStream,
    ) {
        // SAFETY: the caller's options.
        unsafe { launch_device(function, blocks, args, size, options, stream) }
    }
}

/// # Safety
/// `options` is null or as the interface says.
unsafe fn launch_device(
    function: aclrtFuncHandle,
    blocks: u32,
    args: *const c_void,
    size: usize,
    options: *const aclrtLaunchKernelCfg,
    stream: aclrtStream,
) -> Result {
    let function = kernel::known_function(function as Key)?;
    if !size.is_multiple_of(8)
        || !memory::is_device(args)
        || memory::find(args, size as u64).is_none()
    {
        let message =
            format!("{size} bytes of arguments at {args:p} are not slots in device memory");
        return fail(code::PARAM, message);
    }
    // SAFETY: the caller's options.
    unsafe {
        kernel::launch(function, blocks, stream, options, Source::Device(args as u64, size / 8))
    }
}

/// Bytes of the caller.
///
/// # Safety
/// It is null or valid for that many bytes.
unsafe fn bytes<'a>(pointer: *const c_void, length: usize) -> Result<&'a [u8]> {
    if pointer.is_null() || length == 0 {
        return fail(code::INVALID_PARAM, "no bytes");
    }
    // SAFETY: not null; the caller vouches for the length.
    Ok(unsafe { slice::from_raw_parts(pointer.cast(), length) })
}
