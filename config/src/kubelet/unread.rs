//! Settings of KubeletConfiguration that no component of the agent reads.
//!
//! In: a valid configuration. Out: refusals of settings whose absence changes the resources that pods get, and notes on settings
//! that only a Go program or another design needs, and on feature gates that change nothing. Invariant: each key of the type has a
//! reader or stands in [`UNREAD`] (`agent-tidy`, rule `readers`), so no setting is accepted and ignored without a word.

use super::FeatureGates;
use super::enums::{MemoryManagerPolicy, TopologyManagerPolicy};
use super::load::to_value;
use super::types::KubeletConfiguration;
use crate::field;
use crate::problem::Problem;
use serde_json::Value;

/// The agent's treatment of a value other than the default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Treatment {
    /// The agent refuses to start with it.
    Refused,
    /// The agent starts and reports the key.
    Noted,
    /// Nothing is reported: upstream gives the key no effect in this place either.
    AsUpstream,
}

/// Keys without a reader, with dots where they are inside of an object; the answer, and the reason.
pub const UNREAD: &[(&str, Treatment, &str)] = &[
    (
        "tracing",
        Treatment::Refused,
        "must be left out: the agent sends no OpenTelemetry traces (docs/status.md)",
    ),
    ("enableContentionProfiling", Treatment::Noted, "has no effect: only programs in Go have this profile"),
    ("showHiddenMetricsForVersion", Treatment::Noted, "has no effect: the agent hides no metric"),
    (
        "kernelMemcgNotification",
        Treatment::Noted,
        "has no effect: the agent looks in time for each threshold, and at once when tasks wait for memory",
    ),
    (
        "logging.flushFrequency",
        Treatment::Noted,
        "has no effect: the agent writes each line of its log at once",
    ),
    ("logging.vmodule", Treatment::Noted, "has no effect: it names source files of programs in Go"),
    ("logging.options", Treatment::Noted, "has no effect: all lines of the log go the same way"),
    ("contentType", Treatment::Noted, "has no effect: the agent and the API server exchange JSON"),
    (
        "makeIPTablesUtilChains",
        Treatment::AsUpstream,
        "the agent makes no chain for iptables, as with false; docs/status.md says so",
    ),
    ("iptablesMasqueradeBit", Treatment::AsUpstream, "upstream has not used the bit since v1.28"),
    ("iptablesDropBit", Treatment::AsUpstream, "upstream has not used the bit since v1.28"),
    ("runOnce", Treatment::AsUpstream, "validation refuses true"),
];

/// Gates that the upstream kubelet asks and the agent does not, and what the agent does in place of it. The agent behaves as with the
/// gate's default.
pub const UNREAD_GATES: &[(&str, &str)] = &[
    ("CRIListStreaming", "the runtime answers a list as one message"),
    ("ChangeContainerStatusOnKubeletRestart", "statuses of containers outlast the agent"),
    ("ComponentFlagz", "the HTTPS API has /flagz"),
    ("ComponentStatusz", "the HTTPS API has /statusz"),
    ("ContainerRestartRules", "the agent follows the restart rules and policies of containers"),
    ("HostnameOverride", "the agent follows hostnameOverride of pods"),
    ("ImageVolumeWithDigest", "statuses have no digests of images that are volumes"),
    ("KubeletInUserNamespace", "the agent makes no exception for a user namespace"),
    ("PLEGOnDemandRelist", "the agent looks at a pod as soon as it has a reason"),
    ("PodAndContainerStatsFromCRI", "the sources of statistics stay (docs/reference/stats.md)"),
    ("PodLevelResourceManagers", "the managers give processors and memory to containers alone"),
    ("PodReadyToStartContainersCondition", "pods have the condition"),
    ("PodsAPI", "the agent serves no Pods API"),
    ("PreventStaticPodAPIReferences", "a static pod may not refer to objects of the API"),
    ("ReloadKubeletClientCAFile", "the agent follows the file"),
    ("ReloadKubeletServerCertificateFile", "the agent follows the file"),
    (
        "RestartAllContainersOnContainerExits",
        "the agent follows such rules; only the Node's declaredFeatures change",
    ),
];

/// Settings for which the agent refuses to start. `source` names the origin of the configuration.
#[must_use]
pub fn refused(config: &KubeletConfiguration, source: &str) -> Vec<Problem> {
    of(config, Treatment::Refused)
        .map(|(key, value, reason)| Problem {
            source: source.to_owned(),
            line: None,
            path: key.to_owned(),
            value: Some(field::shown(&value)),
            reason: reason.to_owned(),
        })
        .collect()
}

/// Settings that have no effect, each as one line for people.
#[must_use]
pub fn noted(config: &KubeletConfiguration) -> Vec<String> {
    let unread = of(config, Treatment::Noted).map(|(key, _, reason)| format!("{key}: {reason}"));
    unread.chain(without_policy(config)).chain(gates_without_effect(config)).collect()
}

/// Gates that were set against their default and have no effect, `AllAlpha` and `AllBeta` included.
fn gates_without_effect(config: &KubeletConfiguration) -> impl Iterator<Item = String> {
    let (gates, default) = (FeatureGates::of(config), FeatureGates::default());
    UNREAD_GATES
        .iter()
        .filter(move |(name, _)| gates.enabled(name) != default.enabled(name))
        .map(|(name, instead)| format!("featureGates.{name}: has no effect: {instead}"))
}

