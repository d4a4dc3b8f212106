//! Projects of volumes: a file system with project quotas counts the usage of a project, so that no directory
//! walk is needed.
//!
//! ```text
//! empty directory ──an id that is not used──► project of its own ──► the file system counts bytes and inodes
//!                                                    │
//!                          its last file goes ◄──────┘  and with it the id is free again
//! ```
//! In: projects of directories, the ids in use. Out: the action on a volume's directory. Nothing is recorded:
//! a directory knows its project, and the file system knows which ids have files. Invariants: a directory
//! with a foreign project, or with earlier contents, stays as it is; nothing is ever limited; only pods with a
//! user namespace have projects, because another pod could change the project of its files. Upstream:
//! pkg/volume/util/fsquota, which keeps its records in /etc/projects and /etc/projid.

use std::collections::BTreeSet;

use agent_types::pod;
use k8s_openapi::api::core::v1::{Pod, Volume};

/// The first id that the agent gives to a volume, as upstream: people who number projects by hand begin at 1.
pub const FIRST: u32 = (1 << 20) + 1;
/// The first one behind those that are given away.
pub const END: u32 = FIRST + (1 << 20);

/// The volume is one that has a project where the gate is on and the file system counts: an emptyDir on disk, of a pod with a
/// user namespace of its own.
#[must_use]
pub fn may_have(p: &Pod, volume: &Volume) -> bool {
    let on_disk = |medium: Option<&str>| medium.unwrap_or_default().is_empty();
    pod::own_users(p) && volume.empty_dir.as_ref().is_some_and(|v| on_disk(v.medium.as_deref()))
}

/// What a directory says of itself (`FS_IOC_FSGETXATTR`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// The project that its inode belongs to; 0: none.
    pub project: u32,
    /// What is made in it belongs to the same project.
    pub inherited: bool,
}

impl Attributes {
    /// The project that a volume's directory has for itself, if it is one of those that are given away. `above` is what its
    /// parent says.
    #[must_use]
    pub fn own(self, above: Attributes) -> Option<u32> {
        let given = (FIRST..END).contains(&self.project);
        (given && self.inherited && self.project != above.project).then_some(self.project)
    }
}

/// What to do with a volume's directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProjectAction {
    /// It has a project of its own.
    Keep(u32),
    /// It is to be given one.
    Give,
    /// It has none, and stays so.
    Leave(NoProjectReason),
}

/// Why a directory is given no project.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoProjectReason {
    /// The file system, or the kernel, has no project quotas.
    #[error(
        "the file system has no project quotas: make ext4 with the features `quota` and `project`, or mount xfs with \
         `prjquota`; until then volumes are walked"
    )]
    Unsupported,
    /// Another project counts it.
    #[error("its files are those of project {0}, which is somebody else's: it is walked")]
    Others(u32),
    /// It has files that would not be counted.
    #[error("it had files before it could be given a project: it is walked")]
    InUse,
    /// All ids are in use.
    #[error("all project ids from {FIRST} to {} are in use: it is walked", END - 1)]
    NoneFree,
}

/// What to do with the directory of a volume that no container has seen yet. `above` is what its parent says.
#[must_use]
pub fn next(own: Attributes, above: Attributes, is_empty: bool) -> ProjectAction {
    if let Some(project) = own.own(above) {
        return ProjectAction::Keep(project);
    }
    // A limit for everything below some directory holds for volumes, too.
    let others = [own.project, if above.inherited { above.project } else { 0 }];
    match others.into_iter().find(|project| *project != 0) {
        Some(project) => ProjectAction::Leave(NoProjectReason::Others(project)),
        None if is_empty => ProjectAction::Give,
        None => ProjectAction::Leave(NoProjectReason::InUse),
    }
}

/// The first id that is not in use and not `reserved`. `next_used` returns the least id in use that is not below its
/// argument.
///
/// # Errors
/// Those of `next_used`.
pub fn choose<E>(
    reserved: &BTreeSet<u32>,
    mut next_used: impl FnMut(u32) -> Result<Option<u32>, E>,
) -> Result<Option<u32>, E> {
    for id in (FIRST..END).filter(|id| !reserved.contains(id)) {
        if next_used(id)? != Some(id) {
            return Ok(Some(id));
        }
    }
    Ok(None)
}

/// Ids that the texts of /etc/projects (`id:path`) and /etc/projid (`name:id`) name: they belong to an administrator's
/// projects, with files or without (projects(5), projid(5)).
#[must_use]
pub fn reserved(projects: &str, projid: &str) -> BTreeSet<u32> {
    let ids = pairs(projects).map(|(id, _)| id).chain(pairs(projid).map(|(_, id)| id));
    ids.filter_map(|id| id.trim().parse().ok()).collect()
}

