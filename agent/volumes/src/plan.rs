//! A pod's volume becomes a [`SetUp`].
//!
//! In: the pod, the volume's name, the node. Out: path and work. Invariant: pure; the same pod and node give the same
//! set-up, except for what the downward API reads of the pod.

use agent_types::node_context::NodeContext;
use agent_types::objects::{ObjectKind, ObjectRef};
use agent_types::pod_paths::pod_dir;
use agent_types::resources::cgroups::pod::is_limited;
use agent_types::resources::requests::{HUGEPAGES_PREFIX, MEMORY, pod_limit};
use agent_types::{Quantity, pod};
use k8s_openapi::api::core::v1::{KeyToPath, Pod, ResourceRequirements, Volume, VolumeProjection};

use super::claim::{self, ClaimRef};
use super::flex::{self, Flex};
use super::network_disk::{self, NetworkDisk};
use super::nfs::Nfs;
use super::pod_certificate::{self, CertificateSource, Paths};
use super::token::{DEFAULT_LIFE_S, TokenRef};
use super::{
    FileSource, Item, Medium, SetUp, SetUpError, Work, device, disk, downward, inline, project, selinux,
    trust_bundle,
};
use crate::bind::{Bind, Device, Disk, OfClaim};
use crate::bound::{Bound, Claims, Source, host_path_type};
use crate::csi::{self, TARGET, translation};
use crate::flex::source::Driver;
use crate::plugin::{self, Plugin};

/// `emptyDir.medium` of huge pages begins so.
const HUGE: &str = "HugePages";
/// `defaultMode` that the API server fills in.
const FILE_MODE: u32 = 0o644;
/// Mode of a token whose owner or group is set.
const TOKEN_MODE: u32 = 0o600;

/// The volume is of a kind that this node has.
#[must_use]
pub fn is_known(volume: &Volume) -> bool {
    plugin_of(volume).is_some()
        || volume.persistent_volume_claim.is_some()
        || volume.ephemeral.is_some()
        || volume.image.is_some()
        || inline::has_no_plugin(volume)
}

/// The plugin of a volume that says itself what it is, or is translated to a driver's; `None` for claims, for images (the runtime
/// mounts them) and for those that this node does not have.
#[must_use]
pub fn plugin_of(volume: &Volume) -> Option<Plugin> {
    if volume.empty_dir.is_some() {
        Some(Plugin::EmptyDir)
    } else if volume.host_path.is_some() {
        Some(Plugin::HostPath)
    } else if volume.config_map.is_some() {
        Some(Plugin::ConfigMap)
    } else if volume.secret.is_some() {
        Some(Plugin::Secret)
    } else if volume.downward_api.is_some() {
        Some(Plugin::DownwardApi)
    } else if volume.projected.is_some() {
        Some(Plugin::Projected)
    } else if volume.csi.is_some() || translation::is_inline(volume) {
        Some(Plugin::Csi)
    } else if volume.nfs.is_some() {
        Some(Plugin::Nfs)
    } else if volume.git_repo.is_some() {
        Some(Plugin::GitRepo)
    } else if volume.iscsi.is_some() {
        Some(Plugin::Iscsi)
    } else if volume.fc.is_some() {
        Some(Plugin::Fc)
    } else if volume.flex_volume.is_some() {
        Some(Plugin::Flex)
    } else {
        None
    }
}

/// Where a volume is on the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    /// Its path.
    pub path: String,
    /// Whose business it is.
    pub plugin: Plugin,
    /// No container may write to it.
    pub read_only: bool,
}

