//! Prints the CRI v1 facts that a Go executable (a kubelet, containerd, any program of that API's module) carries:
//! `cri-facts EXECUTABLE`. This is how `facts/cri-v1.36.tsv` is made and renewed.

use anyhow::{Context as _, bail};
use orlop_proto::contract::{Contract, go_binary};

#[allow(clippy::print_stdout)] // its output is the product
fn main() -> anyhow::Result<()> {
    let Some(path) = std::env::args().nth(1) else { bail!("usage: cri-facts EXECUTABLE") };
    let bytes = std::fs::read(&path).with_context(|| format!("read {path}"))?;
    let file = go_binary::find_descriptor(&bytes, "runtime.v1")
        .with_context(|| format!("{path} carries no descriptor of runtime.v1"))?;
    print!("{}", Contract::of_file(&file).to_table());
    Ok(())
}
