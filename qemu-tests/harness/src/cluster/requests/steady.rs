//! Requests to Services at a steady rate, while something happens to the node.
//!
//! ```text
//! SteadyLoad::start ─► a thread for each Service, in the node's network: a request, a pause, a request, …
//!       finish ─► the threads end ─► ServiceReport: sent, lost, the longest time without an answer
//! ```
//! In: Services with their addresses, a pace. Invariant: a Service's requests follow one another, so its longest
//! gap is the time that one client waits.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};

use super::{RequestFault, accepted, get};
use crate::cluster::wires;

/// The pace of the requests to one Service.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// From the beginning of a request to that of the next one.
    pub period: Duration,
    /// Limit of connecting and of answering.
    pub limit: Duration,
}

/// A request without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LostRequest {
    /// When it was sent, since the load began.
    pub at: Duration,
    /// How it failed.
    pub fault: RequestFault,
}

/// The requests to one Service.
#[derive(Clone, Debug)]
pub struct ServiceReport {
    /// Name of the Service.
    pub name: String,
    /// Number of requests.
    pub sent: usize,
    /// Those without an answer, in order.
    pub lost: Vec<LostRequest>,
    /// Longest time from one answer to the next.
    pub longest_gap: Duration,
    last_answer: Duration,
}

impl ServiceReport {
    fn new(name: String, begun: Duration) -> ServiceReport {
        ServiceReport { name, sent: 0, lost: Vec::new(), longest_gap: Duration::ZERO, last_answer: begun }
    }

    /// Notes a request; times are those since the load began.
    fn note(&mut self, at: Duration, ended: Duration, fault: Option<RequestFault>) {
        self.sent += 1;
        match fault {
            Some(fault) => self.lost.push(LostRequest { at, fault }),
            None => {
                self.close(ended);
                self.last_answer = ended;
            }
        }
    }

    /// A gap lasts until now at least.
    fn close(&mut self, now: Duration) {
        self.longest_gap = self.longest_gap.max(now.saturating_sub(self.last_answer));
    }
}

/// Requests that are being sent. Without [`SteadyLoad::finish`] they end when this is dropped.
pub struct SteadyLoad {
    begun: Instant,
    stop: Vec<Sender<()>>,
    threads: Vec<JoinHandle<Result<ServiceReport>>>,
}

impl SteadyLoad {
    /// Sends requests to all Services from the network of process `pid`.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub fn start(pid: i32, services: Vec<(String, SocketAddr)>, pace: Pace) -> Result<SteadyLoad> {
        let begun = Instant::now();
        let (mut stop, mut threads) = (Vec::new(), Vec::new());
        for (name, at) in services {
            let (sender, stopped) = channel();
            let work = move || -> Result<ServiceReport> {
                wires::enter(pid)?;
                Ok(send(name, at, pace, begun, &stopped))
            };
            let thread = std::thread::Builder::new().name("service-load".into()).spawn(work);
            threads.push(thread.context("start a thread")?);
            stop.push(sender);
        }
        Ok(SteadyLoad { begun, stop, threads })
    }

    /// Time since the load began.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Ends the load; returns a report for each Service.
    ///
    /// # Errors
    /// If a thread could not enter the network.
    pub fn finish(self) -> Result<Vec<ServiceReport>> {
        drop(self.stop);
        let ended = self.threads.into_iter().map(|thread| {
            thread.join().unwrap_or_else(|_| Err(anyhow!("a thread that sent requests panicked")))
        });
        ended.collect()
    }
}

/// Sends requests to one Service until the load ends.
fn send(name: String, at: SocketAddr, pace: Pace, begun: Instant, stopped: &Receiver<()>) -> ServiceReport {
    let mut report = ServiceReport::new(name, begun.elapsed());
    let mut next = Instant::now();
    // The end of the load is awaited; the time limit is the pace.
    while let Err(RecvTimeoutError::Timeout) =
        stopped.recv_timeout(next.saturating_duration_since(Instant::now()))
    {
        next += pace.period;
        let sent = begun.elapsed();
        let fault = get(at, "/", pace.limit).and_then(accepted).err();
        report.note(sent, begun.elapsed(), fault);
        // After a request that took long, the ones that it delayed are not sent.
        next = next.max(Instant::now());
    }
    report.close(begun.elapsed());
    report
}

