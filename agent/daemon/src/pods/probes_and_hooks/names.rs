//! Look-ups of host names in probes and hooks of pods (`httpGet.host`, `tcpSocket.host`).
//!
//! In: a host. Out: its addresses. The system's resolver blocks a thread for as long as the name servers take, tens of
//! seconds if none answers, and cannot be interrupted. So a pod with enough such names could take all threads.
//! Invariants: one look-up for each name at a time, which all callers share; [`NAME_THREADS`] look-ups at most, and
//! [`SLOW_THREADS`] of them at most for names that were slow the last time; a look-up keeps its thread's place until it
//! has ended, even if all callers have given up; if a caller gives up before the look-up begins, there is no look-up.
//! An address needs no look-up.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use agent_types::lock::Lock;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::Instant;

use super::net::words;
use crate::tasks::pools::NAME_THREADS;
use crate::tasks::stops::AgentStops;

/// Look-ups at once of names that were slow the last time.
const SLOW_THREADS: usize = 4;
/// A look-up that takes longer is slow: most probes have given up by then (`timeoutSeconds` is 1 by default).
const SLOW: Duration = Duration::from_secs(2);
/// Largest number of remembered slow names. Beyond it, a slow name takes a quick name's thread for one look-up.
const SLOW_NAMES_MAX: usize = 4096;

/// Addresses of a name, or the reason why it has none.
type LookupResult = Result<Arc<[IpAddr]>, String>;
type Resolve = dyn Fn(&str) -> io::Result<Vec<IpAddr>> + Send + Sync;

/// Looks up names. Clones share everything.
#[derive(Clone)]
pub(super) struct Names {
    resolve: Arc<Resolve>,
    known: Arc<Lock<LookupState>>,
    quick: Arc<Semaphore>,
    slow: Arc<Semaphore>,
}

#[derive(Default)]
struct LookupState {
    /// Look-ups under way; each answers once.
    under_way: BTreeMap<String, watch::Receiver<Option<LookupResult>>>,
    slow: BTreeSet<String>,
}

impl LookupState {
    fn ended(&mut self, name: &str, took: Duration) {
        self.under_way.remove(name);
        if took < SLOW {
            self.slow.remove(name);
        } else if self.slow.len() < SLOW_NAMES_MAX {
            self.slow.insert(name.to_owned());
        }
    }
}

impl Names {
    /// Asks the system's resolver.
    pub(super) fn of_system() -> Names {
        Names::new(|name| Ok((name, 0).to_socket_addrs()?.map(|found| found.ip()).collect()))
    }

    fn new(resolve: impl Fn(&str) -> io::Result<Vec<IpAddr>> + Send + Sync + 'static) -> Names {
        Names {
            resolve: Arc::new(resolve),
            known: Arc::default(),
            quick: Arc::new(Semaphore::new(NAME_THREADS - SLOW_THREADS)),
            slow: Arc::new(Semaphore::new(SLOW_THREADS)),
        }
    }

    /// Addresses of a host: at least one. Waits as long as the look-up; the caller has the time limit.
    ///
    /// # Errors
    /// The resolver's message.
    pub(super) async fn addresses(&self, host: &str) -> LookupResult {
        if let Ok(address) = host.parse() {
            return Ok(Arc::new([address]));
        }
        let mut answer = match self.under_way(host) {
            Some(answer) => answer,
            None => self.begin(host).await,
        };
        // The look-up's thread answers in any case, unless the agent stops.
        let answered = answer.wait_for(Option::is_some).await.ok().and_then(|answer| answer.clone());
        answered.unwrap_or_else(|| Err(AgentStops.into()))
    }

    fn under_way(&self, host: &str) -> Option<watch::Receiver<Option<LookupResult>>> {
        self.known.lock().under_way.get(host).cloned()
    }

    /// Waits for a thread, and begins a look-up unless another asker was quicker.
    async fn begin(&self, host: &str) -> watch::Receiver<Option<LookupResult>> {
        let threads = if self.known.lock().slow.contains(host) { &self.slow } else { &self.quick };
        // No semaphore here is ever closed.
        let place = threads.clone().acquire_owned().await.ok();
        let mut known = self.known.lock();
        if let Some(answer) = known.under_way.get(host) {
            return answer.clone();
        }
        let (send, answer) = watch::channel(None);
        known.under_way.insert(host.to_owned(), answer.clone());
        drop(known);
        self.look_up(host.to_owned(), place, send);
        answer
    }

