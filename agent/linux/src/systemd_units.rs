//! States of systemd's units over the system bus, for metrics.
//!
//! In: names of units. Out: [`SystemUnits`]: these and failed ones, and how many units are in each state. Invariants: it starts and
//! changes nothing; one connection for each question, within two seconds; units of pods (their cgroups and mounts, thousands of them)
//! are neither asked for nor counted. The interface is org.freedesktop.systemd1(5).

use std::collections::BTreeMap;
use std::time::Duration;

use agent_kubelet_api::node_metrics::{SystemUnit, SystemUnits};
use zbus::connection::Builder;
use zbus::proxy::CacheProperties;
use zbus::{Connection, OwnedObjectPath};

/// How long systemd may take for all answers: a scrape waits for it.
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// Failed units that are shown next to those that are asked for.
const FAILED_MAX: usize = 32;
/// Units that are looked at. systemd makes the other kinds (device, mount, scope, slice) out of what the kernel has, and pods have
/// most of them.
const PATTERNS: [&str; 7] =
    ["*.automount", "*.path", "*.service", "*.socket", "*.swap", "*.target", "*.timer"];

/// Why there are no states.
#[derive(Debug, thiserror::Error)]
pub enum UnitsError {
    /// There is no bus, or systemd is not on it.
    #[error("ask systemd for its units over the system bus")]
    Bus(#[from] zbus::Error),
    /// There was no answer in time.
    #[error("systemd did not tell its units within {} s", ANSWER_MAX.as_secs())]
    Silent,
}

#[zbus::proxy(
    default_service = "org.freedesktop.systemd1",
    default_path = "/org/freedesktop/systemd1",
    interface = "org.freedesktop.systemd1.Manager"
)]
trait UnitManager {
    fn list_units_by_patterns(&self, states: &[&str], patterns: &[&str]) -> zbus::Result<Vec<ListedUnit>>;

    #[zbus(property(emits_changed_signal = "false"))]
    fn system_state(&self) -> zbus::Result<String>;
}

#[zbus::proxy(default_service = "org.freedesktop.systemd1", interface = "org.freedesktop.systemd1.Service")]
trait ServiceUnit {
    #[zbus(property(emits_changed_signal = "false"), name = "Type")]
    fn service_type(&self) -> zbus::Result<String>;

    #[zbus(property(emits_changed_signal = "false"), name = "NRestarts")]
    fn restarts(&self) -> zbus::Result<u32>;
}

/// Name, description, load state, active state, substate, unit that it follows, path, and the id, kind and path of a job.
type ListedUnit =
    (String, String, String, String, String, String, OwnedObjectPath, u32, String, OwnedObjectPath);

/// Asks systemd.
///
/// # Errors
/// There is no systemd that answers in time.
pub async fn read(shown: &[&str]) -> Result<SystemUnits, UnitsError> {
    let asked = async {
        let connection = Builder::system().method_timeout(ANSWER_MAX).build().await?;
        read_over(&connection, shown).await
    };
    tokio::time::timeout(ANSWER_MAX, asked).await.map_err(|_| UnitsError::Silent)?.map_err(UnitsError::Bus)
}

