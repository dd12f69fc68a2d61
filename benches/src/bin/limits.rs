//! `limits [THREADS]` prints what the machine can do at this moment as a line of JSON: billions of
//! bytes read from memory a second, and billions of operations a second of each instruction that it
//! has.

use precast_benches::probe::{Peak, peak_flops, read_bandwidth};
use serde_json::{Map, Value, json};

fn main() -> anyhow::Result<()> {
    let threads = std::env::args().nth(1).map_or(Ok(2), |n| n.parse())?;
    let mut limits = Map::new();
    limits.insert("read".into(), json!(read_bandwidth(threads)));
    for peak in Peak::ALL {
        if let Some(rate) = peak_flops(peak, threads) {
            limits.insert(peak.name().into(), json!(rate));
        }
    }
    println!("{}", Value::Object(limits));
    Ok(())
}
