//! Loading: defaults of every field, what depends on what, errors as a person sees them.

use super::*;
use crate::testing::{document, errors};
use serde_json::Value;

/// The head every document needs.
const HEAD: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";

fn load(body: &str) -> Result<KubeletConfiguration, crate::ConfigError> {
    load_kubelet_config(&format!("{HEAD}{body}"), "/etc/orlop/kubelet.yaml")
}

/// Every default of KubeletConfiguration v1beta1 in Kubernetes v1.36 (upstream: pkg/kubelet/apis/config/v1beta1/defaults.go),
/// by JSON name.
fn defaults() -> Value {
    serde_json::from_str(DEFAULTS).expect("JSON")
}

const DEFAULTS: &str = r#"{
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "enableServer": true,
        "staticPodPath": "",
        "podLogsDir": "/var/log/pods",
        "syncFrequency": "1m0s",
        "fileCheckFrequency": "20s",
        "httpCheckFrequency": "20s",
        "staticPodURL": "",
        "staticPodURLHeader": {},
        "address": "0.0.0.0",
        "port": 10250,
        "readOnlyPort": 0,
        "tlsCertFile": "",
        "tlsPrivateKeyFile": "",
        "tlsCipherSuites": [],
        "tlsCurvePreferences": [],
        "tlsMinVersion": "",
        "rotateCertificates": false,
        "serverTLSBootstrap": false,
        "authentication": {
            "x509": { "clientCAFile": "" },
            "webhook": { "enabled": true, "cacheTTL": "2m0s" },
            "anonymous": { "enabled": false }
        },
        "authorization": {
            "mode": "Webhook",
            "webhook": { "cacheAuthorizedTTL": "5m0s", "cacheUnauthorizedTTL": "30s" }
        },
        "registryPullQPS": 5,
        "registryBurst": 10,
        "imagePullCredentialsVerificationPolicy": "NeverVerifyPreloadedImages",
        "preloadedImagesVerificationAllowlist": [],
        "eventRecordQPS": 50,
        "eventBurst": 100,
        "enableDebuggingHandlers": true,
        "enableContentionProfiling": false,
        "healthzPort": 10248,
        "healthzBindAddress": "127.0.0.1",
        "oomScoreAdj": -999,
        "clusterDomain": "",
        "clusterDNS": [],
        "streamingConnectionIdleTimeout": "4h0m0s",
        "nodeStatusUpdateFrequency": "10s",
        "nodeStatusReportFrequency": "5m0s",
        "nodeLeaseDurationSeconds": 40,
        "imageMinimumGCAge": "2m0s",
        "imageMaximumGCAge": "0s",
        "imageGCHighThresholdPercent": 85,
        "imageGCLowThresholdPercent": 80,
        "volumeStatsAggPeriod": "1m0s",
        "kubeletCgroups": "",
        "systemCgroups": "",
        "cgroupRoot": "",
        "cgroupsPerQOS": true,
        "cgroupDriver": "cgroupfs",
        "cpuManagerPolicy": "none",
        "cpuManagerPolicyOptions": {},
        "cpuManagerReconcilePeriod": "10s",
        "memoryManagerPolicy": "None",
        "topologyManagerPolicy": "none",
        "topologyManagerScope": "container",
        "topologyManagerPolicyOptions": {},
        "qosReserved": {},
        "runtimeRequestTimeout": "2m0s",
        "hairpinMode": "promiscuous-bridge",
        "maxPods": 110,
        "podCIDR": "",
        "podPidsLimit": -1,
        "resolvConf": "/etc/resolv.conf",
        "runOnce": false,
        "cpuCFSQuota": true,
        "cpuCFSQuotaPeriod": "100ms",
        "nodeStatusMaxImages": 50,
        "maxOpenFiles": 1000000,
        "contentType": "application/vnd.kubernetes.protobuf",
        "kubeAPIQPS": 50,
        "kubeAPIBurst": 100,
        "serializeImagePulls": true,
        "evictionHard": {
            "memory.available": "100Mi",
            "nodefs.available": "10%",
            "nodefs.inodesFree": "5%",
            "imagefs.available": "15%",
            "imagefs.inodesFree": "5%"
        },
        "evictionSoft": {},
        "evictionSoftGracePeriod": {},
        "evictionPressureTransitionPeriod": "5m0s",
        "evictionMaxPodGracePeriod": 0,
        "evictionMinimumReclaim": {},
        "mergeDefaultEvictionSettings": false,
        "podsPerCore": 0,
        "enableControllerAttachDetach": true,
        "protectKernelDefaults": false,
        "makeIPTablesUtilChains": true,
        "iptablesMasqueradeBit": 14,
        "iptablesDropBit": 15,
        "featureGates": {},
        "failSwapOn": true,
        "memorySwap": { "swapBehavior": "NoSwap" },
        "containerLogMaxSize": "10Mi",
        "containerLogMaxFiles": 5,
        "containerLogMaxWorkers": 1,
        "containerLogMonitorInterval": "10s",
        "configMapAndSecretChangeDetectionStrategy": "Watch",
        "systemReserved": {},
        "kubeReserved": {},
        "reservedSystemCPUs": "",
        "showHiddenMetricsForVersion": "",
        "systemReservedCgroup": "",
        "kubeReservedCgroup": "",
        "enforceNodeAllocatable": ["pods"],
        "allowedUnsafeSysctls": [],
        "volumePluginDir": "/usr/libexec/kubernetes/kubelet-plugins/volume/exec/",
        "providerID": "",
        "kernelMemcgNotification": false,
        "logging": {
            "format": "text",
            "flushFrequency": "5s",
            "verbosity": 0,
            "vmodule": [],
            "options": {
                "text": { "splitStream": false, "infoBufferSize": "0" },
                "json": { "splitStream": false, "infoBufferSize": "0" }
            }
        },
        "enableSystemLogHandler": true,
        "enableSystemLogQuery": false,
        "shutdownGracePeriod": "0s",
        "shutdownGracePeriodCriticalPods": "0s",
        "shutdownGracePeriodByPodPriority": [],
        "crashLoopBackOff": { "maxContainerRestartPeriod": "5m0s" },
        "reservedMemory": [],
        "enableProfilingHandler": true,
        "enableDebugFlagsHandler": true,
        "seccompDefault": false,
        "memoryThrottlingFactor": 0.9,
        "memoryReservationPolicy": "None",
        "registerWithTaints": [],
        "registerNode": true,
        "localStorageCapacityIsolation": true,
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "imageServiceEndpoint": "",
        "failCgroupV1": true
    }"#;

