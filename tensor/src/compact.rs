//! Weights of bf16 in 12 bits an element, without loss.

use crate::{DType, layout::Panels};

/// [`Panels`] of bf16 whose exponents are kept in four bits.
///
/// Exponents of the weights of a layer are few (arXiv 2504.11651, which codes them at variable length): a
/// window of [`Compact::WINDOW`] neighbours holds all but one in thousands. Each panel has a window of its
/// own. An element is then its sign and mantissa, a byte, and a nibble: how far its exponent is into the
/// window. Elements outside the window are escapes: no bits in their place, and listed behind the panel in
/// the order of their octets. A panel that would not get smaller stays as it is.
///
/// `K` runs in octets, the last padded with no bits, which stand for the smallest number of the window. Each
/// is three words of 32 bits for every output of the panel, 16 outputs after another so that a kernel reads them in the
/// order in which they lie: `[K / 8][4][3][16]`. The first word has the mantissas of
/// elements 0, 3, 1, 2 in its bytes from the lowest on, and above them, in their highest bits, the signs of
/// elements 2, 0, 3, 1; the second has those of the next four. Elements 0 and 1 are then where they are in a
/// pair of bf16, and elements 2 and 3 are once the word is rotated by a byte. The nibbles of the third are those
/// of elements 0, 2, 4, 6, 1, 3, 5, 7.
///
/// Panels follow one another in units of [`Compact::UNIT`] bytes, those of the matrices of a stack too. Behind the last is
/// a table with an [`Entry`] for each, which says where it begins. So how long a weight is depends on its elements: it
/// has at least [`Compact::least_bytes`] and at most [`Compact::most_bytes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compact {
    matrices: u64,
    rows: u64,
    cols: u64,
}

/// Where a panel is and how it is coded: four little-endian words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Entry {
    /// Units from the beginning of the weight.
    pub start: u32,
    /// How many escapes follow the octets, or [`Entry::PLAIN`].
    pub escapes: u32,
    /// The exponent that a nibble of 0 stands for, at most 240.
    pub lowest: u32,
    /// Zero.
    pub unused: u32,
}

impl Entry {
    /// What stands for the number of escapes of a panel that is as in [`Panels`].
    pub const PLAIN: u32 = u32::MAX;
    /// Bytes of an entry.
    pub const BYTES: u64 = 16;

    /// As it is stored.
    pub fn to_le_bytes(self) -> [u8; Self::BYTES as usize] {
        let words = [self.start, self.escapes, self.lowest, self.unused].map(u32::to_le_bytes);
        std::array::from_fn(|i| words[i / 4][i % 4])
    }
}

impl Compact {
    /// Exponents that nibbles stand for.
    pub const WINDOW: u32 = 16;
    /// Bytes that panels begin at multiples of.
    pub const UNIT: u64 = 64;
    /// Elements of `K` that are coded together.
    pub const OCTET: u64 = 8;
    /// The most inputs that a place of an escape has bits for.
    const MOST_INPUTS: u64 = 1 << 26;
    /// Words of an octet for each output.
    pub const OCTET_WORDS: u64 = 3;
    /// Outputs that lie together.
    pub const OUTPUTS: u64 = 16;
    /// Bytes of an escape: `output | input << 6`, then its bits as `f32`.
    pub const ESCAPE_BYTES: u64 = 8;

    /// The layout of a bf16 weight with `rows` outputs (`N`) and `cols` inputs (`K`).
    pub const fn new(rows: u64, cols: u64) -> Self {
        Self::stack(1, rows, cols)
    }

    /// The layout of so many matrices with `rows` outputs each.
    pub const fn stack(matrices: u64, rows: u64, cols: u64) -> Self {
        Self { matrices, rows, cols }
    }

    /// Inputs of an output.
    pub const fn cols(&self) -> u64 {
        self.cols
    }

    /// How many panels a matrix has.
    pub const fn panels(&self) -> u64 {
        self.rows.div_ceil(Panels::WIDTH)
    }

    /// How many panels there are.
    pub const fn count(&self) -> u64 {
        self.matrices.saturating_mul(self.panels())
    }

    /// Bytes of a panel as in [`Panels`].
    pub const fn plain_bytes(&self) -> u64 {
        DType::BF16.bytes_for(Panels::new(self.rows, self.cols, DType::BF16).panel_len())
    }

    /// Bytes of a panel's octets.
    pub const fn octet_bytes(&self) -> u64 {
        self.cols.div_ceil(Self::OCTET).saturating_mul(Self::OCTET_WORDS * 4 * Panels::WIDTH)
    }

    /// Bytes of the table, which the weight ends with.
    pub const fn table_bytes(&self) -> u64 {
        Self::whole_units(self.count().saturating_mul(Entry::BYTES))
    }

