//! The checksum that a manifest carries of itself. It has those of all other files, so that with it
//! no byte of an artifact changes unnoticed.

use crate::checksum;

/// What a sealed manifest begins with; 32 hexadecimal digits follow.
const OPENING: &str = "{\n  \"checksum\": \"";
const DIGITS: usize = 32;

/// Puts the checksum of what follows it first into `json`, an object that has some entry and none
/// called `checksum`.
///
/// # Panics
/// When `json` does not begin with a brace.
pub fn seal_manifest(json: &str) -> String {
    let rest = json.strip_prefix('{').expect("a manifest is an object");
    format!("{OPENING}{}\",{rest}", checksum(rest.as_bytes()))
}

/// Whether `json` is as [`seal_manifest`] left it.
pub(crate) fn is_sealed(json: &[u8]) -> bool {
    let parts = json.strip_prefix(OPENING.as_bytes()).and_then(|r| r.split_at_checked(DIGITS));
    let Some((found, Some(rest))) = parts.map(|(sum, r)| (sum, r.strip_prefix(b"\","))) else {
        return false;
    };
    checksum(rest).to_string().as_bytes() == found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bit_of_a_sealed_manifest_counts() {
        let sealed = seal_manifest("{\"format_version\": 5, \"blocks\": [1, 2]}\n");
        serde_json::from_str::<serde_json::Value>(&sealed).expect("it is JSON still");
        assert!(is_sealed(sealed.as_bytes()));
        for i in 0..sealed.len() * 8 {
            let mut bytes = sealed.clone().into_bytes();
            bytes[i / 8] ^= 1 << (i % 8);
            assert!(!is_sealed(&bytes), "bit {i}");
        }
        for end in 0..sealed.len() {
            assert!(!is_sealed(&sealed.as_bytes()[..end]), "cut to {end}");
        }
    }
}