    fn look_up(
        &self,
        host: String,
        place: Option<OwnedSemaphorePermit>,
        send: watch::Sender<Option<LookupResult>>,
    ) {
        let names = self.clone();
        let begun = Instant::now();
        let work = move || {
            let found = (names.resolve)(&host);
            names.known.lock().ended(&host, begun.elapsed());
            drop(place);
            let answer = match found {
                Ok(found) if found.is_empty() => Err(format!("lookup {host}: no such host")),
                Ok(found) => Ok(found.into()),
                Err(error) => Err(format!("lookup {host}: {}", words(&error))),
            };
            send.send_replace(Some(answer));
        };
        // The stop of the agent does not wait for name servers.
        drop(tokio::task::spawn_blocking(work));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use futures_util::FutureExt;
    use tokio::time::timeout;

    use super::*;

    /// A resolver that reports each name that it looks up, and answers names that begin with `dead` only when the test
    /// allows it.
    fn resolver() -> (Names, Receiver<String>, Sender<()>) {
        let (asked, names_asked) = channel();
        let (release, released) = channel::<()>();
        let released = Lock::new(released);
        let names = Names::new(move |name| {
            let _ = asked.send(name.to_owned());
            if name.starts_with("dead") {
                // Released by the end of the sender.
                let _ = released.lock().recv();
                return Err(io::Error::other("no name server answers"));
            }
            Ok(vec![IpAddr::from([192, 0, 2, 1])])
        });
        (names, names_asked, release)
    }

    #[tokio::test]
    async fn an_address_needs_no_look_up_and_a_name_has_one() {
        let (names, asked, _release) = resolver();
        assert_eq!(&*names.addresses("::1").await.unwrap(), [IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1])]);
        assert!(asked.try_recv().is_err());
        assert_eq!(&*names.addresses("good").await.unwrap(), [IpAddr::from([192, 0, 2, 1])]);
        assert_eq!(asked.recv().unwrap(), "good");
    }

    #[tokio::test]
    async fn askers_share_a_look_up_and_hear_the_same_reason() {
        let (names, asked, release) = resolver();
        let mut first = Box::pin(names.addresses("dead"));
        assert!((&mut first).now_or_never().is_none());
        assert_eq!(asked.recv().unwrap(), "dead");
        let mut second = Box::pin(names.addresses("dead"));
        assert!((&mut second).now_or_never().is_none());
        drop(release);
        let reason = "lookup dead: no name server answers";
        assert_eq!(
            (first.await.unwrap_err(), second.await.unwrap_err()),
            (reason.to_owned(), reason.to_owned())
        );
        assert!(asked.try_recv().is_err(), "one look-up for both");
        assert!(names.known.lock().under_way.is_empty());
    }

    #[tokio::test]
    async fn names_that_no_server_answers_for_leave_threads_to_others() {
        let (names, _asked, release) = resolver();
        let dead: Vec<String> = (0..64).map(|n| format!("dead{n}")).collect();
        // The state after the first look-ups, which were slow.
        dead.iter().for_each(|name| names.known.lock().ended(name, SLOW));
        // Each asker gives up at once, again and again, as a probe does after its timeout.
        for name in dead.iter().chain(&dead) {
            assert!(names.addresses(name).now_or_never().is_none());
        }
        assert_eq!(names.known.lock().under_way.len(), SLOW_THREADS);
        assert_eq!(
            names.slow.available_permits(),
            0,
            "a look-up keeps its thread though nobody waits for it"
        );
        let good = timeout(Duration::from_secs(10), names.addresses("good")).await;
        assert!(good.expect("a look-up has a thread").is_ok());
        drop(release);
    }

    #[test]
    fn a_name_is_slow_or_quick_by_its_last_look_up() {
        let mut known = LookupState::default();
        known.ended("a", SLOW);
        assert!(known.slow.contains("a"));
        known.ended("a", SLOW - Duration::from_millis(1));
        assert!(known.slow.is_empty());
        (0..=SLOW_NAMES_MAX).for_each(|n| known.ended(&n.to_string(), SLOW));
        assert_eq!(known.slow.len(), SLOW_NAMES_MAX);
    }
}