    /// The most bytes that the weight may have, as many for each matrix of a stack: no panel got smaller.
    pub const fn most_bytes(&self) -> u64 {
        let entries = Self::whole_units(self.panels().saturating_mul(Entry::BYTES));
        let panels = self.panels().saturating_mul(self.plain_bytes());
        self.matrices.saturating_mul(panels.saturating_add(entries))
    }

    /// The least bytes that the weight may have: no panel stayed plain or has escapes.
    pub const fn least_bytes(&self) -> u64 {
        let (octets, plain) = (self.octet_bytes(), self.plain_bytes());
        let panel = if octets < plain { octets } else { plain };
        self.count().saturating_mul(panel).saturating_add(self.table_bytes())
    }

    /// `bytes` rounded up.
    const fn whole_units(bytes: u64) -> u64 {
        bytes.saturating_add(Self::UNIT - 1) / Self::UNIT * Self::UNIT
    }

    /// Codes panel `index` of all, which is one of [`Panels`] of bf16, and says all but where it will be. Outputs
    /// past the last have no bits in it.
    ///
    /// # Panics
    /// If `panel` has another length than [`Compact::plain_bytes`].
    pub fn encode(&self, index: u64, panel: &[u8]) -> (Entry, Vec<u8>) {
        assert_eq!(panel.len() as u64, self.plain_bytes());
        let plain = || (Entry { escapes: Entry::PLAIN, ..Entry::default() }, panel.to_vec());
        if self.octet_bytes() >= self.plain_bytes() || self.cols > Self::MOST_INPUTS {
            return plain();
        }
        let width = Panels::WIDTH as usize;
        let before = index % self.panels() * Panels::WIDTH;
        let outputs = (self.rows - before).min(Panels::WIDTH) as usize;
        let element = |lane: usize, input: usize| {
            let at = ((input / 2) * width + lane) * 4 + input % 2 * 2;
            u16::from_le_bytes([panel[at], panel[at + 1]])
        };
        let lowest = lowest(panel, outputs);
        let window = lowest..lowest + Self::WINDOW;
        let mut coded = vec![0; self.octet_bytes() as usize];
        let mut escapes = Vec::new();
        for (octet, words) in coded.chunks_exact_mut(width * 12).enumerate() {
            for lane in 0..outputs {
                for input in (octet * 8..self.cols as usize).take(8) {
                    let i = input % 8;
                    let bits = element(lane, input);
                    let exponent = u32::from(bits >> 7 & 0xff);
                    if !window.contains(&exponent) {
                        let place = lane as u32 | (input as u32) << 6;
                        escapes.push((place, u32::from(bits) << 16));
                        continue;
                    }
                    let nibble = (exponent - lowest) as u8;
                    let mut byte =
                        |word, byte, bits| words[4 * Self::word(lane, word) + byte] |= bits;
                    byte(i / 4, Self::mantissa_byte(i % 4), bits as u8 & 0x7f);
                    byte(i / 4, Self::sign_byte(i % 4), (bits >> 8) as u8 & 0x80);
                    let at = i % 2 * 4 + i / 2;
                    byte(2, at / 2, nibble << (at % 2 * 4));
                }
            }
        }
        for (place, bits) in &escapes {
            coded.extend(place.to_le_bytes());
            coded.extend(bits.to_le_bytes());
        }
        coded.resize(coded.len().next_multiple_of(Self::UNIT as usize), 0);
        if coded.len() >= panel.len() {
            return plain();
        }
        (Entry { escapes: escapes.len() as u32, lowest, ..Entry::default() }, coded)
    }

    /// Which word of an octet is the one `word` of three of the output `lane`.
    pub const fn word(lane: usize, word: usize) -> usize {
        let (outputs, words) = (Self::OUTPUTS as usize, Self::OCTET_WORDS as usize);
        (lane / outputs * words + word) * outputs + lane % outputs
    }

    /// The byte of a word that has the mantissa of element `i` of four.
    pub const fn mantissa_byte(i: usize) -> usize {
        [0, 2, 3, 1][i]
    }

    /// The byte of a word that has the sign of element `i` of four.
    pub const fn sign_byte(i: usize) -> usize {
        (Self::mantissa_byte(i) + 1) % 4
    }
}

