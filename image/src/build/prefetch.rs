//! The list of what init reads and loads ahead (`usr/share/orlop/prefetch`): module names become paths, what a module
//! needs before it.

use crate::arch::Arch;
use crate::select::modules::Deps;
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::Path;

const LIST: &str = "usr/share/orlop/prefetch";

/// Writes the list of `root` again; `base` has the index of all modules.
///
/// # Errors
/// A module of the list is unknown, or a file of it is not in the image.
pub(super) fn expand(arch: Arch, base: &Path, root: &Path) -> Result<()> {
    let versions = root.join("usr/lib/modules");
    let version = fs::read_dir(&versions)
        .with_context(|| format!("listing {}", versions.display()))?
        .flatten()
        .next()
        .context("the image has no kernel modules")?
        .file_name();
    let dir = format!("usr/lib/modules/{}", version.to_string_lossy());
    let deps = Deps::parse(&fs::read_to_string(base.join(&dir).join("modules.dep"))?);
    let list = lines(&arch.fill(&fs::read_to_string(root.join(LIST))?), &deps, &dir)?;
    let absent: Vec<&str> = list.iter().map(String::as_str).filter(|p| !root.join(p).exists()).collect();
    if !absent.is_empty() {
        bail!("image/rootfs/common/{LIST} names what is not in the image: {}", absent.join(", "));
    }
    fs::write(root.join(LIST), list.join("\n") + "\n").with_context(|| format!("writing {LIST}"))
}

// Comments go, names of modules become the paths of unpacked modules.
fn lines(list: &str, deps: &Deps, dir: &str) -> Result<Vec<String>> {
    let mut out: Vec<String> = Vec::new();
    for line in list.lines().map(|l| l.split('#').next().unwrap_or("").trim()).filter(|l| !l.is_empty()) {
        let Some(module) = line.strip_prefix("module ") else {
            out.push(line.to_owned());
            continue;
        };
        let order = deps.load_order(&[module.trim()]).map_err(|unknown| {
            anyhow::anyhow!("image/rootfs/common/{LIST}: the kernel has no module {}", unknown.join(", "))
        })?;
        for path in order {
            let path = format!("{dir}/{}", path.trim_end_matches(".xz"));
            if !out.contains(&path) {
                out.push(path);
            }
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEP: &str = "kernel/n/bridge.ko.xz: kernel/n/stp.ko.xz kernel/n/llc.ko.xz\n\
        kernel/n/stp.ko.xz: kernel/n/llc.ko.xz\nkernel/n/llc.ko.xz:\nkernel/n/p8022.ko.xz: kernel/n/llc.ko.xz\n";

    #[test]
    fn modules_become_paths_each_once_after_what_they_need() {
        let list = "# why\nusr/bin/a # because\n\nmodule bridge\nmodule p8022\nusr/lib/d/\n";
        let got = lines(list, &Deps::parse(DEP), "m").expect("known");
        let want = ["usr/bin/a", "m/kernel/n/llc.ko", "m/kernel/n/stp.ko", "m/kernel/n/bridge.ko"];
        assert_eq!(got, [&want[..], &["m/kernel/n/p8022.ko", "usr/lib/d/"]].concat());
        let unknown = lines("module nope\n", &Deps::parse(DEP), "m").expect_err("unknown");
        assert!(unknown.to_string().contains("no module nope"), "{unknown}");
    }

    #[test]
    fn what_is_not_in_the_image_is_named() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let (base, root) = (dir.path().join("base"), dir.path().join("root"));
        for at in [&base, &root] {
            fs::create_dir_all(at.join("usr/lib/modules/6/kernel/n")).expect("fixture");
            fs::create_dir_all(at.join("usr/share/orlop")).expect("fixture");
        }
        fs::write(base.join("usr/lib/modules/6/modules.dep"), DEP).expect("fixture");
        fs::write(root.join("usr/lib/modules/6/kernel/n/llc.ko"), "").expect("fixture");
        fs::write(root.join(LIST), "module llc\n").expect("fixture");
        expand(Arch::Amd64, &base, &root).expect("all there");
        let written = fs::read_to_string(root.join(LIST)).expect("list");
        assert_eq!(written, "usr/lib/modules/6/kernel/n/llc.ko\n");
        fs::write(root.join(LIST), "module stp\nusr/bin/x\n").expect("fixture");
        let why = expand(Arch::Amd64, &base, &root).expect_err("absent").to_string();
        assert!(why.ends_with("kernel/n/stp.ko, usr/bin/x"), "{why}");
    }
}