/// Where a volume is; of one with a claim, or that is translated to a driver's, once that is bound.
#[must_use]
pub fn location(p: &Pod, volume: &Volume, claims: &Claims, node: &NodeContext) -> Option<Location> {
    if let Some(bound) = claims.get(&volume.name) {
        let plugin = bound.plugin();
        let path = match &bound.source {
            Source::HostPath { path, .. } => path.clone(),
            Source::Flex(source) => {
                format!("{}/{}", pod_dir(p, node), Driver::new(&source.driver)?.below(&bound.volume))
            }
            Source::Local { .. } | Source::Csi(_) | Source::Nfs { .. } | Source::NetworkDisk(_) => {
                let below = if bound.block {
                    device::below(plugin, &bound.volume)
                } else {
                    below(plugin, &bound.volume)
                };
                format!("{}/{below}", pod_dir(p, node))
            }
        };
        return Some(Location { path, plugin, read_only: bound.read_only });
    }
    if translation::is_inline(volume) {
        return None;
    }
    let plugin = plugin_of(volume)?;
    let path = match (&volume.host_path, &volume.flex_volume) {
        (Some(host_path), _) => host_path.path.clone(),
        (None, Some(flex)) => {
            format!("{}/{}", pod_dir(p, node), Driver::new(&flex.driver)?.below(&volume.name))
        }
        (None, None) => format!("{}/{}", pod_dir(p, node), below(plugin, &volume.name)),
    };
    let read_only = plugin.is_read_only()
        || volume.csi.as_ref().is_some_and(|c| c.read_only == Some(true))
        || volume.nfs.as_ref().is_some_and(|n| n.read_only == Some(true))
        || volume.iscsi.as_ref().is_some_and(|i| i.read_only == Some(true))
        || volume.fc.as_ref().is_some_and(|f| f.read_only == Some(true))
        || volume.flex_volume.as_ref().is_some_and(|f| f.read_only == Some(true));
    Some(Location { path, plugin, read_only })
}

/// Directory of a volume that the node makes, below the pod's.
#[must_use]
pub fn below(plugin: Plugin, volume: &str) -> String {
    // The file that says which volume it is lies next to a driver's target.
    let target = if plugin == Plugin::Csi { format!("/{TARGET}") } else { String::new() };
    // What a volume of an old type is called may be a path; as upstream, its slashes are tildes.
    format!("volumes/{}/{}{target}", plugin.directory(), volume.replace('/', "~"))
}

/// What has to be done for the volume `name`.
///
/// # Errors
/// Why that cannot be said, in upstream's words where it has some.
pub fn set_up(p: &Pod, name: &str, claims: &Claims, node: &NodeContext) -> Result<SetUp, SetUpError> {
    let all = pod::spec(p).volumes.as_deref().unwrap_or(&[]);
    let volume = all.iter().find(|v| v.name == name).ok_or_else(|| format!("pod has no volume {name:?}"))?;
    let Location { path, plugin, .. } = location(p, volume, claims, node).ok_or_else(|| {
        let name = claims.get(name).map_or(name, |bound| bound.volume.as_str());
        SetUpError::Unprocessed(claim::no_plugin(name, plugin::NO_PLUGIN).to_string())
    })?;
    let security = pod::spec(p).security_context.as_ref();
    let fs_group = security.and_then(|s| s.fs_group).and_then(|g| u32::try_from(g).ok());
    Ok(SetUp {
        work: match claims.get(name) {
            Some(bound) => {
                let label = selinux::label(p, name, bound, node).map_err(SetUpError::Unprocessed)?;
                of_claim(p, (bound, claim::of_volume(p, volume)), label, node)?
            }
            None => work(p, volume, plugin, node)?,
        },
        nested: if plugin.is_read_only() { nested(p, name) } else { Vec::new() },
        name: name.to_owned(),
        plugin,
        path,
        fs_group,
    })
}

fn of_claim(
    p: &Pod,
    (bound, claim): (&Bound, Option<ClaimRef>),
    label: Option<String>,
    node: &NodeContext,
) -> Result<Work, SetUpError> {
    let security = pod::spec(p).security_context.as_ref();
    let policy = security.and_then(|s| s.fs_group_change_policy.as_deref());
    let claim = claim.map(|claim| OfClaim {
        namespace: claim.namespace,
        name: claim.name,
        node: node.node_name.clone(),
        read_only: bound.read_only,
    });
    let global = || bound.block.then(|| device::global(&node.root_dir, Plugin::Csi, &bound.volume));
    Ok(match &bound.source {
        Source::HostPath { kind, .. } => Work::HostPath(*kind),
        Source::Csi(source) => {
            let volume = csi::of_bound(p, bound, source, &node.node_name);
            let mut volume = csi::CsiVolume { block: global(), ..volume };
            if let Some(persistent) = &mut volume.persistent {
                persistent.label = node.security.selinux.is_some().then(|| label.unwrap_or_default());
            }
            Work::Csi(Box::new(volume))
        }
        Source::Nfs { server, path } => Work::Nfs(Nfs {
            server: server.clone(),
            path: path.clone(),
            read_only: bound.read_only,
            options: bound.options.clone(),
        }),
        Source::Local { path, .. } if bound.block => Work::Device(Device {
            source: path.clone(),
            global: device::global(&node.root_dir, Plugin::Local, &bound.volume),
            one_pod: bound.one_pod,
        }),
        Source::Local { path, fs_type } => Work::Bind(Bind {
            source: path.clone(),
            read_only: bound.read_only,
            options: bound.options.clone(),
            one_pod: bound.one_pod,
            by_root: policy == Some("OnRootMismatch"),
            disk: Disk { global: disk::global(&node.root_dir, &bound.volume), fs_type: fs_type.clone() },
            claim,
        }),
        Source::Flex(source) => Work::Flex(Box::new(Flex {
            // As upstream: the claim's pod says it.
            read_only: bound.read_only,
            one_pod: bound.one_pod,
            claim,
            ..flex(p, &bound.volume, source, node)?
        })),
        Source::NetworkDisk(source) => Work::NetworkDisk(Box::new(NetworkDisk {
            // As upstream: what the PersistentVolume says of it is not looked at, but what the claim's pod says.
            read_only: bound.read_only,
            options: bound.options.clone(),
            one_pod: bound.one_pod,
            block: bound.block,
            label,
            ..NetworkDisk::of_pod(p, &bound.volume, source, bound.block, &node.root_dir)?
        })),
    })
}

