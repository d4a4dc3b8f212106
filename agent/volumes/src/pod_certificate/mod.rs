//! Certificates for pods: the requests, their renewal, and their results.
//!
//! In: the pods of the node, PodCertificateRequests of a watch, answers of the API server, the time. Out:
//! requests to create, pods whose volumes have new contents, events.
//!
//! ```text
//! new ──► asked ──► issued ──refresh time──► asked again ──► issued …
//!           └──────────┴───────────────────────┴──► denied or failed: for good
//! ```
//! Invariants: one request in flight for a place; a certificate stays until the next one is issued; keys
//! never enter this module: the shell keeps them by the name of their request. Nothing is on disk, as
//! upstream: an agent that starts requests all certificates again, and volumes keep their files until then.
//! Upstream: pkg/kubelet/podcertificate (KEP-4317).

mod request;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use agent_types::api::WatchEvent;
use agent_types::backoff::Backoff;
use agent_types::ids::{PodKey, PodUid};
use agent_types::machine::{Machine, Outbox};
use agent_types::pod;
use agent_types::time::{Mono, Now, Wall};
use k8s_openapi::api::certificates::v1beta1::PodCertificateRequest;
use k8s_openapi::api::core::v1::{Pod, PodCertificateProjection};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

pub use request::{Asker, RequestedCertificate};

use request::{Refusal, Verdict};

/// The feature gate.
pub const GATE: &str = "PodCertificateRequest";
/// A request that the watch does not show for so long was deleted.
const ABANDON: Duration = Duration::from_secs(600);
/// A certificate is overdue so long after it was to be asked for again.
const OVERDUE: Duration = Duration::from_secs(600);
/// Nodes do not ask all at once: up to so much later.
const SPREAD_S: u64 = 300;
/// How often the wall clock is looked at: it may be set.
const LOOK: Duration = Duration::from_secs(60);
const PENDING: &str = "credential bundle is not issued yet";

/// One source of one volume of a pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct CertificateSource {
    /// The pod.
    pub pod: PodKey,
    /// Name of the volume.
    pub volume: String,
    /// Which of its sources.
    pub index: usize,
}

impl CertificateSource {
    /// The source number `index` of a volume.
    #[must_use]
    pub fn new(p: &Pod, volume: &str, index: usize) -> CertificateSource {
        CertificateSource { pod: pod::key(p), volume: volume.to_owned(), index }
    }
}

impl fmt::Display for CertificateSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "source {} of volume {:?} of pod {}", self.index, self.volume, self.pod)
    }
}

/// Under which paths of the volume its files are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Paths {
    /// Key and certificates in one file.
    pub bundle: Option<String>,
    /// The key.
    pub key: Option<String>,
    /// The certificates.
    pub chain: Option<String>,
}

impl Paths {
    /// Those of a source.
    #[must_use]
    pub fn of(source: &PodCertificateProjection) -> Paths {
        let given = |path: &Option<String>| path.clone().filter(|p| !p.is_empty());
        Paths {
            bundle: given(&source.credential_bundle_path),
            key: given(&source.key_path),
            chain: given(&source.certificate_chain_path),
        }
    }
}

/// A certificate with its key, both PEM.
#[derive(Clone)]
pub struct Certified {
    /// PKCS#8.
    pub key: Arc<[u8]>,
    /// The certificate first, then what leads to its root.
    pub chain: Arc<[u8]>,
}

/// The key is never shown.
impl fmt::Debug for Certified {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Certified(<private key>, {} bytes)", self.chain.len())
    }
}

/// What happens.
#[derive(Clone, Debug)]
pub enum CertificateEvent {
    /// These are the node's pods.
    Pods(BTreeMap<PodUid, Arc<Pod>>),
    /// The watch of the node's requests said something.
    Watched(WatchEvent<PodCertificateRequest>),
    /// A request was made: its name and when; or why not.
    Asked(CertificateSource, Result<(String, Wall), String>),
    /// The deadline has passed.
    Tick,
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CertificateAction {
    /// Make a key and a request for it; answer with [`CertificateEvent::Asked`].
    Ask(CertificateSource, RequestedCertificate),
    /// The volumes of this pod have something new.
    Changed(PodUid),
    /// Record a warning event for the pod.
    Tell(PodKey, &'static str, String),
    /// Watch the node's requests, or cease to.
    Watch(bool),
}

/// A certificate that was issued.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Issued {
    /// Name of its request, whose key it is for.
    request: String,
    chain: Arc<[u8]>,
    refresh: Wall,
    ends: Wall,
    told_overdue: bool,
    told_expired: bool,
}

impl Issued {
    fn is_overdue(&self, now: Wall) -> bool {
        now > later(self.refresh, OVERDUE)
    }

    fn has_ended(&self, now: Wall) -> bool {
        now > self.ends
    }
}

/// What became of the last request.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Request {
    /// There is none.
    None,
    /// It is being made.
    Making,
    /// It waits for its signer.
    Waits { name: String, abandon: Wall },
    /// It was refused, in these words: for good.
    Refused(Refusal, String),
}

