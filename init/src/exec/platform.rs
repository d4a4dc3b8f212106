//! The platform: the firmware's words and the kept report in, the decision of `plan::platform` carried out.

use super::report::Report;
use super::sources::{FoundSources, read_at_most};
use super::steps::apply_all;
use crate::plan::platform::{PlatformInputs, plan};
use orlop_config::error_chain::chain;
use orlop_config::platform::{
    KEPT_DIR, KEPT_REPORT, MachineWords, PlatformReport, REPORT_BYTES_MAX, REPORT_FILE, UserDataState,
};
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

/// What the kernel shows of SMBIOS.
const DMI: &str = "/sys/class/dmi/id";

/// The report that an earlier boot kept, of any machine. `root` is where the node's root is.
#[must_use]
pub fn kept(root: &Path, report: &mut Report) -> Option<PlatformReport> {
    read(root).unwrap_or_else(|why| {
        report.problem(&why);
        None
    })
}

/// The report if it is about this machine: a disk may have been moved, or be a copy.
#[must_use]
pub fn counting(kept: Option<&PlatformReport>) -> Option<&PlatformReport> {
    let words = OwnedWords::read(Path::new(DMI));
    kept.filter(|kept| kept.is_about(&words.borrowed()))
}

/// Whether the user data that an earlier boot kept were given to this machine.
#[must_use]
pub fn has_user_data(root: &Path) -> bool {
    // What is wrong with the report is said once, by `kept`.
    let kept = read(root).unwrap_or_default();
    counting(kept.as_ref()).is_some_and(|kept| kept.user_data == UserDataState::Kept)
}

/// The report of this boot, as the provisioning unit left it; `None` if there is none.
#[must_use]
pub fn this_boot() -> Option<PlatformReport> {
    let bytes = read_at_most(Path::new(REPORT_FILE), REPORT_BYTES_MAX).ok()?;
    PlatformReport::parse(&String::from_utf8_lossy(&bytes)).ok()
}

fn read(root: &Path) -> Result<Option<PlatformReport>, String> {
    let (dir, name) = (root.join("var").join(KEPT_DIR), KEPT_REPORT);
    let failed = |why: String| format!("/var/{KEPT_DIR}/{name} does not count: it {why}");
    match read_at_most(&dir.join(name), REPORT_BYTES_MAX) {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(e) => Err(failed(format!("cannot be read: {e}"))),
        Ok(bytes) => match PlatformReport::parse(&String::from_utf8_lossy(&bytes)) {
            Ok(kept) => Ok(Some(kept)),
            Err(why) => Err(failed(why)),
        },
    }
}

/// Names the platform, and has systemd start the provisioning unit if the metadata service is to be asked. A failure is a problem
/// of the report: the node runs with what it has.
pub fn begin(report: &mut Report, found: &FoundSources, kept: Option<&PlatformReport>, degraded: bool) {
    let words = OwnedWords::read(Path::new(DMI));
    let plan = plan(&PlatformInputs {
        words: words.borrowed(),
        kept,
        documents: &found.documents,
        unreadable: found.unreadable_medium,
        first_boot: &found.kept,
        degraded,
    });
    if let Err(e) = apply_all(&plan.steps) {
        report.problem(&format!("the platform's metadata service is not asked: {}", chain(&e)));
    }
    if !plan.detail.is_empty() {
        report.info(&format!("platform: {}", plan.detail));
    }
}

/// The firmware's words; empty where it says nothing.
#[derive(Debug, PartialEq, Eq)]
struct OwnedWords([String; 4]);

impl OwnedWords {
    fn read(dir: &Path) -> OwnedWords {
        OwnedWords(["sys_vendor", "product_name", "chassis_asset_tag", "product_uuid"].map(|name| {
            let bytes = fs::read(dir.join(name)).unwrap_or_default();
            String::from_utf8_lossy(&bytes).trim().to_string()
        }))
    }

    fn borrowed(&self) -> MachineWords<'_> {
        let [vendor, product, chassis_asset_tag, uuid] = &self.0;
        MachineWords { vendor, product, chassis_asset_tag, uuid }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use orlop_config::platform::PlatformName;

    #[test]
    fn words_are_trimmed_and_may_be_absent() {
        let dir = tempfile::tempdir().expect("temporary directory");
        fs::write(dir.path().join("sys_vendor"), "Amazon EC2\n").expect("fixture");
        fs::write(dir.path().join("product_uuid"), "ec2-1\n").expect("fixture");
        let want = MachineWords { vendor: "Amazon EC2", uuid: "ec2-1", ..MachineWords::default() };
        assert_eq!(OwnedWords::read(dir.path()).borrowed(), want);
    }

    #[test]
    fn a_kept_report_is_read_bounded() {
        let root = tempfile::tempdir().expect("temporary directory");
        assert_eq!(read(root.path()), Ok(None));
        let dir = root.path().join("var").join(KEPT_DIR);
        fs::create_dir_all(&dir).expect("fixture");
        let kept = PlatformReport::new(PlatformName::Gce, UserDataState::None);
        fs::write(dir.join(KEPT_REPORT), kept.render()).expect("fixture");
        assert_eq!(read(root.path()), Ok(Some(kept)));
        assert!(!has_user_data(root.path()), "the service had none");
        for bad in ["{".to_string(), " ".repeat(1 << 17)] {
            fs::write(dir.join(KEPT_REPORT), bad).expect("fixture");
            let why = read(root.path()).expect_err("refused");
            assert!(why.starts_with("/var/lib/orlop/config/platform.json does not count: it "), "{why}");
        }
    }
}
