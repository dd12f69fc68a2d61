//! What is there: libraries, versions, device, memory, streams, and which functions and operators are
//! missing. Goes as far as it can and says what stopped it.

use super::{
    library::{Libraries, Opened},
    result::{AclError, check},
    session,
};
use crate::chip::{Chip, chip_of_soc};
use acl::{Api, Function, Release, Signature, sys};
use std::{ffi::CStr, path::Path};

/// The device that was asked for.
#[derive(Clone, Debug, Default)]
pub struct FoundDevice {
    /// What the runtime calls the chip.
    pub soc: String,
    /// The chip, when it can be compiled for.
    pub chip: Option<&'static Chip>,
    /// Cores with a matrix unit, when the runtime tells.
    pub cube_cores: Option<i64>,
    /// Cores with a vector unit, when the runtime tells.
    pub vector_cores: Option<i64>,
    /// Free and all bytes of its memory, when the runtime tells.
    pub memory: Option<(u64, u64)>,
    /// Streams that are left, when the runtime tells.
    pub streams: Option<u32>,
    /// Events that are left, when the runtime tells.
    pub events: Option<u32>,
}

/// What was found.
#[derive(Clone, Debug, Default)]
pub struct Probe {
    /// Files that were tried.
    pub files: Vec<Opened>,
    /// Functions that nothing works without and that are missing.
    pub missing: Vec<&'static Function>,
    /// Functions that are missing, or newer than the release, and can be done without.
    pub absent: Vec<&'static Function>,
    /// Operators that plans may call and that are missing.
    pub missing_operators: Vec<&'static Signature>,
    /// Operators that are there.
    pub operators: usize,
    /// Version of the interface.
    pub version: Option<(i32, i32, i32)>,
    /// Packages of the toolkit with their versions, as far as the runtime tells.
    pub packages: Vec<(&'static str, String)>,
    /// How many devices there are.
    pub devices: Option<u32>,
    /// The one that was asked for.
    pub device: Option<FoundDevice>,
    /// What stopped the search, where something did.
    pub failure: Option<String>,
}

impl Probe {
    /// Looks for the vendor's runtime, or the one at `path`, and its device `ordinal`. The device is
    /// set up and given back; nothing is allocated on it.
    pub fn run(path: Option<&Path>, ordinal: i32) -> Self {
        let libraries = Libraries::open(path);
        let mut probe = Self { files: libraries.files.clone(), ..Self::default() };
        for signature in acl::OPERATORS {
            match libraries.operator(signature) {
                Some(_) => probe.operators += 1,
                None => probe.missing_operators.push(signature),
            }
        }
        match libraries.api() {
            Ok(api) => {
                if let Err(e) = probe.ask(api, &libraries, ordinal) {
                    probe.failure = Some(e.to_string());
                }
            }
            Err(missing) => {
                probe.failure = Some(libraries.failure(&missing));
                probe.missing = missing;
            }
        }
        probe
    }

    /// The release of the toolkit.
    pub fn release(&self) -> Option<Release> {
        self.version.map(|(major, minor, _)| Release::of_interface(major, minor))
    }

