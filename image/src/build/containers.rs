//! Compiles the baked-in containers from `image/containers/` and packs them as OCI archives.

use super::Builder;
use crate::arch::Arch;
use crate::format::oci;
use crate::host::run;
use anyhow::{Context, Result};
use std::fs;
use std::path::Path;
use std::process::Command;

/// Program, image reference, user.
pub(super) const IMAGES: [(&str, &str, &str); 2] = [
    ("pause", "localhost/orlop/pause:1", "65535:65535"),
    ("hello", "localhost/orlop/hello:1", "65534:65534"),
];

/// Writes `out/<name>.tar` for each.
pub(super) fn build(builder: &Builder, out: &Path) -> Result<String> {
    let arch = builder.dirs.arch;
    let mut sizes = Vec::new();
    for (name, reference, user) in IMAGES {
        let program = builder.dirs.work().join(format!("container-{name}"));
        let mut rustc = Command::new("rustc");
        rustc.current_dir(builder.dirs.source.join("image/containers"));
        rustc.args(["--edition", "2024", "--crate-type", "bin"]);
        for option in [
            "panic=abort",
            "opt-level=s",
            "strip=symbols",
            "relocation-model=static",
            "link-arg=-nostartfiles",
            "link-arg=-nostdlib",
            "link-arg=-static",
            "link-arg=-Wl,--build-id=none",
        ] {
            rustc.args(["-C", option]);
        }
        if arch != Arch::HOST {
            rustc.args(["--target", arch.facts().rust_target]);
            rustc.arg("-C").arg(format!("linker={}", arch.facts().cross_compiler));
        }
        rustc.arg(format!("{name}.rs")).arg("-o").arg(&program);
        run::logged(&mut rustc, &format!("compiling the {name} container"), &builder.log)?;
        let data = fs::read(&program).with_context(|| format!("reading {}", program.display()))?;
        sizes.push(format!("{name} {} B", data.len()));
        let path = format!("/{name}");
        let image = oci::Image {
            reference,
            files: vec![(&path, data)],
            entrypoint: vec![&path],
            user,
            architecture: arch.name(),
        };
        fs::write(out.join(format!("{name}.tar")), oci::archive(&image))?;
    }
    Ok(sizes.join(", "))
}