#[derive(Clone, Debug)]
struct Projection {
    wanted: RequestedCertificate,
    issued: Option<Issued>,
    request: Request,
    failures: u32,
    not_before: Mono,
    /// Why the last request could not be made.
    why: Option<String>,
}

/// The certificates of the node's pods.
#[derive(Clone, Debug, Default)]
pub struct PodCertificates {
    seed: u64,
    places: BTreeMap<CertificateSource, Projection>,
    /// What the watch shows, by namespace and name.
    seen: BTreeMap<(String, String), Arc<PodCertificateRequest>>,
    next: Option<Mono>,
}

impl PodCertificates {
    /// No pods yet. `seed` is the node's own: it spreads the moments at which nodes ask.
    #[must_use]
    pub fn new(seed: u64) -> PodCertificates {
        PodCertificates { seed, ..PodCertificates::default() }
    }

    /// What a volume may be given: the name of the request whose key it is, and the certificates.
    ///
    /// # Errors
    /// There is none, and why.
    pub fn held(&self, place: &CertificateSource) -> Result<(&str, &Arc<[u8]>), String> {
        let Some(projection) = self.places.get(place) else {
            return Err(format!("no credentials yet for {place}"));
        };
        match (&projection.request, &projection.issued, &projection.why) {
            (Request::Refused(_, words), ..) => Err(words.clone()),
            (_, Some(issued), _) => Ok((&issued.request, &issued.chain)),
            (_, None, Some(why)) => Err(format!("{PENDING}: {why}")),
            (_, None, None) => Err(PENDING.to_owned()),
        }
    }

    /// Every place there is.
    pub fn places(&self) -> impl Iterator<Item = &CertificateSource> {
        self.places.keys()
    }

    /// How many places there are by signer and state, in upstream's words (`kubelet_podcertificate_states`).
    #[must_use]
    pub fn states(&self, now: Wall) -> BTreeMap<(&str, &'static str), u32> {
        let mut states = BTreeMap::new();
        for projection in self.places.values() {
            let key = (projection.wanted.signer.as_str(), projection.state(now));
            *states.entry(key).or_default() += 1;
        }
        states
    }

    /// The requests whose keys are needed.
    #[must_use]
    pub fn needed(&self) -> BTreeSet<(CertificateSource, String)> {
        let of = |(place, projection): (&CertificateSource, &Projection)| {
            let waits = match &projection.request {
                Request::Waits { name, .. } => Some(name.clone()),
                _ => None,
            };
            let issued = projection.issued.as_ref().map(|issued| issued.request.clone());
            [waits, issued].into_iter().flatten().map(|name| (place.clone(), name)).collect::<Vec<_>>()
        };
        self.places.iter().flat_map(of).collect()
    }

    fn pods(&mut self, pods: &BTreeMap<PodUid, Arc<Pod>>, out: &mut Outbox<CertificateAction>) {
        let before = self.places.is_empty();
        let mut places = BTreeMap::new();
        for p in pods.values() {
            for (place, wanted) in request::of_pod(p) {
                let new = || Projection {
                    wanted,
                    issued: None,
                    request: Request::None,
                    failures: 0,
                    not_before: Mono(0),
                    why: None,
                };
                let known = self.places.remove(&place).unwrap_or_else(new);
                places.insert(place, known);
            }
        }
        self.places = places;
        if before != self.places.is_empty() {
            out.push(CertificateAction::Watch(before));
        }
        if self.places.is_empty() {
            self.seen.clear();
        }
    }

    fn watched(&mut self, event: WatchEvent<PodCertificateRequest>) {
        let key = |r: &PodCertificateRequest| {
            (r.metadata.namespace.clone().unwrap_or_default(), r.metadata.name.clone().unwrap_or_default())
        };
        // A late word of a watch that has ended.
        if self.places.is_empty() {
            return;
        }
        match event {
            WatchEvent::Listed(all) => self.seen = all.into_iter().map(|r| (key(&r), r)).collect(),
            WatchEvent::Applied(one) => {
                self.seen.insert(key(&one), one);
            }
            WatchEvent::Deleted(one) => {
                self.seen.remove(&key(&one));
            }
            WatchEvent::Lost(_) => {}
        }
    }

    fn asked(&mut self, now: Now, place: &CertificateSource, answer: Result<(String, Wall), String>) {
        let spread = |request: &str| spread(self.seed, place, request);
        let answer = answer.map(|(name, made)| {
            let abandon = later(made, ABANDON + spread(&name));
            Request::Waits { name, abandon }
        });
        let Some(projection) = self.places.get_mut(place) else { return };
        match answer {
            Ok(waits) => (projection.request, projection.failures, projection.why) = (waits, 0, None),
            Err(why) => {
                let round = if projection.issued.is_some() { "refresh" } else { "initial" };
                projection.why = Some(format!("while creating {round} PodCertificateRequest: {why}"));
                projection.back_off(now.mono);
            }
        }
    }