/// Settings of managers whose policy is off.
fn without_policy(config: &KubeletConfiguration) -> impl Iterator<Item = String> {
    let memory =
        config.memory_manager_policy == MemoryManagerPolicy::None && !config.reserved_memory.is_empty();
    let topology = config.topology_manager_policy == TopologyManagerPolicy::None
        && !config.topology_manager_policy_options.is_empty();
    [
        (memory, "reservedMemory: has no effect: memoryManagerPolicy None reserves nothing on a NUMA node"),
        (topology, "topologyManagerPolicyOptions: has no effect: topologyManagerPolicy is none"),
    ]
    .into_iter()
    .filter(|(given, _)| *given)
    .map(|(_, note)| note.to_owned())
}

/// The keys with this answer whose value differs from the default.
fn of(
    config: &KubeletConfiguration,
    answer: Treatment,
) -> impl Iterator<Item = (&'static str, Value, &'static str)> {
    let (mut given, default) = (to_value(config), to_value(&KubeletConfiguration::default()));
    UNREAD.iter().filter(move |(_, of, _)| *of == answer).filter_map(move |(key, _, reason)| {
        let pointer = format!("/{}", key.replace('.', "/"));
        let value = given.pointer_mut(&pointer).map(Value::take)?;
        (Some(&value) != default.pointer(&pointer)).then_some((*key, value, *reason))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubelet::load_kubelet_config;

    fn load(text: &str) -> KubeletConfiguration {
        let head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
        load_kubelet_config(&format!("{head}{text}"), "/etc/kubelet.yaml").expect("valid")
    }

    #[test]
    fn a_configuration_that_sets_nothing_has_neither_refusal_nor_note() {
        let config = load("");
        assert_eq!(refused(&config, "f"), vec![]);
        assert_eq!(noted(&config), Vec::<String>::new());
    }

    #[test]
    fn settings_that_no_component_reads_are_refused_by_name() {
        let text = "tracing: {endpoint: 'localhost:4317', samplingRatePerMillion: 100}";
        let problems = refused(&load(text), "/etc/kubelet.yaml");
        let paths: Vec<&str> = problems.iter().map(|problem| problem.path.as_str()).collect();
        assert_eq!(paths, ["tracing"]);
    }

    #[test]
    fn settings_inside_of_an_object_are_reported_by_their_path() {
        let vmodule = "vmodule: [{filePattern: 'a*', verbosity: 2}]";
        let text = format!("logging: {{verbosity: 3, flushFrequency: 9s, {vmodule}}}");
        assert_eq!(
            noted(&load(&text)),
            [
                "logging.flushFrequency: has no effect: the agent writes each line of its log at once",
                "logging.vmodule: has no effect: it names source files of programs in Go"
            ]
        );
        // As kubeadm writes it.
        let defaults = "{flushFrequency: 0, options: {json: {infoBufferSize: '0'}}, verbosity: 0}";
        assert_eq!(noted(&load(&format!("logging: {defaults}"))), Vec::<String>::new());
        let split =
            "logging: {options: {json: {splitStream: true}}}\nfeatureGates: {LoggingAlphaOptions: true}";
        let notes = noted(&load(split));
        assert!(notes.iter().any(|note| note.starts_with("logging.options: has no effect: ")), "{notes:?}");
    }

    #[test]
    fn settings_of_the_managers_act() {
        let text = "cpuManagerPolicy: static\nreservedSystemCPUs: '0'\ntopologyManagerPolicy: single-numa-node\n\
             topologyManagerPolicyOptions: {max-allowable-numa-nodes: '16'}\nmemoryManagerPolicy: Static\n\
             reservedMemory: [{numaNode: 0, limits: {memory: 1Gi}}]";
        assert_eq!(refused(&load(text), "f"), vec![]);
        assert_eq!(noted(&load(text)), Vec::<String>::new());
        let off = "topologyManagerPolicyOptions: {max-allowable-numa-nodes: '16'}\n\
             reservedMemory: [{numaNode: 0, limits: {memory: 1Gi}}]";
        let notes = noted(&load(off));
        assert_eq!(notes.len(), 2, "{notes:?}");
    }

    #[test]
    fn settings_without_effect_are_noted() {
        let text =
            "contentType: application/json\nkernelMemcgNotification: true\nenableContentionProfiling: true";
        let notes = noted(&load(text));
        assert_eq!(notes.len(), 3, "{notes:?}");
        assert!(notes.iter().any(|note| note.starts_with("contentType: has no effect")), "{notes:?}");
    }

    #[test]
    fn a_gate_that_changes_nothing_is_noted_where_it_is_set() {
        let all: Vec<String> =
            UNREAD_GATES.iter().map(|(name, _)| format!("{name}: {}", !default_of(name))).collect();
        let notes = noted(&load(&format!("featureGates: {{{}}}", all.join(", "))));
        assert_eq!(notes.len(), UNREAD_GATES.len(), "{notes:?}");
        let defaults: Vec<String> =
            UNREAD_GATES.iter().map(|(name, _)| format!("{name}: {}", default_of(name))).collect();
        assert_eq!(noted(&load(&format!("featureGates: {{{}}}", defaults.join(", ")))), Vec::<String>::new());
        let notes = noted(&load("featureGates: {PodsAPI: true, MemoryQoS: true}"));
        assert_eq!(notes, ["featureGates.PodsAPI: has no effect: the agent serves no Pods API"]);
    }

    fn default_of(gate: &str) -> bool {
        crate::kubelet::gates::gate(gate).expect("a gate of the table").default
    }

    #[test]
    fn each_key_is_one_of_the_type() {
        let default = to_value(&KubeletConfiguration::default());
        let types = include_str!("types.rs");
        for (key, ..) in UNREAD {
            match key.split_once('.') {
                // A key that is not set by default has no value.
                None => assert!(types.contains(&format!("\"{key}\"")), "{key}"),
                Some((object, inside)) => assert!(default[object].get(inside).is_some(), "{key}"),
            }
        }
    }
}