fn work(p: &Pod, volume: &Volume, plugin: Plugin, node: &NodeContext) -> Result<Work, SetUpError> {
    let marker = |name: &str| format!("{}/plugins/{}/{name}", pod_dir(p, node), Plugin::EmptyDir.directory());
    if let Some(inline) = csi::of_volume(p, volume, &node.node_name) {
        return Ok(Work::Csi(Box::new(inline)));
    }
    if let Some(nfs) = &volume.nfs {
        return Ok(Work::Nfs(Nfs {
            server: nfs.server.clone(),
            path: nfs.path.clone(),
            read_only: nfs.read_only == Some(true),
            options: Vec::new(),
        }));
    }
    if let Some(git) = &volume.git_repo {
        return Err(inline::no_git(&volume.name, git).into());
    }
    let source = match (&volume.iscsi, &volume.fc) {
        (Some(iscsi), _) => Some(network_disk::source::Source::of_iscsi(iscsi.clone())),
        (None, Some(fc)) => Some(network_disk::source::Source::of_fc(fc.clone())?),
        (None, None) => None,
    };
    if let Some(source) = source {
        let disk = NetworkDisk::of_pod(p, &volume.name, &source, false, &node.root_dir)?;
        return Ok(Work::NetworkDisk(Box::new(disk)));
    }
    if let Some(source) = &volume.flex_volume {
        let source = flex::source::Source::of_volume(source.clone());
        return Ok(Work::Flex(Box::new(flex(p, &volume.name, &source, node)?)));
    }
    if let Some(host_path) = &volume.host_path {
        return Ok(Work::HostPath(host_path_type(host_path.type_.as_deref().unwrap_or(""))?));
    }
    if let Some(empty_dir) = &volume.empty_dir {
        let size_limit = empty_dir.size_limit.as_ref().and_then(|q| Quantity::parse(&q.0).ok());
        let medium = match empty_dir.medium.as_deref().unwrap_or("") {
            "" => Medium::Disk,
            "Memory" => memory(p, size_limit, node),
            huge if huge.starts_with(HUGE) => Medium::HugePages(page_size(p, huge)?),
            other => return Err(format!("unknown storage medium {other:?}").into()),
        };
        let counted = node.features.project_quotas && project::may_have(p, volume);
        return Ok(Work::EmptyDir { medium, marker: marker(&volume.name), counted });
    }
    // What is written to disk for ConfigMaps is kept in memory for everything that may be secret.
    let medium = if plugin == Plugin::ConfigMap { Medium::Disk } else { memory(p, None, node) };
    let sources = sources(p, volume, node)?;
    let marker = marker(&format!("wrapped_{}", volume.name));
    Ok(Work::Files { medium, marker, sources, projected: plugin == Plugin::Projected })
}

fn flex(
    p: &Pod,
    volume: &str,
    source: &flex::source::Source,
    node: &NodeContext,
) -> Result<Flex, SetUpError> {
    let made = Flex::of_pod(p, volume, source, (&node.root_dir, &node.node_name));
    made.ok_or_else(|| SetUpError::Unprocessed(claim::no_plugin(volume, plugin::NO_PLUGIN).to_string()))
}

