//! One request, carried out: settings, source, survey, staging.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use orlop_config::error_chain::chain;
use orlop_config::node::{Update, derive};
use orlop_config::release::{
    ARCH, ChannelClock, IMAGE_TRUST_FILE, KEPT_DIR, NodeRelease, ReleaseDocument, ReleaseVersion, UtcSecond,
};
use orlop_config::slots::{BootRecord, SlotName, SlotRecord, SlotState};
use tokio::sync::watch;

use super::bytes::UpdateBytes;
use super::plan::{PlannedSource, UpdatePlan};
use super::protocol::{UpdateReport, UpdateState};
use crate::directory::MountedDirectory;
use crate::disk::SlotDisk;
use crate::http::client_config;
use crate::https::HttpsDirectory;
use crate::oci::OciRepository;
use crate::oci_answers::OCI_SCHEME;
use crate::source::{ByteRange, ByteSource, DocumentSource, SourceError, TakePiece};
use crate::stage::{StageProgress, StagedRelease, stage};
use crate::store::UpdateStore;
use crate::survey::{Survey, SurveyAnswer, SurveyRequest, UpdateError, survey};

/// Longest file of the node's settings that is read, bytes.
const SMALL_FILE_MAX: u64 = 64 << 10;

/// Where the updater finds what it needs.
#[derive(Clone, Debug)]
pub struct UpdaterPaths {
    /// The image's trust document.
    pub trust: PathBuf,
    /// What the node keeps.
    pub kept: PathBuf,
    /// `update` of the configuration; absent if it is the default.
    pub settings: PathBuf,
    /// The running version.
    pub os_release: PathBuf,
    /// The node's own seed for rollouts.
    pub machine_id: PathBuf,
    /// Present once the clock was set by NTP.
    pub synchronized: PathBuf,
    /// Where the drive is mounted.
    pub stick: PathBuf,
    /// Certificate authorities.
    pub authorities: PathBuf,
    /// Directories with further ones, with colons between them.
    pub further_authorities: Option<OsString>,
    /// The node's passwords of registries, as the agent reads them for images; absent: none.
    pub registry_logins: PathBuf,
}

impl UpdaterPaths {
    /// Those of the appliance. `further_authorities` is `SSL_CERT_DIR`.
    #[must_use]
    pub fn appliance(further_authorities: Option<OsString>) -> UpdaterPaths {
        UpdaterPaths {
            trust: IMAGE_TRUST_FILE.into(),
            kept: KEPT_DIR.into(),
            settings: derive::UPDATE_FILE.into(),
            os_release: "/usr/lib/os-release".into(),
            machine_id: "/etc/machine-id".into(),
            synchronized: "/run/systemd/timesync/synchronized".into(),
            stick: "/run/orlop/stick".into(),
            authorities: "/etc/ssl/certs/ca-certificates.crt".into(),
            further_authorities,
            registry_logins: "/var/lib/kubelet/config.json".into(),
        }
    }

    /// The settings as they are now.
    pub(crate) fn settings(&self) -> Result<Update, UpdateReport> {
        let failed = |why: String| {
            let message = format!("{}: {why}", self.settings.display());
            UpdateReport::new(UpdateState::Failed, message)
        };
        match read_small(&self.settings) {
            Ok(text) => serde_json::from_slice(&text).map_err(|e| failed(e.to_string())),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Update::default()),
            Err(e) => Err(failed(e.to_string())),
        }
    }

    /// The version that runs, by os-release.
    pub(crate) fn running(&self) -> Result<ReleaseVersion, UpdateReport> {
        let text = read_small(&self.os_release).unwrap_or_default();
        running_version(&String::from_utf8_lossy(&text)).ok_or_else(|| {
            let message =
                format!("{} names no IMAGE_VERSION that can be compared", self.os_release.display());
            UpdateReport::new(UpdateState::Failed, message)
        })
    }

    /// The time, once the clock is trusted.
    fn now(&self) -> Option<UtcSecond> {
        if !self.synchronized.exists() {
            return None;
        }
        let since = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
        Some(UtcSecond::new(since.as_secs()))
    }
}

