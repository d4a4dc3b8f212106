//! The figures of `bench rollover` as a table with a row for each kubelet. Pure.
//!
//! In: the reports of the requests, the numbers of rollovers and kills. Out: text.

use std::fmt::Write;
use std::time::Duration;

use orlop_harness::cluster::requests::steady::{ServiceReport, by_fault, slowest};

/// The figures of one kubelet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Figures {
    name: String,
    /// From the first Deployment's creation until all were available.
    available: Duration,
    rollovers: usize,
    kills: usize,
    sent: usize,
    lost: usize,
    /// Number and fault of the lost requests.
    faults: Vec<String>,
    /// Most lost requests of one Service.
    lost_of_one: usize,
    longest_gap: Duration,
}

impl Figures {
    pub(super) fn of(
        name: &str,
        available: Duration,
        (rollovers, kills): (usize, usize),
        reports: &[ServiceReport],
    ) -> Figures {
        let lost = reports.iter().map(|report| report.lost.len());
        Figures {
            name: name.to_owned(),
            available,
            rollovers,
            kills,
            sent: reports.iter().map(|report| report.sent).sum(),
            lost: lost.clone().sum(),
            faults: by_fault(reports).into_iter().map(|(fault, count)| format!("{count} {fault}")).collect(),
            lost_of_one: lost.max().unwrap_or(0),
            longest_gap: slowest(reports).map_or(Duration::ZERO, |report| report.longest_gap),
        }
    }
}

/// A table in Markdown, for docs/internals/performance.md.
pub(super) fn render(rows: &[Figures]) -> String {
    let mut text = String::from(
        "| kubelet | all available | requests | lost | of one Service | faults | longest time without an answer | \
         rollovers | kills |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n",
    );
    for row in rows {
        let faults = if row.faults.is_empty() { "none".to_owned() } else { row.faults.join(", ") };
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "| {} | {:.1} s | {} | {} | {} | {faults} | {:.1} s | {} | {} |",
            row.name,
            row.available.as_secs_f64(),
            row.sent,
            row.lost,
            row.lost_of_one,
            row.longest_gap.as_secs_f64(),
            row.rollovers,
            row.kills,
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_the_figures_of_a_kubelet() {
        let agent = Figures {
            name: "agent".into(),
            available: Duration::from_millis(41_500),
            rollovers: 120,
            kills: 39,
            sent: 60_000,
            lost: 3,
            faults: vec!["1 refused".into(), "2 reset".into()],
            lost_of_one: 2,
            longest_gap: Duration::from_millis(1_300),
        };
        let upstream = Figures { name: "upstream".into(), lost: 0, faults: Vec::new(), ..agent.clone() };
        let text = render(&[agent, upstream]);
        let rows: Vec<&str> = text.lines().skip(2).collect();
        assert_eq!(rows[0], "| agent | 41.5 s | 60000 | 3 | 2 | 1 refused, 2 reset | 1.3 s | 120 | 39 |");
        assert!(rows[1].starts_with("| upstream | 41.5 s | 60000 | 0 | 2 | none | "), "{}", rows[1]);
        let cells = text.lines().map(|line| line.split(" | ").count());
        assert_eq!(cells.collect::<Vec<_>>(), [9; 4]);
    }

    #[test]
    fn a_run_without_requests_has_lost_none() {
        let figures = Figures::of("agent", Duration::ZERO, (0, 0), &[]);
        assert_eq!((figures.sent, figures.lost, figures.lost_of_one), (0, 0, 0));
        assert_eq!(figures.longest_gap, Duration::ZERO);
    }
}
