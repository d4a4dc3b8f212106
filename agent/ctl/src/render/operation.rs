//! An operation for people. Pure.

use orlop_proto::node_api::v1alpha1::{OperationStatus, PodsEnd};

use super::plain;

/// The operation, one fact a line.
pub(crate) fn text(status: &OperationStatus) -> String {
    let mut rows = vec![
        ("operation", status.id.clone()),
        ("verb", format!("{} {}", status.verb, status.object)),
        ("by", status.by.clone()),
        ("phase", status.phase.clone()),
    ];
    if !status.boot_id_after.is_empty() {
        rows.push(("boot", format!("{}, before it {}", status.boot_id_after, status.boot_id_before)));
    }
    if let Some(pods) = &status.pods {
        rows.push(("pods", pods_words(pods)));
    } else if !status.boot_id_after.is_empty() {
        rows.push(("pods", "how they ended is not known".to_owned()));
    }
    if !status.reason.is_empty() {
        rows.push(("why", format!("{} ({})", status.message, status.reason)));
    } else if !status.message.is_empty() {
        rows.push(("says", status.message.clone()));
    }
    rows.iter().map(|(key, value)| format!("{key:<11}{}\n", plain(value.trim_end()))).collect()
}

/// How far it is, in one line.
pub(crate) fn progress(status: &OperationStatus) -> String {
    let words = match &status.pods {
        Some(pods) if !status.ended => {
            format!("{}: {} of {} pods have ended", status.phase, pods.ended, pods.pods)
        }
        _ if status.message.is_empty() => status.phase.clone(),
        _ => format!("{}: {}", status.phase, status.message),
    };
    plain(&words)
}

fn pods_words(pods: &PodsEnd) -> String {
    let order = if pods.in_order { "in order" } else { "not in order" };
    let mut words = format!("{} of {} ended, {order}", pods.ended, pods.pods);
    if !pods.not_ended.is_empty() {
        words.push_str(&format!("; not: {}", pods.not_ended.join(", ")));
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reboot() -> OperationStatus {
        OperationStatus {
            id: "op".to_owned(),
            verb: "reboot".to_owned(),
            by: "ops-1 (admin, tcp)".to_owned(),
            phase: "waiting".to_owned(),
            boot_id_before: "b1".to_owned(),
            ..OperationStatus::default()
        }
    }

    #[test]
    fn an_end_has_both_boots_and_the_pods() {
        let pods = PodsEnd { in_order: false, pods: 3, ended: 2, not_ended: vec!["a/p\u{1b}".to_owned()] };
        let status = OperationStatus {
            phase: "finished".to_owned(),
            ended: true,
            boot_id_after: "b2".to_owned(),
            pods: Some(pods),
            ..reboot()
        };
        let expected = "operation  op\nverb       reboot\nby         ops-1 (admin, tcp)\nphase      finished\n\
                        boot       b2, before it b1\npods       2 of 3 ended, not in order; not: a/p?\n";
        assert_eq!(text(&status), expected);
        assert!(text(&OperationStatus { pods: None, ..status }).contains("how they ended is not known"));
    }

    #[test]
    fn a_failure_has_its_reason_and_progress_its_pods() {
        let failed = OperationStatus {
            phase: "failed".to_owned(),
            reason: "REFUSED".to_owned(),
            message: "Operation inhibited".to_owned(),
            ..reboot()
        };
        assert!(text(&failed).ends_with("why        Operation inhibited (REFUSED)\n"), "{}", text(&failed));
        assert_eq!(progress(&reboot()), "waiting");
        let writes = OperationStatus {
            phase: "staging".to_owned(),
            message: "writes 0.2.0: 8 of 9 blocks".to_owned(),
            ..reboot()
        };
        assert_eq!(progress(&writes), "staging: writes 0.2.0: 8 of 9 blocks");
        assert!(text(&writes).ends_with("says       writes 0.2.0: 8 of 9 blocks\n"), "{}", text(&writes));
        let pods = Some(PodsEnd { pods: 3, ended: 1, ..PodsEnd::default() });
        assert_eq!(progress(&OperationStatus { pods, ..reboot() }), "waiting: 1 of 3 pods have ended");
    }
}
