//! Reports how the last boot ended: the verdict at once, and a watchdog's reset when the watchdog's driver is loaded.
//!
//! In: the verdict; the watchdogs. Out: the Node's condition, at once and again if a watchdog adds to it; after that
//! the event of an unclean end, which cannot be revoked. Invariant: the end is reported on a machine without a
//! watchdog, too.

use std::path::Path;
use std::time::Duration;

use agent_core::events::Fact;
use agent_core::node_shutdown::{LastEnd, UNCLEAN_SHUTDOWN};
use agent_linux::hardware_watchdog::{CLASS, UDEV_QUEUE, boot_status, udev_is_idle};
use agent_types::event::EventKind;

use crate::node::node_events::NodeEvents;
use crate::pods::pod_dirs::chain;
use crate::tasks::actor::Tasks;

/// Pause between two looks for a watchdog.
const LOOK: Duration = Duration::from_millis(500);
/// How long drivers may take to load while the agent starts: until then a missing watchdog means nothing.
const DRIVERS: Duration = Duration::from_secs(10);
/// Longest wait for udev.
const DRIVERS_MAX: Duration = Duration::from_secs(60);

/// Reports the end. `is_news`: this boot has not reported it yet.
pub(super) async fn tell(end: LastEnd, is_news: bool, node_events: NodeEvents, tasks: Tasks) {
    node_events.last_end(end.clone());
    let watchdogs = watchdogs(Path::new(CLASS), Path::new(UDEV_QUEUE), &tasks).await;
    let whole = end.clone().told_by(&watchdogs);
    if whole != end {
        tracing::warn!(reason = whole.reason(), "{}", whole.message());
        node_events.last_end(whole.clone());
    }
    if is_news && whole.unclean.is_some() {
        node_events.of_node(Fact::of_node(EventKind::Warning, UNCLEAN_SHUTDOWN, whole.message()));
    }
}

/// The boot status of the watchdogs, when their drivers can be expected to be loaded.
async fn watchdogs(class: &'static Path, queue: &'static Path, tasks: &Tasks) -> Vec<u32> {
    let begun = tasks.now().mono;
    loop {
        let look = move || (boot_status(class), udev_is_idle(queue));
        let Some((found, idle)) = tasks.blocking(look).await else { return Vec::new() };
        let found = found.unwrap_or_else(|error| {
            tracing::warn!(error = chain(&error), "what watchdogs say of the last boot is not read");
            Vec::new()
        });
        let now = tasks.now().mono;
        if !found.is_empty() || is_settled(idle, now.since(begun)) {
            return found;
        }
        tasks.wait_until(now.after(LOOK)).await;
    }
}

/// There is no watchdog, after as long.
fn is_settled(udev_is_idle: bool, waited: Duration) -> bool {
    waited >= DRIVERS && udev_is_idle || waited >= DRIVERS_MAX
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;
    use std::sync::Arc;

    use tokio_util::sync::CancellationToken;

    use crate::node::shutdown::last_end::*;
    use crate::testing::VirtualClock;

    fn kept(path: PathBuf) -> &'static Path {
        Box::leak(path.into_boxed_path())
    }

    #[tokio::test(start_paused = true)]
    async fn a_watchdog_is_waited_for_but_not_for_ever() {
        let tasks = Tasks::new(Arc::new(VirtualClock::new()), CancellationToken::new());
        for (appears_after_s, busy_until_s, told, after_s) in [
            (Some(0), 0, vec![32], 0..=0),
            (Some(3), 0, vec![32], 3..=4),
            (None, 0, vec![], 10..=10),
            // udev never becomes idle.
            (Some(20), 30, vec![32], 20..=21),
            (None, 30, vec![], 30..=31),
            (None, 500, vec![], 60..=60),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let (class, queue) = (kept(dir.path().join("class")), kept(dir.path().join("queue")));
            fs::write(queue, "").unwrap();
            let begun = tasks.now().mono;
            let at = |seconds| begun.after(Duration::from_secs(seconds));
            let world = async {
                let mut changes = vec![(busy_until_s, true)];
                changes.extend(appears_after_s.map(|after| (after, false)));
                changes.sort_unstable();
                for (after, ends) in changes {
                    tasks.wait_until(at(after)).await;
                    if ends {
                        fs::remove_file(queue).unwrap();
                    } else {
                        fs::create_dir_all(class.join("watchdog0")).unwrap();
                        fs::write(class.join("watchdog0/bootstatus"), "32\n").unwrap();
                    }
                }
                std::future::pending::<()>().await;
            };
            let asked = async {
                // The first value is present before the first look.
                tasks.wait_until(at(0)).await;
                watchdogs(class, queue, &tasks).await
            };
            tokio::select! {
                biased;
                () = world => unreachable!(),
                found = asked => assert_eq!(found, told),
            }
            let waited = tasks.now().mono.since(begun).as_secs();
            assert!(after_s.contains(&waited), "{appears_after_s:?} {busy_until_s}: after {waited} s");
        }
    }
}
