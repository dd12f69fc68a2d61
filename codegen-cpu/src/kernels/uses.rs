//! What a bound call does with its buffers, and which calls may follow one another row by row.

/// How the rows of a call divide a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Split {
    /// Each row has its own part: `len` bytes, `stride` bytes after that of the row before.
    Rows {
        /// How many.
        rows: usize,
        /// Bytes of one.
        len: usize,
        /// Bytes from one to the next.
        stride: usize,
    },
    /// Every row may use all of it. What rows write are places of their own.
    Whole,
    /// Memory of the thread, for one row.
    Private,
}

/// What a call does with a buffer.
#[derive(Clone, Debug)]
pub(crate) struct Use {
    /// First byte.
    pub(super) start: usize,
    /// The byte past the last.
    pub(super) end: usize,
    pub(super) written: bool,
    /// Bytes of an element, and elements between rows.
    pub(super) shape: (usize, usize),
    pub(super) split: Split,
}

impl Use {
    fn is_apart(&self, other: &Use) -> bool {
        self.end <= other.start || other.end <= self.start
    }

    /// Refuses a second use of the same bytes by one call, unless both only read or, with
    /// `in_place`, an output is the very buffer of an input.
    pub(super) fn conflicts(&self, other: &Use, in_place: bool) -> bool {
        let same = self.start == other.start && self.end == other.end && self.shape == other.shape;
        let one_written = self.written != other.written;
        let kept = in_place && same && one_written;
        (self.written || other.written) && !self.is_apart(other) && !kept
    }

    /// Bytes of a row of a chain of `rows` rows and the distance to the next; `None` when each row
    /// may touch all of the buffer.
    fn piece(&self, rows: usize) -> Option<(usize, usize)> {
        let Split::Rows { rows: all, len, stride } = self.split else { return None };
        let each = all / rows;
        Some((each.saturating_sub(1) * stride + len, each * stride))
    }
}

/// Whether calls with these uses may run row by row, `rows` of them, each row on any thread, as if
/// they ran one after another.
///
/// # Errors
/// What a row of one call could see or spoil of another row.
pub(crate) fn check_chain(rows: usize, calls: &[Vec<Use>]) -> Result<(), String> {
    for (step, uses) in calls.iter().enumerate() {
        for used in uses {
            match used.split {
                Split::Rows { rows: all, .. } if all % rows != 0 => {
                    return Err(format!("call {step} has {all} rows in a chain of {rows}"));
                }
                _ => {}
            }
        }
    }
    // One row is one thread, which runs the calls in their order.
    if rows == 1 {
        return Ok(());
    }
    for (later, uses) in calls.iter().enumerate() {
        for (earlier, others) in calls.iter().enumerate().take(later) {
            for (a, b) in uses.iter().flat_map(|a| others.iter().map(move |b| (a, b))) {
                if (a.written || b.written) && !a.is_apart(b) && !same_rows(a, b, rows) {
                    return Err(format!(
                        "calls {earlier} and {later} of a chain share memory that is not divided \
                         by its rows"
                    ));
                }
            }
        }
    }
    Ok(())
}

/// Whether row `r` of either shares memory with row `r` of the other alone.
fn same_rows(a: &Use, b: &Use, rows: usize) -> bool {
    if (a.split, b.split) == (Split::Private, Split::Private) {
        return true;
    }
    let (Some((a_len, a_stride)), Some((b_len, b_stride))) = (a.piece(rows), b.piece(rows)) else {
        return false;
    };
    a_stride == b_stride
        && a.start + a_len <= b.start + b_stride
        && b.start + b_len <= a.start + a_stride
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(start: usize, rows: usize, len: usize, stride: usize, written: bool) -> Use {
        let end = start + rows.saturating_sub(1) * stride + len;
        let split = Split::Rows { rows, len, stride };
        Use { start, end, written, shape: (1, stride), split }
    }

    fn whole(start: usize, end: usize, written: bool) -> Use {
        Use { start, end, written, shape: (1, 0), split: Split::Whole }
    }

    fn fits(count: usize, first: Use, second: Use) -> bool {
        check_chain(count, &[vec![first], vec![second]]).is_ok()
    }

    #[test]
    fn a_row_sees_its_own_row_alone() {
        let written = |start| rows(start, 4, 10, 30, true);
        assert!(fits(4, written(100), rows(100, 4, 10, 30, false)));
        assert!(fits(4, written(100), rows(105, 4, 25, 30, false)), "inside its own row");
        assert!(!fits(4, written(100), rows(105, 4, 26, 30, false)), "into the next row");
        assert!(!fits(4, written(100), rows(130, 4, 10, 30, false)), "the next row");
        assert!(!fits(4, written(100), rows(100, 4, 10, 20, false)), "another stride");
        assert!(fits(4, rows(100, 4, 10, 30, false), rows(130, 4, 10, 30, false)), "both read");
        assert!(fits(1, written(100), rows(130, 4, 10, 30, false)), "one row, one thread");
    }

    #[test]
    fn several_rows_of_a_call_are_one_of_the_chain() {
        let heads = rows(100, 8, 10, 10, true);
        assert!(fits(4, heads.clone(), rows(100, 4, 20, 20, false)));
        assert!(!fits(2, heads.clone(), rows(100, 4, 20, 30, false)));
        assert!(check_chain(3, &[vec![heads]]).is_err(), "8 rows are no multiple of 3");
    }

    #[test]
    fn what_every_row_may_touch_is_not_touched_otherwise() {
        assert!(fits(4, whole(0, 100, false), rows(0, 4, 10, 10, false)));
        assert!(!fits(4, whole(0, 100, false), rows(90, 4, 10, 10, true)));
        assert!(!fits(4, whole(0, 100, true), whole(50, 150, false)));
        assert!(fits(4, whole(0, 100, true), whole(100, 150, true)));
    }
}
