//! Requests for operations, and what systemd says about a service, as values. Pure.
//!
//! In: messages of the protocol, output of `systemctl show`. Out: what is wanted, or a refusal. Invariants: an identifier is a UUID and
//! so a safe name of a file; only a service that the node may lose for a moment is restarted.

use std::time::Duration;

use orlop_config::release::ReleaseVersion;
use orlop_config::slots::ResetOrder;
use orlop_proto::node_api::v1alpha1::{
    FactoryResetRequest, RestartServiceRequest, RollbackRequest, StopRequest, UpgradeRequest,
};

use super::life::{OperationNow, UnitLook};
use super::record::{OperationPhase, OperationRecord, OperationVerb};
use crate::answers::services::{ESSENTIAL, parse, words};
use crate::journal::is_unit;
use crate::refusal::{Reason, Refusal};

/// Longest time until an operation begins, seconds.
const DELAY_MAX_S: u32 = 86_400;
/// Properties of a service that is restarted.
pub const UNIT_PROPERTIES: &str =
    "Id,LoadState,ActiveState,SubState,Result,StatusText,ExecMainStatus,InvocationID,Job";
/// Services that are restarted also while nothing is wrong with them, besides the essential ones.
const RESTARTABLE: [&str; 2] = ["systemd-timesyncd.service", "systemd-udevd.service"];
/// The server itself: it cannot say how its own restart ended.
const OWN: &str = "orlop-node-api.service";

/// A checked request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperationWish {
    /// UUID.
    pub id: String,
    /// What is done. The invocation of a service is not known yet.
    pub what: OperationVerb,
    /// Who asks, and by which door.
    pub by: String,
    /// Time until it begins.
    pub delay: Duration,
    /// Also without a record.
    pub unrecorded: bool,
}

impl OperationWish {
    /// The record with which it begins.
    #[must_use]
    pub fn into_record(self, now: &OperationNow) -> OperationRecord {
        OperationRecord {
            id: self.id,
            what: self.what,
            by: self.by,
            phase: OperationPhase::Scheduled,
            accepted_at: now.at.clone(),
            ended_at: String::new(),
            boot_id_before: now.boot_id.clone(),
            boot_id_after: String::new(),
            due: now.mono.after(self.delay),
            unrecorded: self.unrecorded,
            pods: None,
            failure: None,
            message: String::new(),
        }
    }
}

/// A stop of the machine.
///
/// # Errors
/// A value that cannot be.
pub fn stop(request: &StopRequest, what: OperationVerb, by: String) -> Result<OperationWish, Refusal> {
    if request.delay_seconds > DELAY_MAX_S {
        let message = format!("the delay is longer than {DELAY_MAX_S} s");
        return Err(Refusal::new(Reason::BadRequest, "operation", message));
    }
    Ok(OperationWish {
        id: identifier(&request.id)?,
        what,
        by,
        delay: Duration::from_secs(u64::from(request.delay_seconds)),
        unrecorded: request.unrecorded,
    })
}

/// A factory reset.
///
/// # Errors
/// A value that cannot be.
pub fn reset(request: &FactoryResetRequest, by: String) -> Result<OperationWish, Refusal> {
    let id = identifier(&request.id)?;
    let Some(order) = ResetOrder::parse(&format!("{}:{id}", request.scope)) else {
        let shown: String = request.scope.chars().take(64).collect();
        let message = format!("{shown:?} is neither keep nor forget");
        return Err(Refusal::new(Reason::BadRequest, "operation", message));
    };
    let what = OperationVerb::Reset { scope: order.scope.name().to_owned() };
    Ok(OperationWish { id, what, by, delay: Duration::ZERO, unrecorded: request.unrecorded })
}

/// Another version of the system.
///
/// # Errors
/// A value that cannot be.
pub fn upgrade(request: &UpgradeRequest, by: String) -> Result<OperationWish, Refusal> {
    let id = identifier(&request.id)?;
    let version = request.version.clone();
    if !version.is_empty() && version.parse::<ReleaseVersion>().is_err() {
        let shown: String = version.chars().take(64).collect();
        let message = format!("{shown:?} is no version: X.Y.Z");
        return Err(Refusal::new(Reason::BadRequest, "operation", message));
    }
    let what = if request.stage_only {
        OperationVerb::Stage { version }
    } else {
        OperationVerb::Upgrade { version, to: String::new() }
    };
    Ok(OperationWish { id, what, by, delay: Duration::ZERO, unrecorded: request.unrecorded })
}