async fn read_over(connection: &Connection, shown: &[&str]) -> zbus::Result<SystemUnits> {
    // A cache would ask for all properties, and follow them, for one of them.
    let manager = UnitManagerProxy::builder(connection).cache_properties(CacheProperties::No);
    let manager = manager.build().await?;
    let running = manager.system_state().await? == "running";
    let mut counts: BTreeMap<String, u32> = BTreeMap::new();
    let (mut units, mut failed) = (Vec::new(), 0);
    // No state: units in every state.
    let listed = manager.list_units_by_patterns(&[], &PATTERNS).await?;
    for (name, _, load_state, active_state, _, _, path, ..) in listed {
        *counts.entry(active_state.clone()).or_default() += 1;
        let is_asked = shown.contains(&name.as_str());
        let is_new_failure = active_state == "failed" && failed < FAILED_MAX;
        let is_shown = load_state == "loaded" && (is_asked || is_new_failure);
        if !is_shown {
            continue;
        }
        failed += usize::from(!is_asked);
        let mut unit = SystemUnit { name, active_state, ..SystemUnit::default() };
        if unit.name.ends_with(".service") {
            let builder = ServiceUnitProxy::builder(connection).path(path);
            let service = builder.cache_properties(CacheProperties::No).build().await?;
            unit.service_type = service.service_type().await?;
            unit.restarts = Some(service.restarts().await?);
        }
        units.push(unit);
    }
    units.sort_by(|a: &SystemUnit, b| a.name.cmp(&b.name));
    Ok(SystemUnits { running, counts: counts.into_iter().collect(), units })
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    struct FakeManager;

    struct FakeService(u32);

    fn path(unit: &str) -> OwnedObjectPath {
        OwnedObjectPath::try_from(format!("/org/freedesktop/systemd1/unit/{unit}")).unwrap()
    }

    #[zbus::interface(name = "org.freedesktop.systemd1.Manager")]
    impl FakeManager {
        async fn list_units_by_patterns(
            &self,
            states: Vec<String>,
            patterns: Vec<String>,
        ) -> Vec<ListedUnit> {
            let unit = |name: &str, load: &str, active: &str, object: &str| {
                let text = str::to_owned;
                let none = OwnedObjectPath::try_from("/".to_owned()).unwrap();
                (
                    text(name),
                    text(""),
                    text(load),
                    text(active),
                    text(""),
                    text(""),
                    path(object),
                    0,
                    text(""),
                    none,
                )
            };
            let mut all = vec![
                unit("kubelet.service", "loaded", "active", "kubelet"),
                unit("other.service", "loaded", "active", "kubelet"),
                unit("broken.service", "loaded", "failed", "broken"),
                unit("gone.service", "not-found", "failed", "broken"),
                unit("api.socket", "loaded", "active", "api"),
                unit("cri-containerd-1.scope", "loaded", "failed", "scope"),
                unit("var-lib-x.mount", "loaded", "active", "mount"),
            ];
            let failed = |n: u32| unit(&format!("a{n:02}.service"), "loaded", "failed", "broken");
            all.extend((0..40).map(failed));
            all.push(unit("last.service", "loaded", "failed", "broken"));
            let fits = |name: &str| patterns.iter().any(|p| name.ends_with(p.trim_start_matches('*')));
            all.retain(|unit| fits(&unit.0) && (states.is_empty() || states.contains(&unit.3)));
            all
        }

        #[zbus(property(emits_changed_signal = "false"))]
        async fn system_state(&self) -> String {
            "degraded".to_owned()
        }
    }

    #[zbus::interface(name = "org.freedesktop.systemd1.Service")]
    impl FakeService {
        #[zbus(property(emits_changed_signal = "false"), name = "Type")]
        async fn service_type(&self) -> String {
            "notify".to_owned()
        }

        #[zbus(property(emits_changed_signal = "false"), name = "NRestarts")]
        async fn restarts(&self) -> u32 {
            self.0
        }
    }

    #[tokio::test]
    async fn the_asked_units_and_failed_ones_are_shown_and_none_of_pods() {
        let (theirs, ours) = UnixStream::pair().unwrap();
        let server = Builder::unix_stream(theirs)
            .server(zbus::Guid::generate())
            .p2p()
            .serve_at("/org/freedesktop/systemd1", FakeManager)
            .serve_at("/org/freedesktop/systemd1/unit/kubelet", FakeService(3))
            .serve_at("/org/freedesktop/systemd1/unit/broken", FakeService(0))
            .build();
        let client = Builder::unix_stream(ours).p2p().build();
        let (_server, client) = tokio::try_join!(server, client).unwrap();
        let asked = ["kubelet.service", "api.socket", "none.service", "last.service"];
        let told = read_over(&client, &asked).await.unwrap();
        assert!(!told.running);
        assert_eq!(told.counts, [("active".to_owned(), 3), ("failed".to_owned(), 43)]);
        let unit = |name: &str, state: &str, kind: &str, restarts| SystemUnit {
            name: name.to_owned(),
            active_state: state.to_owned(),
            service_type: kind.to_owned(),
            restarts,
        };
        // 32 failed ones that nobody asked for, in systemd's order; those that are asked for do not count.
        let failed = |n: usize| unit(&format!("a{n:02}.service"), "failed", "notify", Some(0));
        let mut expected: Vec<SystemUnit> = (0..FAILED_MAX - 1).map(failed).collect();
        expected.extend([
            unit("api.socket", "active", "", None),
            unit("broken.service", "failed", "notify", Some(0)),
            unit("kubelet.service", "active", "notify", Some(3)),
            unit("last.service", "failed", "notify", Some(0)),
        ]);
        assert_eq!(told.units, expected);
    }
}