/// How large the pages of a medium of huge pages are: those that the pod asks for.
fn page_size(p: &Pod, medium: &str) -> Result<u64, String> {
    let wanted = match medium.strip_prefix(HUGE).unwrap_or_default() {
        "" => None,
        size => {
            let size = size.strip_prefix('-').and_then(|size| Quantity::parse(size).ok());
            Some(size.ok_or_else(|| format!("medium: {medium} has no size of a page"))?)
        }
    };
    let amounts = |resources: Option<&ResourceRequirements>| {
        resources.and_then(|r| r.requests.clone()).unwrap_or_default().into_keys()
    };
    let of_pod = amounts(pod::spec(p).resources.as_ref());
    let all = pod::containers(p).iter().chain(pod::init_containers(p));
    let names = of_pod.chain(all.flat_map(|c| amounts(c.resources.as_ref())));
    let mut found: Option<Quantity> = None;
    for size in names.filter_map(|name| Quantity::parse(name.strip_prefix(HUGEPAGES_PREFIX)?).ok()) {
        if wanted.is_none() && found.is_some_and(|other| other != size) {
            return Err(format!(
                "medium: {medium} can't be used if container requests multiple huge page sizes"
            ));
        }
        if wanted.is_none_or(|wanted| wanted == size) {
            found = Some(size);
        }
    }
    let size = found.and_then(|size| u64::try_from(size.value()).ok());
    size.ok_or_else(|| {
        format!(
            "medium {medium}: hugePages storage requested, but there is no resource request for huge pages"
        )
    })
}

/// A tmpfs may be as large as what the pod may use at all: the least of the node's allocatable memory, the limit of the
/// whole pod if it has one, and the volume's own.
fn memory(p: &Pod, size_limit: Option<Quantity>, node: &NodeContext) -> Medium {
    let of_pod = is_limited(p, MEMORY).then(|| pod_limit(p, MEMORY).value());
    let candidates = [of_pod, size_limit.map(Quantity::value)];
    let least = candidates.into_iter().flatten().filter(|bytes| *bytes > 0).fold(
        node.machine.allocatable_memory_bytes,
        |least, bytes| match least {
            0 => bytes,
            least => least.min(bytes),
        },
    );
    Medium::Memory(u64::try_from(least).unwrap_or(0))
}

fn sources(p: &Pod, volume: &Volume, node: &NodeContext) -> Result<Vec<FileSource>, String> {
    let mode = |m: Option<i32>| m.and_then(|m| u32::try_from(m).ok()).unwrap_or(FILE_MODE);
    if let Some(source) = &volume.config_map {
        let items = source.items.as_deref().unwrap_or(&[]);
        let of = (ObjectKind::ConfigMap, source.name.as_str());
        return Ok(vec![object(p, of, items, source.optional, mode(source.default_mode))]);
    }
    if let Some(source) = &volume.secret {
        let items = source.items.as_deref().unwrap_or(&[]);
        let of = (ObjectKind::Secret, source.secret_name.as_deref().unwrap_or(""));
        return Ok(vec![object(p, of, items, source.optional, mode(source.default_mode))]);
    }
    if let Some(source) = &volume.downward_api {
        let items = source.items.as_deref().unwrap_or(&[]);
        return Ok(vec![FileSource::Known(downward::files(items, p, mode(source.default_mode), node)?)]);
    }
    let Some(projected) = &volume.projected else { return Err(plugin::NO_PLUGIN.to_owned()) };
    let mode = mode(projected.default_mode);
    let parts = projected.sources.iter().flatten().enumerate();
    parts.map(|(index, part)| projection(p, (volume, index, part), mode, node)).collect()
}

