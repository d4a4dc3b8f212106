//! Whether the platform's metadata service is asked in this boot, and what systemd then gets: the report of the platform, the link
//! that starts `orlop-provision.service`, and at the first boot the drop-in with which the agent waits for it.
//!
//! Local sources win: a document of ESP, drive, fw_cfg, SMBIOS or command line is there, also one that was refused, and the service
//! is not asked. What it answered once is kept, and it is not asked again by this machine; a copy of the disk in another machine
//! asks for itself, as at a first boot. Design: docs/reference/platforms.md.

use super::kept::FirstBootRecord;
use super::mounts::SYSROOT;
use super::source::{Document, Kind};
use super::step::BootStep;
use orlop_config::platform::{
    KEPT_DIR, MachineWords, PlatformName, PlatformReport, REPORT_FILE, UserDataState, identify,
};

/// Starts the unit with the node's target.
const LINK: &str = "/run/systemd/system/orlop.target.wants/orlop-provision.service";
/// The unit.
const UNIT: &str = "/usr/lib/systemd/system/orlop-provision.service";
/// The agent starts after it.
const DROP_IN: &str = "/run/systemd/system/kubelet.service.d/20-orlop-provision.conf";

/// What is known.
#[derive(Clone, Copy, Debug)]
pub struct PlatformInputs<'a> {
    /// The firmware's words.
    pub words: MachineWords<'a>,
    /// The report that an earlier boot kept, of any machine.
    pub kept: Option<&'a PlatformReport>,
    /// All documents of this boot.
    pub documents: &'a [Document],
    /// A drive or the ESP's file was there and could not be read.
    pub unreadable: bool,
    /// The state partition's word about the first boot.
    pub first_boot: &'a FirstBootRecord,
    /// /var is volatile: nothing can be kept.
    pub degraded: bool,
}

/// What follows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlatformPlan {
    /// The steps, in order; none on a machine without a platform.
    pub steps: Vec<BootStep>,
    /// For the ledger, if there is a platform.
    pub detail: String,
}

/// Decides.
#[must_use]
pub fn plan(inputs: &PlatformInputs<'_>) -> PlatformPlan {
    let Some(platform) = identify(&inputs.words) else { return PlatformPlan::default() };
    // A disk that was moved, or a copy of one: what was said is not about this machine.
    let kept = inputs.kept.filter(|kept| kept.is_about(&inputs.words));
    let report = match kept {
        Some(kept) => kept.clone(),
        None => {
            let machine = Some(inputs.words.uuid.to_ascii_lowercase()).filter(|uuid| !uuid.is_empty());
            PlatformReport { machine, ..PlatformReport::new(platform, user_data(platform, inputs)) }
        }
    };
    let first = *inputs.first_boot == FirstBootRecord::Absent || kept.is_none() && inputs.kept.is_some();
    let asks = kept.is_none() && !inputs.degraded && report.user_data == UserDataState::Pending;
    // Azure waits for a word of each new machine, wherever its configuration is from. A power cut may come before it.
    let reports = platform == PlatformName::Azure;
    let mut steps = vec![file(REPORT_FILE, report.render())];
    if asks || reports {
        steps.push(BootStep::MakeDir(format!("{SYSROOT}/var/{KEPT_DIR}")));
        steps.extend(parent(LINK).map(BootStep::MakeDir));
        steps.push(BootStep::MakeLink { path: LINK.into(), target: UNIT.into() });
    }
    if asks && first {
        steps.push(file(DROP_IN, "[Unit]\nAfter=orlop-provision.service\n".into()));
    }
    let word = match report.user_data {
        UserDataState::Local => "not asked: a local source has the configuration",
        UserDataState::Unsupported => "no metadata service",
        UserDataState::Pending if asks => "its metadata service will be asked",
        UserDataState::Pending => "not asked: nothing can be kept in this boot",
        UserDataState::None => "no user data at the first boot",
        UserDataState::Kept => "user data kept since the first boot",
    };
    PlatformPlan { steps, detail: format!("{}, {word}", platform.name()) }
}

fn user_data(platform: PlatformName, inputs: &PlatformInputs<'_>) -> UserDataState {
    // What the management API has applied came after the first boot.
    let local = |d: &Document| !matches!(d.kind, Kind::Image | Kind::Metadata | Kind::Node);
    if inputs.unreadable || inputs.documents.iter().any(local) {
        UserDataState::Local
    } else if platform.has_metadata() {
        UserDataState::Pending
    } else {
        UserDataState::Unsupported
    }
}

fn file(path: &str, text: String) -> BootStep {
    BootStep::WriteFile { path: path.into(), mode: 0o644, content: text.into_bytes() }
}

