//! `--require-match`: a compile that fails when a pass fires too little.

use crate::args::MatchFloor;
use anyhow::bail;
use passes::{Catalog, Report};

/// Refuses passes that do not exist, before the long work.
///
/// # Errors
/// The first name that no pass has, with the names there are.
pub(crate) fn check_names(floors: &[MatchFloor], catalog: &Catalog) -> anyhow::Result<()> {
    for MatchFloor { pass, .. } in floors {
        if catalog.pass(pass).is_none() {
            let names = catalog.names().join(", ");
            bail!("--require-match {pass}: no pass is called so; the passes are {names}");
        }
    }
    Ok(())
}

/// Holds `report` to `floors`.
///
/// # Errors
/// Every pass that fired too little, with what kept it from firing.
pub(crate) fn check(floors: &[MatchFloor], report: &Report) -> anyhow::Result<()> {
    let too_few = |MatchFloor { pass, least }: &MatchFloor| {
        let error = report.require(pass, *least).err()?;
        Some(format!("--require-match {pass}={least}: {error}"))
    };
    let failures: Vec<String> = floors.iter().filter_map(too_few).collect();
    if failures.is_empty() { Ok(()) } else { bail!("{}", failures.join("\n")) }
}