/// What is before and behind the first colon of each line.
fn pairs(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let lines = text.lines().map(str::trim).filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| line.split_once(':'))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn only_what_a_pod_cannot_change_is_counted() {
        let volumes = [
            (json!({"emptyDir": {}}), true),
            (json!({"emptyDir": {"medium": "", "sizeLimit": "1Mi"}}), true),
            (json!({"emptyDir": {"medium": "Memory"}}), false),
            (json!({"emptyDir": {"medium": "HugePages"}}), false),
            (json!({"configMap": {"name": "c"}}), false),
            (json!({"hostPath": {"path": "/x"}}), false),
        ];
        for (mut volume, own) in volumes {
            volume["name"] = "v".into();
            for (host_users, expected) in [(json!(false), own), (json!(true), false), (Value::Null, false)] {
                let pod = json!({"metadata": {"name": "p"}, "spec": {
                    "containers": [], "hostUsers": host_users, "volumes": [volume]}});
                let pod: Pod = serde_json::from_value(pod).unwrap();
                let volume = &pod::spec(&pod).volumes.as_ref().unwrap()[0];
                assert_eq!(may_have(&pod, volume), expected, "{host_users} {volume:?}");
            }
        }
    }

    const NONE: Attributes = Attributes { project: 0, inherited: false };

    fn of(project: u32) -> Attributes {
        Attributes { project, inherited: true }
    }

    #[test]
    fn a_directory_keeps_what_it_has() {
        let single = Attributes { inherited: false, ..of(FIRST) };
        for (own, above, is_empty, expected) in [
            (NONE, NONE, true, ProjectAction::Give),
            (NONE, NONE, false, ProjectAction::Leave(NoProjectReason::InUse)),
            // An agent was killed after it had given it.
            (of(FIRST), NONE, true, ProjectAction::Keep(FIRST)),
            (of(END - 1), NONE, false, ProjectAction::Keep(END - 1)),
            (of(FIRST), of(7), true, ProjectAction::Keep(FIRST)),
            // Everything below a directory of another project is counted there.
            (of(7), of(7), true, ProjectAction::Leave(NoProjectReason::Others(7))),
            (of(FIRST), of(FIRST), true, ProjectAction::Leave(NoProjectReason::Others(FIRST))),
            (NONE, of(7), true, ProjectAction::Leave(NoProjectReason::Others(7))),
            (NONE, Attributes { inherited: false, ..of(7) }, true, ProjectAction::Give),
            // Not given by a kubelet.
            (of(END), NONE, true, ProjectAction::Leave(NoProjectReason::Others(END))),
            (of(FIRST - 1), NONE, true, ProjectAction::Leave(NoProjectReason::Others(FIRST - 1))),
            (single, NONE, true, ProjectAction::Leave(NoProjectReason::Others(FIRST))),
        ] {
            assert_eq!(next(own, above, is_empty), expected, "{own:?} below {above:?}, empty: {is_empty}");
        }
    }

    fn chosen(reserved: &[u32], used: &[u32]) -> Option<u32> {
        let used = |from: u32| Ok::<_, ()>(used.iter().copied().filter(|id| *id >= from).min());
        choose(&reserved.iter().copied().collect(), used).unwrap()
    }

    #[test]
    fn the_first_id_that_nobody_has() {
        assert_eq!(chosen(&[], &[]), Some(FIRST));
        assert_eq!(chosen(&[], &[1, 7, FIRST + 1, u32::MAX]), Some(FIRST));
        assert_eq!(chosen(&[], &[FIRST, FIRST + 1, FIRST + 3]), Some(FIRST + 2));
        assert_eq!(chosen(&[FIRST, FIRST + 2], &[FIRST + 1]), Some(FIRST + 3));
        let all = choose(&BTreeSet::new(), |from| Ok::<_, ()>(Some(from)));
        assert_eq!(all, Ok(None), "none is free");
        assert_eq!(choose(&BTreeSet::new(), |_| Err("refused")), Err("refused"));
    }

    #[test]
    fn ids_that_have_a_name_are_somebodys() {
        let projects = "# volumes\n1048577:/var/lib/kubelet/x:y\n\nnonsense\n-1:/x\n 7 : /srv\n";
        let projid = "volume1048578:1048578\n#off:9\nbig:99999999999\nhome:8\n";
        let expected: BTreeSet<u32> = [7, 8, FIRST, FIRST + 1].into();
        assert_eq!(reserved(projects, projid), expected);
    }
}
