//! A replay allocates nothing.

use artifact::{BufferRef, Scalar, Space};
use hal::{Device, MemoryRequest};
use precast_codegen_cpu::{CpuDevice, CpuOptions};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tensor::MappedFile;

/// The system's allocator, counting.
struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as the caller's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: as the caller's.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn a_thousand_replays_allocate_nothing() {
    let path = std::env::temp_dir().join(format!("precast-no-alloc-{}", std::process::id()));
    std::fs::write(&path, vec![0u8; 1 << 20]).unwrap();
    let weights = Arc::new(MappedFile::open(&path).unwrap());
    std::fs::remove_file(&path).unwrap();

    for release_weights in [false, true] {
        let options =
            CpuOptions { threads: Some(2), pin: false, release_weights, ..CpuOptions::default() };
        let mut device = CpuDevice::new(options).unwrap();
        let request = MemoryRequest {
            root: Default::default(),
            weights: Arc::clone(&weights),
            arena_bytes: 1 << 16,
            state_bytes: 1 << 16,
        };
        device.load(request).unwrap();
        let at = |space, offset, bytes| BufferRef { space, offset, bytes };
        let ints = |v: &[u64]| v.iter().map(|&v| Scalar::Int(v)).collect::<Vec<_>>();
        let (x, out) = (at(Space::Arena, 0, 8192), at(Space::Arena, 8192, 8192));
        let (numbers, scratch) = (at(Space::Arena, 16384, 64), at(Space::Arena, 20480, 1024));
        let weight = at(Space::Weights, 0, 1 << 20);
        let state = at(Space::State, 0, 1 << 16);
        let mut attention = ints(&[2, 1, 16, 4, 2, 64, 16]);
        attention.push(Scalar::Float(0.125));
        attention.extend(ints(&[256, 256]));

        device.begin_capture().unwrap();
        device
            .launch(&hal::Launch::new(
                "matmul_bf16_f32",
                &[x, weight, out],
                &ints(&[9, 64, 128, 128, 64]),
            ))
            .unwrap();
        let top = [at(Space::Arena, 24576, 64), at(Space::Arena, 24640, 64)];
        let argmax = [x, weight, out, numbers, top[0], top[1], scratch];
        let mut largest = ints(&[2, 128, 64, 64, 128, 0, 0, 0, 1, 8, 0]);
        largest.extend([0.0, 0.0].map(Scalar::Float));
        device.launch(&hal::Launch::new("linear_matmul_bf16_f32", &argmax, &largest)).unwrap();
        device
            .launch(&hal::Launch::new(
                "attention_bf16_f32",
                &[x, state, numbers, numbers, out],
                &attention,
            ))
            .unwrap();
        device
            .launch(&hal::Launch::new("add_f32", &[x, out, out], &ints(&[2, 256, 256, 256, 256])))
            .unwrap();
        let row = at(Space::Private, 0, 1024);
        device.begin_chain(2, 1024).unwrap();
        device
            .launch(&hal::Launch::new("add_f32", &[x, x, row], &ints(&[2, 256, 256, 256, 256])))
            .unwrap();
        device
            .launch(&hal::Launch::new(
                "silu_mul_f32",
                &[row, x, out],
                &ints(&[2, 256, 256, 256, 256]),
            ))
            .unwrap();
        device.end_chain().unwrap();
        let graph = device.end_capture().unwrap();
        assert_eq!(graph.len(), 5);

        device.replay(&graph).unwrap();
        let before = ALLOCATIONS.load(Ordering::SeqCst);
        for step in 0..1000u32 {
            device.write(numbers, &step.to_le_bytes());
            device.replay(&graph).unwrap();
            device.read(out, &mut [0; 4]).unwrap();
        }
        assert_eq!(ALLOCATIONS.load(Ordering::SeqCst), before);
    }
}
