//! Configurations of a plain pod, as `container_spec` would make them, for tests that have no pod.

use std::collections::BTreeMap;

use agent_types::ids::{ImageId, PodKey, PodUid};
use agent_types::runtime::config::{
    ContainerConfig, ContainerSecurity, LinuxResources, NamespaceMode, Namespaces, SandboxConfig,
    SandboxSecurity,
};
use agent_types::runtime::labels;

use super::Subject;

/// What the three containers of a [`Subject`] run, as argument lists.
#[derive(Clone, Debug)]
pub struct Commands {
    /// Runs until TERM.
    pub runs: Vec<String>,
    /// Exits soon with the code.
    pub exits: (Vec<String>, i32),
    /// Ignores TERM.
    pub deaf: Vec<String>,
}

impl Subject {
    /// A pod `name` in the namespace `contract` whose containers run `commands` in `image`.
    #[must_use]
    pub fn new(name: &str, network: NamespaceMode, image: &ImageId, commands: &Commands) -> Subject {
        let mut sandbox = sandbox_config(name, 0);
        sandbox.security.namespaces.network = network;
        if network == NamespaceMode::Node {
            sandbox.hostname = String::new();
        }
        let container = |name: &str, command: &[String]| {
            let mut config = container_config(&sandbox, name, 0, image);
            config.command = command.to_vec();
            config.security.namespaces.network = network;
            config
        };
        Subject {
            runs: container("runs", &commands.runs),
            exits: (container("exits", &commands.exits.0), commands.exits.1),
            deaf: container("deaf", &commands.deaf),
            sandbox,
        }
    }
}

fn pod_labels(pod: &PodKey) -> BTreeMap<String, String> {
    let pairs = [
        (labels::POD_NAME, pod.name.to_string()),
        (labels::POD_NAMESPACE, pod.namespace.to_string()),
        (labels::POD_UID, pod.uid.to_string()),
    ];
    pairs.map(|(k, v)| (k.to_owned(), v)).into()
}

/// A sandbox of the pod `name`; its UID is `uid-NAME`.
#[must_use]
pub fn sandbox_config(name: &str, attempt: u32) -> SandboxConfig {
    let pod =
        PodKey { namespace: "contract".into(), name: name.into(), uid: PodUid::from(format!("uid-{name}")) };
    SandboxConfig {
        attempt,
        hostname: name.to_owned(),
        log_directory: format!("/var/log/pods/contract_{name}_uid-{name}"),
        dns: None,
        port_mappings: Vec::new(),
        labels: pod_labels(&pod),
        annotations: [("contract".to_owned(), "yes".to_owned())].into(),
        runtime_handler: String::new(),
        overhead: LinuxResources::default(),
        cgroup_parent: String::new(),
        sysctls: BTreeMap::new(),
        security: SandboxSecurity { namespaces: namespaces(), ..Default::default() },
        resources: LinuxResources::default(),
        pod,
    }
}

/// A container of that sandbox's pod.
#[must_use]
pub fn container_config(
    sandbox: &SandboxConfig,
    name: &str,
    attempt: u32,
    image: &ImageId,
) -> ContainerConfig {
    let mut all_labels = pod_labels(&sandbox.pod);
    all_labels.insert(labels::CONTAINER_NAME.to_owned(), name.to_owned());
    let annotations = [
        (labels::CONTAINER_HASH.to_owned(), "deadbeef".to_owned()),
        (labels::CONTAINER_RESTART_COUNT.to_owned(), attempt.to_string()),
    ];
    ContainerConfig {
        name: name.to_owned(),
        attempt,
        image: image.clone(),
        user_specified_image: image.to_string(),
        command: Vec::new(),
        args: Vec::new(),
        working_dir: String::new(),
        envs: vec![("KEY".to_owned(), "value".to_owned())],
        mounts: Vec::new(),
        devices: Vec::new(),
        cdi_devices: Vec::new(),
        labels: all_labels,
        annotations: annotations.into(),
        log_path: format!("{name}/{attempt}.log"),
        stdin: false,
        stdin_once: false,
        tty: false,
        stop_signal: None,
        resources: LinuxResources::default(),
        security: ContainerSecurity { namespaces: namespaces(), ..Default::default() },
    }
}

fn namespaces() -> Namespaces {
    Namespaces { network: NamespaceMode::Pod, pid: NamespaceMode::Container, ipc: NamespaceMode::Pod }
}
