//! Round trips: every field of a configuration survives the way to CRI and back, and every field of a status
//! arrives. The way back exists only here.

use std::collections::{BTreeMap, HashMap};

use agent_types::ids::{IdMapping, PodKey};
use agent_types::node_context::CgroupDriver;
use agent_types::runtime::config::*;
use agent_types::runtime::observed::{
    ContainerObserved, ContainerState, ResourcesObserved, SandboxObserved, SandboxState, UserObserved,
};
use agent_types::time::Wall;
use orlop_proto::cri::v1;
use orlop_proto::cri::v1::security_profile::ProfileType;

use super::{container, observed, sandbox};

fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
}

fn strings(words: &[&str]) -> Vec<String> {
    words.iter().map(|w| (*w).to_owned()).collect()
}

fn full_resources(seed: i64) -> LinuxResources {
    LinuxResources {
        cpu_period_us: seed + 1,
        cpu_quota_us: seed + 2,
        cpu_shares: seed + 3,
        memory_limit_bytes: seed + 4,
        oom_score_adj: -seed,
        cpuset_cpus: format!("0-{seed}"),
        cpuset_mems: format!("{seed}"),
        hugepage_limits: [("2MB".to_owned(), 5), ("1GB".to_owned(), 6)].into(),
        unified: map(&[("memory.oom.group", "1")]),
        memory_swap_limit_bytes: seed + 7,
    }
}

fn full_selinux() -> SelinuxOption {
    SelinuxOption { user: "u".into(), role: "r".into(), type_: "t".into(), level: "l".into() }
}

fn full_sandbox() -> SandboxConfig {
    let port =
        |protocol, host_port| PortMapping { protocol, container_port: 80, host_port, host_ip: "::1".into() };
    SandboxConfig {
        pod: PodKey { namespace: "ns".into(), name: "web".into(), uid: "uid".into() },
        attempt: 3,
        hostname: "host".into(),
        log_directory: "/var/log/pods/x".into(),
        dns: Some(DnsConfig {
            servers: strings(&["1.1.1.1"]),
            searches: strings(&["a", "b"]),
            options: strings(&["ndots:5"]),
        }),
        port_mappings: vec![port(Protocol::Tcp, 1), port(Protocol::Udp, 2), port(Protocol::Sctp, u16::MAX)],
        labels: map(&[("l", "1"), ("m", "2")]),
        annotations: map(&[("a", "1")]),
        runtime_handler: "kata".into(),
        overhead: full_resources(200),
        cgroup_parent: "/kubepods/pod1".into(),
        sysctls: map(&[("net.a", "1")]),
        security: SandboxSecurity {
            users: Some(USERS),
            namespaces: Namespaces {
                network: NamespaceMode::Node,
                pid: NamespaceMode::Container,
                ipc: NamespaceMode::Pod,
            },
            run_as_user: Some(0),
            run_as_group: Some(7),
            supplemental_groups: vec![8, 9],
            supplemental_groups_policy: SupplementalGroupsPolicy::Strict,
            privileged: true,
            seccomp: Some(SecurityProfile::RuntimeDefault),
            selinux: Some(full_selinux()),
        },
        resources: full_resources(100),
    }
}