/// Where the window begins that holds the most elements of a panel's `outputs`, the highest of those.
fn lowest(panel: &[u8], outputs: usize) -> u32 {
    let mut counts = [0u64; 256];
    for pairs in panel.chunks_exact(Panels::WIDTH as usize * 4) {
        for element in pairs[..outputs * 4].as_chunks::<2>().0 {
            counts[usize::from(u16::from_le_bytes(*element) >> 7 & 0xff)] += 1;
        }
    }
    let window = Compact::WINDOW as usize;
    let held = |lowest: &usize| counts[*lowest..lowest + window].iter().sum::<u64>();
    (0..=256 - window).max_by_key(held).unwrap_or(0) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Element `(lane, input)` of a panel as the documentation of [`Compact`] says.
    fn decoded(entry: Entry, coded: &[u8], layout: Compact, lane: usize, input: usize) -> u16 {
        let word = |i: usize| {
            let at = (((input / 8 * 4 + lane / 16) * 3 + i) * 16 + lane % 16) * 4;
            u32::from_le_bytes(coded[at..at + 4].try_into().unwrap())
        };
        let i = input % 8;
        let mantissa = word(i / 4) >> ([0, 16, 24, 8][i % 4]) & 0x7f;
        let sign = word(i / 4) >> ([15, 31, 7, 23][i % 4]) & 1;
        let nibble = word(2) >> ([0, 4, 1, 5, 2, 6, 3, 7][i] * 4) & 15;
        let exponent = entry.lowest + nibble;
        let bits = sign << 15 | exponent << 7 | mantissa;
        let escapes = coded[layout.octet_bytes() as usize..].as_chunks::<8>().0;
        let place = lane as u32 | (input as u32) << 6;
        let of = |e: &&[u8; 8]| e[..4] == place.to_le_bytes();
        match escapes[..entry.escapes as usize].iter().find(of) {
            Some(escape) => {
                assert_eq!(bits, entry.lowest << 7, "an escape leaves no bits");
                u16::from_le_bytes([escape[6], escape[7]])
            }
            None => bits as u16,
        }
    }

    /// Every bit pattern comes back, from panels of few exponents with some that are far away.
    #[test]
    fn panels_come_back_as_they_were() {
        for cols in [7, 8, 13, 64, 1000] {
            let layout = Compact::new(64, cols);
            let mut state = 7 + cols;
            let mut next = || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 33) as u16
            };
            let mut panel = vec![0; layout.plain_bytes() as usize];
            for element in panel.as_chunks_mut::<2>().0 {
                let (bits, kind) = (next(), next() % 100);
                let exponent = match kind {
                    0 => next() % 256,
                    1..3 => 0,
                    _ => 110 + next() % 16,
                };
                *element = (bits & 0x807f | exponent << 7).to_le_bytes();
            }
            let (entry, coded) = layout.encode(0, &panel);
            assert!(entry.escapes != Entry::PLAIN && coded.len() < panel.len(), "{cols}");
            assert!(cols < 64 || entry.escapes > 0);
            for lane in 0..64 {
                for input in 0..cols as usize {
                    let at = (input / 2 * 64 + lane) * 4 + input % 2 * 2;
                    let want = u16::from_le_bytes([panel[at], panel[at + 1]]);
                    assert_eq!(decoded(entry, &coded, layout, lane, input), want);
                }
            }
        }
    }

    #[test]
    fn what_gets_no_smaller_stays() {
        let layout = Compact::new(64, 64);
        let panel: Vec<u8> = (0..layout.plain_bytes()).map(|i| (i * 37 % 251) as u8).collect();
        assert_eq!(layout.encode(0, &panel).0.escapes, Entry::PLAIN);
        assert_eq!(layout.encode(0, &panel).1, panel);
        let short = Compact::new(64, 2);
        assert_eq!(short.encode(0, &vec![0; short.plain_bytes() as usize]).0.escapes, Entry::PLAIN);
    }

    /// Of the last panel's outputs one exists: the others are neither in its window nor escapes.
    #[test]
    fn outputs_past_the_last_have_no_bits() {
        let (layout, one) = (Compact::new(65, 64), 0x3f80u16.to_le_bytes());
        let mut panel = vec![0; layout.plain_bytes() as usize];
        let first = panel.as_chunks_mut::<256>().0.iter_mut().flat_map(|pairs| &mut pairs[..4]);
        first.zip(one.into_iter().cycle()).for_each(|(byte, one)| *byte = one);
        let (entry, coded) = layout.encode(1, &panel);
        assert_eq!((entry.escapes, coded.len() as u64), (0, layout.octet_bytes()));
        assert!(layout.encode(0, &panel).0.escapes > 0, "there all outputs exist");
    }

    #[test]
    fn how_long_a_weight_may_be() {
        let layout = Compact::new(130, 896);
        assert_eq!((layout.count(), layout.plain_bytes()), (3, 896 * 128));
        assert_eq!((layout.octet_bytes(), layout.table_bytes()), (896 * 96, 64));
        assert_eq!(layout.most_bytes(), 3 * 896 * 128 + 64);
        assert_eq!(layout.least_bytes(), 3 * 896 * 96 + 64);
        let stack = Compact::stack(5, 130, 896);
        assert_eq!((stack.count(), stack.most_bytes()), (15, 5 * layout.most_bytes()));
        assert_eq!(stack.table_bytes(), 256, "entries of 15 panels in whole units");
        assert_eq!(stack.least_bytes(), 15 * 896 * 96 + 256);
        let short = Compact::new(64, 2);
        assert_eq!(short.least_bytes(), short.most_bytes(), "octets would be longer");
    }
}
