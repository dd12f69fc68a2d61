//! Lists of groups of rows, which lie on the device.

use crate::objects::{Element, Fault, Tensor};
use Element::I64;
use std::ops::Range;

/// Groups of one call.
const MAX_GROUPS: usize = 1024;

/// The list of group sizes on the device, and how it is written.
#[derive(Clone, Copy)]
pub(super) struct Groups<'a> {
    list: &'a Tensor,
    kind: i64,
    groups: usize,
}

impl<'a> Groups<'a> {
    /// That `list` describes `groups` groups in the way `kind` says: 0 the ends, 1 the sizes, 2 pairs
    /// of group and size.
    pub(super) fn check(list: &'a Tensor, kind: i64, groups: usize) -> Result<Self, Fault> {
        list.of(&[I64])?.nd()?;
        match kind {
            2 => list.shaped(&[groups, 2])?,
            _ => list.shaped(&[groups])?,
        };
        list.rule(groups <= MAX_GROUPS, "at most 1024 groups")?;
        list.rule(kind == 0 || groups != 1, "sizes of groups are of at least two")?;
        Ok(Self { list, kind, groups })
    }

    /// The rows of each group in turn, of `rows` rows.
    pub(super) fn read(&self, rows: usize) -> Result<Vec<(usize, Range<usize>)>, Fault> {
        let values = self.list.integers();
        let mut start = 0i64;
        let mut out = Vec::with_capacity(self.groups);
        for g in 0..self.groups {
            let (group, end) = match self.kind {
                0 => (g as i64, values[g]),
                1 => (g as i64, start + values[g]),
                _ => (values[2 * g], start + values[2 * g + 1]),
            };
            if end < start || end > rows as i64 || !(0..self.groups as i64).contains(&group) {
                return Err(Fault::exception(format!(
                    "{}: group {group} of rows {start}..{end}, where there are {rows} rows and {} groups",
                    self.list.name, self.groups
                )));
            }
            out.push((group as usize, start as usize..end as usize));
            start = end;
        }
        Ok(out)
    }
}
