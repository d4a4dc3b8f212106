//! `ContainerConfig` to CRI `ContainerConfig`.

use agent_types::ids::IdMapping;
use agent_types::runtime::config::{
    ContainerConfig, ContainerSecurity, Device, ImageMount, Mount, MountPropagation,
};
use orlop_proto::cri::v1;

use super::{linux, signal};

/// CRI `ContainerConfig`.
#[must_use]
pub fn config(c: &ContainerConfig) -> v1::ContainerConfig {
    let env =
        |(key, value): &(String, String)| v1::KeyValue { key: key.clone(), value: value.clone().into() };
    v1::ContainerConfig {
        metadata: Some(v1::ContainerMetadata { name: c.name.clone(), attempt: c.attempt }),
        image: Some(v1::ImageSpec {
            image: c.image.to_string(),
            annotations: Default::default(),
            user_specified_image: c.user_specified_image.clone(),
            runtime_handler: String::new(),
            image_ref: String::new(),
        }),
        command: c.command.clone(),
        args: c.args.clone(),
        working_dir: c.working_dir.clone(),
        envs: c.envs.iter().map(env).collect(),
        mounts: c.mounts.iter().map(|m| mount(m, c.security.users)).collect(),
        devices: c.devices.iter().map(device).collect(),
        labels: linux::map(&c.labels),
        annotations: linux::map(&c.annotations),
        log_path: c.log_path.clone(),
        stdin: c.stdin,
        stdin_once: c.stdin_once,
        tty: c.tty,
        linux: Some(v1::LinuxContainerConfig {
            resources: Some(linux::resources(&c.resources)),
            security_context: Some(security(&c.security)),
        }),
        windows: None,
        cdi_devices: c.cdi_devices.iter().map(|name| v1::CdiDevice { name: name.clone() }).collect(),
        stop_signal: signal::number(c.stop_signal.as_deref()),
    }
}

fn device(device: &Device) -> v1::Device {
    v1::Device {
        container_path: device.container_path.clone(),
        host_path: device.host_path.clone(),
        permissions: device.permissions.clone(),
    }
}

fn mount(m: &Mount, users: Option<IdMapping>) -> v1::Mount {
    let propagation = match m.propagation {
        MountPropagation::Private => v1::MountPropagation::PropagationPrivate,
        MountPropagation::HostToContainer => v1::MountPropagation::PropagationHostToContainer,
        MountPropagation::Bidirectional => v1::MountPropagation::PropagationBidirectional,
    };
    v1::Mount {
        container_path: m.container_path.clone(),
        host_path: m.host_path.clone(),
        readonly: m.readonly,
        selinux_relabel: m.selinux_relabel,
        propagation: propagation.into(),
        uid_mappings: linux::id_mappings(users),
        gid_mappings: linux::id_mappings(users),
        recursive_read_only: m.recursive_read_only,
        image: m.image.as_ref().map(image),
        image_sub_path: m.image.as_ref().map(|image| image.sub_path.clone()).unwrap_or_default(),
    }
}

fn image(image: &ImageMount) -> v1::ImageSpec {
    v1::ImageSpec {
        image: image.id.to_string(),
        annotations: linux::map(&image.annotations),
        user_specified_image: image.written.clone(),
        runtime_handler: String::new(),
        image_ref: String::new(),
    }
}

fn capabilities(s: &ContainerSecurity) -> Option<v1::Capability> {
    let some = !(s.add_capabilities.is_empty() && s.drop_capabilities.is_empty());
    some.then(|| v1::Capability {
        add_capabilities: s.add_capabilities.clone(),
        drop_capabilities: s.drop_capabilities.clone(),
        add_ambient_capabilities: Vec::new(),
    })
}

#[allow(deprecated)] // runtimes still read the older one-string AppArmor field
fn security(s: &ContainerSecurity) -> v1::LinuxContainerSecurityContext {
    v1::LinuxContainerSecurityContext {
        capabilities: capabilities(s),
        privileged: s.privileged,
        namespace_options: Some(linux::namespaces(s.namespaces, s.pid_target.as_ref(), s.users)),
        selinux_options: s.selinux.as_ref().map(linux::selinux),
        run_as_user: linux::int64(s.run_as_user),
        run_as_group: linux::int64(s.run_as_group),
        run_as_username: s.run_as_username.clone(),
        readonly_rootfs: s.readonly_rootfs,
        supplemental_groups: s.supplemental_groups.clone(),
        supplemental_groups_policy: linux::groups_policy(s.supplemental_groups_policy),
        no_new_privs: s.no_new_privs,
        masked_paths: s.masked_paths.clone(),
        readonly_paths: s.readonly_paths.clone(),
        seccomp: s.seccomp.as_ref().map(linux::profile),
        apparmor: s.apparmor.as_ref().map(linux::profile),
        apparmor_profile: s.apparmor.as_ref().map(linux::profile_string).unwrap_or_default(),
        seccomp_profile_path: String::new(),
    }
}