    fn ask(&mut self, api: Api, libraries: &Libraries, ordinal: i32) -> Result<(), AclError> {
        session::start(&api)?;
        let version = session::version(&api)?;
        self.version = Some(version);
        let release = Release::of_interface(version.0, version.1);
        let optional = acl::FUNCTIONS.iter().filter(|f| !f.required);
        self.absent = optional.filter(|f| f.since > release || !libraries.has(f)).collect();
        let mut api = api;
        api.keep_until(release);
        self.packages = packages(&api);
        let mut devices = 0;
        // SAFETY: the count is written during the call.
        let code = unsafe { (api.aclrtGetDeviceCount)(&mut devices) };
        check(&api, "aclrtGetDeviceCount", code)?;
        self.devices = Some(devices);
        // SAFETY: any number may be passed; a bad one is an error.
        check(&api, "aclrtSetDevice", unsafe { (api.aclrtSetDevice)(ordinal) })?;
        self.device = Some(device(&api, ordinal));
        // SAFETY: takes back the call above.
        check(&api, "aclrtResetDevice", unsafe { (api.aclrtResetDevice)(ordinal) })
    }
}

fn packages(api: &Api) -> Vec<(&'static str, String)> {
    const PACKAGES: &[(&str, sys::aclCANNPackageName)] = &[
        ("CANN", sys::ACL_PKG_NAME_CANN),
        ("runtime", sys::ACL_PKG_NAME_RUNTIME),
        ("compiler", sys::ACL_PKG_NAME_COMPILER),
        ("toolkit", sys::ACL_PKG_NAME_TOOLKIT),
        ("operators", sys::ACL_PKG_NAME_OPP),
        ("operator kernels", sys::ACL_PKG_NAME_OPP_KERNEL),
        ("driver", sys::ACL_PKG_NAME_DRIVER),
    ];
    let Some(ask) = api.aclsysGetCANNVersion else { return Vec::new() };
    let version = |&(name, package): &(&'static str, _)| {
        // SAFETY: all bytes zero is a value of these arrays.
        let mut version: sys::aclCANNPackageVersion = unsafe { std::mem::zeroed() };
        // SAFETY: the version is written during the call.
        let code = unsafe { ask(package, &mut version) };
        check(api, "aclsysGetCANNVersion", code).ok()?;
        let text: Vec<u8> = version.version.iter().map(|&c| c as u8).collect();
        let text = CStr::from_bytes_until_nul(&text).ok()?.to_string_lossy().into_owned();
        (!text.is_empty()).then_some((name, text))
    };
    PACKAGES.iter().filter_map(version).collect()
}

/// What the runtime says about the current device.
fn device(api: &Api, ordinal: i32) -> FoundDevice {
    let soc = session::soc(api);
    let number = ordinal as u32;
    let fact = |attribute, older| {
        let mut value = 0;
        let (call, code) = match (api.aclrtGetDeviceInfo, api.aclGetDeviceCapability) {
            // SAFETY: the value is written during the call.
            (Some(ask), _) => ("aclrtGetDeviceInfo", unsafe { ask(number, attribute, &mut value) }),
            // SAFETY: as above.
            (None, Some(ask)) => {
                // SAFETY: as above.
                ("aclGetDeviceCapability", unsafe { ask(number, older, &mut value) })
            }
            (None, None) => return None,
        };
        check(api, call, code).ok().map(|()| value)
    };
    let left = |ask: Option<unsafe extern "C" fn(*mut u32) -> sys::aclError>, call| {
        let mut value = 0;
        // SAFETY: the count is written during the call.
        let code = unsafe { ask?(&mut value) };
        check(api, call, code).ok().map(|()| value)
    };
    let (mut free, mut all) = (0usize, 0usize);
    // SAFETY: both are written during the call.
    let code = unsafe { (api.aclrtGetMemInfo)(sys::ACL_HBM_MEM, &mut free, &mut all) };
    FoundDevice {
        chip: chip_of_soc(&soc),
        soc,
        cube_cores: fact(sys::ACL_DEV_ATTR_CUBE_CORE_NUM, sys::ACL_DEVICE_INFO_AI_CORE_NUM),
        vector_cores: fact(sys::ACL_DEV_ATTR_VECTOR_CORE_NUM, sys::ACL_DEVICE_INFO_VECTOR_CORE_NUM),
        memory: check(api, "aclrtGetMemInfo", code).ok().map(|()| (free as u64, all as u64)),
        streams: left(api.aclrtGetStreamAvailableNum, "aclrtGetStreamAvailableNum"),
        events: left(api.aclrtGetEventAvailNum, "aclrtGetEventAvailNum"),
    }
}
