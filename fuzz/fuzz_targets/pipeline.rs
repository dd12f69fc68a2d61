//! Whatever verifies goes through the pipeline, verifies again, and computes the same numbers.

#![no_main]

use libfuzzer_sys::fuzz_target;
use precast_ir::{Dim, Func, text};
use precast_passes::{
    BrokenPass, NumericError, Options, TargetInfo, check_numerics, default_pipeline, pipeline_of,
    run_func, sample_bindings,
};

fuzz_target!(|data: &[u8]| {
    let Ok(source) = std::str::from_utf8(data) else { return };
    // The second program of a file of a pass is fused already.
    let source = source.split("; ==== after\n").next().unwrap_or_default();
    let Ok(module) = text::parse("fuzz.ir", source) else { return };
    for func in &module.funcs {
        let mut after = func.clone();
        let target = TargetInfo::everything();
        match run_func(&mut after, &default_pipeline(), &mut Options::default(), &target) {
            Ok(_) => {}
            // Not a program, or not one as models define it.
            Err(BrokenPass::Input { .. } | BrokenPass::Phase { .. }) => continue,
            Err(e) => panic!("{e}\n{}", text::print(func)),
        }
        if !is_small(func) {
            continue;
        }
        // The one pass that rounds elsewhere; its file tests say how far.
        let (mut absorbed, stages) =
            (func.clone(), pipeline_of(&["absorb-latent"]).expect("a pass"));
        run_func(&mut absorbed, &stages, &mut Options::default(), &target).expect("it ran before");
        match check_numerics(&absorbed, &after, &[1], &sample_bindings(func)) {
            Ok(_) | Err(NumericError::Interp(_)) => {}
            Err(e) => panic!("{e}\n{}{}", text::print(func), text::print(&after)),
        }
    }
});

/// Whether interpreting `func` is quick.
fn is_small(func: &Func) -> bool {
    let elements = |dims: &[Dim]| {
        let dims = dims.iter().map(|d| d.as_const().unwrap_or(8));
        dims.fold(1u64, u64::saturating_mul)
    };
    func.order.len() < 200 && func.values.iter().all(|(_, v)| elements(&v.ty.dims) < 1 << 14)
}