/// The version before.
///
/// # Errors
/// A value that cannot be.
pub fn rollback(request: &RollbackRequest, by: String) -> Result<OperationWish, Refusal> {
    // What the other slot holds is not known yet.
    let what = OperationVerb::Rollback { to: String::new() };
    let (id, unrecorded) = (identifier(&request.id)?, request.unrecorded);
    Ok(OperationWish { id, what, by, delay: Duration::ZERO, unrecorded })
}

/// A restart of a service.
///
/// # Errors
/// A value that cannot be.
pub fn restart(request: &RestartServiceRequest, by: String) -> Result<OperationWish, Refusal> {
    if !is_unit(&request.unit) || !request.unit.ends_with(".service") {
        let shown: String = request.unit.chars().take(64).collect();
        let message = format!("{shown:?} is no name of a service");
        return Err(Refusal::new(Reason::BadRequest, "operation", message));
    }
    Ok(OperationWish {
        id: identifier(&request.id)?,
        what: OperationVerb::Restart { unit: request.unit.clone(), invocation: String::new() },
        by,
        delay: Duration::ZERO,
        unrecorded: request.unrecorded,
    })
}

/// A UUID in its usual form (RFC 9562, section 4), in small letters.
///
/// # Errors
/// Another text.
pub fn identifier(text: &str) -> Result<String, Refusal> {
    if is_identifier(text) {
        return Ok(text.to_owned());
    }
    let shown: String = text.chars().take(64).collect();
    let message = format!("{shown:?} is no identifier of an operation: a UUID in small letters");
    Err(Refusal::new(Reason::BadRequest, "operation", message))
}

/// Whether a text is such an identifier.
#[must_use]
pub fn is_identifier(text: &str) -> bool {
    let is_right = |(place, byte): (usize, u8)| match place {
        8 | 13 | 18 | 23 => byte == b'-',
        _ => byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte),
    };
    text.len() == 36 && text.bytes().enumerate().all(is_right)
}

/// A service from the output of `systemctl show`; `None` if systemd does not know it.
#[must_use]
pub fn unit_look(text: &str, unit: &str) -> Option<UnitLook> {
    let units = parse(text);
    let status = units.get(unit).filter(|status| status.load == "loaded")?;
    let value = |key: &str| {
        text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('=')).unwrap_or_default().trim()
    };
    Some(UnitLook {
        invocation: value("InvocationID").to_owned(),
        active: status.active.clone(),
        words: words(status),
        succeeded: status.result == "success",
        has_job: !matches!(value("Job"), "" | "0"),
    })
}

