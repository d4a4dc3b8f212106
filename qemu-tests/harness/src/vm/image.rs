//! The image that was built for the cases: its files, and the accelerator with which it boots.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use orlop_image::arch::Arch;
use orlop_image::build::{AGENT_PROFILE, RELEASED, read_manifest};
use orlop_image::profile::{Dirs, Profile};
use orlop_image::qemu::{self, Accelerator, Guest};

use super::disk;
use super::lab::{DISK_GIB, MEMORY_MIB};
use crate::run::{Run, cache_dir};

/// The build output of a profile.
#[derive(Clone, Debug)]
pub struct Image {
    pub(super) arch: Arch,
    dir: PathBuf,
}

impl Image {
    /// The test profile's output for this machine's architecture.
    ///
    /// # Errors
    /// If it was not built.
    pub fn test() -> Result<Image> {
        Image::of(Arch::HOST)
    }

    /// The test profile's output for an architecture.
    ///
    /// # Errors
    /// If it was not built.
    pub fn of(arch: Arch) -> Result<Image> {
        let dirs = Dirs { source: PathBuf::new(), cache: cache_dir(), arch };
        let image = Image { arch, dir: dirs.output(Profile::Test) };
        for file in ["orlop.raw", "vmlinuz", "initrd", "cmdline"] {
            let path = image.path(file);
            anyhow::ensure!(
                path.exists(),
                "{} is missing: build it with `cargo run --bin orlop-image -- build --profile test --arch {}`",
                path.display(),
                arch.name()
            );
        }
        Ok(image)
    }

    /// The test profile's output with the agent that a release has: measurements are of that one.
    ///
    /// # Errors
    /// If it was not built, or with another agent.
    pub fn as_released() -> Result<Image> {
        let dirs = Dirs { source: PathBuf::new(), cache: cache_dir(), arch: Arch::HOST };
        let manifest = read_manifest(&dirs, Profile::Test);
        let agent = manifest.as_ref().and_then(|manifest| manifest.inputs.get(AGENT_PROFILE));
        anyhow::ensure!(
            is_released(agent.map(String::as_str)),
            "the image's agent is not the one of a release, so a measurement would be of another program: build the image with \
             `cargo run --bin orlop-image -- build --profile test --as-released`"
        );
        Image::test()
    }

    /// A file of the output.
    #[must_use]
    pub fn path(&self, file: &str) -> PathBuf {
        self.dir.join(file)
    }

    /// The accelerator with which this image's kernel gets as far as init.
    ///
    /// # Errors
    /// If QEMU is not installed.
    pub fn accelerator(&self) -> Result<Accelerator> {
        let (kernel, initrd) = (self.path("vmlinuz"), self.path("initrd"));
        qemu::probe(&Guest { arch: self.arch, kernel, initrd, memory_mib: MEMORY_MIB })
    }

    /// Copies the files of one lab: a build that publishes meanwhile must not mix two images in the lab.
    pub(super) fn copy_to(&self, run: &Arc<Run>, dir: &Path) -> Result<()> {
        disk::copy(run, &self.path("orlop.raw"), &dir.join("disk.raw"), DISK_GIB)?;
        for file in ["vmlinuz", "initrd", "cmdline"] {
            fs::copy(self.path(file), dir.join(file)).with_context(|| format!("copy {file}"))?;
        }
        Ok(())
    }
}

/// True for cargo's profile of a release. An image of given programs names no profile: the caller answers for these.
fn is_released(profile: Option<&str>) -> bool {
    profile.is_none_or(|profile| profile == RELEASED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_measurement_wants_the_agent_of_a_release() {
        assert!(is_released(Some("release")) && is_released(None));
        assert!(!is_released(Some("quick")));
    }
}