fn projection(
    p: &Pod,
    (volume, index, part): (&Volume, usize, &VolumeProjection),
    mode: u32,
    node: &NodeContext,
) -> Result<FileSource, String> {
    if let Some(source) = &part.config_map {
        let items = source.items.as_deref().unwrap_or(&[]);
        return Ok(object(p, (ObjectKind::ConfigMap, &source.name), items, source.optional, mode));
    }
    if let Some(source) = &part.secret {
        let items = source.items.as_deref().unwrap_or(&[]);
        return Ok(object(p, (ObjectKind::Secret, &source.name), items, source.optional, mode));
    }
    if let Some(source) = &part.downward_api {
        let items = source.items.as_deref().unwrap_or(&[]);
        return downward::files(items, p, mode, node).map(FileSource::Known);
    }
    if let Some(source) = &part.service_account_token {
        let (mode, user) = owned(p, mode);
        return Ok(FileSource::Token {
            token: TokenRef {
                namespace: pod::namespace(p).to_owned(),
                account: pod::spec(p).service_account_name.clone().unwrap_or_default(),
                account_uid: String::new(),
                audience: source.audience.clone().unwrap_or_default(),
                life_s: source.expiration_seconds.unwrap_or(DEFAULT_LIFE_S),
                pod: pod::name(p).to_owned(),
                uid: pod::uid(p).to_owned(),
            },
            path: source.path.clone(),
            mode,
            user,
        });
    }
    if let Some(source) = &part.cluster_trust_bundle {
        if !node.features.trust_bundles {
            return Err(gate_is_off("ClusterTrustBundle projection is not supported", trust_bundle::GATE));
        }
        let (mode, user) = owned(p, mode);
        return Ok(FileSource::Anchors {
            choice: trust_bundle::choice(source)?,
            optional: source.optional == Some(true),
            uid: pod::uid(p).to_owned(),
            path: source.path.clone(),
            mode,
            user,
        });
    }
    if let Some(source) = &part.pod_certificate {
        if !node.features.pod_certificates {
            return Err(gate_is_off("podCertificate projection is not supported", pod_certificate::GATE));
        }
        let (mode, user) = owned(p, mode);
        let of = CertificateSource::new(p, &volume.name, index);
        return Ok(FileSource::Certificate { of, paths: Paths::of(source), mode, user });
    }
    Err("projection without a source that this node knows".to_owned())
}

fn gate_is_off(what: &str, gate: &str) -> String {
    format!("{what}: the node's feature gate {gate} is off")
}

/// Mode and owner of what is a secret of the pod: its own, if it says whose it is.
fn owned(p: &Pod, mode: u32) -> (u32, Option<u32>) {
    let user = fs_user(p);
    let fs_group = pod::spec(p).security_context.as_ref().and_then(|s| s.fs_group);
    (if user.is_some() || fs_group.is_some() { TOKEN_MODE } else { mode }, user)
}

fn object(
    p: &Pod,
    (kind, name): (ObjectKind, &str),
    items: &[KeyToPath],
    optional: Option<bool>,
    mode: u32,
) -> FileSource {
    let item = |i: &KeyToPath| Item {
        key: i.key.clone(),
        path: i.path.clone(),
        mode: i.mode.and_then(|m| u32::try_from(m).ok()),
    };
    FileSource::Object {
        object: ObjectRef::of(p, kind, name),
        items: items.iter().map(item).collect(),
        optional: optional == Some(true),
        mode,
    }
}

/// The user that all containers run as, if they all name the same one.
fn fs_user(p: &Pod) -> Option<u32> {
    let of_pod = pod::spec(p).security_context.as_ref().and_then(|s| s.run_as_user);
    let mut users = pod::init_containers(p)
        .iter()
        .chain(pod::containers(p))
        .map(|c| c.security_context.as_ref().and_then(|s| s.run_as_user).or(of_pod));
    let first = users.next()??;
    users.all(|user| user == Some(first)).then(|| u32::try_from(first).ok()).flatten()
}

/// Where other volumes of the pod are mounted inside this one, relative to it.
fn nested(p: &Pod, volume: &str) -> Vec<String> {
    let mut dirs = std::collections::BTreeSet::new();
    for container in pod::init_containers(p).iter().chain(pod::containers(p)) {
        let mounts = container.volume_mounts.as_deref().unwrap_or(&[]);
        let paths = |name_is: bool| {
            let wanted = move |m: &&k8s_openapi::api::core::v1::VolumeMount| (m.name == volume) == name_is;
            mounts.iter().filter(wanted).map(|m| m.mount_path.trim_matches('/'))
        };
        for own in paths(true) {
            let below = paths(false).filter_map(|other| {
                let rest =
                    if own.is_empty() { Some(other) } else { other.strip_prefix(own)?.strip_prefix('/') };
                rest.filter(|rest| !rest.is_empty())
            });
            dirs.extend(below.filter_map(|rest| super::paths::clean(rest).ok()));
        }
    }
    // What lies inside another one is that one's business.
    let all: Vec<String> = dirs.into_iter().collect();
    let inside = |dir: &String| all.iter().any(|other| dir.starts_with(&format!("{other}/")));
    all.iter().filter(|dir| !inside(dir)).cloned().collect()
}
