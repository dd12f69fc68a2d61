//! What is found out about a machine, without using it.

use crate::support::{Sim, library};
use precast_codegen_ascend::device::Probe;

#[test]
fn a_device_is_described() {
    let sim = Sim::new();
    sim.configure("ASCEND_SIM_SOC", "Ascend910B3");
    sim.configure("ASCEND_SIM_DEVICES", "3");
    let probe = Probe::run(Some(&library()), 2);
    assert_eq!(probe.failure, None);
    assert_eq!((probe.version, probe.devices), (Some((1, 16, 0)), Some(3)));
    assert!(probe.missing.is_empty() && probe.operators > 10);
    assert_eq!(probe.operators + probe.missing_operators.len(), acl_operators());
    let device = probe.device.unwrap();
    assert_eq!((device.soc.as_str(), device.chip.unwrap().target), ("Ascend910B3", "ascend910b"));
    assert_eq!((device.cube_cores, device.vector_cores), (Some(20), Some(40)));
    assert_eq!(device.memory.unwrap().1, 64 << 30);
    assert!(device.streams.unwrap() > 1900 && device.events.unwrap() > 60000);
    assert_eq!(sim.live(), "");
}

fn acl_operators() -> usize {
    acl::OPERATORS.len()
}

#[test]
fn an_old_release_tells_less_and_what_it_lacks_is_named() {
    let sim = Sim::new();
    sim.configure("ASCEND_SIM_VERSION", "8.1");
    let probe = Probe::run(Some(&library()), 0);
    assert_eq!(probe.release().unwrap().name(), "8.1");
    let absent: Vec<&str> = probe.absent.iter().map(|f| f.name()).collect();
    assert!(absent.contains(&"aclmdlRIBuildBegin"), "{absent:?}");
    assert!(!absent.contains(&"aclrtStreamQuery"), "{absent:?}");
    let device = probe.device.unwrap();
    assert_eq!(device.streams, None);
    assert_eq!(device.cube_cores, Some(24), "told by the older function");
}

#[test]
fn a_device_that_is_not_there_is_told() {
    let _sim = Sim::new();
    let probe = Probe::run(Some(&library()), 7);
    let why = probe.failure.unwrap();
    assert!(why.contains("107001") && why.contains("npu-smi info"), "{why}");
    assert!(probe.device.is_none());
    assert_eq!(probe.devices, Some(1));
}
