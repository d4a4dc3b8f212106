//! Messages of DRA drivers as events of the owner, and claims as messages.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use agent_core::resource_claims::api::{
    CalledClaim, ClaimResult, ClaimedDevice, DeviceHealth, ReportedHealth,
};
use orlop_proto::dra::v1::{Claim, Device, NodePrepareResourceResponse};
use orlop_proto::dra_health::v1alpha1::{self as health, HealthStatus};

pub(super) fn claim(claim: CalledClaim) -> Claim {
    let CalledClaim { namespace, uid, name } = claim;
    Claim { namespace, uid, name }
}

pub(super) fn prepared(
    results: HashMap<String, NodePrepareResourceResponse>,
) -> BTreeMap<String, ClaimResult> {
    let result = |(uid, result): (String, NodePrepareResourceResponse)| {
        let devices = result.devices.into_iter().map(device).collect();
        (uid, ClaimResult { error: result.error, devices })
    };
    results.into_iter().map(result).collect()
}

pub(super) fn unprepared(results: HashMap<String, String>) -> BTreeMap<String, ClaimResult> {
    let result = |(uid, error)| (uid, ClaimResult { error, devices: Vec::new() });
    results.into_iter().map(result).collect()
}

fn device(device: Device) -> ClaimedDevice {
    ClaimedDevice {
        pool: device.pool_name,
        device: device.device_name,
        share_id: device.share_id,
        requests: device.request_names,
        cdi_devices: device.cdi_device_ids,
    }
}

/// `None` for a report without a device.
pub(super) fn reported(report: health::DeviceHealth) -> Option<ReportedHealth> {
    let health = match report.health() {
        HealthStatus::Healthy => DeviceHealth::Healthy,
        HealthStatus::Unhealthy => DeviceHealth::Unhealthy,
        HealthStatus::Unknown => DeviceHealth::Unknown,
    };
    let device = report.device?;
    let seconds = u64::try_from(report.health_check_timeout_seconds).unwrap_or_default();
    Some(ReportedHealth {
        pool: device.pool_name,
        device: device.device_name,
        health,
        timeout: (seconds > 0).then(|| Duration::from_secs(seconds)),
        message: report.message,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_keeps_its_words_and_a_timeout_is_positive() {
        let report = |seconds, health| health::DeviceHealth {
            device: Some(health::DeviceIdentifier { pool_name: "p".to_owned(), device_name: "d".to_owned() }),
            health,
            health_check_timeout_seconds: seconds,
            message: "m".to_owned(),
            ..health::DeviceHealth::default()
        };
        let found = reported(report(5, 2)).unwrap();
        assert_eq!((found.health, found.timeout), (DeviceHealth::Unhealthy, Some(Duration::from_secs(5))));
        let found = reported(report(-5, 77)).unwrap();
        assert_eq!((found.health, found.timeout, found.message.as_str()), (DeviceHealth::Unknown, None, "m"));
        assert_eq!(reported(health::DeviceHealth::default()), None);
    }
}