fn parent(path: &str) -> Option<String> {
    path.rsplit_once('/').map(|(directory, _)| directory.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(kind: Kind) -> Document {
        Document { kind, origin: "x".into(), text: "y".into(), kept: false }
    }

    const EC2: MachineWords<'static> = MachineWords {
        vendor: "Amazon EC2",
        product: "m6i.large",
        chassis_asset_tag: "Amazon EC2",
        uuid: "EC2-1",
    };
    const AZURE: MachineWords<'static> = MachineWords {
        vendor: "Microsoft Corporation",
        product: "Virtual Machine",
        chassis_asset_tag: "7783-7084-3265-9085-8269-3286-77",
        uuid: "",
    };

    static FIRST: FirstBootRecord = FirstBootRecord::Absent;

    fn inputs<'a>(words: MachineWords<'a>, documents: &'a [Document]) -> PlatformInputs<'a> {
        PlatformInputs {
            words,
            kept: None,
            documents,
            unreadable: false,
            first_boot: &FIRST,
            degraded: false,
        }
    }

    /// Is the unit started, and does the agent wait for it?
    fn started(plan: &PlatformPlan) -> (bool, bool) {
        let link = plan.steps.iter().any(|s| matches!(s, BootStep::MakeLink { path, .. } if path == LINK));
        let waits =
            plan.steps.iter().any(|s| matches!(s, BootStep::WriteFile { path, .. } if path == DROP_IN));
        (link, waits)
    }

    fn report(plan: &PlatformPlan) -> PlatformReport {
        let text = plan.steps.iter().find_map(|s| match s {
            BootStep::WriteFile { path, content, .. } if path == REPORT_FILE => Some(content.clone()),
            _ => None,
        });
        let text = String::from_utf8(text.expect("a report")).expect("text");
        PlatformReport::parse(&text).expect("a report")
    }

    #[test]
    fn a_first_boot_without_a_local_document_asks_and_waits() {
        let image = [document(Kind::Image)];
        let own = [document(Kind::Image), document(Kind::Node)];
        assert_eq!(started(&plan(&inputs(EC2, &own))), (true, true));
        let plan = plan(&inputs(EC2, &image));
        assert_eq!(started(&plan), (true, true));
        assert_eq!(report(&plan).user_data, UserDataState::Pending);
        assert_eq!(report(&plan).machine.as_deref(), Some("ec2-1"));
        assert!(plan.detail.starts_with("aws, "), "{}", plan.detail);
        assert_eq!(super::plan(&inputs(MachineWords::default(), &image)), PlatformPlan::default());
    }

    #[test]
    fn a_local_document_wins() {
        for kind in [Kind::Esp, Kind::Drive, Kind::FwCfg, Kind::Smbios, Kind::Cmdline] {
            let documents = [document(Kind::Image), document(kind)];
            let plan = plan(&inputs(EC2, &documents));
            assert_eq!((started(&plan), report(&plan).user_data), ((false, false), UserDataState::Local));
            // The fabric of Azure gets the report of the machine all the same, and the agent does not wait for that.
            assert_eq!(started(&super::plan(&inputs(AZURE, &documents))), (true, false));
        }
        let unreadable = PlatformInputs { unreadable: true, ..inputs(EC2, &[]) };
        assert_eq!(started(&plan(&unreadable)), (false, false));
    }

    #[test]
    fn later_boots_ask_on_without_waiting_and_a_kept_answer_ends_it() {
        let over = FirstBootRecord::Accepted(vec![]);
        let later = PlatformInputs { first_boot: &over, ..inputs(EC2, &[]) };
        assert_eq!(started(&plan(&later)), (true, false));
        let mut answer = PlatformReport::new(PlatformName::Aws, UserDataState::Kept);
        answer.facts.zone = Some("eu-west-1a".into());
        let with = |words, kept| plan(&PlatformInputs { words, kept: Some(kept), ..later });
        assert_eq!(started(&with(EC2, &answer)), (false, false));
        assert_eq!(report(&with(EC2, &answer)), answer);
        assert!(started(&with(AZURE, &answer)).0, "another platform's answer is not this one's");
        let degraded = PlatformInputs { degraded: true, ..inputs(EC2, &[]) };
        assert_eq!(started(&plan(&degraded)), (false, false));
    }

    #[test]
    fn a_copy_of_the_disk_asks_and_waits_as_at_a_first_boot() {
        let over = FirstBootRecord::Accepted(vec![]);
        let mut answer = PlatformReport::new(PlatformName::Aws, UserDataState::Kept);
        answer.facts.hostname = Some("model".into());
        for (machine, asks) in [(None, false), (Some("ec2-1"), false), (Some("ec2-0"), true)] {
            answer.machine = machine.map(str::to_owned);
            let plan = plan(&PlatformInputs { kept: Some(&answer), first_boot: &over, ..inputs(EC2, &[]) });
            assert_eq!(started(&plan), (asks, asks), "{machine:?}");
            assert_eq!(report(&plan).facts.hostname.is_none(), asks, "{machine:?}");
        }
    }

    #[test]
    fn azure_hears_of_the_machine_at_each_boot() {
        let over = FirstBootRecord::Accepted(vec![]);
        let answer = PlatformReport::new(PlatformName::Azure, UserDataState::Kept);
        let later = PlatformInputs { kept: Some(&answer), first_boot: &over, ..inputs(AZURE, &[]) };
        assert_eq!(started(&plan(&later)), (true, false));
    }

    #[test]
    fn a_platform_without_a_service_is_named_only() {
        let words = MachineWords { vendor: "VMware, Inc.", product: "VMware7,1", ..MachineWords::default() };
        let plan = plan(&inputs(words, &[]));
        assert_eq!((started(&plan), report(&plan).user_data), ((false, false), UserDataState::Unsupported));
    }
}