fn full_container() -> ContainerConfig {
    let mount = |propagation, readonly| Mount {
        container_path: "/in".into(),
        host_path: "/out".into(),
        readonly,
        recursive_read_only: readonly,
        selinux_relabel: !readonly,
        propagation,
        image: readonly.then(|| ImageMount {
            id: "sha256:2".into(),
            written: "model:1".into(),
            annotations: [("k".to_owned(), "v".to_owned())].into(),
            sub_path: "part".into(),
        }),
    };
    ContainerConfig {
        name: "main".into(),
        attempt: 4,
        image: "sha256:1".into(),
        user_specified_image: "nginx:1".into(),
        command: strings(&["/bin/a", "b"]),
        args: strings(&["c"]),
        working_dir: "/wd".into(),
        envs: vec![("B".into(), "2".into()), ("A".into(), "1".into()), ("B".into(), "3".into())],
        mounts: vec![
            mount(MountPropagation::Private, true),
            mount(MountPropagation::HostToContainer, false),
            mount(MountPropagation::Bidirectional, false),
        ],
        devices: vec![Device {
            container_path: "/dev/x".into(),
            host_path: "/h".into(),
            permissions: "mrw".into(),
        }],
        cdi_devices: vec!["x.io/y=z".into()],
        labels: map(&[("l", "1")]),
        annotations: map(&[("a", "1")]),
        log_path: "main/4.log".into(),
        stdin: true,
        stdin_once: true,
        tty: true,
        stop_signal: Some("SIGRTMAX-2".into()),
        resources: full_resources(200),
        security: ContainerSecurity {
            add_capabilities: strings(&["NET_ADMIN"]),
            drop_capabilities: strings(&["ALL"]),
            privileged: true,
            users: Some(USERS),
            namespaces: Namespaces {
                network: NamespaceMode::Pod,
                pid: NamespaceMode::Node,
                ipc: NamespaceMode::Node,
            },
            pid_target: None,
            run_as_user: Some(1000),
            run_as_group: Some(0),
            run_as_username: "nobody".into(),
            readonly_rootfs: true,
            supplemental_groups: vec![5],
            supplemental_groups_policy: SupplementalGroupsPolicy::Strict,
            no_new_privs: true,
            masked_paths: strings(&["/proc/kcore"]),
            readonly_paths: strings(&["/proc/sys"]),
            seccomp: Some(SecurityProfile::Localhost("/p/s.json".into())),
            apparmor: Some(SecurityProfile::Localhost("profile".into())),
            selinux: Some(full_selinux()),
        },
    }
}

fn back_resources(r: v1::LinuxContainerResources) -> LinuxResources {
    LinuxResources {
        cpu_period_us: r.cpu_period,
        cpu_quota_us: r.cpu_quota,
        cpu_shares: r.cpu_shares,
        memory_limit_bytes: r.memory_limit_in_bytes,
        oom_score_adj: r.oom_score_adj,
        cpuset_cpus: r.cpuset_cpus,
        cpuset_mems: r.cpuset_mems,
        hugepage_limits: r.hugepage_limits.into_iter().map(|h| (h.page_size, h.limit)).collect(),
        unified: r.unified.into_iter().collect(),
        memory_swap_limit_bytes: r.memory_swap_limit_in_bytes,
    }
}

fn back_mode(mode: v1::NamespaceMode) -> NamespaceMode {
    match mode {
        v1::NamespaceMode::Pod => NamespaceMode::Pod,
        v1::NamespaceMode::Container => NamespaceMode::Container,
        v1::NamespaceMode::Node => NamespaceMode::Node,
        v1::NamespaceMode::Target => panic!("nothing asks for TARGET"),
    }
}

fn back_namespaces(n: &v1::NamespaceOption) -> Namespaces {
    Namespaces { network: back_mode(n.network()), pid: back_mode(n.pid()), ipc: back_mode(n.ipc()) }
}

const USERS: IdMapping = IdMapping { host_id: 131_072, container_id: 0, length: 65_536 };

fn back_users(n: &v1::NamespaceOption) -> Option<IdMapping> {
    let users = n.userns_options.clone().unwrap();
    assert_eq!(users.uids, users.gids);
    assert_eq!(users.mode() == v1::NamespaceMode::Pod, !users.uids.is_empty());
    let mapping =
        |m: &v1::IdMapping| IdMapping { host_id: m.host_id, container_id: m.container_id, length: m.length };
    users.uids.first().map(mapping)
}

#[test]
fn mounts_show_files_as_the_user_namespace_has_them() {
    let mut config = full_container();
    let mapped = [v1::IdMapping { host_id: 131_072, container_id: 0, length: 65_536 }];
    for mount in container::config(&config).mounts {
        assert_eq!((&*mount.uid_mappings, &*mount.gid_mappings), (&mapped[..], &mapped[..]));
    }
    config.security.users = None;
    for mount in container::config(&config).mounts {
        assert_eq!((mount.uid_mappings.len(), mount.gid_mappings.len()), (0, 0));
    }
    let options = container::config(&config).linux.unwrap().security_context.unwrap().namespace_options;
    assert_eq!(back_users(&options.unwrap()), None);
}

