//! Block devices of a container (API field `volumeDevices`).
//!
//! In: the container's `volumeDevices`, the volumes that the pod's claims are bound to. Out: [`Device`]s in
//! the listed order. Invariants: only volumes of mode `Block` become devices; a container cannot write to the
//! device of a read-only claim. Upstream: `makeBlockVolumes` of pkg/kubelet/kubelet_pods.go.

use agent_types::node_context::NodeContext;
use agent_types::pod;
use agent_types::runtime::config::Device;
use agent_types::spec_error::SpecError;
use agent_volumes::bound::Claims;
use agent_volumes::plan::{Location, location};
use k8s_openapi::api::core::v1::{Container, Pod};

/// Access of a container that may write to a device.
const WRITE: &str = "mrw";
/// Access of a container that may only read a device.
const READ: &str = "r";

/// The devices of one container.
///
/// # Errors
/// A device that is none of the pod's volumes, or of one that is no block device.
pub fn devices(
    p: &Pod,
    container: &Container,
    claims: &Claims,
    node: &NodeContext,
) -> Result<Vec<Device>, SpecError> {
    let volumes = pod::spec(p).volumes.as_deref().unwrap_or(&[]);
    let one = |name: &str, path: &str| {
        let volume = volumes.iter().find(|v| v.name == name);
        let bound = claims.get(name).filter(|bound| bound.block);
        let Some((volume, _)) = volume.zip(bound) else {
            return Err(SpecError::container(format!(
                "cannot find volume {name:?} to pass into container {:?}",
                container.name
            )));
        };
        let at = location(p, volume, claims, node).ok_or_else(|| {
            SpecError::container(format!("volume {name:?} has a type that this node cannot provide"))
        })?;
        let Location { path: host_path, read_only, .. } = at;
        let permissions = if read_only { READ } else { WRITE };
        Ok(Device { container_path: path.to_owned(), host_path, permissions: permissions.to_owned() })
    };
    container.volume_devices.iter().flatten().map(|d| one(&d.name, &d.device_path)).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use agent_volumes::bound::{Bound, Source};

    #[test]
    fn table() {
        let built = |name: &str, block: bool, read_only: bool| {
            let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "ns", "uid": "u"},
                "spec": {"volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": "x"}}],
                    "containers": [{"name": "c", "volumeDevices": [{"name": name, "devicePath": "/dev/x"}]}]}}))
            .unwrap();
            let source = Source::Local { path: "/dev/sdx".to_owned(), fs_type: String::new() };
            let bound = Bound {
                volume: "pv".to_owned(),
                source,
                read_only,
                options: Vec::new(),
                one_pod: false,
                block,
                group: None,
                labelled: false,
            };
            let claims = Claims::from([("d".to_owned(), bound)]);
            devices(&pod, &pod::containers(&pod)[0], &claims, &NodeContext::new("n")).map_err(|e| e.message)
        };
        let host = "/var/lib/kubelet/pods/u/volumeDevices/kubernetes.io~local-volume/pv";
        for (read_only, permissions) in [(false, "mrw"), (true, "r")] {
            let device = Device {
                container_path: "/dev/x".to_owned(),
                host_path: host.to_owned(),
                permissions: permissions.to_owned(),
            };
            assert_eq!(built("d", true, read_only), Ok(vec![device]));
        }
        for (name, block) in [("d", false), ("other", true)] {
            let words = format!("cannot find volume {name:?} to pass into container \"c\"");
            assert_eq!(built(name, block, false), Err(words));
        }
    }
}
