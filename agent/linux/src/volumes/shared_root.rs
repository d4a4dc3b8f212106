//! The directory below which pods' volumes lie, as a mount that containers can share.
//!
//! In: the kubelet's root directory. Out: the directory on a shared mount. A runtime refuses a container with
//! `mountPropagation: Bidirectional` where the source's mount is private, and mounts that appear later do not reach
//! containers with `HostToContainer`. Invariant: no mount is hidden, so a pod that runs keeps its volumes.
//! Upstream: MakeRShared in pkg/volume/util/hostutil; mount_namespaces(7).

use std::fs;
use std::path::Path;

use agent_volumes::mount_table::{self, Sharing};
use nix::mount::{MsFlags, mount};

use super::{DIR_MODE, mounts};
use crate::files::{self, FilesError};

/// Makes the directory if it is not there, and brings it onto a shared mount. What was found is the answer: with
/// [`Sharing::Held`] nothing was done.
///
/// # Errors
/// The step that failed.
pub fn share(root: &Path) -> Result<Sharing, FilesError> {
    files::make_dir(root, DIR_MODE)?;
    // The mount table has no links.
    let place = fs::canonicalize(root).map_err(FilesError::at("resolve", root))?;
    let found = mount_table::sharing(&mounts()?, &place.to_string_lossy());
    if found == Sharing::Bind {
        // An agent that was killed between the two calls leaves a private mount. The next one mounts over it.
        mount(Some(&place), &place, None::<&str>, MsFlags::MS_BIND, None::<&str>)
            .map_err(|e| FilesError::at("bind mount", &place)(e.into()))?;
        let flags = MsFlags::MS_SHARED | MsFlags::MS_REC;
        mount(None::<&str>, &place, None::<&str>, flags, None::<&str>)
            .map_err(|e| FilesError::at("make a shared mount of", &place)(e.into()))?;
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use nix::mount::{MntFlags, umount2};
    use nix::sched::{CloneFlags, unshare};

    use super::*;

    /// Runs in a mount namespace of its own, where nothing is shared; `false` where a test may not make one.
    fn alone(deed: impl FnOnce(&Path) + Send) -> bool {
        let none = None::<&str>;
        std::thread::scope(|scope| {
            let run = scope.spawn(|| {
                let made = unshare(CloneFlags::CLONE_NEWNS)
                    .and_then(|()| mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none));
                if let Err(error) = made {
                    eprintln!("not tested: no mount namespace for tests: {error}");
                    return false;
                }
                let place = tempfile::tempdir().unwrap();
                deed(place.path());
                true
            });
            run.join().unwrap()
        })
    }

    fn found(root: &Path) -> Sharing {
        mount_table::sharing(&mounts().unwrap(), &root.to_string_lossy())
    }

    fn tmpfs(at: &Path) {
        fs::create_dir_all(at).unwrap();
        mount(Some("tmpfs"), at, Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
    }

    #[test]
    fn a_directory_on_a_private_mount_becomes_a_shared_one_once() {
        alone(|place| {
            let (root, link) = (place.join("kubelet"), place.join("link"));
            std::os::unix::fs::symlink(&root, &link).unwrap();
            fs::create_dir(&root).unwrap();
            fs::write(root.join("kept"), "").unwrap();
            assert_eq!(share(&link).unwrap(), Sharing::Bind);
            assert_eq!((found(&root), root.join("kept").exists()), (Sharing::Shared, true));
            tmpfs(&root.join("pods/u/volumes/v"));
            // The next agent.
            assert_eq!(share(&root).unwrap(), Sharing::Shared);
            let at = mounts().unwrap().into_iter().filter(|m| Path::new(&m.path) == root).count();
            assert_eq!(at, 1);
            umount2(&root.join("pods/u/volumes/v"), MntFlags::MNT_DETACH).unwrap();
            umount2(&root, MntFlags::MNT_DETACH).unwrap();
        });
    }

    #[test]
    fn no_mount_of_a_pod_that_runs_is_hidden() {
        alone(|place| {
            let volume = place.join("kubelet/pods/u/volumes/v");
            tmpfs(&volume);
            fs::write(volume.join("f"), "").unwrap();
            assert_eq!(share(&place.join("kubelet")).unwrap(), Sharing::Held(1));
            assert!(volume.join("f").exists());
            umount2(&volume, MntFlags::MNT_DETACH).unwrap();
            assert_eq!(share(&place.join("kubelet")).unwrap(), Sharing::Bind);
            umount2(&place.join("kubelet"), MntFlags::MNT_DETACH).unwrap();
        });
    }
}
