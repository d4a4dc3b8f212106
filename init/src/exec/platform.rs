//! The platform: the firmware's words and the kept report in, the decision of `plan::platform` carried out.

use super::report::Report;
use super::sources::{FoundSources, read_at_most};
use super::steps::apply_all;
use crate::plan::platform::{PlatformInputs, plan};
use orlop_config::error_chain::chain;
use orlop_config::platform::{
    KEPT_DIR, KEPT_REPORT, MachineWords, PlatformReport, REPORT_BYTES_MAX, identify,
};
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

/// What the kernel shows of SMBIOS.
const DMI: &str = "/sys/class/dmi/id";

/// The report that an earlier boot kept of this platform. `root` is where the node's root is.
#[must_use]
pub fn kept(root: &str, report: &mut Report) -> Option<PlatformReport> {
    let [vendor, product, chassis_asset_tag] = words(Path::new(DMI));
    let words = MachineWords { vendor: &vendor, product: &product, chassis_asset_tag: &chassis_asset_tag };
    match read(Path::new(root)) {
        // A disk that was moved: what another platform said is not about this machine.
        Ok(kept) => kept.filter(|kept| identify(&words) == Some(kept.platform)),
        Err(why) => {
            report.problem(&why);
            None
        }
    }
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
    let [vendor, product, chassis_asset_tag] = words(Path::new(DMI));
    let plan = plan(&PlatformInputs {
        words: MachineWords { vendor: &vendor, product: &product, chassis_asset_tag: &chassis_asset_tag },
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

/// Vendor, product, asset tag of the chassis; empty where the firmware says nothing.
fn words(dir: &Path) -> [String; 3] {
    ["sys_vendor", "product_name", "chassis_asset_tag"].map(|name| {
        let bytes = fs::read(dir.join(name)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).trim().to_string()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use orlop_config::platform::{PlatformName, UserDataState};

    #[test]
    fn words_are_trimmed_and_may_be_absent() {
        let dir = tempfile::tempdir().expect("temporary directory");
        fs::write(dir.path().join("sys_vendor"), "Amazon EC2\n").expect("fixture");
        assert_eq!(words(dir.path()), ["Amazon EC2".to_string(), String::new(), String::new()]);
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
        for bad in ["{".to_string(), " ".repeat(1 << 17)] {
            fs::write(dir.join(KEPT_REPORT), bad).expect("fixture");
            let why = read(root.path()).expect_err("refused");
            assert!(why.starts_with("/var/lib/orlop/config/platform.json does not count: it "), "{why}");
        }
    }
}
