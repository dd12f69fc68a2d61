//! The parser and the verifier never panic, and text that is accepted round-trips.

#![no_main]

use libfuzzer_sys::fuzz_target;
use precast_ir::text;

fuzz_target!(|data: &[u8]| {
    let Ok(source) = std::str::from_utf8(data) else { return };
    // Files of passes are two programs.
    for source in source.split("; ==== after\n") {
        let Ok(module) = text::parse("fuzz.ir", source) else { continue };
        let printed = text::print_module(&module);
        let again = text::parse("printed.ir", &printed).expect("what is printed can be read");
        assert_eq!(text::print_module(&again), printed);
        for (func, same) in module.funcs.iter().zip(&again.funcs) {
            assert_eq!(func.verify(), same.verify());
        }
    }
});