fn read_small(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    fs::File::open(path)?.take(SMALL_FILE_MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// `IMAGE_VERSION` of an os-release file.
#[must_use]
pub fn running_version(os_release: &str) -> Option<ReleaseVersion> {
    let value = os_release.lines().find_map(|line| line.strip_prefix("IMAGE_VERSION="))?;
    value.trim_matches('"').parse().ok()
}

/// The versions that the node has gone back from.
fn refused(record: &BootRecord) -> BTreeSet<ReleaseVersion> {
    let slots = SlotName::ALL.into_iter().map(|slot| record.slot(slot));
    slots
        .filter(|slot| slot.state == SlotState::Refused)
        .filter_map(|slot| slot.version.parse().ok())
        .collect()
}

/// The version that the settings name, if the node has gone back from it: it would be taken and tried for ever.
fn passed_over(plan: &UpdatePlan, gone_back: &BTreeSet<ReleaseVersion>) -> Option<ReleaseVersion> {
    plan.version.filter(|version| !plan.is_named && gone_back.contains(version))
}

/// Is this the version to which the node can go back? Written anew, the slot would be none for a while.
fn is_way_back(slot: &SlotRecord, version: ReleaseVersion) -> bool {
    slot.state == SlotState::Good && slot.version.parse::<ReleaseVersion>() == Ok(version)
}

/// How a request has ended.
#[derive(Clone, Debug)]
pub(crate) struct JobEnd {
    /// Its last report.
    pub(crate) report: UpdateReport,
    /// The source that is left for a while.
    pub(crate) leaves: Option<String>,
}

impl JobEnd {
    fn failed(why: String) -> JobEnd {
        JobEnd { report: UpdateReport::new(UpdateState::Failed, why), leaves: None }
    }

    fn of(report: UpdateReport) -> JobEnd {
        JobEnd { report, leaves: None }
    }
}

/// A source of any kind.
enum AnySource {
    Https(HttpsDirectory),
    Oci(OciRepository),
    Directory(MountedDirectory),
}

impl DocumentSource for AnySource {
    fn place(&self) -> String {
        match self {
            AnySource::Https(source) => source.place(),
            AnySource::Oci(source) => source.place(),
            AnySource::Directory(source) => source.place(),
        }
    }

    async fn document(&self, path: &str) -> Result<Option<Vec<u8>>, SourceError> {
        match self {
            AnySource::Https(source) => source.document(path).await,
            AnySource::Oci(source) => source.document(path).await,
            AnySource::Directory(source) => source.document(path).await,
        }
    }
}

impl ByteSource for AnySource {
    async fn bytes(&self, path: &str, range: ByteRange, take: &mut TakePiece<'_>) -> Result<(), SourceError> {
        match self {
            AnySource::Https(source) => source.bytes(path, range, take).await,
            AnySource::Oci(source) => source.bytes(path, range, take).await,
            AnySource::Directory(source) => source.bytes(path, range, take).await,
        }
    }
}

/// Carries out a plan.
pub(crate) async fn run(
    paths: UpdaterPaths,
    plan: UpdatePlan,
    reports: watch::Sender<UpdateReport>,
) -> JobEnd {
    let source = match open(&paths, &plan.source) {
        Ok(source) => source,
        Err(error) => return JobEnd::failed(chain(&error)),
    };
    let place = source.place();
    let is_stick = plan.source == PlannedSource::Stick;
    reports.send_replace(UpdateReport::new(UpdateState::Looking, format!("looks at {place}")));
    // A drive is not left: who has plugged it in looks on.
    let leaves = || (!is_stick).then(|| place.clone());
    let looked = look(&paths, &plan, &source).await;
    let (release, disk, clock) = match looked {
        Ok(LookResult::Take(release, disk, clock)) => (release, disk, clock),
        Ok(LookResult::Nothing(report)) => return JobEnd::of(report),
        Err(LookFault::Report(report)) => return JobEnd::of(report),
        Err(LookFault::Update(error)) => {
            let is_away = matches!(&error, UpdateError::Unreachable(fault) if fault.is_of_source());
            let end = JobEnd::failed(chain(&error));
            return if is_away { JobEnd { leaves: leaves(), ..end } } else { end };
        }
    };
    let version = release.version;
    let mut progress = |at: StageProgress| {
        let StageProgress { part, done, blocks } = at;
        let message = format!("writes {version}: {done} of {blocks} blocks of the {part}");
        let report = UpdateReport::new(UpdateState::Writing, message).about(version);
        reports.send_replace(UpdateReport { done, blocks, ..report });
    };
    match stage(&source, &release, &disk, &mut progress).await {
        Ok(done) => {
            if !done.was_staged {
                // The release is staged all the same; only the metrics miss it.
                let _ = UpdateBytes::of(&[done.root, done.uki]).add_to(&paths.kept);
            }
            let message = staged_message(version, &done, is_stick, clock);
            JobEnd::of(UpdateReport::new(UpdateState::Staged, message).about(version))
        }
        Err(error) => {
            let leaves = if error.is_of_source() { leaves() } else { None };
            let report = UpdateReport::new(UpdateState::Failed, chain(&error)).about(version);
            JobEnd { report, leaves }
        }
    }
}

fn open(paths: &UpdaterPaths, source: &PlannedSource) -> Result<AnySource, SourceError> {
    match source {
        PlannedSource::Stick => Ok(AnySource::Directory(MountedDirectory::new(&paths.stick))),
        PlannedSource::Https(base) => {
            let tls = client_config(&paths.authorities, paths.further_authorities.as_deref())?;
            if base.starts_with(OCI_SCHEME) {
                let logins = read_small(&paths.registry_logins).unwrap_or_default();
                return Ok(AnySource::Oci(OciRepository::new(base, tls, &logins)?));
            }
            Ok(AnySource::Https(HttpsDirectory::new(base, tls)?))
        }
    }
}

/// What a look has come to.
enum LookResult {
    Take(ReleaseDocument, SlotDisk, ChannelClock),
    Nothing(UpdateReport),
}

/// Why a look has come to nothing.
enum LookFault {
    Report(UpdateReport),
    Update(UpdateError),
}

async fn look(paths: &UpdaterPaths, plan: &UpdatePlan, source: &AnySource) -> Result<LookResult, LookFault> {
    let running = paths.running().map_err(LookFault::Report)?;
    let mut store = UpdateStore::open(&paths.kept, &paths.trust).map_err(LookFault::Update)?;
    let failed =
        |e: crate::disk::DiskFault| LookFault::Report(UpdateReport::new(UpdateState::Failed, chain(&e)));
    let disk = SlotDisk::running().map_err(failed)?;
    let (record, _) = disk.record().map_err(failed)?;
    if plan.version == Some(running) {
        let report =
            UpdateReport::new(UpdateState::UpToDate, format!("{running} runs already")).about(running);
        return Ok(LookResult::Nothing(report));
    }
    let gone_back = refused(&record);
    if let Some(version) = passed_over(plan, &gone_back) {
        let message =
            format!("the node has gone back from {version}; `orlop-update take {version}` takes it again");
        return Ok(LookResult::Nothing(UpdateReport::new(UpdateState::Idle, message).about(version)));
    }
    let slot = disk.places.running.other();
    if let Some(version) = plan.version.filter(|version| is_way_back(record.slot(slot), *version)) {
        let report = UpdateReport::new(UpdateState::Staged, format!("{version} is in slot {slot}, and good"));
        return Ok(LookResult::Nothing(report.about(version)));
    }
    let seed = read_small(&paths.machine_id).unwrap_or_default();
    let request = SurveyRequest {
        channel: &plan.channel,
        node: NodeRelease { arch: ARCH, running, floor: record.floor },
        seed: seed.trim_ascii(),
        refused: &gone_back,
        now: paths.now(),
        version: plan.version,
    };
    let Survey { clock, answer, .. } =
        survey(source, &mut store, &request).await.map_err(LookFault::Update)?;
    Ok(match answer {
        // Written anew, it would be tried by itself: a node that was led back from it would not stay there.
        SurveyAnswer::Take(release) if is_way_back(record.slot(slot), release.version) => {
            let version = release.version;
            let message = format!("{version} is in slot {slot}, and good");
            LookResult::Nothing(UpdateReport::new(UpdateState::Staged, message).about(version))
        }
        SurveyAnswer::Take(release) => LookResult::Take(release, disk, clock),
        SurveyAnswer::UpToDate => {
            let message =
                format!("{running} is the newest release of channel {} for this node", plan.channel);
            LookResult::Nothing(UpdateReport::new(UpdateState::UpToDate, message + clock_words(clock)))
        }
        SurveyAnswer::Waits { version, turn } => {
            let message = format!("the turn of this node for {version} comes at {turn}");
            let report = UpdateReport::new(UpdateState::Waits, message + clock_words(clock));
            LookResult::Nothing(report.about(version))
        }
    })
}

fn clock_words(clock: ChannelClock) -> &'static str {
    match clock {
        ChannelClock::Verified => "",
        ChannelClock::Unverified => "; the clock is not trusted yet, so the source may show an old document",
    }
}

fn staged_message(
    version: ReleaseVersion,
    done: &StagedRelease,
    is_stick: bool,
    clock: ChannelClock,
) -> String {
    let slot = done.slot;
    let mut message = if done.was_staged {
        format!("{version} was staged in slot {slot} before")
    } else {
        let fetched = (done.root.received_bytes + done.uki.received_bytes).div_ceil(1 << 20);
        let copied = done.root.copied + done.uki.copied;
        format!(
            "{version} is staged in slot {slot}: {fetched} MiB from the source, {copied} blocks from slot {}",
            slot.other()
        )
    };
    message.push_str("; nothing boots it yet");
    if is_stick {
        message.push_str("; the drive may be pulled out");
    }
    message + clock_words(clock)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slot::area::AreaCounts;

    #[test]
    fn the_running_version_is_that_of_the_image() {
        let version = |text: &str| running_version(text).map(|v| v.to_string());
        assert_eq!(version("ID=orlop\nIMAGE_VERSION=0.4.0\n").as_deref(), Some("0.4.0"));
        assert_eq!(version("IMAGE_VERSION=\"1.2.3\"").as_deref(), Some("1.2.3"));
        assert_eq!(version("VERSION_ID=1.2.3\nIMAGE_VERSION=next"), None);
        assert_eq!(version(""), None);
    }

    #[test]
    fn a_refused_version_is_not_taken_again() {
        let mut record = BootRecord::new(SlotName::A);
        (record.a.version, record.b.version) = ("0.1.0".into(), "0.2.0".into());
        assert!(refused(&record).is_empty());
        record.b.state = SlotState::Refused;
        let version: ReleaseVersion = "0.2.0".parse().expect("a version");
        assert_eq!(refused(&record), [version].into());
        let pinned = UpdatePlan {
            source: PlannedSource::Stick,
            channel: String::new(),
            version: Some(version),
            is_named: false,
        };
        assert_eq!(passed_over(&pinned, &refused(&record)), Some(version));
        assert_eq!(passed_over(&pinned, &BTreeSet::new()), None);
        let named = UpdatePlan { is_named: true, ..pinned };
        assert_eq!(passed_over(&named, &refused(&record)), None, "a person asks for it");
        assert!(!is_way_back(&record.b, version));
        record.b.state = SlotState::Good;
        assert!(is_way_back(&record.b, version));
        record.b.state = SlotState::Refused;
        record.b.version = "another".into();
        assert!(refused(&record).is_empty());
    }

    #[test]
    fn settings_are_read_as_init_writes_them() {
        let dir = tempfile::tempdir().expect("a scratch directory");
        let settings = dir.path().join("update.json");
        let paths = UpdaterPaths { settings: settings.clone(), ..UpdaterPaths::appliance(None) };
        assert_eq!(paths.settings().expect("none"), Update::default());
        let set = Update { source: "https://a.example/o".into(), ..Update::default() };
        fs::write(&settings, serde_json::to_vec(&set).expect("JSON")).expect("written");
        assert_eq!(paths.settings().expect("readable"), set);
        fs::write(&settings, "{").expect("written");
        let report = paths.settings().expect_err("damaged");
        assert!(report.state == UpdateState::Failed && report.message.contains("update.json"), "{report:?}");
    }

    #[test]
    fn a_person_reads_where_it_is_and_that_nothing_boots_it() {
        let counts = AreaCounts { copied: 5, received_bytes: (1 << 20) + 1, ..AreaCounts::default() };
        let done = StagedRelease { slot: SlotName::B, was_staged: false, root: counts, uki: counts };
        let version: ReleaseVersion = "0.2.0".parse().expect("a version");
        assert_eq!(
            staged_message(version, &done, true, ChannelClock::Verified),
            "0.2.0 is staged in slot B: 3 MiB from the source, 10 blocks from slot A; nothing boots it yet; \
             the drive may be pulled out"
        );
        let before = StagedRelease { was_staged: true, ..done };
        let said = staged_message(version, &before, false, ChannelClock::Unverified);
        assert!(
            said.starts_with("0.2.0 was staged in slot B before; nothing boots it yet; the clock"),
            "{said}"
        );
    }
}