    fn look(&mut self, now: Now, out: &mut Outbox<CertificateAction>) {
        for (place, projection) in &mut self.places {
            let key = |name: &str| (place.pod.namespace.to_string(), name.to_owned());
            if let Request::Waits { name, abandon } = &projection.request {
                let name = name.clone();
                match self.seen.get(&key(&name)).map(|r| request::verdict(r)) {
                    Some(Verdict::Pending) => {}
                    None if now.wall <= *abandon => {}
                    None => {
                        projection.why = Some(format!(
                            "PodCertificateRequest \"{}/{name}\" appears to have been deleted",
                            place.pod.namespace
                        ));
                        projection.back_off(now.mono);
                    }
                    Some(Verdict::Issued { chain, refresh, ends }) => {
                        let refresh = later(refresh, spread(self.seed, place, &name));
                        let (told_overdue, told_expired) = (false, false);
                        let issued =
                            Issued { request: name, chain, refresh, ends, told_overdue, told_expired };
                        (projection.issued, projection.request) = (Some(issued), Request::None);
                        (projection.failures, projection.not_before) = (0, Mono(0));
                        out.push(CertificateAction::Changed(place.pod.uid.clone()));
                    }
                    Some(Verdict::Refused { by, said, words }) => {
                        let told = format!("PodCertificateRequest {}/{name} {said}", place.pod.namespace);
                        (projection.request, projection.issued) = (Request::Refused(by, words), None);
                        out.push(CertificateAction::Tell(place.pod.clone(), by.reason(), told));
                        out.push(CertificateAction::Changed(place.pod.uid.clone()));
                    }
                }
            }
            projection.late(now.wall, place, out);
            if projection.is_due(now) {
                projection.request = Request::Making;
                out.push(CertificateAction::Ask(place.clone(), projection.wanted.clone()));
            }
        }
        self.next = self.places.values().filter_map(|p| p.next(now)).min();
    }
}

impl Projection {
    fn back_off(&mut self, now: Mono) {
        let wait = Backoff::OPERATION.next(self.failures);
        self.failures = self.failures.saturating_add(1);
        (self.request, self.not_before) = (Request::None, now.after(wait));
    }

    fn state(&self, now: Wall) -> &'static str {
        match (&self.request, &self.issued) {
            (Request::Refused(Refusal::Denied, _), _) => "denied",
            (Request::Refused(Refusal::Failed, _), _) => "failed",
            (_, None) => "not_yet_issued",
            (_, Some(issued)) if issued.has_ended(now) => "expired",
            (_, Some(issued)) if issued.is_overdue(now) => "overdue_for_refresh",
            (_, Some(_)) => "fresh",
        }
    }

    fn is_due(&self, now: Now) -> bool {
        let old = self.issued.as_ref().is_none_or(|issued| now.wall >= issued.refresh);
        self.request == Request::None && old && now.mono >= self.not_before
    }

    /// Records an event for a certificate that is overdue, and one for a certificate that has expired, once each.
    fn late(&mut self, now: Wall, place: &CertificateSource, out: &mut Outbox<CertificateAction>) {
        let Some(issued) = &mut self.issued else { return };
        let mut tell = |reason, words: &str| {
            out.push(CertificateAction::Tell(place.pod.clone(), reason, words.to_owned()));
        };
        if issued.is_overdue(now) && !issued.told_overdue {
            issued.told_overdue = true;
            tell("CertificateOverdueForRefresh", "PodCertificate refresh overdue");
        }
        if issued.has_ended(now) && !issued.told_expired {
            issued.told_expired = true;
            tell("CertificateExpired", "PodCertificate expired");
        }
    }

    /// When to look again.
    fn next(&self, now: Now) -> Option<Mono> {
        let look = now.mono.after(LOOK);
        match (&self.request, &self.issued) {
            (Request::Refused(..), _) => None,
            // The answer arrives.
            (Request::Making, _) => None,
            (Request::Waits { .. }, _) => Some(look),
            (Request::None, None) => Some(self.not_before),
            (Request::None, Some(issued)) => {
                let at = now.mono.after(issued.refresh.since(now.wall)).max(self.not_before);
                Some(at.min(look))
            }
        }
    }
}

impl Machine for PodCertificates {
    type Event = CertificateEvent;
    type Action = CertificateAction;

    fn step(&mut self, now: Now, event: CertificateEvent, out: &mut Outbox<CertificateAction>) {
        match event {
            CertificateEvent::Pods(pods) => self.pods(&pods, out),
            CertificateEvent::Watched(event) => self.watched(event),
            CertificateEvent::Asked(place, answer) => self.asked(now, &place, answer),
            CertificateEvent::Tick => {}
        }
        self.look(now, out);
    }

    fn deadline(&self) -> Option<Mono> {
        self.next
    }
}

fn later(at: Wall, by: Duration) -> Wall {
    Wall(at.0.saturating_add(i64::try_from(by.as_nanos()).unwrap_or(i64::MAX)))
}

/// How much later than it might this node does something about a request.
fn spread(seed: u64, place: &CertificateSource, request: &str) -> Duration {
    let hash = Sha256::new()
        .chain_update(seed.to_le_bytes())
        .chain_update(place.to_string())
        .chain_update(request)
        .finalize();
    let number = hash.iter().take(8).fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte));
    Duration::from_millis(number % (SPREAD_S * 1000))
}