fn back_profile(p: v1::SecurityProfile) -> SecurityProfile {
    match p.profile_type() {
        ProfileType::RuntimeDefault => SecurityProfile::RuntimeDefault,
        ProfileType::Unconfined => SecurityProfile::Unconfined,
        ProfileType::Localhost => SecurityProfile::Localhost(p.localhost_ref),
    }
}

fn back_selinux(s: v1::SeLinuxOption) -> SelinuxOption {
    SelinuxOption { user: s.user, role: s.role, type_: s.r#type, level: s.level }
}

fn back_policy(p: v1::SupplementalGroupsPolicy) -> SupplementalGroupsPolicy {
    match p {
        v1::SupplementalGroupsPolicy::Merge => SupplementalGroupsPolicy::Merge,
        v1::SupplementalGroupsPolicy::Strict => SupplementalGroupsPolicy::Strict,
    }
}

fn back_sandbox(c: v1::PodSandboxConfig, runtime_handler: &str) -> SandboxConfig {
    let metadata = c.metadata.unwrap();
    let linux = c.linux.unwrap();
    let s = linux.security_context.unwrap();
    let port = |p: v1::PortMapping| PortMapping {
        protocol: match p.protocol() {
            v1::Protocol::Tcp => Protocol::Tcp,
            v1::Protocol::Udp => Protocol::Udp,
            v1::Protocol::Sctp => Protocol::Sctp,
        },
        container_port: p.container_port.try_into().unwrap(),
        host_port: p.host_port.try_into().unwrap(),
        host_ip: p.host_ip,
    };
    SandboxConfig {
        pod: PodKey {
            namespace: metadata.namespace.as_str().into(),
            name: metadata.name.as_str().into(),
            uid: metadata.uid.into(),
        },
        attempt: metadata.attempt,
        hostname: c.hostname,
        log_directory: c.log_directory,
        dns: c.dns_config.map(|d| DnsConfig { servers: d.servers, searches: d.searches, options: d.options }),
        port_mappings: c.port_mappings.into_iter().map(port).collect(),
        labels: c.labels.into_iter().collect(),
        annotations: c.annotations.into_iter().collect(),
        runtime_handler: runtime_handler.to_owned(),
        overhead: back_resources(linux.overhead.unwrap()),
        cgroup_parent: linux.cgroup_parent,
        sysctls: linux.sysctls.into_iter().collect(),
        security: SandboxSecurity {
            users: back_users(s.namespace_options.as_ref().unwrap()),
            namespaces: back_namespaces(s.namespace_options.as_ref().unwrap()),
            run_as_user: s.run_as_user.map(|v| v.value),
            run_as_group: s.run_as_group.map(|v| v.value),
            supplemental_groups_policy: back_policy(s.supplemental_groups_policy()),
            supplemental_groups: s.supplemental_groups,
            privileged: s.privileged,
            seccomp: s.seccomp.map(back_profile),
            selinux: s.selinux_options.map(back_selinux),
        },
        resources: back_resources(linux.resources.unwrap()),
    }
}

fn back_container(c: v1::ContainerConfig) -> ContainerConfig {
    let (metadata, image, linux) = (c.metadata.unwrap(), c.image.unwrap(), c.linux.unwrap());
    let mount = |m: v1::Mount| Mount {
        propagation: match m.propagation() {
            v1::MountPropagation::PropagationPrivate => MountPropagation::Private,
            v1::MountPropagation::PropagationHostToContainer => MountPropagation::HostToContainer,
            v1::MountPropagation::PropagationBidirectional => MountPropagation::Bidirectional,
        },
        container_path: m.container_path,
        host_path: m.host_path,
        readonly: m.readonly,
        recursive_read_only: m.recursive_read_only,
        selinux_relabel: m.selinux_relabel,
        image: m.image.map(|image| ImageMount {
            id: image.image.into(),
            written: image.user_specified_image,
            annotations: image.annotations.into_iter().collect(),
            sub_path: m.image_sub_path,
        }),
    };
    ContainerConfig {
        name: metadata.name,
        attempt: metadata.attempt,
        image: image.image.into(),
        user_specified_image: image.user_specified_image,
        command: c.command,
        args: c.args,
        working_dir: c.working_dir,
        envs: c.envs.into_iter().map(|e| (e.key, String::from_utf8(e.value).unwrap())).collect(),
        mounts: c.mounts.into_iter().map(mount).collect(),
        devices: c.devices.into_iter().map(back_device).collect(),
        cdi_devices: c.cdi_devices.into_iter().map(|device| device.name).collect(),
        labels: c.labels.into_iter().collect(),
        annotations: c.annotations.into_iter().collect(),
        log_path: c.log_path,
        stdin: c.stdin,
        stdin_once: c.stdin_once,
        tty: c.tty,
        stop_signal: super::signal::name(c.stop_signal),
        resources: back_resources(linux.resources.unwrap()),
        security: back_security(linux.security_context.unwrap()),
    }
}

fn back_device(d: v1::Device) -> Device {
    Device { container_path: d.container_path, host_path: d.host_path, permissions: d.permissions }
}

fn back_security(s: v1::LinuxContainerSecurityContext) -> ContainerSecurity {
    let capabilities = s.capabilities.clone().unwrap_or_default();
    ContainerSecurity {
        add_capabilities: capabilities.add_capabilities,
        drop_capabilities: capabilities.drop_capabilities,
        privileged: s.privileged,
        users: back_users(s.namespace_options.as_ref().unwrap()),
        namespaces: back_namespaces(s.namespace_options.as_ref().unwrap()),
        pid_target: None,
        run_as_user: s.run_as_user.map(|v| v.value),
        run_as_group: s.run_as_group.map(|v| v.value),
        run_as_username: s.run_as_username.clone(),
        readonly_rootfs: s.readonly_rootfs,
        supplemental_groups_policy: back_policy(s.supplemental_groups_policy()),
        supplemental_groups: s.supplemental_groups,
        no_new_privs: s.no_new_privs,
        masked_paths: s.masked_paths,
        readonly_paths: s.readonly_paths,
        seccomp: s.seccomp.map(back_profile),
        apparmor: s.apparmor.map(back_profile),
        selinux: s.selinux_options.map(back_selinux),
    }
}

/// As it arrives: encoded and decoded.
fn over_the_wire<M: prost::Message + Default>(message: &M) -> M {
    M::decode(message.encode_to_vec().as_slice()).unwrap()
}

#[test]
fn sandbox_configurations_survive() {
    let mut bare = full_sandbox();
    bare.dns = None;
    bare.security = SandboxSecurity::default();
    bare.resources = LinuxResources::default();
    for config in [full_sandbox(), bare] {
        assert_eq!(back_sandbox(over_the_wire(&sandbox::config(&config)), &config.runtime_handler), config);
    }
}

#[test]
fn container_configurations_survive() {
    let mut bare = full_container();
    bare.mounts.clear();
    bare.security = ContainerSecurity::default();
    bare.resources = LinuxResources::default();
    let mut unconfined = full_container();
    unconfined.security.seccomp = Some(SecurityProfile::Unconfined);
    unconfined.security.apparmor = Some(SecurityProfile::RuntimeDefault);
    for config in [full_container(), bare, unconfined] {
        assert_eq!(back_container(over_the_wire(&container::config(&config))), config);
    }
}

#[test]
#[allow(deprecated)] // it is what this test is about
fn apparmor_is_told_in_the_older_form_too() {
    let cases = [
        (None, ""),
        (Some(SecurityProfile::RuntimeDefault), "runtime/default"),
        (Some(SecurityProfile::Unconfined), "unconfined"),
        (Some(SecurityProfile::Localhost("p".into())), "localhost/p"),
    ];
    for (profile, words) in cases {
        let mut config = full_container();
        config.security.apparmor = profile;
        let context = container::config(&config).linux.unwrap().security_context.unwrap();
        assert_eq!(context.apparmor_profile, words);
    }
}

#[test]
fn sandbox_statuses_arrive() {
    let options = v1::NamespaceOption { network: v1::NamespaceMode::Node.into(), ..Default::default() };
    let status = v1::PodSandboxStatus {
        id: "s1".into(),
        metadata: Some(v1::PodSandboxMetadata { attempt: 2, ..Default::default() }),
        state: v1::PodSandboxState::SandboxReady.into(),
        created_at: 77,
        network: Some(v1::PodSandboxNetworkStatus {
            ip: "10.0.0.1".into(),
            additional_ips: vec![v1::PodIp { ip: "fd00::1".into() }, v1::PodIp { ip: String::new() }],
        }),
        linux: Some(v1::LinuxPodSandboxStatus { namespaces: Some(v1::Namespace { options: Some(options) }) }),
        ..Default::default()
    };
    let seen = SandboxObserved {
        id: "s1".into(),
        attempt: 2,
        state: SandboxState::Ready,
        created: Wall(77),
        ips: strings(&["10.0.0.1", "fd00::1"]),
        host_network: true,
        runtime_handler: String::new(),
    };
    assert_eq!(observed::sandbox(status), seen);
    let empty = observed::sandbox(v1::PodSandboxStatus { state: 99, ..Default::default() });
    assert_eq!((empty.state, empty.ips.len(), empty.host_network), (SandboxState::NotReady, 0, false));
}

#[test]
fn container_statuses_arrive() {
    let status = v1::ContainerStatus {
        id: "c1".into(),
        metadata: Some(v1::ContainerMetadata { name: "main".into(), attempt: 5 }),
        state: v1::ContainerState::ContainerExited.into(),
        created_at: 1,
        started_at: 2,
        finished_at: 3,
        exit_code: 137,
        image: Some(v1::ImageSpec { image: "nginx:1".into(), ..Default::default() }),
        image_ref: "nginx@sha256:1".into(),
        reason: "OOMKilled".into(),
        message: "words".into(),
        annotations: HashMap::from([("a".into(), "1".into())]),
        log_path: "/log".into(),
        user: Some(v1::ContainerUser {
            linux: Some(v1::LinuxContainerUser { uid: 1, gid: 2, supplemental_groups: vec![3] }),
        }),
        resources: Some(v1::ContainerResources {
            linux: Some(v1::LinuxContainerResources {
                cpu_period: 100_000,
                cpu_quota: 50_000,
                cpu_shares: 256,
                memory_limit_in_bytes: 9,
                ..Default::default()
            }),
            ..Default::default()
        }),
        stop_signal: v1::Signal::Sigrtminplus3.into(),
        ..Default::default()
    };
    let seen = ContainerObserved {
        id: "c1".into(),
        sandbox: "s1".into(),
        name: "main".into(),
        attempt: 5,
        state: ContainerState::Exited,
        created: Wall(1),
        started: Some(Wall(2)),
        finished: Some(Wall(3)),
        exit_code: 137,
        reason: "OOMKilled".into(),
        message: "words".into(),
        image: "nginx:1".into(),
        image_ref: "nginx@sha256:1".into(),
        log_path: "/log".into(),
        annotations: map(&[("a", "1")]),
        user: Some(UserObserved { uid: 1, gid: 2, supplemental_groups: vec![3] }),
        actuated: None,
        resources: Some(ResourcesObserved {
            cpu_period_us: 100_000,
            cpu_quota_us: 50_000,
            cpu_shares: 256,
            memory_limit_bytes: 9,
        }),
        stop_signal: Some("SIGRTMIN+3".to_owned()),
    };
    assert_eq!(observed::container("s1", status), seen);
    let empty = observed::container("s1", v1::ContainerStatus { state: 99, ..Default::default() });
    assert_eq!((empty.state, empty.started, empty.finished), (ContainerState::Unknown, None, None));
}

#[test]
fn every_state_has_its_own() {
    use ContainerState::{Created, Exited, Running, Unknown};
    assert_eq!(
        [0, 1, 2, 3, 4, -1].map(observed::container_state),
        [Created, Running, Exited, Unknown, Unknown, Unknown]
    );
    use SandboxState::{NotReady, Ready};
    assert_eq!([0, 1, 2, -1].map(observed::sandbox_state), [Ready, NotReady, NotReady, NotReady]);
}

#[test]
fn conditions_images_and_drivers_arrive() {
    let condition = |name: &str, status| v1::RuntimeCondition {
        r#type: name.into(),
        status,
        reason: "Why".into(),
        message: "words".into(),
    };
    let both = v1::RuntimeStatus {
        conditions: vec![condition("RuntimeReady", true), condition("NetworkReady", false)],
    };
    let handler = |name: &str, features| v1::RuntimeHandler { name: name.into(), features };
    let all = v1::RuntimeHandlerFeatures { recursive_read_only_mounts: true, user_namespaces: true };
    let features = v1::RuntimeFeatures { supplemental_groups_policy: true, ..Default::default() };
    let status = observed::status(v1::StatusResponse {
        status: Some(both),
        runtime_handlers: vec![handler("", Some(all)), handler("kata", None)],
        features: Some(features),
        ..Default::default()
    });
    assert_eq!(status.runtime_ready, Ok(()));
    assert_eq!(status.network_ready, Err("NetworkReady=false reason:Why message:words".into()));
    assert!(status.handlers[0].user_namespaces && status.handlers[0].recursive_read_only_mounts);
    assert!(status.handlers[1].name == "kata" && !status.handlers[1].user_namespaces);
    assert!(status.features.is_some_and(|f| f.supplemental_groups_policy && !f.user_namespaces_host_network));
    let silent = observed::status(v1::StatusResponse::default());
    assert!(silent.runtime_ready.is_err() && silent.handlers.is_empty() && silent.features.is_none());
    let driver = |cgroup_driver| {
        let linux = Some(v1::LinuxRuntimeConfiguration { cgroup_driver });
        observed::cgroup_driver(&v1::RuntimeConfigResponse { linux })
    };
    assert_eq!(driver(0), Ok(Some(CgroupDriver::Systemd)));
    assert_eq!(driver(1), Ok(Some(CgroupDriver::Cgroupfs)));
    assert!(driver(2).unwrap_err().contains('2'));
    assert_eq!(observed::cgroup_driver(&v1::RuntimeConfigResponse::default()), Ok(None));
    let uid = Some(v1::Int64Value { value: 0 });
    let image = v1::Image { id: "i".into(), uid, username: "u".into(), size: 9, ..Default::default() };
    let seen = observed::image(image);
    assert_eq!((seen.id.as_str(), seen.uid, seen.username.as_str(), seen.size_bytes), ("i", Some(0), "u", 9));
}

#[test]
fn only_kubelet_labels_make_a_pod() {
    let all = ["name", "namespace", "uid"].map(|l| (format!("io.kubernetes.pod.{l}"), l.to_owned()));
    let labels = HashMap::from(all.clone());
    let key = observed::pod_key(&labels).unwrap();
    assert_eq!(key.to_string(), "name_namespace(uid)");
    for (missing, _) in &all {
        let mut fewer = labels.clone();
        fewer.remove(missing);
        assert_eq!(observed::pod_key(&fewer), None, "without {missing}");
        fewer.insert(missing.clone(), String::new());
        assert_eq!(observed::pod_key(&fewer), None, "with empty {missing}");
    }
}

#[test]
fn a_target_is_entered_whatever_the_pid_namespace() {
    let mut config = full_container();
    config.security.pid_target = Some("c7".into());
    let sent = over_the_wire(&container::config(&config));
    let options = sent.linux.unwrap().security_context.unwrap().namespace_options.unwrap();
    assert_eq!((options.pid(), options.target_id.as_str()), (v1::NamespaceMode::Target, "c7"));
}
