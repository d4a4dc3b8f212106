//! Environment variables with the addresses of Services.
//!
//! In: Services. Out: variables by name. Invariants: every pod gets the variables of the cluster's own
//! Service `kubernetes`; it gets those of its namespace only with `enableServiceLinks`, and they win;
//! Services without a cluster IP are left out. Upstream: pkg/kubelet/envvars, `getServiceEnvVarMap` of
//! pkg/kubelet/kubelet_pods.go.

use std::collections::BTreeMap;

use agent_types::objects::{Fetched, Objects};
use agent_types::pod;
use agent_types::spec_error::SpecError;
use agent_volumes::references;
use k8s_openapi::api::core::v1::{Pod, Service, ServicePort};

/// Protocol of a port that names none.
const TCP: &str = "TCP";

/// Variables of containers for these Services.
#[must_use]
pub fn variables<'s>(services: impl IntoIterator<Item = &'s Service>) -> BTreeMap<String, String> {
    let mut vars = BTreeMap::new();
    for service in services {
        let Some(spec) = &service.spec else { continue };
        let ip = spec.cluster_ip.as_deref().unwrap_or("");
        let ports = spec.ports.as_deref().unwrap_or(&[]);
        let Some(first) = ports.first().filter(|_| !ip.is_empty() && ip != "None") else { continue };
        let prefix = variable_name(service.metadata.name.as_deref().unwrap_or(""));
        vars.insert(format!("{prefix}_SERVICE_HOST"), ip.to_owned());
        vars.insert(format!("{prefix}_SERVICE_PORT"), first.port.to_string());
        for port in ports {
            if let Some(name) = port.name.as_deref().filter(|name| !name.is_empty()) {
                vars.insert(format!("{prefix}_SERVICE_PORT_{}", variable_name(name)), port.port.to_string());
            }
        }
        vars.insert(format!("{prefix}_PORT"), url(ip, first));
        for port in ports {
            let protocol = port.protocol.as_deref().unwrap_or(TCP);
            let of_port = format!("{prefix}_PORT_{}_{}", port.port, protocol.to_ascii_uppercase());
            vars.insert(format!("{of_port}_PROTO"), protocol.to_ascii_lowercase());
            vars.insert(format!("{of_port}_PORT"), port.port.to_string());
            vars.insert(format!("{of_port}_ADDR"), ip.to_owned());
            vars.insert(of_port, url(ip, port));
        }
    }
    vars
}

fn variable_name(name: &str) -> String {
    name.replace('-', "_").to_ascii_uppercase()
}

fn url(ip: &str, port: &ServicePort) -> String {
    let protocol = port.protocol.as_deref().unwrap_or(TCP).to_ascii_lowercase();
    let host = if ip.contains(':') { format!("[{ip}]") } else { ip.to_owned() };
    format!("{protocol}://{host}:{}", port.port)
}