/// Whether the service may be restarted. `look` is systemd's view; `None`: it does not know the service.
///
/// # Errors
/// The node could not go on without it, or it does not run and has not failed.
pub fn check_restart(unit: &str, look: Option<&UnitLook>) -> Result<(), Refusal> {
    let refused = |message: String| Err(Refusal::new(Reason::NotRestartable, unit, message));
    let Some(look) = look else { return refused("systemd does not know it".to_owned()) };
    let is_listed = ESSENTIAL.iter().map(|(name, _)| *name).chain(RESTARTABLE).any(|name| name == unit);
    match look.active.as_str() {
        _ if unit == OWN => refused("it is the server that answers".to_owned()),
        "failed" => Ok(()),
        _ if is_listed => Ok(()),
        _ => {
            refused(format!("it has not failed ({}), and is none of those that may be restarted", look.words))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "01936f2e-0000-7abc-8def-0123456789ab";

    #[test]
    fn identifiers_are_uuids_and_no_paths() {
        assert!(is_identifier(ID));
        for other in [
            "",
            "op",
            "../../../../../etc/shadow-00000000000",
            "01936F2E-0000-7ABC-8DEF-0123456789AB",
            "01936f2e-0000-7abc-8def-0123456789a",
            "01936f2e-0000-7abc-8def-0123456789ab0",
            "01936f2e00000-7abc-8def-0123456789ab",
            "é1936f2e-0000-7abc-8def-0123456789a",
        ] {
            assert!(!is_identifier(other), "{other}");
            assert_eq!(identifier(other).unwrap_err().reason, Reason::BadRequest);
        }
    }

    #[test]
    fn requests_are_checked() {
        let request = StopRequest { id: ID.to_owned(), delay_seconds: 60, unrecorded: false };
        let wish = stop(&request, OperationVerb::Reboot, "ops-1".to_owned()).unwrap();
        assert_eq!((wish.delay, wish.by.as_str()), (Duration::from_secs(60), "ops-1"));
        let late = StopRequest { delay_seconds: DELAY_MAX_S + 1, ..request };
        assert_eq!(stop(&late, OperationVerb::Reboot, String::new()).unwrap_err().reason, Reason::BadRequest);
        let of = |unit: &str| RestartServiceRequest {
            id: ID.to_owned(),
            unit: unit.to_owned(),
            unrecorded: false,
        };
        assert_eq!(restart(&of("kubelet.service"), String::new()).unwrap().what.object(), "kubelet.service");
        for unit in ["", "kubelet", "x.socket", "--all.service", "*.service", "a b.service", "a/b.service"] {
            let refusal = restart(&of(unit), String::new()).unwrap_err();
            assert_eq!(refusal.reason, Reason::BadRequest, "{unit}");
        }
    }

    #[test]
    fn a_reset_keeps_or_forgets() {
        let of = |id: &str, scope: &str| {
            let (id, scope) = (id.to_owned(), scope.to_owned());
            reset(&FactoryResetRequest { id, scope, unrecorded: true }, "ops-1".to_owned())
        };
        for scope in ["keep", "forget"] {
            let wish = of(ID, scope).unwrap();
            assert_eq!((wish.what.word(), wish.what.object(), wish.unrecorded), ("reset", scope, true));
            assert!(wish.what.stops_machine() && wish.delay.is_zero());
        }
        for (id, scope) in [(ID, ""), (ID, "all"), (ID, "keep:1"), ("1", "keep")] {
            assert_eq!(of(id, scope).unwrap_err().reason, Reason::BadRequest, "{id} {scope}");
        }
    }

    #[test]
    fn a_version_is_three_numbers_or_the_channels_choice() {
        let of = |version: &str, stage_only| {
            let (id, version) = (ID.to_owned(), version.to_owned());
            upgrade(&UpgradeRequest { id, version, stage_only, unrecorded: false }, "ops-1".to_owned())
        };
        for (version, stage_only, word, stops) in [
            ("", false, "upgrade", true),
            ("0.2.0", false, "upgrade", true),
            ("0.2.0", true, "stage", false),
            ("", true, "stage", false),
        ] {
            let wish = of(version, stage_only).unwrap();
            assert_eq!((wish.what.word(), wish.what.object()), (word, version));
            assert_eq!((wish.what.stops_machine(), wish.what.has_to_stage()), (stops, true));
        }
        for version in ["new", "0.2", "0.2.0 ", "../0.2.0"] {
            assert_eq!(of(version, false).unwrap_err().reason, Reason::BadRequest, "{version}");
        }
        let back = rollback(&RollbackRequest { id: ID.to_owned(), unrecorded: true }, String::new()).unwrap();
        assert_eq!((back.what.word(), back.what.object(), back.unrecorded), ("rollback", "", true));
        assert!(back.what.stops_machine() && !back.what.has_to_stage());
    }

    #[test]
    fn a_service_is_seen_as_systemctl_prints_it() {
        let text = "Id=x.service\nLoadState=loaded\nActiveState=failed\nSubState=failed\nResult=exit-code\n\
                    ExecMainStatus=3\nInvocationID=ab12\nJob=77\n";
        let look = unit_look(text, "x.service").unwrap();
        assert_eq!((look.invocation.as_str(), look.active.as_str(), look.has_job), ("ab12", "failed", true));
        assert_eq!((look.words.as_str(), look.succeeded), ("failed (exit status 3)", false));
        assert!(!unit_look(&text.replace("Job=77\n", ""), "x.service").unwrap().has_job);
        assert!(!unit_look(&text.replace("Job=77", "Job=0"), "x.service").unwrap().has_job);
        assert_eq!(unit_look(&text.replace("loaded", "not-found"), "x.service"), None);
        assert_eq!((unit_look(text, "y.service"), unit_look("", "x.service")), (None, None));
    }

    #[test]
    fn essential_and_failed_services_may_be_restarted_and_others_not() {
        let look = |active: &str| UnitLook { active: active.to_owned(), ..UnitLook::default() };
        for (unit, active, may) in [
            ("kubelet.service", "active", true),
            ("containerd.service", "inactive", true),
            ("systemd-timesyncd.service", "active", true),
            ("x.service", "failed", true),
            ("x.service", "active", false),
            ("x.service", "inactive", false),
            (OWN, "active", false),
            (OWN, "failed", false),
        ] {
            let found = check_restart(unit, Some(&look(active)));
            assert_eq!(found.is_ok(), may, "{unit} {active}");
            if let Err(refusal) = found {
                assert_eq!(refusal.reason, Reason::NotRestartable);
            }
        }
        assert!(check_restart("kubelet.service", None).is_err());
    }
}