#[test]
fn every_field_has_upstreams_default() {
    let loaded = load("").expect("a document that sets nothing");
    assert_eq!(loaded, KubeletConfiguration::default());
    let (got, want) = (to_value(&loaded), defaults());
    for (key, value) in want.as_object().expect("a map") {
        assert_eq!(got.get(key), Some(value), "{key}");
    }
    let unset = ["singleProcessOOMKill", "maxParallelImagePulls", "tracing", "userNamespaces"];
    for key in got.as_object().expect("a map").keys() {
        assert!(want.get(key).is_some(), "{key} has a default that upstream does not have");
    }
    // All fields of v1beta1 are there: those with a default value, and those without.
    let names = document::<KubeletConfiguration>();
    let mut known: Vec<&str> =
        want.as_object().expect("a map").keys().map(String::as_str).chain(unset).collect();
    known.sort_unstable();
    assert_eq!(names, known);
}

#[test]
fn zero_and_null_mean_unset_where_go_cannot_tell() {
    let loaded = load(
        "port: 0\naddress: ''\nsyncFrequency: 0s\nmaxPods: 0\ncgroupDriver: ''\nregistryBurst: null\n\
         memorySwap: {swapBehavior: ''}\nauthentication: {webhook: {cacheTTL: 0}}\nlogging: {flushFrequency: 0}\n",
    );
    // A bare 0 is no duration in JSON's eyes: Go refuses it as well.
    let text = loaded.expect_err("cacheTTL: 0").to_string();
    assert_eq!(
        errors(&text),
        ["/etc/orlop/kubelet.yaml:10: authentication.webhook.cacheTTL: 0 must be a duration \
                               such as \"30s\", \"1m30s\" or \"100ms\" (units ns, us, ms, s, m, h)"]
    );
    let loaded = load(
        "port: 0\naddress: ''\nsyncFrequency: 0s\nmaxPods: 0\ncgroupDriver: ''\nregistryBurst: null\n\
         memorySwap: {swapBehavior: ''}\nauthentication: {webhook: {cacheTTL: 0s}}\nlogging: {flushFrequency: 0}\n",
    );
    assert_eq!(loaded.expect("only unset fields"), KubeletConfiguration::default());
}

#[test]
fn zero_counts_where_the_field_is_a_pointer() {
    let loaded = load(
        "healthzPort: 0\nregistryPullQPS: 0\neventRecordQPS: 0\nkubeAPIQPS: 0\noomScoreAdj: 0\nresolvConf: ''\n\
         nodeStatusMaxImages: 0\nenforceNodeAllocatable: []\nevictionHard: {}\n",
    )
    .expect("zeros");
    assert_eq!(loaded.healthz_port, 0);
    assert_eq!(loaded.registry_pull_qps, 0);
    assert_eq!(loaded.resolv_conf, "");
    assert_eq!(loaded.enforce_node_allocatable, []);
    assert!(loaded.eviction_hard.is_empty());
}