/// Variables of a pod, from the known Services; none on a node without a cluster.
///
/// # Errors
/// The Services are not known yet. A static pod does not wait for them.
pub fn of_pod(p: &Pod, objects: &Objects) -> Result<BTreeMap<String, String>, SpecError> {
    let mut vars = BTreeMap::new();
    // The cluster's own is the one with a name; the namespace's come after it and win.
    let (cluster, own): (Vec<_>, Vec<_>) =
        references::services(p).into_iter().partition(|of| !of.name.is_empty());
    for services in cluster.into_iter().chain(own) {
        match objects.get(&services) {
            None | Some(Fetched::Missing) => {}
            Some(Fetched::Unknown(_)) if pod::is_static(p) => {}
            Some(Fetched::Unknown(_)) => {
                let text = "services have not yet been read at least once, cannot construct envvars";
                return Err(SpecError::container(text));
            }
            Some(Fetched::Found(found)) => vars
                .extend(found.data.iter().map(|(k, v)| (k.clone(), String::from_utf8_lossy(v).into_owned()))),
        }
    }
    Ok(vars)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use agent_types::objects::ObjectData;

    fn service(name: &str, spec: Value) -> Service {
        serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).unwrap()
    }

    #[test]
    fn what_services_are_called() {
        let services = [
            service(
                "my-db",
                json!({"clusterIP": "10.0.0.7", "ports": [{"name": "sql-main", "port": 5432}, {"port": 53, "protocol": "UDP"}]}),
            ),
            service("six", json!({"clusterIP": "fd00::7", "ports": [{"port": 80, "protocol": "TCP"}]})),
            service("headless", json!({"clusterIP": "None", "ports": [{"port": 1}]})),
            service("away", json!({"externalName": "example.org"})),
            service("portless", json!({"clusterIP": "10.0.0.8"})),
        ];
        let seen: Vec<String> = variables(&services).iter().map(|(k, v)| format!("{k}={v}")).collect();
        let expected = [
            "MY_DB_PORT=tcp://10.0.0.7:5432",
            "MY_DB_PORT_53_UDP=udp://10.0.0.7:53",
            "MY_DB_PORT_53_UDP_ADDR=10.0.0.7",
            "MY_DB_PORT_53_UDP_PORT=53",
            "MY_DB_PORT_53_UDP_PROTO=udp",
            "MY_DB_PORT_5432_TCP=tcp://10.0.0.7:5432",
            "MY_DB_PORT_5432_TCP_ADDR=10.0.0.7",
            "MY_DB_PORT_5432_TCP_PORT=5432",
            "MY_DB_PORT_5432_TCP_PROTO=tcp",
            "MY_DB_SERVICE_HOST=10.0.0.7",
            "MY_DB_SERVICE_PORT=5432",
            "MY_DB_SERVICE_PORT_SQL_MAIN=5432",
            "SIX_PORT=tcp://[fd00::7]:80",
            "SIX_PORT_80_TCP=tcp://[fd00::7]:80",
            "SIX_PORT_80_TCP_ADDR=fd00::7",
            "SIX_PORT_80_TCP_PORT=80",
            "SIX_PORT_80_TCP_PROTO=tcp",
            "SIX_SERVICE_HOST=fd00::7",
            "SIX_SERVICE_PORT=80",
        ];
        assert_eq!(seen, expected);
    }

    #[test]
    fn who_is_told_what() {
        let pod = |links: Option<bool>, from_file: bool| -> Pod {
            let annotations =
                if from_file { json!({"kubernetes.io/config.source": "file"}) } else { json!({}) };
            serde_json::from_value(
                json!({"metadata": {"name": "p", "namespace": "ns", "annotations": annotations},
                "spec": {"enableServiceLinks": links, "containers": []}}),
            )
            .unwrap()
        };
        let all = |p: &Pod| -> Vec<String> {
            references::services(p).iter().map(|o| format!("{}/{}", o.namespace, o.name)).collect()
        };
        assert_eq!(all(&pod(Some(false), false)), ["default/kubernetes"]);
        assert_eq!(all(&pod(None, false)), ["default/kubernetes", "ns/"]);
        let p = pod(Some(true), false);
        let found = |values: &[(&str, &str)]| {
            let data = values.iter().map(|(k, v)| ((*k).to_owned(), v.as_bytes().to_vec())).collect();
            Fetched::Found(ObjectData { data, ..ObjectData::default() })
        };
        for namespace in ["ns", "a"] {
            let mut p = p.clone();
            p.metadata.namespace = Some(namespace.to_owned());
            let answer = |name: &str| match name {
                "" => found(&[("B", "own")]),
                _ => found(&[("A", "cluster"), ("B", "cluster")]),
            };
            let objects: Objects = references::services(&p)
                .into_iter()
                .map(|of| {
                    let answer = answer(&of.name);
                    (of, answer)
                })
                .collect();
            let seen: Vec<_> = of_pod(&p, &objects).unwrap().into_iter().collect();
            let expected = [("A", "cluster"), ("B", "own")].map(|(k, v)| (k.to_owned(), v.to_owned()));
            assert_eq!(seen, expected, "{namespace}");
        }
        assert!(of_pod(&p, &Objects::new()).unwrap().is_empty(), "no cluster");
        let unknown: Objects = references::services(&p)
            .into_iter()
            .map(|of| (of, Fetched::Unknown("away".to_owned())))
            .collect();
        let error = of_pod(&p, &unknown).unwrap_err();
        assert!(error.message.starts_with("services have not yet been read"), "{error}");
        assert!(of_pod(&pod(None, true), &unknown).unwrap().is_empty());
    }
}