/// Lost requests by their faults. Pure.
#[must_use]
pub fn by_fault(reports: &[ServiceReport]) -> BTreeMap<RequestFault, usize> {
    let mut counts = BTreeMap::new();
    for lost in reports.iter().flat_map(|report| &report.lost) {
        *counts.entry(lost.fault).or_default() += 1;
    }
    counts
}

/// The report with the longest gap. Pure.
#[must_use]
pub fn slowest(reports: &[ServiceReport]) -> Option<&ServiceReport> {
    reports.iter().max_by_key(|report| report.longest_gap)
}

/// One line about all requests. Pure.
#[must_use]
pub fn describe(reports: &[ServiceReport]) -> String {
    let sent: usize = reports.iter().map(|report| report.sent).sum();
    let lost: usize = reports.iter().map(|report| report.lost.len()).sum();
    let faults: Vec<String> =
        by_fault(reports).into_iter().map(|(fault, count)| format!("{count} {fault}")).collect();
    let faults = if faults.is_empty() { String::new() } else { format!(" ({})", faults.join(", ")) };
    let gap = slowest(reports).map_or_else(String::new, |report| {
        format!(
            ", longest time without an answer {:.1} s ({})",
            report.longest_gap.as_secs_f64(),
            report.name
        )
    });
    format!("{sent} requests sent, {lost} lost{faults}{gap}")
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_gap_lasts_from_answer_to_answer() {
        let mut report = ServiceReport::new("web".into(), ms(0));
        report.note(ms(0), ms(10), None);
        report.note(ms(200), ms(205), Some(RequestFault::Refused));
        report.note(ms(400), ms(5400), Some(RequestFault::NoAnswer));
        report.note(ms(5400), ms(5410), None);
        report.note(ms(5600), ms(5610), None);
        report.close(ms(5900));
        assert_eq!((report.sent, report.lost.len()), (5, 2));
        assert_eq!(report.lost[1], LostRequest { at: ms(400), fault: RequestFault::NoAnswer });
        assert_eq!(report.longest_gap, ms(5400));
    }

    #[test]
    fn a_service_that_never_answers_has_one_long_gap() {
        let mut report = ServiceReport::new("web".into(), ms(50));
        report.note(ms(50), ms(60), Some(RequestFault::Refused));
        report.close(ms(1050));
        assert_eq!(report.longest_gap, ms(1000));
    }

    #[test]
    fn all_reports_make_one_line() {
        let mut one = ServiceReport::new("one".into(), ms(0));
        one.note(ms(0), ms(10), None);
        let mut two = ServiceReport::new("two".into(), ms(0));
        two.note(ms(0), ms(1), Some(RequestFault::Reset));
        two.note(ms(200), ms(201), Some(RequestFault::Refused));
        two.note(ms(400), ms(1500), None);
        assert_eq!(
            describe(&[one.clone(), two]),
            "4 requests sent, 2 lost (1 refused, 1 reset), longest time without an answer 1.5 s (two)"
        );
        assert_eq!(describe(&[one]), "1 requests sent, 0 lost, longest time without an answer 0.0 s (one)");
    }

    #[test]
    fn requests_are_sent_until_the_load_is_finished() {
        const ANSWERS: usize = 3;
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = socket.local_addr().unwrap();
        let (sender, stopped) = channel();
        let pace = Pace { period: ms(10), limit: ms(500) };
        let load = std::thread::spawn(move || send("web".into(), at, pace, Instant::now(), &stopped));
        for _ in 0..ANSWERS {
            let (mut stream, _) = socket.accept().unwrap();
            let mut request = [0; 64];
            assert!(stream.read(&mut request).unwrap() > 0);
            stream.write_all(b"HTTP/1.1 200 OK\r\n\r\nweb").unwrap();
        }
        drop(sender);
        let report = load.join().unwrap();
        // One more may have been on its way.
        assert_eq!(report.sent - report.lost.len(), ANSWERS);
        assert!(report.lost.len() <= 1, "{report:?}");
    }
}