#[test]
fn dependent_defaults() {
    let c = load("nodeStatusUpdateFrequency: 7s").expect("valid");
    assert_eq!(c.node_status_report_frequency, crate::Duration::from_secs(7));
    let c = load("nodeStatusUpdateFrequency: 7s\nnodeStatusReportFrequency: 1m").expect("valid");
    assert_eq!(c.node_status_report_frequency, crate::Duration::from_mins(1));
    let c = load("maxParallelImagePulls: 2").expect("valid");
    assert!(!c.serialize_image_pulls);
    let c = load("maxParallelImagePulls: 1").expect("valid");
    assert!(c.serialize_image_pulls);
    let c = load("podPidsLimit: -17").expect("valid");
    assert_eq!(c.pod_pids_limit, -1);
    let c = load("evictionHard: {memory.available: 200Mi}").expect("valid");
    assert_eq!(c.eviction_hard.len(), 1);
    let c =
        load("evictionHard: {memory.available: 200Mi}\nmergeDefaultEvictionSettings: true").expect("valid");
    assert_eq!(c.eviction_hard.len(), 5);
    assert_eq!(c.eviction_hard["memory.available"], "200Mi");
    let c = load("featureGates: {KubeletCrashLoopBackOffMax: false, KubeletEnsureSecretPulledImages: false}");
    let c = c.expect("gates off take their fields' defaults away");
    assert_eq!(c.crash_loop_back_off.max_container_restart_period, None);
    assert_eq!(c.image_pull_credentials_verification_policy, None);
}

#[test]
fn relative_paths_start_at_the_file() {
    let c = load(
        "staticPodPath: manifests\nresolvConf: ../resolv.conf\ntlsCertFile: /abs\ntlsPrivateKeyFile: ./k",
    );
    let c = c.expect("valid");
    assert_eq!(c.static_pod_path, "/etc/orlop/manifests");
    assert_eq!(c.resolv_conf, "/etc/resolv.conf");
    assert_eq!((c.tls_cert_file.as_str(), c.tls_private_key_file.as_str()), ("/abs", "/etc/orlop/k"));
}

#[test]
fn every_mistake_of_a_file_is_named_at_once() {
    let text = load(
        "enabelServer: true\nport: 70000\nmaxPods: many\nhairpinMode: bridge\nsyncFrequency: 5\n\
         evictionHard:\n  memory.available: 100\nenforceNodeAllocatable: [pods, everything]\n\
         cpuCFSQuotaPeriod: 2s\nreservedMemory:\n- numaNode: 0\n",
    )
    .expect_err("mistakes")
    .to_string();
    assert_eq!(
        errors(&text),
        [
            "/etc/orlop/kubelet.yaml:11: cpuCFSQuotaPeriod: \"2s\" must be a duration between 1ms and 1s",
            "/etc/orlop/kubelet.yaml:3: enabelServer: is an unknown field, did you mean enableServer?",
            "/etc/orlop/kubelet.yaml:10: enforceNodeAllocatable[1]: \"everything\" must be one of pods, \
             system-reserved, system-reserved-compressible, kube-reserved, kube-reserved-compressible, none",
            "/etc/orlop/kubelet.yaml:9: evictionHard.\"memory.available\": 100 must be text (quote numbers, true, \
             false and null)",
            "/etc/orlop/kubelet.yaml:6: hairpinMode: \"bridge\" must be one of promiscuous-bridge, hairpin-veth, none",
            "/etc/orlop/kubelet.yaml:5: maxPods: \"many\" must be an integer of 0 or more",
            "/etc/orlop/kubelet.yaml:4: port: 70000 must be an integer between 1 and 65535",
            "/etc/orlop/kubelet.yaml:13: reservedMemory[0].limits: is missing",
            "/etc/orlop/kubelet.yaml:7: syncFrequency: 5 must be a duration such as \"30s\", \"1m30s\" or \"100ms\" \
             (units ns, us, ms, s, m, h)",
        ]
    );
}

#[test]
fn a_foreign_or_broken_document_gets_one_clear_answer() {
    let cases = [
        ("", "f: is empty: at least apiVersion and kind are needed"),
        ("# nothing\n", "f: is empty: at least apiVersion and kind are needed"),
        (
            "kind: Pod\nspec: {}",
            "f: apiVersion: must be kubelet.config.k8s.io/v1beta1; f:1: kind: \"Pod\" must be \
                                 KubeletConfiguration",
        ),
        ("[]", "f: apiVersion: must be kubelet.config.k8s.io/v1beta1; f: kind: must be KubeletConfiguration"),
        ("kind: A\nkind: B", "f:2: duplicate key kind"),
        ("a: 1\n---\nb: 2", "f:2: a second document starts here: only one is allowed"),
    ];
    for (text, want) in cases {
        let error = load_kubelet_config(text, "f").expect_err(text).to_string();
        assert_eq!(error, format!("invalid configuration: {want}"), "{text:?}");
    }
}
