//! The record of `qemu-tests/controlplane/cmd/claims`, and its objects and drivers.
//!
//! In: JSON. Out: courses; claims and pods; the answers that the recorder's drivers gave to upstream.

use std::collections::BTreeMap;
use std::sync::Arc;

use agent_core::resource_claims::api::{CalledClaim, ClaimMethod, ClaimResult, ClaimedDevice};
use agent_types::runtime::claims::{ClaimUse, ClaimUser, ClaimsOfPod, NamedClaim};
use k8s_openapi::api::resource::v1::ResourceClaim;
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Clone, Deserialize)]
pub(crate) struct ResultOf {
    pub(crate) d: String,
    pub(crate) n: String,
    #[serde(default)]
    pub(crate) r: Vec<String>,
    #[serde(default)]
    pub(crate) cdi: Vec<String>,
    pub(crate) share: Option<String>,
}

#[derive(Clone, Deserialize)]
pub(crate) struct ClaimOf {
    pub(crate) n: String,
    pub(crate) uid: String,
    #[serde(default)]
    pub(crate) gone: bool,
    pub(crate) owner: Option<String>,
    pub(crate) reserved: Vec<String>,
    #[serde(default)]
    pub(crate) unallocated: bool,
    #[serde(default)]
    pub(crate) of: Vec<ResultOf>,
}

#[derive(Clone, Deserialize)]
pub(crate) struct NamedOf {
    pub(crate) c: String,
    #[serde(default)]
    pub(crate) t: bool,
    #[serde(default)]
    pub(crate) skipped: bool,
}

#[derive(Clone, Deserialize)]
pub(crate) struct UseOf {
    pub(crate) c: String,
    #[serde(default)]
    pub(crate) r: String,
}

#[derive(Clone, Deserialize)]
pub(crate) struct ContainerOf {
    pub(crate) n: String,
    pub(crate) u: Vec<UseOf>,
}

#[derive(Clone, Deserialize)]
pub(crate) struct PodOf {
    pub(crate) uid: String,
    pub(crate) claims: Vec<NamedOf>,
    pub(crate) of: Vec<ContainerOf>,
}

#[derive(Deserialize)]
pub(crate) struct HealthOf {
    pub(crate) d: String,
    #[serde(default)]
    pub(crate) n: String,
    #[serde(default)]
    pub(crate) h: i32,
    #[serde(default)]
    pub(crate) m: String,
    #[serde(default)]
    pub(crate) ends: bool,
}

#[derive(Deserialize)]
pub(crate) struct RecordedStep {
    pub(crate) register: Option<String>,
    pub(crate) deregister: Option<String>,
    pub(crate) claim: Option<ClaimOf>,
    pub(crate) pod: Option<PodOf>,
    pub(crate) prepare: Option<String>,
    pub(crate) unprepare: Option<String>,
    pub(crate) health: Option<HealthOf>,
    #[serde(default)]
    pub(crate) restart: bool,
    #[serde(default)]
    pub(crate) modes: BTreeMap<String, String>,
    #[serde(default)]
    pub(crate) outcome: String,
    #[serde(default)]
    pub(crate) calls: Vec<String>,
    pub(crate) state: u32,
    #[serde(default)]
    pub(crate) text: String,
}

#[derive(Deserialize)]
pub(crate) struct RecordedCourse {
    pub(crate) steps: Vec<RecordedStep>,
}

impl ClaimOf {
    pub(crate) fn object(&self) -> Arc<ResourceClaim> {
        let owner = |uid: &String| json!({"apiVersion": "v1", "kind": "Pod", "name": uid, "uid": uid, "controller": true});
        let owners: Vec<Value> = self.owner.iter().map(owner).collect();
        let reserved = |uid: &String| json!({"resource": "pods", "name": uid, "uid": uid});
        let reserved: Vec<Value> = self.reserved.iter().map(reserved).collect();
        let result = |of: &ResultOf| json!({"driver": of.d, "pool": "pool", "device": of.n, "request": "r"});
        let results: Vec<Value> = self.of.iter().map(result).collect();
        let mut value = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "spec": {},
            "metadata": {"namespace": "ns", "name": self.n, "uid": self.uid, "ownerReferences": owners},
            "status": {"reservedFor": reserved}});
        if !self.unallocated {
            value["status"]["allocation"] = json!({"devices": {"results": results}});
        }
        Arc::new(serde_json::from_value(value).unwrap())
    }
}

impl PodOf {
    /// The claims of the pod; those of which the status says that there is none are left out.
    pub(crate) fn claims(&self) -> Arc<ClaimsOfPod> {
        let there = self.claims.iter().filter(|of| !of.skipped);
        let claims: Vec<NamedClaim> =
            there.map(|of| NamedClaim { name: of.c.clone(), is_of_template: of.t }).collect();
        let is_there = |of: &&UseOf| claims.iter().any(|claim| claim.name == of.c);
        let status_name = |of: &UseOf| {
            if of.r.is_empty() { format!("claim:{}", of.c) } else { format!("claim:{}/{}", of.c, of.r) }
        };
        let of = |of: &UseOf| ClaimUse {
            claim: of.c.clone(),
            request: of.r.clone(),
            status_name: Some(status_name(of)),
        };
        let container = |user: &ContainerOf| ClaimUser {
            name: user.n.clone(),
            uses: user.u.iter().filter(is_there).map(of).collect(),
        };
        Arc::new(ClaimsOfPod {
            namespace: "ns".to_owned(),
            pod: format!("pod-{}", self.uid),
            uid: self.uid.clone(),
            scheduling_group: None,
            containers: self.of.iter().map(container).collect(),
            claims: claims.clone(),
        })
    }
}

/// The driver's answer; `results` are those of all claims by UID.
pub(crate) fn answer(
    driver: &str,
    mode: &str,
    method: ClaimMethod,
    claims: &[CalledClaim],
    results: &BTreeMap<String, Vec<ResultOf>>,
) -> Result<BTreeMap<String, ClaimResult>, String> {
    let mut uids: Vec<String> = claims.iter().map(|claim| claim.uid.clone()).collect();
    uids.sort();
    match mode {
        "rpc" => return Err("rpc error: code = Internal desc = scripted".to_owned()),
        "skip" => drop(uids.remove(0)),
        "foreign" => uids.push("foreign".to_owned()),
        _ => {}
    }
    let device = |of: &ResultOf| ClaimedDevice {
        pool: "pool".to_owned(),
        device: of.n.clone(),
        share_id: of.share.clone(),
        requests: of.r.clone(),
        cdi_devices: of.cdi.clone(),
    };
    let result = |at: usize, uid: &String| {
        if mode == "result" && at == 0 {
            return ClaimResult { error: format!("scripted for {uid}"), devices: Vec::new() };
        }
        let of_driver = results.get(uid).into_iter().flatten().filter(|of| of.d == driver);
        let devices =
            if method == ClaimMethod::Prepare { of_driver.map(device).collect() } else { Vec::new() };
        ClaimResult { error: String::new(), devices }
    };
    Ok(uids.iter().enumerate().map(|(at, uid)| (uid.clone(), result(at, uid))).collect())
}
